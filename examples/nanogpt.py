"""Trains a small GPT with FSDP2, tensor and pipeline parallelism, saves checkpoints in the background, and continues.

    torchrun --nproc-per-node 4 examples/nanogpt.py --tp 2 --pp 2 --steps 20 --save-every 10 --folder /lustre/run
    torchrun --nproc-per-node 2 examples/nanogpt.py --tp 1 --pp 1 --steps 30 --load /lustre/run/step-20

The second command loads what the first one saved, although it has other ranks in another layout, and the losses go on
as if the training had not stopped. It runs on CPUs (gloo) and on GPUs (NCCL). `pip install .` installs ckptbench."""
import argparse

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.pipelining import PipelineStage, ScheduleGPipe
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

import ckptbench.checkpoint as checkpoint

HEADS, WIDTH, TOKENS, VOCABULARY = 4, 64, 32, 65


class Block(nn.Module):
    def __init__(self):
        super().__init__()
        self.before_attention, self.before_mlp = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.query, self.key, self.value, self.project = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.widen, self.narrow = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, hidden):
        normal = self.before_attention(hidden)
        # With tensor parallelism, each rank has some of the heads.
        heads = [part(normal).unflatten(-1, (-1, WIDTH // HEADS)).transpose(1, 2) for part in (self.query, self.key, self.value)]
        mixed = functional.scaled_dot_product_attention(*heads, is_causal=True)
        hidden = hidden + self.project(mixed.transpose(1, 2).flatten(-2))
        return hidden + self.narrow(functional.gelu(self.widen(self.before_mlp(hidden))))


class GPT(nn.Module):
    """One stage of a pipeline. Its parameters have the names that they have in the whole model."""

    def __init__(self, layers, stage, stages):
        super().__init__()
        self.tokens, self.positions = nn.Embedding(VOCABULARY, WIDTH), nn.Embedding(TOKENS, WIDTH)
        self.blocks = nn.ModuleDict({str(layer): Block() for layer in range(layers)})
        self.normal, self.head = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, VOCABULARY, bias=False)
        # All stages draw the same random numbers, and keep what is theirs.
        if stage > 0:
            self.tokens = self.positions = None
        if stage < stages - 1:
            self.normal = self.head = None
        for layer in range(layers):
            if layer * stages // layers != stage:
                del self.blocks[str(layer)]

    def forward(self, hidden):
        if self.tokens:
            hidden = self.tokens(hidden) + self.positions.weight
        for block in self.blocks.values():
            hidden = block(hidden)
        return self.head(self.normal(hidden)) if self.head else hidden


def parallelize(model, mesh):
    """Heads and columns over "tp", then every block and the rest over "dp"."""
    columns, rows = ColwiseParallel(), RowwiseParallel()
    for block in model.blocks.values():
        if mesh["tp"].size() > 1:
            parallelize_module(block, mesh["tp"], {"query": columns, "key": columns, "value": columns, "project": rows,
                                                   "widen": columns, "narrow": rows})
        fully_shard(block, mesh=mesh["dp"])
    fully_shard(model, mesh=mesh["dp"])


def batch(step, sequences, mesh, device):
    """This rank's sequences of a step, the same text whatever the layout: sums of a random walk."""
    generator = torch.Generator().manual_seed(step)
    text = torch.randint(0, 3, (sequences, TOKENS + 1), generator=generator).cumsum(1) % VOCABULARY
    return text.chunk(mesh["dp"].size())[mesh["dp"].get_local_rank()].to(device)


def cross_entropy(logits, targets):
    return functional.cross_entropy(logits.flatten(0, 1), targets.flatten())


def train_step(schedule, optimizer, text, mesh):
    """The mean loss of the batch, on the ranks of the last stage; elsewhere None."""
    optimizer.zero_grad()
    losses = []
    inputs = (text[:, :-1],) if mesh["pp"].get_local_rank() == 0 else ()
    is_last = mesh["pp"].get_local_rank() == mesh["pp"].size() - 1
    schedule.step(*inputs, target=text[:, 1:] if is_last else None, losses=losses)
    optimizer.step()
    if not is_last:
        return None
    loss = torch.stack(losses).mean().detach()
    dist.all_reduce(loss, group=mesh["dp"].get_group())
    return loss.item() / mesh["dp"].size()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--tp", type=int, default=1, help="ranks that share each layer")
    parser.add_argument("--pp", type=int, default=1, help="stages, each with some of the layers; other ranks are data parallel")
    parser.add_argument("--layers", type=int, default=2)
    parser.add_argument("--sequences", type=int, default=8, help="in a batch of all ranks")
    parser.add_argument("--steps", type=int, default=20, help="the last step")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    parser.add_argument("--folder", help="where checkpoints go: a folder, or s3://BUCKET/PREFIX")
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--load", help="a checkpoint to continue from")
    words = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
    if device == "cuda":
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    layout = (words.pp, dist.get_world_size() // words.tp // words.pp, words.tp)
    mesh = init_device_mesh(device, layout, mesh_dim_names=("pp", "dp", "tp"))
    stage = mesh["pp"].get_local_rank()
    torch.manual_seed(1)
    model = GPT(words.layers, stage, words.pp).to(device, getattr(torch, words.dtype))
    parallelize(model, mesh)
    schedule = ScheduleGPipe(PipelineStage(model, stage, words.pp, torch.device(device), group=mesh["pp"].get_group()),
                             n_microbatches=words.pp, loss_fn=cross_entropy)
    # Some parameters are on both dimensions of the mesh and some on one, which foreach=True does not mix.
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3, foreach=False)

    state = {"model": model, "optimizer": optimizer, "step": 0}
    if words.load:
        checkpoint.load(words.load, state)
    for step in range(state["step"] + 1, words.steps + 1):
        loss = train_step(schedule, optimizer, batch(step, words.sequences, mesh, device), mesh)
        if dist.get_rank() == dist.get_world_size() - 1:  # of the last stage
            print(f"step {step} loss {loss:.12f}", flush=True)
        state["step"] = step
        if words.folder and step % words.save_every == 0:
            # Each stage has an optimizer of its own: flat, their groups of parameters have different names.
            checkpoint.save(f"{words.folder}/step-{step}", state, async_checkpoint=True, flatten_optimizer=True)
    checkpoint.close()  # waits for the last save, and raises if it failed
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
