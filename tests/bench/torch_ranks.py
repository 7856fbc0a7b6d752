"""One rank of bench_torch.py: PyTorch's torch.distributed.checkpoint (DCP) and ckptbench.checkpoint, on one state.

usage: torch_ranks.py layers|many SIZE     as rank RANK of WORLD_SIZE, met at MASTER_ADDR and MASTER_PORT
`layers`: an FSDP2 model with Adam's moments of about SIZE MiB a rank; `many`: SIZE small sharded tensors. A line of
JSON on stdin names a method of Rank and its arguments; the answer on stdout has its seconds, CPU seconds and results.
"""
import inspect
import json
import os
import resource
import sys
import time
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict import get_model_state_dict, get_optimizer_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Shard

import s3_peers

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "python"))
import ckptbench.checkpoint as checkpoint  # noqa: E402

MIB = 2**20
TOKENS = 64  # of a step of the training beside saves


def layers(mesh, mib):
    """The state dicts of a model of square fp32 layers and of its Adam."""
    width = 2048 if mib >= 256 else 512
    model = torch.nn.Sequential(*(torch.nn.Linear(width, width, bias=False) for _ in range(max(1, round(mib * MIB / (6 * width**2))))))
    for layer in model:
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    optimizer = torch.optim.AdamW(model.parameters())
    for parameter in model.parameters():
        parameter.grad = torch.ones_like(parameter)
    optimizer.step()
    optimizer.zero_grad()
    return {"model": get_model_state_dict(model), "optimizer": get_optimizer_state_dict(model, optimizer)}


def many(mesh, count):
    return {"model": {f"layers.{i}.weight": DTensor.from_local(torch.full((4, 64), float(i)), mesh, [Shard(0)]) for i in range(count)}}


class Training:
    """A small FSDP2 model whose steps take a few milliseconds: what they lose beside a save is easily seen."""

    def __init__(self, mesh):
        self.model = torch.nn.Sequential(*(torch.nn.Sequential(torch.nn.Linear(256, 256), torch.nn.GELU()) for _ in range(4)))
        for block in self.model:
            fully_shard(block, mesh=mesh)
        fully_shard(self.model, mesh=mesh)
        self.optimizer = torch.optim.AdamW(self.model.parameters())
        self.words = torch.randn(TOKENS, 256)

    def step(self, has_ended):
        """One step; whether has_ended() is true on all ranks."""
        self.model(self.words).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()
        flag = torch.tensor([float(has_ended())])
        dist.all_reduce(flag, dist.ReduceOp.MIN)
        return bool(flag)


def leaves(state):
    for value in state.values():
        if isinstance(value, dict):
            yield from leaves(value)
        elif torch.is_tensor(value):
            yield getattr(value, "_local_tensor", value)


def cpu_s():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    return usage.ru_utime + usage.ru_stime


def planner():
    kind = dcp.DefaultSavePlanner
    return kind(enable_plan_caching=True) if "enable_plan_caching" in inspect.signature(kind).parameters else kind()


def connector(kind, path, **options):
    from s3torchconnector import S3ClientConfig
    from s3torchconnector import dcp as library

    s3_peers.accept_empty_etags()
    return getattr(library, kind)(region="us-east-1", path=path, s3client_config=S3ClientConfig(force_path_style=True), **options)


class Rank:
    def __init__(self, kind, size):
        dist.init_process_group("cpu:gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
        torch.set_num_threads(1)
        self.mesh = init_device_mesh("cpu", (dist.get_world_size(),))
        self.behind = dist.new_group(backend="gloo")  # of PyTorch's saves behind the training
        self.state = {"layers": layers, "many": many}[kind](self.mesh, size)
        self.threads, self.stager, self.copies, self.training = 1, None, None, None

    def describe(self):
        return {"bytes": sum(tensor.numel() * tensor.element_size() for tensor in leaves(self.state)), "torch": torch.__version__}

    def use_threads(self, count):
        self.threads = count

    def writer(self, path):
        return dcp.FileSystemWriter(path, thread_count=self.threads)

    def save(self, how, path, **options):
        if how == "ours":
            return dict(checkpoint.save(path, self.state, **options).result())
        writer = {"dcp": self.writer, "writer": lambda path: checkpoint.Writer(path, **options),
                  "connector": lambda path: connector("S3StorageWriter", path, thread_count=self.threads)}[how](path)
        dcp.save(self.state, storage_writer=writer, planner=planner())

    def load(self, how, path, **options):
        if how == "ours":
            return dict(checkpoint.load(path, self.state, **options))
        reader = {"dcp": dcp.FileSystemReader, "reader": lambda path: checkpoint.Reader(path, **options),
                  "connector": lambda path: connector("S3StorageReader", path)}[how](path)
        dcp.load(self.state, storage_reader=reader)

    def begin(self, how, path):
        """Starts a save behind; returns (whether it has ended, a wait for its end)."""
        if how == "ours":
            save = checkpoint.save(path, self.state, async_checkpoint=True)
            return save.done, save.result
        options = {"planner": planner(), "process_group": self.behind}
        if how == "process":
            options["async_checkpointer_type"] = AsyncCheckpointerType.PROCESS
        if how == "stager":
            if self.stager is None:
                self.stager = DefaultStager(StagingOptions(False, False, False, False))
            options["async_stager"] = self.stager
        save = dcp.async_save(self.state, storage_writer=checkpoint.Writer(path) if how == "writer" else self.writer(path), **options)
        save = getattr(save, "upload_completion", save)
        return save.done, save.result

    def stall(self, how, path):
        start = time.monotonic()
        if how == "memcpy":
            tensors = list(leaves(self.state))
            if self.copies is None:
                self.copies = [torch.zeros_like(tensor) for tensor in tensors]
            for copy, tensor in zip(self.copies, tensors):
                copy.copy_(tensor)
            return {"stall_s": time.monotonic() - start}
        _, wait = self.begin(how, path)
        stall_s = time.monotonic() - start
        wait()
        return {"stall_s": stall_s}

    def train(self, how, path, steps):
        """Tokens a second of steps without a save, then of those between the start of a save and its end; and how much
        training time the save has cost: the time from its call to its end less what the steps would have taken alone."""
        if self.training is None:
            self.training = Training(self.mesh)
        start = time.monotonic()
        for _ in range(steps):
            self.training.step(lambda: False)
        alone_s = (time.monotonic() - start) / steps
        called = time.monotonic()
        has_ended, wait = self.begin(how, path)
        begun, done = time.monotonic(), 0
        while True:
            done += 1
            if self.training.step(has_ended):
                break
        ended = time.monotonic()
        wait()
        tokens = TOKENS * dist.get_world_size()
        return {"alone": tokens / alone_s, "beside": tokens * done / (ended - begun), "lost_s": ended - called - done * alone_s,
                "save_s": ended - called}

    def answer(self, method, **arguments):
        dist.barrier()
        before, start = cpu_s(), time.monotonic()
        found = getattr(self, method)(**arguments) or {}
        return {"seconds": time.monotonic() - start, "cpu_s": cpu_s() - before, **found}


def main():
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not get between the answers
    rank = Rank(sys.argv[1], int(sys.argv[2]))
    for line in sys.stdin:
        try:
            answer = rank.answer(**json.loads(line))
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as failure:  # DCP's CheckpointException is no Exception
            answer = {"error": f"{type(failure).__name__}: {failure}"}
        print(json.dumps(answer), file=answers, flush=True)
    checkpoint.close()
    answers.flush()
    os._exit(0)  # what a failed save of PyTorch has left must not hold up the end


if __name__ == "__main__":
    main()
