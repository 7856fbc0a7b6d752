"""Handles of the library, one for each process group and set of options, opened when they are first needed.

Ranks find each other through torch's store, once; after that they talk over the library's own TCP connections, so that
saves in the background neither use nor disturb the process groups of the training."""
import datetime
import multiprocessing.util
import os
import socket
import sys

import torch.distributed as dist
from torch.distributed import distributed_c10d

from . import _library

_handles = {}  # (name of the group, words) -> (group, handle)
_opened = {}   # name of a group -> how many handles have been opened for it
_process = None  # the one whose end waits for saves
# What a forked child inherits is without the library's threads: it opens handles of its own.
os.register_at_fork(after_in_child=_handles.clear)
os.register_at_fork(after_in_child=_opened.clear)


def words_of(options):
    """"key=value" for keywords such as io_block="4MiB": the first underscore of a keyword stands for the key's dot."""
    def text(value):
        return str(value).lower() if isinstance(value, bool) else str(value)
    return tuple(sorted(f"{key.replace('_', '.', 1)}={text(value)}" for key, value in options.items()))


def _store():
    """A client of torch's store that blocks no other: waiting on a shared client would hold up the training's."""
    store = distributed_c10d._get_default_store()
    try:
        return store.clone()
    except (AttributeError, NotImplementedError, RuntimeError):
        return store


def _reachable_host():
    """This machine's address on the way to the machine where torch's ranks met."""
    master = os.environ.get("MASTER_ADDR") or socket.gethostname()
    try:
        family, kind, _, _, address = socket.getaddrinfo(master, 1, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind) as probe:
            probe.connect(address)
            found = probe.getsockname()[0]
    except OSError:
        return "127.0.0.1"
    # A machine may know its own name as a loopback address; other machines know where that name is.
    is_loopback = found.startswith("127.") or found == "::1"
    return master if is_loopback and master != "localhost" else found


def _open(group, name, words):
    rank, size = dist.get_rank(group), dist.get_world_size(group)
    if size == 1:
        return _library.Handle(words=words)
    number = _opened[name] = _opened.get(name, 0) + 1
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    key, store = f"ckptbench/{restart}/{name}/{number}", _store()
    if rank > 0:
        store.wait([key], datetime.timedelta(minutes=10))
        meeting = store.get(key)
        if meeting.startswith(b"!"):
            raise _library.Error(f"rank 0 cannot be reached: {meeting[1:].decode()}")
        return _library.Handle(rank, size, meeting=meeting, words=words)
    try:
        listener, meeting = _library.listen(_reachable_host())
    except _library.Error as error:
        store.set(key, f"!{error}")
        raise
    store.set(key, meeting)
    return _library.Handle(rank, size, listener=listener, words=words)


def handle(process_group=None, words=(), alone=False):
    """The handle of this process's rank in a group. Collective when it is first called for the group and options."""
    group, name = None, ""
    if not alone and dist.is_available() and dist.is_initialized():
        group = process_group or dist.group.WORLD
        name = f"{group.group_name}/{'-'.join(map(str, dist.get_process_group_ranks(group)))}"
    known = _handles.get((name, words))
    if known and known[0] is group:
        return known[1]
    if known:  # of a group that was destroyed: its saves must have ended before others use the same name
        del _handles[name, words]
        known[1].close()
    global _process
    if _process != os.getpid():  # also a process of multiprocessing, which calls no function of atexit
        _process = os.getpid()
        multiprocessing.util.Finalize(None, _close_at_exit, exitpriority=100)
    opened = _open(group, name, words) if group else _library.Handle(words=words)
    opened.group, opened.ranks = name, tuple(dist.get_process_group_ranks(group)) if group else ()
    _handles[name, words] = group, opened
    return opened


def close():
    """Waits for all saves that are in progress and closes all connections. Raises the failure of the first that failed.

    The next save or load opens new ones."""
    failures = []
    while _handles:
        _, (_, opened) = _handles.popitem()
        try:
            opened.close()
        except _library.Error as error:
            failures.append(error)
    if failures:
        raise failures[0]


def _close_at_exit():
    try:
        close()
    except _library.Error as error:
        print(f"ckptbench: a save that was in progress when the process ended has failed: {error}", file=sys.stderr)
