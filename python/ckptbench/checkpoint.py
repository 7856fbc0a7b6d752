"""Saves and loads checkpoints of PyTorch trainings; what is written is a checkpoint of torch.distributed.checkpoint.

    checkpoint.save("/lustre/run/step-100", {"model": model, "optimizer": optimizer}, async_checkpoint=True)
    checkpoint.load("/lustre/run/step-100", {"model": model, "optimizer": optimizer}, broadcast_checkpoint=True)
    torch.distributed.checkpoint.save(state, storage_writer=checkpoint.Writer("s3://bucket/step-100"))

save and load are collective: all ranks of the process group call them, in the same order. Options of the engine are
keywords: io_direct=True is io.direct=true, timeout_op="10m" is timeout.op=10m."""
import os
import time

import torch
from torch.distributed.checkpoint import state_dict as torch_state
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.stateful import Stateful

from . import _library, _state, _world
from ._library import Error
from ._state import Pieces
from ._storage import Reader, Writer

__all__ = ["Error", "Pieces", "Reader", "Save", "Writer", "close", "load", "save"]


class Save:
    """A save, which may still be in progress. `times` has its seconds and bytes once it has ended:

    total_s, stall_s (the caller waited), plan_s, transfer_s, wait_s (for other ranks), durable_s, bytes, moved_bytes;
    plan_is_kept: an earlier save's plan was used; told_bytes: what other ranks told of their state so that it could be planned."""

    def __init__(self, path, result=None, pending=None, stall_s=0.0):
        self.path, self._result, self._pending = path, result, pending
        self._failure, self._is_told, self.stall_s = None, False, stall_s

    def _poll(self, seconds):
        if self._result is None and self._failure is None:
            try:
                self._result = self._pending.wait(seconds)
            except Error as error:
                self._failure = error
        return self._result is not None or self._failure is not None

    def done(self):
        """True if the save has ended, well or not. Does not wait."""
        return self._poll(0.0)

    def result(self, timeout=None):
        """Waits until the checkpoint is complete on all ranks and returns its times. Raises Error if it failed,
        TimeoutError if it has not ended after `timeout` seconds."""
        deadline = None if timeout is None else time.monotonic() + timeout
        while True:  # in slices, so that signals are handled meanwhile
            left = 0.2 if deadline is None else min(0.2, max(0.0, deadline - time.monotonic()))
            if self._poll(left):
                break
            if deadline is not None and time.monotonic() >= deadline:
                raise TimeoutError(f"the save to {self.path} has not ended after {timeout} s")
        return self._outcome()

    def _outcome(self):
        if self._failure:
            self._is_told = True
            raise self._failure
        return self._result

    @property
    def times(self):
        """The times of a save that has ended; of one in progress stall_s alone."""
        return self._result if self._poll(0.0) and self._result else _library.Result(stall_s=self.stall_s)


_last = {}  # name of a group -> (handle, Save): its last asynchronous save
os.register_at_fork(after_in_child=_last.clear)


def close():
    """Waits for all saves that are in progress and closes all connections. Raises the failure of the first that failed,
    unless result() or another call has raised it.

    The next save or load opens new ones."""
    saves = [last for _, last in _last.values()]
    _last.clear()
    _world.close()
    for last in saves:
        if last._failure and not last._is_told:
            last._outcome()


def _settle(handle):
    """Raises a failure of the group's last asynchronous save that done() has seen and result() has not raised. The library
    waits for a save of this handle; for one of another handle, which has other options, this waits.

    Part of describing a state, so that all ranks fail if one does."""
    other, last = _last.get(handle.group, (handle, None))
    if other is not handle:
        last._poll(-1.0)
    if last and last._failure and not last._is_told:
        last._outcome()


def _modules(value):
    """The modules of a value: one, or the stages of a pipeline that this rank has."""
    if isinstance(value, torch.nn.Module):
        return [value]
    if isinstance(value, (list, tuple)) and value and all(isinstance(part, torch.nn.Module) for part in value):
        return list(value)
    return []


