"""Hooks for torch.distributed.checkpoint."""
import ctypes
import functools
import inspect
import io
import os
import threading
import time
import zlib
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager

from .recorder import Operation, absolute, current, last_part, now_ns, set_current, watch
from .wrap import around, in_state

PACKAGE = "torch.distributed.checkpoint"
VALUE_BYTES = 4096  # of a tensor, which are compared between ranks

_handed_over = {}  # id of what is staged -> the asynchronous save that it belongs to


# ---- whole saves and loads ----


def path_of(kwargs, args=()):
    """The checkpoint's place: its id, or the path of the writer or reader that is given. None if that is no path: the
    program may have made a mistake, and what it passed instead is not to be recorded."""
    found = kwargs.get("checkpoint_id")
    for storage in (kwargs.get("storage_writer"), kwargs.get("storage_reader"), *args[1:2]):
        if found is None and storage is not None:
            found = getattr(storage, "checkpoint_id", None) or getattr(storage, "path", None)
    if not isinstance(found, (str, os.PathLike)):
        return None
    return found if "://" in str(found) else absolute(found)


def _begin(op, api):
    def before(args, kwargs):
        if current() is not None:
            return None  # part of a save or load that is recorded already
        if handed_over := _take_over(args, kwargs):
            return handed_over
        operation = Operation(op, api, path_of(kwargs, args))
        operation.is_part = getattr(_daemon, "works", False)
        return operation, set_current(operation)

    return before


def _end(token, error, result):
    operation, outer = token
    set_current(outer)
    watch.open_saves.discard(operation)
    _name_unseen(operation)
    operation.end(error)


def _name_unseen(operation):
    if operation.requests == 0 and operation.bytes_needed and not operation.is_part:
        watch.warn(f"the storage of {operation.api} is not torch.distributed.checkpoint's file system: "
                   "its requests and bytes cannot be seen, their time is in serialize")


# ---- what ranks do together ----


def _wrap_step(operation, function, state, is_own=False):
    """The function that a step runs, with its time counted to a state."""
    if function is None:
        return None

    @functools.wraps(function)
    def step(*args):
        depth = operation.enter(state)
        try:
            return function(*args)
        finally:
            if is_own:
                operation.own_ended()
            operation.leave(depth)

    return step


_STEPS = {  # name of the step -> state of what every rank does, and of what the coordinator does with the results
    "plan": ("plan", "plan"),
    "write": ("serialize", "commit"),
    "read": ("serialize", "serialize"),
}


def _hook_steps(wrapper_class):
    """reduce_scatter, all_reduce and all_gather(step, map_fun, reduce_fun): the functions are closures."""
    for name in ("reduce_scatter", "all_reduce", "all_gather", "broadcast"):
        original = vars(wrapper_class).get(name)
        if original is None:
            continue

        def make(name, original):
            @functools.wraps(original)
            def hooked(self, *args, **keywords):
                operation = current()
                if operation is None or watch.broken is not None or keywords or len(args) < 2:
                    return original(self, *args, **keywords)
                step, map_fun, *rest = args
                of_all, of_one = _STEPS.get(step, ("other", "other"))
                if step == "plan" and len(rest) == 1:
                    map_fun, *rest = _compare_values(operation, map_fun, *rest)
                wrapped = [_wrap_step(operation, function, of_one) for function in rest]
                result = original(self, step, _wrap_step(operation, map_fun, of_all, step in ("write", "read")), *wrapped)
                if step == "plan" and operation.op == "save":
                    try:
                        operation.bytes_needed = _bytes_of(result)
                    except Exception as failure:
                        watch.fail(name, failure)
                return result

            return hooked

        setattr(wrapper_class, name, make(name, original))


def _bytes_of(plan):
    """Bytes of the tensors that this rank writes."""
    total = 0
    for item in getattr(plan, "items", ()):
        data = item.tensor_data
        if data is not None:
            count = data.properties.dtype.itemsize
            for size in data.chunk.sizes:
                count *= size
            total += count
    return total


def _hook_exchange(wrapper_class):
    """What ranks send each other: this thread's CPU time is pickling, the rest is waiting for others."""
    for name in ("gather_object", "scatter_object", "all_gather_object", "broadcast_object", "barrier"):

        def before(args, kwargs):
            operation = current()
            if operation is None or not args[0].use_dist:
                return None
            return operation, operation.enter("wait"), time.thread_time_ns()

        def after(token, error, result):
            operation, depth, cpu_ns = token
            operation.move("exchange", time.thread_time_ns() - cpu_ns)
            operation.leave(depth)

        around(wrapper_class, name, before, after)


# ---- values that differ between ranks under one name ----


