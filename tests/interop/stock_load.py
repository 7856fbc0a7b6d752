"""Loads a checkpoint with stock torch.distributed.checkpoint and prints a digest of every value.

usage: RANK=r WORLD_SIZE=n MASTER_ADDR=… MASTER_PORT=… stock_load.py CHECKPOINT
Every tensor is wanted as DTensor, split over its first dimension, so that with several ranks each reads
its own part, across whatever boxes were stored. Rank 0 prints {fqn: sha256}.
"""
import hashlib
import json
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import TensorStorageMetadata
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard, zeros


def main():
    dist.init_process_group("gloo")
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    reader = dcp.FileSystemReader(sys.argv[1])
    state = {}
    for fqn, there in reader.read_metadata().state_dict_metadata.items():
        if isinstance(there, TensorStorageMetadata):
            placement = [Shard(0) if there.size and there.size[0] > 1 else Replicate()]
            state[fqn] = zeros(there.size, dtype=there.properties.dtype, device_mesh=mesh, placements=placement)
        else:
            state[fqn] = None
    dcp.load(state, storage_reader=reader)
    digests = {}
    for fqn, value in state.items():
        if hasattr(value, "full_tensor"):
            value = value.full_tensor().contiguous().view(torch.uint8).numpy().tobytes()
        else:
            value = repr(value).encode()
        digests[fqn] = hashlib.sha256(value).hexdigest()
    if dist.get_rank() == 0:
        print(json.dumps(digests))
    dist.destroy_process_group()


if __name__ == "__main__":
    main()