def _optimizer_modules(key, optimizer, state):
    """The modules in `state` whose parameters the optimizer updates."""
    updated = {id(parameter) for group in optimizer.param_groups for parameter in group["params"]}
    owners = [module for value in state.values() for module in _modules(value)
              if any(id(parameter) in updated for parameter in module.parameters())]
    if not owners:
        raise ValueError(f"{key!r}: the parameters of this optimizer belong to no module in the state; pass its module too")
    return owners


def _options(flatten_optimizer):
    return torch_state.StateDictOptions(flatten_optimizer_state_dict=flatten_optimizer)


def _plain(state, flatten_optimizer):
    """`state` with the state dict of each module, optimizer and stateful object in its place."""
    plain = {}
    for key, value in state.items():
        if modules := _modules(value):
            plain[key] = {}
            for module in modules:
                plain[key].update(torch_state.get_model_state_dict(module))
        elif isinstance(value, torch.optim.Optimizer):
            plain[key] = _optimizer_state(_optimizer_modules(key, value, state), value, flatten_optimizer(key))
        elif isinstance(value, Stateful):
            plain[key] = value.state_dict()
        else:
            plain[key] = value
    return plain


def _optimizer_state(modules, optimizer, is_flat):
    if len(modules) > 1 and not is_flat:
        raise ValueError("an optimizer of several modules is saved with flatten_optimizer=True")
    whole = {}
    for module in modules:
        whole.update(torch_state.get_optimizer_state_dict(module, optimizer, options=_options(is_flat)))
    return whole


def _numbered_state(key, optimizer, plain, stored):
    """The optimizer's own state dict, which counts its parameters, if a checkpoint has that; else `plain`, by their names.
    Numbers are texts in it, as in checkpoints."""
    found = {entry.path[2] for entry in stored.values() if len(entry.path) > 2 and entry.path[:2] == (key, "state")}
    if not found or not all(str(number).isdigit() for number in found) or found & plain.get("state", {}).keys():
        return plain
    numbered = optimizer.state_dict()
    return {**numbered, "state": {str(number): state for number, state in numbered["state"].items()}}


def _restore_optimizer(optimizer, modules, plain, is_flat):
    if any(isinstance(number, int) for group in plain.get("param_groups", ()) for number in group["params"]):
        optimizer.load_state_dict({**plain, "state": {int(number): state for number, state in plain["state"].items()}})
        return
    for module in modules:
        torch_state.set_optimizer_state_dict(module, optimizer, plain, options=_options(is_flat))


def _restore(state, plain, flatten_optimizer):
    """Hands loaded state dicts to the modules, optimizers and stateful objects of `state`; sets other values in it."""
    for key, value in state.items():
        if modules := _modules(value):
            for module in modules:
                names = torch_state.get_model_state_dict(module).keys()
                torch_state.set_model_state_dict(module, {name: plain[key][name] for name in names})
        elif isinstance(value, torch.optim.Optimizer):
            _restore_optimizer(value, _optimizer_modules(key, value, state), plain[key], flatten_optimizer(key))
        elif isinstance(value, Stateful):
            value.load_state_dict(plain[key])
        else:
            state[key] = plain[key]


def _check(function, path, state):
    """Part of describing a state, so that what is wrong on one rank fails on all."""
    _library.encode_path(str(path))
    if not isinstance(state, dict):
        raise TypeError(f"{function}(path, state): state is a dict, as in {{'model': model, 'optimizer': optimizer}}, and no {type(state).__name__}")