def _digest(value, torch):
    """A number that equal values have in every process, or None if this cannot be told cheaply."""
    if isinstance(value, torch.Tensor):
        if type(value) not in (torch.Tensor, torch.nn.Parameter) or value.device.type != "cpu":
            return None
        if value.layout is not torch.strided or not value.is_contiguous() or value.untyped_storage().nbytes() == 0:
            return None  # the last: memory that was freed, as FSDP does
        count = min(value.numel() * value.element_size(), VALUE_BYTES)
        return zlib.crc32(ctypes.string_at(value.data_ptr(), count)) if count else 0
    if isinstance(value, (bool, int, float, str, bytes, type(None))):
        return zlib.crc32(repr(value).encode())
    if type(value) is dict:
        value = [part for pair in value.items() for part in pair]
    if type(value) in (list, tuple):
        parts = [_digest(part, torch) for part in value]
        return None if None in parts else zlib.crc32(repr(parts).encode())
    return None


def _compare_values(operation, map_fun, reduce_fun):
    """Ranks send digests with their plans; the coordinator compares those of one name, before duplicates go."""
    if operation.op != "save" or watch.rank()[1] == 1:
        return map_fun, reduce_fun
    import torch

    @functools.wraps(map_fun)
    def local_step():
        plan = map_fun()
        try:
            state = _state_dict_of(map_fun)
            digests = {}
            for item in plan.items if state is not None else ():
                fqn = item.index.fqn
                if item.tensor_data is None or item.type.name == "TENSOR":
                    value = _digest(state.get(fqn), torch) if fqn in state else None
                    if value is not None:
                        digests[fqn] = value
            object.__setattr__(plan, "ckptbench_digests", digests)
        except Exception as failure:
            watch.fail("local_step", failure)
        return plan

    @functools.wraps(reduce_fun)
    def global_step(plans):
        try:
            seen, differing = {}, {}
            for rank, plan in enumerate(plans):
                for fqn, value in getattr(plan, "ckptbench_digests", {}).items():
                    first = seen.setdefault(fqn, (rank, value))
                    if first[1] != value:
                        differing.setdefault(fqn, (first[0], rank))
            if differing:
                fqn, (one, other) = next(iter(differing.items()))
                more = f", and {len(differing) - 1} more names" if len(differing) > 1 else ""
                watch.warn(f"{fqn} has different values on ranks {one} and {other}, and one of them was saved{more}")
        except Exception as failure:
            watch.fail("global_step", failure)
        return reduce_fun(plans)

    return local_step, global_step


def _state_dict_of(local_step):
    """The flat state dict of the planner that a step's closure has, after the planner was set up."""
    function = inspect.unwrap(local_step)
    names = function.__code__.co_freevars
    planner = function.__closure__[names.index("planner")].cell_contents if "planner" in names else None
    return getattr(planner, "state_dict", None)


# ---- files ----


class TimedFile(io.FileIO):
    """A file whose system calls are timed; the buffer above it makes few of them."""

    def __init__(self, path, mode, operation):
        begin = now_ns()
        super().__init__(path, mode)
        self.operation = operation
        operation.move("io", now_ns() - begin)
        with operation.lock:
            operation.files += 1

    def write(self, data):
        begin = now_ns()
        count = super().write(data)
        self.operation.count("io", now_ns() - begin, count or 0)
        return count

    def readinto(self, data):
        begin = now_ns()
        count = super().readinto(data)
        self.operation.count("io", now_ns() - begin, count or 0)
        return count

    def readall(self):
        begin = now_ns()
        data = super().readall()
        self.operation.count("io", now_ns() - begin, len(data))
        return data

    def close(self):
        begin = now_ns()
        super().close()
        if self.operation is not None:
            self.operation.move("io", now_ns() - begin)
            self.operation = None


class TimedOs:
    """The module os as filesystem.py sees it, with the calls that make files durable timed."""

    def __getattr__(self, name):
        return getattr(os, name)

    @staticmethod
    def _timed(call, *args):
        begin = now_ns()
        try:
            return call(*args)
        finally:
            operation = current()
            if operation is not None:
                operation.is_synced = True
                operation.move("fsync", now_ns() - begin)

    def fsync(self, fd):
        return self._timed(os.fsync, fd)

    def sync(self):
        return self._timed(os.sync)


class HelperThread(threading.Thread):
    """A thread that writes for a save (thread_count > 1): its bytes count, its time is the writer's wait for it."""

    def __init__(self, *args, **kwargs):
        super().__init__(*args, **kwargs)
        self.operation = current()

    def run(self):
        set_current(self.operation)
        super().run()

    def join(self, timeout=None):
        begin = now_ns()
        super().join(timeout)
        if self.operation is not None:
            self.operation.move("io", now_ns() - begin)


