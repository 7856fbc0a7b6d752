"""Writer and Reader: the engine as storage of torch.distributed.checkpoint (dcp.save, dcp.load, dcp.async_save).

DCP plans; the engine writes or reads what the plan gives to each rank, and commits the checkpoint."""
import copy
import dataclasses
import io
import os

import torch
from torch.distributed.checkpoint import metadata as dcp_metadata
from torch.distributed.checkpoint.planner import LoadItemType, WriteItemType
from torch.distributed.checkpoint.storage import StorageReader, StorageWriter, WriteResult
from torch.futures import Future
from torch.utils._pytree import tree_map

from . import _library, _state, _world


def _finished(value):
    future = Future()
    future.set_result(value)
    return future


class _Storage:
    """What Writer and Reader share: the checkpoint's path, and the handle of the ranks that take part.

    process_group: the one that is passed to dcp.save or dcp.load. options: of the engine, as in checkpoint.save."""

    def __init__(self, path=None, process_group=None, **options):
        self.path, self.process_group, self.words = None, process_group, _world.words_of(options)
        _library.timeout(self.words)  # raises what is wrong with them here, and not in the first save
        self.reset(path)

    def reset(self, checkpoint_id=None):
        if checkpoint_id is not None:
            self.path = os.fspath(checkpoint_id)

    @property
    def checkpoint_id(self):
        return self.path

    @classmethod
    def validate_checkpoint_id(cls, checkpoint_id):
        return True

    def prepare_local_plan(self, plan):
        return plan

    def prepare_global_plan(self, plans):
        return [dataclasses.replace(plan, storage_data=len(plans)) for plan in plans]

    def _handle(self, plan):
        if self.path is None:
            raise ValueError("neither a path nor a checkpoint_id was given")
        return _world.handle(self.process_group, self.words, alone=plan.storage_data == 1)


class Writer(_Storage, StorageWriter):
    """dcp.save(state, storage_writer=Writer(path)). The checkpoint is complete when all ranks have written their part;
    a rank that fails makes the save fail on all of them."""

    def set_up_storage_writer(self, is_coordinator, *args, **kwargs):
        if not kwargs.get("use_collectives", True):
            raise ValueError("Writer needs dcp.save with use_collectives=True")

    # dcp.async_save lets a writer with these functions make the copy of the state. PyTorch's own do not serve: DefaultStager
    # fails with ShardedTensors, and releases before it leave tensors in host memory where they are.
    _synchronize_after_execute = should_synchronize_after_execute = False

    def stage(self, state_dict):
        """A copy in host memory, which training does not change. Complete on return."""
        def copied(value):
            if not isinstance(value, torch.Tensor):
                return copy.deepcopy(value)
            value = value.detach()
            return value.clone() if value.device.type == "cpu" else value.to("cpu")
        return tree_map(copied, state_dict)

    def synchronize_staging(self):
        """stage() returns when the copy is complete."""

    def close(self):
        """Nothing is kept from one save to the next."""

    def storage_meta(self):
        kind = getattr(dcp_metadata, "StorageMeta", None)  # an older PyTorch has none
        return kind(checkpoint_id=self.path) if kind else None

    def write_data(self, plan, planner):
        handle = self._handle(plan)

        def describe():
            tensors, values = {}, {}
            for item in plan.items:
                name, data = item.index.fqn, planner.resolve_data(item)
                if item.type == WriteItemType.BYTE_IO:
                    values[name] = data.getvalue()
                    continue
                tensor = tensors.setdefault(name, _state.Tensor(name, data.dtype, tuple(item.tensor_data.size), []))
                tensor.regions.append(_state.Region(tuple(item.tensor_data.chunk.offsets), data.detach()))
            paths = plan.planner_data if isinstance(plan.planner_data, dict) else {}
            return _library.State(_state.reachable(tensors.values()), values, paths)
        _library.together(describe, lambda state: handle.save(self.path, state))
        return _finished([WriteResult(index=item.index, size_in_bytes=0, storage_data=None) for item in plan.items])

    def finish(self, metadata, results):
        """Nothing is left to do: the last rank that wrote its part has committed the checkpoint."""


class Reader(_Storage, StorageReader):
    """dcp.load(state, storage_reader=Reader(path)), of checkpoints of this package and of PyTorch."""

    def read_metadata(self, *args, **kwargs):
        """DCP learns of each tensor as one piece; which files hold which part is the engine's knowledge."""
        entries = _world.handle(words=self.words, alone=True).inspect(self.path)

        def item(entry):
            if entry.dtype is None:
                return dcp_metadata.BytesStorageMetadata()
            size = torch.Size(entry.shape)
            whole = dcp_metadata.ChunkStorageMetadata(offsets=torch.Size([0] * len(size)), sizes=size)
            return dcp_metadata.TensorStorageMetadata(dcp_metadata.TensorProperties(dtype=getattr(torch, entry.dtype)), size, [whole])
        return dcp_metadata.Metadata({name: item(entry) for name, entry in entries.items()},
                        planner_data={name: entry.path for name, entry in entries.items()})

    def set_up_storage_reader(self, metadata, is_coordinator, *args, **kwargs):
        self.metadata = metadata

    def read_data(self, plan, planner):
        handle, targets, items = self._handle(plan), [], []

        def describe():
            tensors, values = {}, {}
            for item in plan.items:
                name = item.storage_index.fqn
                if item.type == LoadItemType.BYTE_IO:
                    values[name] = None
                    continue
                target = planner.resolve_tensor(item).detach()
                size = self.metadata.state_dict_metadata[name].size
                targets.append(target)
                items.append(item)
                tensor = tensors.setdefault(name, _state.Tensor(name, target.dtype, tuple(size), []))
                tensor.regions.append(_state.Region(tuple(item.storage_offsets), target))
            self.tensors = list(tensors.values())
            self.loaded = _state.reachable(self.tensors, is_load=True)
            return _library.State(self.loaded, values, {})
        _, values = _library.together(describe, lambda state: handle.load(self.path, state))
        _state.from_host(self.tensors, self.loaded)
        for item, target in zip(items, targets):
            planner.commit_tensor(item, target)
        for item in plan.items:
            if item.type == LoadItemType.BYTE_IO:
                planner.load_bytes(item, io.BytesIO(values[item.storage_index.fqn]))
        return _finished(None)
