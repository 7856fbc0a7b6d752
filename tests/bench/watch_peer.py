"""A training of a few ranks that times its own saves, for bench_watch.py; it runs with and without `ckptbench watch`.

usage: torchrun … watch_peer.py FOLDER MIB SAVES   prints a JSON object: medians over the saves, of rank 0 and of all processes"""
import json
import os
import shutil
import statistics
import sys
import threading
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.tensor import Shard, distribute_tensor, init_device_mesh

PIECES = 64  # tensors


def train(model, optimizer, steps):
    times = []
    for _ in range(steps):
        begin = time.monotonic()
        optimizer.zero_grad()
        model(torch.ones(256, 512)).sum().backward()
        optimizer.step()
        times.append(time.monotonic() - begin)
    return times


def main(folder, mib, saves):
    dist.init_process_group("gloo")
    rank, world = dist.get_rank(), dist.get_world_size()
    mesh = init_device_mesh("cpu", (world,))
    rows = int(mib) * world * (1 << 20) // 4 // 1024 // PIECES
    state = {f"weight-{piece}": distribute_tensor(torch.rand(rows, 1024), mesh, [Shard(0)]) for piece in range(PIECES)}
    model = torch.nn.Sequential(*(torch.nn.Linear(512, 512) for _ in range(4)))
    optimizer = torch.optim.Adam(model.parameters())
    wall, cpu, alone, behind = [], [], [], []
    for number in range(int(saves) + 1):  # the first one warms up
        alone += train(model, optimizer, 20)
        dist.barrier()
        begin, begin_cpu = time.monotonic(), time.process_time()
        dcp.save(state, checkpoint_id=f"{folder}/{number}")
        wall.append(time.monotonic() - begin)
        cpu.append(time.process_time() - begin_cpu)
        result = dcp.async_save(state, checkpoint_id=f"{folder}/{number}-behind")
        while not result.done():
            behind += train(model, optimizer, 1)
        result.result()
        dist.barrier()
        if rank == 0:
            shutil.rmtree(folder)
        dist.barrier()
    total = torch.tensor([statistics.median(cpu[1:])])
    dist.all_reduce(total)
    if rank == 0:
        print(json.dumps({"save_s": statistics.median(wall[1:]), "cpu_s": float(total), "step_s": statistics.median(alone),
                          "step_behind_s": statistics.median(behind)}), flush=True)
    dist.destroy_process_group()
    threading._shutdown()
    sys.stdout.flush()
    os._exit(0)  # PyTorch now and then aborts when it destroys the threads of a group


if __name__ == "__main__":
    main(*sys.argv[1:])
