"""Writes the small checkpoints under tests/data/dcp-VERSION with whatever PyTorch runs it (2.2 and later).

usage: write_dcp.py FOLDER
FOLDER/nested has one process' nested state of every kind that the version knows; FOLDER/sharded is two ranks'
DTensors, uneven over both. The values are functions of the shape alone, so that tests can compute them.
"""
import datetime
import io
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp

TYPES = ["float64", "float32", "float16", "bfloat16", "int64", "int32", "int16", "int8", "uint8", "bool", "complex64",
         "float8_e4m3fn", "float8_e5m2", "uint16", "uint32", "uint64"]


def tensors():
    """Every type that this version can save: 0 … 11 as a matrix of 3 x 4 (bool: odd or even)."""
    made = {}
    for name in TYPES:
        try:
            tensor = torch.arange(12).reshape(3, 4).remainder(2 if name == "bool" else 100).to(getattr(torch, name))
            torch.save(tensor, io.BytesIO())
            made[name] = tensor
        except (AttributeError, KeyError, RuntimeError, TypeError):
            print("not in this version:", name)
    return made


def nested():
    return {
        "model": {
            "types": tensors(),
            "transposed": torch.arange(6.0).reshape(2, 3).t(),
            "view": torch.arange(20.0)[5:15],
            "scalar": torch.tensor(1.5),
            "empty": torch.empty(0, 3),
        },
        "optimizer": {"param_groups": [{"lr": 0.1, "betas": (0.9, 0.95), "foreach": None}], "state": {"0": {"step": torch.tensor(7.0)}}},
        "train": {"step": 3, "name": "x'y", "done": False},
    }


def save(state, folder, **writer):
    try:
        dcp.save(state, storage_writer=dcp.FileSystemWriter(folder, **writer))
    except TypeError:
        dcp.save_state_dict(state, storage_writer=dcp.FileSystemWriter(folder, **writer), no_dist=not dist.is_initialized())


def join(rank, ranks, rendezvous):
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks,
                            timeout=datetime.timedelta(seconds=60))


def alone(rank, folder, rendezvous):
    join(rank, 1, rendezvous)  # the first versions save in a group only
    save(nested(), folder)
    dist.destroy_process_group()


def rank_main(rank, folder, rendezvous):
    join(rank, 2, rendezvous)
    try:
        from torch.distributed.tensor import Replicate, Shard, distribute_tensor
    except ImportError:
        from torch.distributed._tensor import Replicate, Shard, distribute_tensor
    from torch.distributed.device_mesh import init_device_mesh

    mesh = init_device_mesh("cpu", (2,))
    whole = torch.arange(35.0).reshape(7, 5)
    state = {
        "rows": distribute_tensor(whole, mesh, [Shard(0)]),
        "columns": distribute_tensor(whole.to(torch.bfloat16), mesh, [Shard(1)]),
        "replicated": distribute_tensor(whole.to(torch.int64), mesh, [Replicate()]),
        "step": 11,
    }
    if not torch.__version__.startswith("2.2."):  # which refuses fewer rows than ranks
        state["one_row"] = distribute_tensor(torch.arange(3.0).reshape(1, 3), mesh, [Shard(0)])
    save(state, folder, thread_count=2)
    dist.barrier()
    dist.destroy_process_group()


def main():
    folder = sys.argv[1]
    print(torch.__version__)
    os.makedirs(folder)
    with tempfile.TemporaryDirectory() as scratch:
        mp.start_processes(alone, (f"{folder}/nested", f"{scratch}/one"), nprocs=1, start_method="fork")
        mp.start_processes(rank_main, (f"{folder}/sharded", f"{scratch}/rendezvous"), nprocs=2, start_method="fork")


if __name__ == "__main__":
    main()
