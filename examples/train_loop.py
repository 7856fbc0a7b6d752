"""A training loop like torchtitan's: FSDP2, a data loader with a position, a schedule of the learning rate, restarts.

    torchrun --nproc-per-node 2 examples/train_loop.py --folder /lustre/run --steps 100 --save-every 10

The same command, also with other ranks, continues from the newest checkpoint in the folder. `pip install .`
installs ckptbench."""
import argparse
import shutil
from pathlib import Path

import torch
import torch.distributed as dist
import torch.nn.functional as functional
from torch import nn
from torch.distributed.fsdp import fully_shard

import ckptbench.checkpoint as checkpoint

WIDTH, TOKENS, VOCABULARY = 64, 32, 65


class Data:
    """Batches of text. The position counts the sequences of all ranks, so other ranks continue from it as well."""

    def __init__(self, sequences):
        self.sequences, self.position = sequences, 0

    def next(self):
        """This rank's sequences of the next batch: sums of a random walk."""
        generator = torch.Generator().manual_seed(self.position)
        text = torch.randint(0, 3, (self.sequences, TOKENS + 1), generator=generator).cumsum(1) % VOCABULARY
        self.position += self.sequences
        return text.chunk(dist.get_world_size())[dist.get_rank()]

    def state_dict(self):
        return {"position": self.position}

    def load_state_dict(self, state):
        self.position = state["position"]


def build_model():
    torch.manual_seed(1)
    layers = [nn.Sequential(nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
              for _ in range(4)]
    return nn.Sequential(nn.Embedding(VOCABULARY, WIDTH), *layers, nn.Linear(WIDTH, VOCABULARY))


def train_step(model, optimizer, scheduler, text):
    optimizer.zero_grad()
    loss = functional.cross_entropy(model(text[:, :-1]).flatten(0, 1), text[:, 1:].flatten())
    loss.backward()
    optimizer.step()
    scheduler.step()
    loss = loss.detach()
    dist.all_reduce(loss)
    return loss.item() / dist.get_world_size()


def complete_checkpoints(folder):
    """Folders step-N with their .metadata, which is written last; the oldest first. The same on all ranks."""
    found = [sorted((path.parent for path in Path(folder).glob("step-*/.metadata")), key=lambda path: int(path.name[5:]))]
    dist.broadcast_object_list(found, 0)  # of a shared folder, another rank may not see the newest yet
    return found[0]


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--folder", required=True)
    parser.add_argument("--steps", type=int, default=100, help="the last step")
    parser.add_argument("--save-every", type=int, default=10)
    parser.add_argument("--keep", type=int, default=2, help="checkpoints to keep beside the one that is being written")
    parser.add_argument("--sequences", type=int, default=8, help="in a batch of all ranks")
    parser.add_argument("--dtype", default="float32", choices=["float32", "float64"])
    words = parser.parse_args()

    device = "cuda" if torch.cuda.is_available() else "cpu"
    dist.init_process_group("cpu:gloo,cuda:nccl" if device == "cuda" else "gloo")
    if device == "cuda":
        torch.cuda.set_device(dist.get_rank() % torch.cuda.device_count())
    model = build_model().to(device, getattr(torch, words.dtype))
    for layer in model:
        fully_shard(layer)
    fully_shard(model)
    optimizer = torch.optim.AdamW(model.parameters(), lr=1e-3)
    scheduler = torch.optim.lr_scheduler.LinearLR(optimizer, start_factor=0.1, total_iters=5)
    data = Data(words.sequences)

    state = {"model": model, "optimizer": optimizer, "lr_scheduler": scheduler, "data": data, "step": 0}
    if newest := complete_checkpoints(words.folder)[-1:]:
        checkpoint.load(newest[0], state, broadcast_checkpoint=True)
    for step in range(state["step"] + 1, words.steps + 1):
        loss = train_step(model, optimizer, scheduler, data.next().to(device))
        if dist.get_rank() == 0:
            print(f"step {step} loss {loss:.12f}", flush=True)
        state["step"] = step
        if step % words.save_every == 0:
            # It waits for the save before it. What a killed training left of this step is replaced.
            checkpoint.save(f"{words.folder}/step-{step}", state, async_checkpoint=True)
            older = [path for path in complete_checkpoints(words.folder) if path.name != f"step-{step}"]
            if dist.get_rank() == 0:
                for path in older[:-words.keep]:
                    shutil.rmtree(path)
    checkpoint.close()  # waits for the last save, and raises if it failed
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
