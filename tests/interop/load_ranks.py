"""Loads checkpoints with stock torch.distributed.checkpoint and compares with values computed here.

usage: load_ranks.py SEED RANKS,… FOLDER…
For each number of ranks there is one process group, which loads all folders in turn, each rank a part of
every tensor by other cuts than any that was saved. Each rank prints a line of JSON a folder:
{"ranks", "rank", "folder", "tensors", "objects", "error"}.
"""
import datetime
import functools
import json
import os
import pickle
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, zeros

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from payload import weights  # noqa: E402

expected = functools.cache(weights)


def read_metadata(folder):
    with open(f"{folder}/.metadata", "rb") as file:
        return pickle.load(file)


def place(state, path, value):
    for key in path[:-1]:
        state = state.setdefault(key, {})
    state[path[-1]] = value


def find(state, path):
    return functools.reduce(lambda part, key: part[key], path, state)


def own_part(tensor, dim, rank, ranks):
    parts = torch.chunk(tensor, ranks, dim)
    return parts[rank] if rank < len(parts) else tensor.narrow(dim, 0, 0)


def load(folder, mesh, rank, ranks, seed):
    metadata = read_metadata(folder)
    state, cuts, objects = {}, {}, {}
    for fqn, stored in metadata.state_dict_metadata.items():
        path, wanted = metadata.planner_data[fqn], None
        if hasattr(stored, "size"):
            # Dimension 0 over the ranks for most, dimension 1 for every third.
            cuts[fqn] = 1 if len(stored.size) > 1 and len(cuts) % 3 == 0 else 0
            wanted = torch.zeros(stored.size, dtype=stored.properties.dtype)
            if ranks > 1:
                wanted = zeros(stored.size, dtype=wanted.dtype, device_mesh=mesh, placements=[Shard(cuts[fqn])])
        place(state, path, wanted)
    dcp.load(state, checkpoint_id=folder)
    for fqn, stored in metadata.state_dict_metadata.items():
        loaded = find(state, metadata.planner_data[fqn])
        if fqn not in cuts:
            objects[fqn] = loaded
            continue
        right = expected(fqn, loaded.dtype, stored.size, seed)
        if ranks > 1:
            loaded, right = loaded.to_local(), own_part(right, cuts[fqn], rank, ranks)
        assert loaded.shape == right.shape and torch.equal(loaded, right), f"{fqn} is not what was saved"
    return len(cuts), objects


def rank_main(rank, folders, ranks, seed, rendezvous):
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks,
                            timeout=datetime.timedelta(seconds=200))
    mesh = init_device_mesh("cpu", (ranks,))
    for folder in folders:
        answer = {"ranks": ranks, "rank": rank, "folder": folder, "tensors": 0, "objects": {}, "error": None}
        try:
            answer["tensors"], answer["objects"] = load(folder, mesh, rank, ranks, seed)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as failure:  # DCP's CheckpointException is no Exception
            answer["error"] = f"{type(failure).__name__}: {failure}"[:1500]
        os.write(1, (json.dumps(answer) + "\n").encode())  # one call: lines of ranks do not mix
    dist.destroy_process_group()


def main():
    seed, worlds, folders = int(sys.argv[1]), sys.argv[2].split(","), sys.argv[3:]
    torch.set_num_threads(1)
    for folder in folders:  # before the ranks are forked: computed once, shared by all
        for fqn, stored in read_metadata(folder).state_dict_metadata.items():
            if hasattr(stored, "size"):
                expected(fqn, stored.properties.dtype, stored.size, seed)
    for ranks in map(int, worlds):
        with tempfile.TemporaryDirectory() as scratch:
            arguments = (folders, ranks, seed, f"{scratch}/rendezvous")
            mp.start_processes(rank_main, arguments, nprocs=ranks, start_method="fork")


if __name__ == "__main__":
    main()