def save(path, state, async_checkpoint=False, *, process_group=None, flatten_optimizer=False, **options):
    """Saves `state`, a dict of modules, optimizers, objects with state_dict and load_state_dict, and (nested) plain values.

    An optimizer's state is stored under the names of its parameters, so its module must be in `state`, too. With pipeline
    stages on different ranks, flatten_optimizer=True stores its parameter groups by parameter name as well.
    With async_checkpoint=True it returns once the tensors are copied, and the state may change; the rest happens in a
    thread of the library. The next save waits for it. If it fails, its result() or else the next call raises the reason.
    Returns a Save. Raises Error."""
    handle = _world.handle(process_group, _world.words_of(options))
    started = time.monotonic()

    def describe():
        _check("save", path, state)
        _settle(handle)
        flat, paths = _state.flatten(_plain(state, lambda key: flatten_optimizer))
        tensors, values = _state.split(flat)
        values = {name: _state.to_bytes(name, value) for name, value in values.items()}
        return _library.State(_state.reachable(tensors), values, paths, handle.ranks)

    def start(described):
        if not async_checkpoint:
            return Save(str(path), handle.save(str(path), described))
        pending = handle.save_async(str(path), described)
        last = Save(str(path), pending=pending, stall_s=time.monotonic() - started)
        _last[handle.group] = handle, last
        return last
    return _library.together(describe, start)


class _Target:
    """What load() fills: the plain state, its flat names, and its tensors."""


def _top(stored):
    """The keys of the dict that was saved."""
    return {entry.path[0] for entry in stored.values()}


def _listed(keys):
    keys = sorted(map(str, keys))
    return ", ".join(keys[:10]) + ("" if len(keys) <= 10 else f" and {len(keys) - 10} more")


def _fill(handle, path, described, strict):
    try:
        return handle.load(path, described)
    except Error as error:
        if strict and _library.IS_MISSING in str(error):
            raise Error(f"{error}; strict=False leaves alone what {path} does not contain; it has {_listed(_top(handle.inspect(path)))}",
                        error.code) from None
        raise


def load(path, state, broadcast_checkpoint=False, *, process_group=None, strict=True, **options):
    """Loads the checkpoint at `path` into `state`, in place, whatever layout it was saved in: tensors keep their memory;
    modules, optimizers and stateful objects receive their state dicts; other values in `state` are replaced.

    With broadcast_checkpoint=True, bytes that several ranks need are read by one of them and sent to the others.
    strict=False leaves alone what the checkpoint does not contain, and names it in the result's `missing`; a checkpoint that
    has none of the keys of `state` is an error all the same. Values other than tensors are unpickled, so load only
    checkpoints that you trust. The state of an optimizer may be stored by the names of its parameters, as save does, or by
    their numbers, as Optimizer.state_dict() has it. Returns the load's times. Raises Error."""
    if broadcast_checkpoint:
        options = {"load_exchange": "broadcast", **options}
    handle = _world.handle(process_group, _world.words_of(options))
    path, target = str(path), _Target()

    def describe():
        _check("load", path, state)
        _settle(handle)
        has_optimizer = any(isinstance(value, torch.optim.Optimizer) for value in state.values())
        stored = {} if strict and not has_optimizer else handle.inspect(path)
        target.is_flat = lambda key: f"{key}.param_groups.0.params" not in stored
        target.plain = _plain(state, target.is_flat)
        for key, value in state.items():  # _plain has created the state of optimizers that have not made a step yet
            if isinstance(value, torch.optim.Optimizer):
                target.plain[key] = _numbered_state(key, value, target.plain[key], stored)
        flat, target.paths = _state.flatten(target.plain)
        target.missing = [] if strict else [name for name in flat if name not in stored]
        if target.missing and not state.keys() & _top(stored):
            raise ValueError(f"{path} has no {_listed(state)}: it has {_listed(_top(stored))}")
        for name in target.missing:
            del flat[name]
        target.tensors, values = _state.split(flat)
        target.loaded = _state.reachable(target.tensors, is_load=True)
        return _library.State(target.loaded, dict.fromkeys(values), target.paths, handle.ranks)
    result, values = _library.together(describe, lambda described: _fill(handle, path, described, strict))
    _state.from_host(target.tensors, target.loaded)
    for name, stored in values.items():
        set_element(target.plain, target.paths[name], _state.from_bytes(stored))
    _restore(state, target.plain, target.is_flat)
    result["missing"] = target.missing
    return result
