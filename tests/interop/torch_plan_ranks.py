"""Compares the package's regions of a state with the write items of PyTorch's own planner, and with the real elements.

usage: torch_plan_ranks.py RANKS, on a machine with a built library or without. Prints a JSON object: case -> "ok" or what differs."""
import datetime
import itertools
import json
import os
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.multiprocessing as mp
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.planner import WriteItemType

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "python")]
import torch_states  # noqa: E402
from ckptbench import _state  # noqa: E402


def planned(state):
    """{name: (kind, offsets, sizes)} as DefaultSavePlanner has them, without empty items."""
    planner = DefaultSavePlanner()
    planner.set_up_planner(state, is_coordinator=dist.get_rank() == 0)
    plan, items = planner.create_local_plan(), set()
    for item in plan.items:
        if item.type == WriteItemType.BYTE_IO:
            items.add((item.index.fqn, "value"))
            continue
        chunk, size = item.tensor_data.chunk, item.tensor_data.size
        if chunk.sizes.numel() == 0:  # empty parts are left out, but not empty tensors
            items |= {(item.index.fqn, tuple(size))} if size.numel() == 0 else set()
        else:
            items.add((item.index.fqn, str(item.tensor_data.properties.dtype), tuple(size), tuple(chunk.offsets), tuple(chunk.sizes)))
    return items, plan.planner_data


def described(state):
    flat, paths = _state.flatten(state)
    tensors, values = _state.split(flat)
    items = {(name, "value") for name in values}
    for tensor in tensors:
        if 0 in tensor.shape:
            items.add((tensor.name, tensor.shape))
            continue
        for region in tensor.regions:
            if region.memory.numel() == 0:
                continue
            items.add((tensor.name, str(tensor.dtype), tensor.shape, region.offsets, tuple(region.memory.shape)))
    return items, paths


def elements(state):
    """What the regions of all ranks say about each tensor must be its values; every element must be there."""
    flat, _ = _state.flatten(state)
    parts = [(tensor.name, region.offsets, torch_states.raw(region.memory)) for tensor in _state.split(flat)[0]
             for region in tensor.regions]
    everyone = torch_states.gather(parts)
    for name, value in torch_states.tensors().items():
        value = torch_states.raw(value)
        whole, seen = torch.zeros_like(value), torch.zeros(value.shape, dtype=torch.bool)
        for part, offsets, memory in itertools.chain(*everyone):
            if part == f"model.{name}":
                box = tuple(slice(start, start + size) for start, size in zip(offsets, memory.shape))
                whole[box], seen[box] = memory, True
        if not seen.all() or not torch.equal(whole, value):
            return f"{name}: the regions of the ranks do not make up the tensor"
    return "ok"


def compare(state, layout):
    ours, paths = described(state)
    theirs, their_paths = planned(state)
    if paths != their_paths:
        return "paths differ"
    if layout != "runs" and ours != theirs:  # PyTorch describes rows that are apart as one box, which is wrong
        return f"ours {sorted(map(str, ours - theirs))[:3]}, planner's {sorted(map(str, theirs - ours))[:3]}"
    return elements(state)


def rank_main(rank, ranks, rendezvous, report):
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks,
                            timeout=datetime.timedelta(seconds=200))
    torch.set_num_threads(1)
    meshes, found = torch_states.Meshes(ranks), {}
    for layout in torch_states.LAYOUTS:
        found[layout] = max(torch_states.gather(compare(torch_states.state(meshes, layout), layout)), key=lambda text: text != "ok")
    if rank == 0:
        with open(report, "w") as file:
            json.dump(found, file)
    torch_states.leave()


def main():
    ranks = int(sys.argv[1])
    with tempfile.TemporaryDirectory() as scratch:
        report = os.path.join(scratch, "report")
        mp.start_processes(rank_main, (ranks, os.path.join(scratch, "rendezvous"), report), nprocs=ranks, start_method="fork")
        print(open(report).read())


if __name__ == "__main__":
    main()
