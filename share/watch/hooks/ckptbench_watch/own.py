"""Hooks for ckptbench.checkpoint. Its library saves and loads without Python, and reports its own times and bytes: of
save and load, and of Writer and Reader, which dcp.py sees as storage of a save or load by torch.distributed.checkpoint."""
import atexit
import os
import sys
import threading

from .dcp import path_of
from .recorder import Operation, current, set_current, watch
from .wrap import around

STATES = {"plan": "plan_s", "io": "transfer_s", "wait": "wait_s"}
_pending = {}  # id of a Save -> it, and its operation


def _take(operation, times, at_ns=None):
    """The library's times are part of the operation's; the rest, as describing the state, stays in its present state."""
    operation.advance(at_ns)
    for state, name in STATES.items():
        operation.shift(operation.stack[-1], state, int(times[name] * 1e9))
    operation.bytes_needed, operation.bytes_moved = times["bytes"], times["moved_bytes"]
    operation.is_synced = times["durable_s"] > 0
    _count_no_requests(operation)
    operation.own_ns = max(int((times["total_s"] - times["wait_s"]) * 1e9), 1)


def _count_no_requests(operation):
    operation.requests = operation.files = None  # the library does not tell them


def _end(operation, times, error, at_ns=None):
    if times:
        _take(operation, times, at_ns)
    watch.open_saves.discard(operation)
    operation.end(error, at_ns)


def _begin(op):
    def before(args, kwargs):
        if current() is not None:
            return None
        _look()
        operation = Operation(op, f"ckptbench.checkpoint.{op}", path_of({"checkpoint_id": args[0] if args else kwargs.get("path")}))
        operation.uses_group = False
        return operation, set_current(operation)

    return before


def _after_save(token, error, result):
    operation, outer = token
    set_current(outer)
    if error is not None or result._pending is None:
        _end(operation, result and result.times, error)
        return
    operation.is_asynchronous = True
    operation.release(operation.start_ns)
    watch.open_saves.add(operation)
    _pending[id(result)] = result, operation


def _after_load(token, error, result):
    operation, outer = token
    set_current(outer)
    _end(operation, result, error)


def _after_poll(save, error, has_ended):
    """Whoever asks for the result of an asynchronous save: the training, its next save, these hooks, or the end of the
    program. However late that is, the library knows how long the save went on after its caller was released."""
    _, operation = _pending.pop(id(save), (None, None)) if has_ended else (None, None)
    if operation is None:
        return
    times = save._result
    at_ns = operation.last_ns + int((times["total_s"] - times["stall_s"]) * 1e9) if times else None
    operation.adopt(at_ns)
    _end(operation, times, save._failure, at_ns)


def _before_result(args, kwargs):
    """The caller's wait for the result is part of what it was kept."""
    _, operation = _pending.get(id(args[0]), (None, None)) if args else (None, None)
    return operation if operation is not None and operation.begin_wait() else None


def _after_result(operation, error, result):
    operation.end_wait()


def _hook_storage(handle, name, storage):
    """What a Writer or Reader asks of the library."""

    def before(args, kwargs):
        operation = current()
        if operation is None or not operation.uses_group or operation.owner != threading.get_ident():
            return None
        operation.api = f"ckptbench.checkpoint.{storage}"
        _count_no_requests(operation)
        return operation

    def after(operation, error, result):
        if error is None:
            _take(operation, result[0] if name == "load" else result)

    around(handle, name, before, after)


def _look(seconds=0.0):
    """Ends the operations of saves that have ended; waits `seconds` for each, or if negative until its end."""
    for save, _ in list(_pending.values()):
        save._poll(seconds)


def _after_close(token, error, result):
    _look()


def _end_program(module):
    """Waits for the last saves. The library no longer tells a failure that these hooks have heard of: this does."""
    _look(-1.0)
    for _, save in list(module._last.values()):
        if save._failure is not None and not save._is_told:
            print(f"ckptbench: a save that was in progress when the process ended has failed: {save._failure}", file=sys.stderr)


def install(module):
    if hasattr(module, "Handle"):  # the library, which Writer and Reader use without the rest, too
        _hook_storage(module.Handle, "save", "Writer")
        _hook_storage(module.Handle, "load", "Reader")
        return
    around(module, "save", _begin("save"), _after_save)
    around(module, "load", _begin("load"), _after_load)
    around(module.Save, "result", _before_result, _after_result)
    around(module.Save, "_poll", lambda args, kwargs: args[0], _after_poll)
    around(module, "close", lambda args, kwargs: module, _after_close)
    watch.lookers.append(_look)
    os.register_at_fork(after_in_child=_pending.clear)  # the child has none of the threads that save
    atexit.register(_end_program, module)
