"""The peer: PyTorch DCP saves and loads evenly row-sharded bf16 tensors of 64 MiB a rank.

usage: torchrun --nproc-per-node N dcp_peer.py FOLDER GIB_PER_RANK ITERATIONS SYNC(0|1) COLD(0|1)
Prints one JSON line an iteration: save_s, load_s and CPU seconds of all ranks for each.
The first iteration warms allocator and page tables up and is left to the caller to drop.
"""
import json
import os
import resource
import shutil
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Shard


def cpu_seconds():
    usage = resource.getrusage(resource.RUSAGE_SELF)
    total = torch.tensor([usage.ru_utime + usage.ru_stime], dtype=torch.float64)
    dist.all_reduce(total)
    return float(total)


def drop_cache(folder):
    for root, _, files in os.walk(folder):
        for name in files:
            descriptor = os.open(os.path.join(root, name), os.O_RDONLY)
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
            os.close(descriptor)


def timed(action):
    before = cpu_seconds()
    dist.barrier()
    start = time.monotonic()
    action()
    dist.barrier()
    return time.monotonic() - start, cpu_seconds() - before


def main():
    folder, gib, iterations, sync, cold = sys.argv[1], float(sys.argv[2]), int(sys.argv[3]), sys.argv[4] == "1", sys.argv[5] == "1"
    dist.init_process_group("cpu:gloo")
    rank, size = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (size,))
    state = {f"layers.{i}.w": DTensor.from_local(torch.randn(8192, 1024).to(torch.bfloat16).repeat(1, 4), mesh, [Shard(0)])
             for i in range(int(gib * 1024 / 64))}
    for _ in range(iterations):
        if rank == 0:
            shutil.rmtree(folder, ignore_errors=True)
            os.makedirs(folder)
        save_s, save_cpu = timed(lambda: dcp.save(state, storage_writer=dcp.FileSystemWriter(folder, sync_files=sync)))
        if cold and rank == 0:
            drop_cache(folder)
        load_s, load_cpu = timed(lambda: dcp.load(state, storage_reader=dcp.FileSystemReader(folder)))
        if rank == 0:
            print(json.dumps({"save_s": save_s, "load_s": load_s, "save_cpu_s": save_cpu, "load_cpu_s": load_cpu,
                              "gib": gib * size}), flush=True)
    if rank == 0:
        shutil.rmtree(folder, ignore_errors=True)
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
