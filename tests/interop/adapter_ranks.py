"""One of two ranks, for test_torch_adapter.py: saves the same state three times with plain dcp.save and three times through
the adapter's planner, and prints what each save pickled for the other ranks: [[bytes, …], [bytes, …]]."""
import importlib.util
import json
import sys

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.distributed.distributed_c10d as c10d
from torch.distributed.checkpoint import DefaultSavePlanner, FileSystemWriter
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Shard, distribute_tensor

adapter_path, folder, port, rank = sys.argv[1], sys.argv[2], sys.argv[3], int(sys.argv[4])
TENSORS, ROWS, COLUMNS = 300, 8, 16

spec = importlib.util.spec_from_file_location("torch_dcp", adapter_path)
adapter = importlib.util.module_from_spec(spec)
spec.loader.exec_module(adapter)
dist.init_process_group("gloo", init_method=f"tcp://127.0.0.1:{port}", rank=rank, world_size=2)

pickled = {"bytes": 0}
to_tensor = c10d._object_to_tensor


def counted(*arguments):
    made = to_tensor(*arguments)
    pickled["bytes"] += made[0].numel()
    return made


c10d._object_to_tensor = counted
mesh = init_device_mesh("cpu", (2,))
whole = {f"layer.{i}.weight": torch.full((ROWS, COLUMNS), float(i)) for i in range(TENSORS)}
sharded = {fqn: distribute_tensor(tensor, mesh, [Shard(0)]) for fqn, tensor in whole.items()}
half = ROWS // 2
state = adapter.State.__new__(adapter.State)
state.objects = {}
state.pieces = [(fqn, tensor.shape, tensor.dtype, ChunkStorageMetadata(torch.Size([rank * half, 0]), torch.Size([half, COLUMNS])))
                for fqn, tensor in whole.items()]
state.tensors = {(fqn, torch.Size([rank * half, 0])): tensor.to_local() for fqn, tensor in sharded.items()}


def save(name, state_dict, planner):
    before = pickled["bytes"]
    dcp.save(state_dict, storage_writer=FileSystemWriter(f"{folder}/{name}"), planner=planner)
    return pickled["bytes"] - before


plain = [save(f"plain-{i}", sharded, DefaultSavePlanner(enable_plan_caching=True)) for i in range(3)]
ours = [save(f"ours-{i}", {}, adapter.PieceSavePlanner(state, adapter.Timed(), enable_plan_caching=True)) for i in range(3)]
loaded = {fqn: torch.zeros(ROWS, COLUMNS) for fqn in whole}
dcp.load(loaded, checkpoint_id=f"{folder}/ours-2")
assert all(torch.equal(loaded[fqn], whole[fqn]) for fqn in whole)
print(json.dumps([plain, ours]))
dist.destroy_process_group()
