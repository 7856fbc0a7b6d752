"""The peer: how long PyTorch DCP's coordinator takes to plan a save.

usage: dcp_planner.py RANKS TENSORS SHARDS     each tensor row-sharded over SHARDS ranks, replicated over the rest
Prints one JSON line: items, plan_s (create_global_plan), imbalance.
"""
import json
import sys
import time

import torch
from torch.distributed.checkpoint.default_planner import DefaultSavePlanner
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, MetadataIndex, TensorProperties
from torch.distributed.checkpoint.planner import SavePlan, TensorWriteData, WriteItem, WriteItemType


def local_plan(shard, tensors, shards, properties):
    offset, size, whole = torch.Size((shard * 16, 0)), torch.Size((16, 4096)), torch.Size((shards * 16, 4096))
    return SavePlan([
        WriteItem(index=MetadataIndex(f"model.layers.{k // 9}.w{k % 9}", offset), type=WriteItemType.SHARD,
                  tensor_data=TensorWriteData(chunk=ChunkStorageMetadata(offset, size), properties=properties, size=whole))
        for k in range(tensors)
    ], planner_data={})


def main():
    ranks, tensors, shards = map(int, sys.argv[1:4])
    properties = TensorProperties(dtype=torch.bfloat16)
    plans = [local_plan(rank % shards, tensors, shards, properties) for rank in range(ranks)]
    planner = DefaultSavePlanner(dedup_save_to_lowest_rank=False)
    planner.flatten_state_dict, planner.mappings = True, {}
    start = time.monotonic()
    global_plan, _ = planner.create_global_plan(plans)
    seconds = time.monotonic() - start
    counts = [len(plan.items) for plan in global_plan]
    print(json.dumps({"items": ranks * tensors, "plan_s": seconds, "imbalance": max(counts) * len(counts) / sum(counts)}))


if __name__ == "__main__":
    main()
