"""Hooks for writers that plan a save, write it in other processes, and finalize it later: those of Megatron-Core
(megatron.core.dist_checkpointing) and of NVRx (nvidia_resiliency_ext.checkpointing), which have the same parts.

The operation begins with the plan and ends with the finalization, both in the training's thread. In between nobody owns
its time; the processes that write report theirs in a file that the training reads at the end, and the slowest of them
stands for the write, since they work at the same time."""
import atexit
import builtins
import json
import multiprocessing
import os
import socket
import sys
import threading

from .dcp import TimedFile, TimedOs, path_of
from .recorder import Operation, absolute, append_line, current, now_ns, set_current, watch
from .wrap import around, in_state

ROOT = "CKPTBENCH_WATCH_ROOT"  # the process that trains, for the processes that write for it
NAMES = {"megatron": "Megatron-Core", "nvidia_resiliency_ext": "NVRx"}
PARTS = ("serialize", "io", "fsync")  # states that a writing process can be in

_of_buckets = {}  # id of what a request writes -> its save


def _parts_path():
    return os.path.join(watch.folder, f".parts-{socket.gethostname()}-{os.environ.get(ROOT, os.getpid())}")


# ---- plan ----


def _hook_plan(module):
    name = NAMES[module.__name__.partition(".")[0]]

    def before(args, kwargs):
        writer = args[1] if len(args) > 1 else kwargs.get("storage_writer")
        if writer is None:
            return None  # a mistake of the program, which is about to fail
        operation = Operation("save", name, path_of({"storage_writer": writer}), "plan")
        operation.is_asynchronous = operation.is_split = True
        writer.ckptbench_operation = operation
        watch.open_saves.add(operation)
        return operation, set_current(operation)

    def after(token, error, result):
        operation, outer = token
        set_current(outer)
        operation.release()
        if error is not None:
            _end(operation, error)

    around(module, "save_state_dict_async_plan", before, after)


def _end(operation, error):
    watch.open_saves.discard(operation)
    for key in [key for key, value in _of_buckets.items() if value is operation]:
        del _of_buckets[key]
    operation.end(error)


# ---- write ----


def _hook_writer(module):
    writer = module.FileSystemWriterAsync
    module.os = TimedOs()
    module.open = _open
    in_state(writer, "prepare_write_data", "stage")
    in_state(writer, "finish", "commit")

    def before(args, kwargs):
        return args[0]

    def after(token, error, result):
        operation, buckets = getattr(token, "ckptbench_operation", None), getattr(token, "write_buckets", None)
        if operation is None or not buckets:
            return
        _of_buckets[id(buckets)] = operation
        operation.paths = {absolute(bucket[0]) for bucket in buckets}
        operation.bytes_needed = sum(tensor.numel() * tensor.element_size() for bucket in buckets for _, tensor in bucket[2][1])

    around(writer, "get_save_function_and_args", before, after)

    def begin_part(args, kwargs):
        bucket = kwargs.get("write_bucket", args[2] if len(args) > 2 else None)
        operation = Operation("save", "part", absolute(bucket[0]), "serialize")
        return operation, set_current(operation)

    def end_part(token, error, result):
        operation, outer = token
        set_current(outer)
        append_line(_parts_path(), operation.ended_part())

    around(writer, "write_preloaded_data", begin_part, end_part)


def _open(path, mode="r", *args, **kwargs):
    operation = current()
    if mode != "wb" or args or kwargs or operation is None or watch.broken is not None:
        return builtins.open(path, mode, *args, **kwargs)
    import io

    return io.BufferedWriter(TimedFile(os.fspath(path), mode, operation), io.DEFAULT_BUFFER_SIZE)


