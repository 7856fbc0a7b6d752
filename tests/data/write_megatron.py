"""Writes the small checkpoint tests/data/megatron-VERSION/iter_0000100 by Megatron-Core's own dist_checkpointing, without a GPU.

usage: write_megatron.py FOLDER     as each of two processes with RANK, WORLD_SIZE=2, MASTER_ADDR and MASTER_PORT
"""
import argparse
import os
import sys

import torch
import torch.distributed as dist


def main(folder):
    from megatron.core import dist_checkpointing
    from megatron.core.dist_checkpointing import ShardedObject, ShardedTensor
    dist.init_process_group("gloo", rank=int(os.environ["RANK"]), world_size=int(os.environ["WORLD_SIZE"]))
    rank, world = dist.get_rank(), dist.get_world_size()
    weight = torch.arange(8 * 6, dtype=torch.float32).reshape(8, 6)
    embedding = torch.arange(16 * 4, dtype=torch.float32).to(torch.bfloat16).reshape(16, 4)
    state = {
        "model": {"decoder.weight": ShardedTensor.from_rank_offsets("model.decoder.weight", weight.chunk(world, 0)[rank].contiguous(), (0, rank, world)),
                  "embedding": ShardedTensor.from_rank_offsets("model.embedding", embedding.clone(), replica_id=rank)},
        "extra": ShardedObject("model.decoder._extra_state", {"amax": [1.0, 2.0]}, (world,), (rank,)),
        "iteration": 100, "args": argparse.Namespace(tensor_model_parallel_size=2, hidden=6), "checkpoint_version": 3.0}
    os.makedirs(folder, exist_ok=True)
    dist.barrier()
    dist_checkpointing.save(state, folder)
    dist.destroy_process_group()


if __name__ == "__main__":  # its writers are processes of their own, which import this file
    torch.cuda.synchronize = torch.cuda.empty_cache = lambda *ignored, **also: None
    torch.cuda.current_device = lambda: "cpu"
    main(sys.argv[1])