class TimedThreading:
    Thread = HelperThread

    def __getattr__(self, name):
        return getattr(threading, name)


def _hook_files(filesystem):
    original = filesystem.FileSystem.create_stream

    @functools.wraps(original)
    @contextmanager
    def create_stream(self, path, mode):
        operation = current()
        if operation is None or watch.broken is not None or mode not in ("wb", "rb"):
            with original(self, path, mode) as stream:
                yield stream
            return
        file = TimedFile(os.fspath(path), mode, operation)
        size = max(getattr(os.fstat(file.fileno()), "st_blksize", 0), io.DEFAULT_BUFFER_SIZE)
        with (io.BufferedWriter if mode == "wb" else io.BufferedReader)(file, size) as stream:
            yield stream

    filesystem.FileSystem.create_stream = create_stream
    for name in ("mkdir", "exists", "rename", "rm_file", "ls"):
        in_state(filesystem.FileSystem, name, "io", only_outside=("commit",))
    filesystem.os = TimedOs()
    filesystem.threading = TimedThreading()
    for name in ("_SerialCpuLoader", "_OverlappingCpuLoader"):
        _hook_loader(getattr(filesystem, name, None))


def _hook_loader(loader):
    """Each tensor that a loader yields was copied to the host."""
    if loader is None:
        return
    original = loader.values

    @functools.wraps(original)
    def values(self):
        operation = current()
        if operation is None or watch.broken is not None:
            yield from original(self)
            return
        items = iter(original(self))
        while True:
            begin = now_ns()
            item = next(items, None)
            operation.move("stage", now_ns() - begin)
            if item is None:
                return
            yield item

    loader.values = values


# ---- asynchronous saves ----

# Who makes an asynchronous save, after async_save has staged the state, depends on the release:
#   2.4 to 2.6: async_save itself, which submits `save` with the staged state to a thread
#   2.7:        an executor, for a thread or a process; execute_save(staged_state_dict) submits `save`, too
#   from 2.8:   execute_save(staging_future_or_state_dict) submits save_wrapper, which waits for the staging first
# The operation passes to the thread with the object that is staged, under whichever name.
STAGED = ("staging_future_or_state_dict", "staged_state_dict")

_daemon = threading.local()


class StagedExecutor(ThreadPoolExecutor):
    """The class that async_save itself uses, apart so that its submit can be hooked."""

    submit = ThreadPoolExecutor.submit


def _staged_in(args, kwargs):
    return next((kwargs[name] for name in STAGED if name in kwargs), args[-1] if args else None)


def _hand_over(args, kwargs):
    operation, staged = current(), _staged_in(args, kwargs)
    if operation is None or staged is None:
        return None
    operation.hand_over()
    _handed_over[id(staged)] = operation
    return operation, operation.enter("other")


def _handed_over_to(token, error, result):
    token[0].leave(token[1])


def _take_over(args, kwargs):
    """Continues, in the thread that saves, the operation that belongs to what is staged."""
    operation = _handed_over.pop(id(_staged_in(args[:1], kwargs)), None)
    if operation is None:
        return None
    operation.adopt()
    operation.enter("stage")  # until the staged state is there and the save begins
    return operation, set_current(operation)


def _is_in_process(kwargs):
    return getattr(kwargs.get("async_checkpointer_type"), "name", "THREAD") == "PROCESS"


def _check_group(kwargs):
    """A save in a thread speaks through the group that it is given, or the default one, while the training continues."""
    import torch.distributed as distributed

    if _is_in_process(kwargs) or kwargs.get("no_dist") or kwargs.get("process_group") is not None or not distributed.is_initialized():
        return
    backends = {part.partition(":")[2] for part in str(distributed.get_backend_config()).split(",")}
    if len(backends) == 1 and distributed.get_world_size() > 1:  # else the training's tensors and the save's objects go by different ones
        watch.warn("async_save uses the default process group in a thread: if the training communicates through it meanwhile, ranks can "
                   "wait for each other for ever. Give it process_group=torch.distributed.new_group(backend='gloo')")


