"""Stock torch.distributed.checkpoint loads a checkpoint into other meshes and saves it again from there.

usage: reshard_ranks.py FOLDER OUT RANKS,…
For each number of ranks: rows over the ranks as FSDP has them (OUT-N-fsdp) and columns as tensor parallelism
has them (OUT-N-tp), with DTensor; every second matrix lies transposed in memory, so that what is saved has strides.
"""
import datetime
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from load_ranks import place, read_metadata  # noqa: E402


def strides_of(size):
    strides = [1] * len(size)
    for dim in range(len(size) - 2, -1, -1):
        strides[dim] = strides[dim + 1] * max(size[dim + 1], 1)
    return tuple(strides)


def empty_part(size, dtype, dim, rank, ranks, transposed):
    """This rank's part, as torch.chunk cuts it; bytes that no load leaves as they are."""
    step = -(-size[dim] // ranks)
    begin, end = min(rank * step, size[dim]), min((rank + 1) * step, size[dim])
    shape = list(size)
    shape[dim] = end - begin
    if transposed:
        return torch.zeros(shape[::-1], dtype=torch.uint8).to(dtype).t()
    return torch.zeros(shape, dtype=torch.uint8).to(dtype)


def make_state(metadata, mesh, rank, ranks, kind):
    state = {}
    for number, (fqn, stored) in enumerate(sorted(metadata.state_dict_metadata.items())):
        size, dtype = stored.size, stored.properties.dtype
        dim = len(size) - 1 if kind == "tp" else 0
        value = torch.zeros(size, dtype=torch.uint8).to(dtype)
        if len(size) > 0:
            local = empty_part(size, dtype, dim, rank, ranks, len(size) == 2 and number % 2 == 1)
            value = DTensor.from_local(local, mesh, [Shard(dim)], run_check=False, shape=size, stride=strides_of(size))
        place(state, metadata.planner_data[fqn], value)
    return state


def rank_main(rank, folder, out, ranks, rendezvous):
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks,
                            timeout=datetime.timedelta(seconds=200))
    mesh = init_device_mesh("cpu", (ranks,))
    metadata = read_metadata(folder)
    for kind in ("fsdp", "tp"):
        state = make_state(metadata, mesh, rank, ranks, kind)
        dcp.load(state, checkpoint_id=folder)
        dcp.save(state, checkpoint_id=f"{out}-{ranks}-{kind}")
    dist.destroy_process_group()


def main():
    folder, out, worlds = sys.argv[1], sys.argv[2], sys.argv[3].split(",")
    torch.set_num_threads(1)
    for ranks in map(int, worlds):
        with tempfile.TemporaryDirectory() as scratch:
            mp.start_processes(rank_main, (folder, out, ranks, f"{scratch}/rendezvous"), nprocs=ranks, start_method="fork")


if __name__ == "__main__":
    main()