def _take_parts(operation):
    """What the writing processes did becomes part of the save: their bytes and CPU, and the states of the slowest."""
    try:
        with open(_parts_path(), encoding="utf-8") as file:
            lines = [json.loads(line) for line in file if line.endswith("\n")]
    except OSError:
        lines = []
    parts = [line for line in lines if line["path"] in operation.paths and line["start_ns"] >= operation.start_wall_ns]
    if operation.paths and not parts:
        watch.warn(f"the processes that wrote for {operation.api} reported nothing: their time is in other")
    if not parts:
        return
    slowest = max(parts, key=lambda part: part["start_ns"] + part["ns"]["whole"])
    with operation.lock:
        for state in PARTS:
            operation.shift("other", state, slowest["ns"][state])
        end_ns = slowest["start_ns"] + slowest["ns"]["whole"] - operation.start_wall_ns
        # What is left after the last byte: until all ranks are done, and until the training asks for it.
        operation.shift("other", "wait", max(now_ns() - operation.start_ns - end_ns, 0))
        operation.own_ns = max(end_ns, 0)
        operation.is_synced = all(part["synced"] for part in parts)
        for part in parts:
            operation.used_cpu_ns += part["cpu_ns"]
            operation.bytes_moved += part["bytes"]
            operation.requests += part["requests"]
            operation.files += 1


# ---- requests, and the end ----


def _hook_requests(module):
    def of(request):
        arguments = request.async_fn_args
        return _of_buckets.get(id(arguments[1])) if len(arguments) > 1 else None

    def before_schedule(args, kwargs):
        request = args[1] if len(args) > 1 else kwargs.get("async_req")
        operation = of(request) if request is not None else None
        if operation is None:
            return None
        operation.adopt()
        operation.enter("stage")
        return operation, set_current(operation)

    def after_schedule(token, error, result):
        operation, outer = token
        set_current(outer)
        operation.release()

    for name in ("TemporalAsyncCaller", "PersistentAsyncCaller"):
        if hasattr(module, name):
            around(getattr(module, name), "schedule_async_call", before_schedule, after_schedule)

    def before_sync(args, kwargs):
        operation = of(args[0])
        if operation is None:
            return None
        operation.adopt()
        operation.is_asynchronous, operation.stall_ns = False, None
        return operation, set_current(operation)

    def after_sync(token, error, result):
        operation, outer = token
        set_current(outer)
        if error is not None:
            _end(operation, error)

    around(module.AsyncRequest, "execute_sync", before_sync, after_sync)

    def before_wait(args, kwargs):
        """The training waits here for writers and other ranks if it says `blocking`."""
        return [operation for operation in watch.open_saves if operation.is_split and operation.begin_wait()]

    def after_wait(waiting, error, result):
        for operation in waiting:
            operation.end_wait()

    around(module.AsyncCallsQueue, "maybe_finalize_async_calls", before_wait, after_wait)


def _hook_finalize(module):
    def before(args, kwargs):
        writer = args[0] if args else kwargs.get("storage_writer")
        operation = getattr(writer, "ckptbench_operation", None)
        if operation is None or operation.has_ended:
            return None
        is_asynchronous = operation.owner != threading.get_ident()
        if is_asynchronous:
            operation.adopt()
            operation.waiting_ns = operation.waiting_ns or now_ns()
        else:
            operation.advance()
        _take_parts(operation)
        return operation, set_current(operation)

    def after(token, error, result):
        operation, outer = token
        set_current(outer)
        _end(operation, error)

    around(module, "save_state_dict_async_finalize", before, after)


def _tell_unfinished():
    for operation in list(watch.open_saves):
        if operation.is_split and operation.pid == os.getpid():
            watch.warn(f"the save to {operation.path} by {operation.api} was never finalized: it has no .metadata, and cannot be loaded")
            _end(operation, "it was never finalized")


def install(module):
    kind = module.__name__.rpartition(".")[2]
    # A process that starts by spawn learns only later that it has a parent.
    is_spawned = multiprocessing.parent_process() is not None or "--multiprocessing-fork" in sys.orig_argv
    if not is_spawned and os.environ.get(ROOT) != str(os.getpid()):
        os.environ[ROOT] = str(os.getpid())
        atexit.register(_tell_unfinished)
    if kind == "state_dict_saver":
        _hook_plan(module)
        _hook_finalize(module)
    elif kind == "filesystem_async":
        _hook_writer(module)
    else:
        _hook_requests(module)