def _hook_async(modules):
    saver, thread, process = modules["state_dict_saver"], modules["_async_thread_executor"], modules["_async_process_executor"]

    def before(args, kwargs):
        if current() is not None:
            return None
        api = "async_save in a process" if _is_in_process(kwargs) else "async_save"
        operation = Operation("save", api, path_of(kwargs, args), "stage")
        operation.is_asynchronous = True
        watch.open_saves.add(operation)
        _check_group(kwargs)
        return operation, set_current(operation)

    def after(token, error, result):
        operation, outer = token
        set_current(outer)
        operation.release(operation.start_ns)
        if error is not None:
            watch.open_saves.discard(operation)
            operation.end(error)
        else:
            _watch_result(operation, getattr(result, "upload_completion", result))

    around(saver, "async_save", before, after)
    in_state(saver, "_stateful_to_state_dict", "other")
    if hasattr(saver, "ThreadPoolExecutor"):
        saver.ThreadPoolExecutor = StagedExecutor
        around(StagedExecutor, "submit", _hand_over, _handed_over_to)
    for module, name in ((thread, "_ThreadBasedAsyncCheckpointExecutor"), (process, "_ProcessBasedAsyncCheckpointExecutor")):
        executor = getattr(module, name, None)
        if executor is not None:
            around(executor, "execute_save", _hand_over, _handed_over_to)
            around(executor, "_execute_save_impl", _take_over, _end)
    around(thread, "save_wrapper", _take_over, _end)

    # A save within one that is recorded: what is not counted elsewhere is no copy any more.
    in_state(saver, "_save_state_dict", "other")
    _hook_daemon(getattr(process, "_AsyncCheckpointProcess", None))


def _hook_daemon(daemon):
    """Time between sending a state to the daemon and its answer: the daemon's own states, and pickling."""
    if daemon is None:
        return
    in_state(daemon, "__init__", "other")

    def before(args, kwargs):
        operation = current()
        return None if operation is None else (operation, operation.enter("serialize"), args[0])

    def after(token, error, result):
        operation, depth, process = token
        part = last_part(process._save_process.pid)
        operation.leave(depth)
        if part is None:
            watch.warn("the checkpoint daemon reported nothing: its time is in serialize")
            return
        for key, seconds in part.items():
            if key.endswith("_s") and key[:-2] in operation.ns:
                operation.ns["serialize"] -= int(seconds * 1e9)
                operation.ns[key[:-2]] += int(seconds * 1e9)
        for key in ("bytes_needed", "bytes_moved", "requests", "files"):
            setattr(operation, key, getattr(operation, key) + (part[key] or 0))
        if part["bytes_moved"] is not None and part["requests"] is None:  # by a library that counts none (own.py)
            operation.api, operation.requests, operation.files = part["api"], None, None
        operation.is_synced = part["durable_s"] is not None
        operation.used_cpu_ns += int(part["cpu_s"] * 1e9)
        operation.own_ns = max(now_ns() - operation.start_ns - operation.ns["wait"], 0)

    around(daemon, "save", before, after)

    def works(args, kwargs):
        _daemon.works = True

    around(daemon, "_execute_save", works)


def _watch_result(operation, future):
    """The caller's wait for the result is part of what it was kept."""
    original = getattr(future, "result", None)
    if original is None:
        return

    def result(*args, **kwargs):
        waits = operation.begin_wait()
        try:
            return original(*args, **kwargs)
        finally:
            if waits:
                operation.end_wait()

    future.result = result


def _hook_end_of_group():
    import torch.distributed as distributed
    from torch.distributed import distributed_c10d

    def before(args, kwargs):
        group = args[0] if args else kwargs.get("group")
        if group is None or group is distributed_c10d.GroupMember.WORLD:
            for operation in [one for one in watch.saves_under_way() if one.uses_group]:
                watch.warn(f"the asynchronous save to {operation.path} had not ended when destroy_process_group was "
                           "called: shards of other ranks may be missing from what it commits")

    around(distributed_c10d, "destroy_process_group", before)
    distributed.destroy_process_group = distributed_c10d.destroy_process_group


def install(package):
    """Hooks the package that has just been imported."""
    import importlib

    modules = {}
    for name in ("state_dict_saver", "state_dict_loader", "filesystem", "utils", "_async_thread_executor",
                 "_async_process_executor", "staging"):
        try:
            modules[name] = importlib.import_module(f"{PACKAGE}.{name}")
        except ImportError:
            modules[name] = None  # PyTorch before 2.7 has no executors
    saver, loader = modules["state_dict_saver"], modules["state_dict_loader"]
    for owner, name, op in ((saver, "save", "save"), (saver, "save_state_dict", "save"), (loader, "load", "load"),
                            (loader, "load_state_dict", "load")):
        if not around(owner, name, _begin(op, name), _end):
            watch.warn(f"this PyTorch has no {owner.__name__}.{name}")
    _hook_steps(modules["utils"]._DistWrapper)
    _hook_exchange(modules["utils"]._DistWrapper)
    _hook_files(modules["filesystem"])
    _hook_async(modules)
    _hook_end_of_group()
    for name in ("save", "save_state_dict", "async_save", "load", "load_state_dict"):
        owner = saver if hasattr(saver, name) else loader
        if hasattr(package, name):
            setattr(package, name, getattr(owner, name))
