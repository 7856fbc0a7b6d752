"""Loads a checkpoint with stock torch.distributed.checkpoint at N ranks, each rank a shard of every tensor by
rows, and compares with values computed here. usage: load_ranks.py RANKS SEED FOLDER…"""
import os
import pickle
import sys
import tempfile

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, distribute_tensor

sys.path.insert(0, os.path.dirname(os.path.abspath(__file__)))
from payload import weights  # noqa: E402


def place(state, path, value):
    for key in path[:-1]:
        state = state.setdefault(key, {})
    state[path[-1]] = value


def check(folder, mesh, rank, ranks, seed):
    with open(f"{folder}/.metadata", "rb") as file:
        metadata = pickle.load(file)
    state, tensors = {}, {}
    for fqn, stored in metadata.state_dict_metadata.items():
        if hasattr(stored, "size"):
            # Dimension 0 over the ranks for most, dimension 1 for every third: other cuts than any that was saved.
            dim = 1 if len(stored.size) > 1 and len(tensors) % 3 == 0 else 0
            zeros = torch.zeros(stored.size, dtype=stored.properties.dtype)
            tensors[fqn] = distribute_tensor(zeros, mesh, [Shard(dim)] if ranks > 1 else [Replicate()])
            place(state, metadata.planner_data[fqn], tensors[fqn])
        else:
            place(state, metadata.planner_data[fqn], None)
    dcp.load(state, checkpoint_id=folder)
    for fqn, tensor in tensors.items():
        expected = weights(fqn, tensor.dtype, tensor.shape, seed)
        local = distribute_tensor(expected, mesh, tensor.placements).to_local()
        assert torch.equal(tensor.to_local(), local), fqn
    assert "train" not in state or state["train"]["seed"] == seed, state["train"]
    if rank == 0:
        print(f"{folder}: {len(tensors)} tensors are right at {ranks} ranks")


def rank_main(rank, folders, ranks, seed, rendezvous):
    torch.set_num_threads(1)
    dist.init_process_group("gloo", init_method=f"file://{rendezvous}", rank=rank, world_size=ranks)
    mesh = init_device_mesh("cpu", (ranks,))
    for folder in folders:
        check(folder, mesh, rank, ranks, seed)
    dist.destroy_process_group()


if __name__ == "__main__":
    with tempfile.TemporaryDirectory() as scratch:
        ranks = int(sys.argv[1])
        mp.spawn(rank_main, (sys.argv[3:], ranks, int(sys.argv[2]), f"{scratch}/rendezvous"), nprocs=ranks)
