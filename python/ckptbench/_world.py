"""Handles of the library, one for each process group and set of options, opened when they are first needed.

Ranks find each other through torch's store, once; after that they talk over the library's own TCP connections, so that
saves in the background neither use nor disturb the process groups of the training.

Before rank 0 tells where it listens, every rank writes under a key of its own that it is ready, or why it fails: then
none waits for a rank that has failed."""
import contextlib
import datetime
import multiprocessing.util
import os
import socket
import sys
import time

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


class _Meeting:
    """The keys in torch's store under which the ranks of a group meet for one handle."""

    def __init__(self, key, rank, size):
        self.key, self.rank, self.size, self.deadline = key, rank, size, time.monotonic()
        self.store = distributed_c10d._get_default_store()
        self.ask("check", [key])  # fails at once where the store has ended; a new client would try to connect for long
        self.store = _store()

    def ask(self, function, *arguments):
        """Calls a function of the store."""
        try:
            return getattr(self.store, function)(*arguments)
        except RuntimeError as error:
            if function == "wait" and time.monotonic() >= self.deadline - 0.01:  # stores count milliseconds
                missing = next((rank for rank in range(self.size) if not self.ask("check", [self.ready(rank)])), 0)
                raise _library.Error(f"rank {missing} did not come within timeout.op", _library.TIMEOUT) from None
            reason = (str(error).splitlines() or [""])[0]
            raise _library.Error("torch's store, through which ranks find each other, does not answer: the process that serves it "
                                 f"(rank 0, or torchrun's agent) may have ended ({reason})", _library.ABORTED) from None

    def ready(self, rank):
        return f"{self.key}/{rank}"

    def wait(self, keys):
        """What the keys hold, as soon as all are there. Raises what a rank has written there that has failed."""
        self.ask("wait", keys, datetime.timedelta(seconds=max(self.deadline - time.monotonic(), 0.001)))
        texts = [self.ask("get", key) for key in keys]
        for text in texts:
            if text.startswith(b"!"):
                raise _FailedElsewhere(f"stopped because {text[1:].decode(errors='replace')}", _library.ABORTED)
        return texts

    def fail(self, failure):
        """Tells the others that this rank fails."""
        text = f"!rank {self.rank} failed: {_library.said(failure)}"
        with contextlib.suppress(_library.Error):
            self.ask("set", self.key, text)
            self.ask("set", self.ready(self.rank), text)


class _FailedElsewhere(_library.Error):
    pass


def _meet(meeting, seconds):
    """The arguments of this rank's Handle by which it finds the others."""
    meeting.deadline = time.monotonic() + seconds
    meeting.ask("set", meeting.ready(meeting.rank), "ready")
    if meeting.rank > 0:
        return {"meeting": meeting.wait([meeting.key])[0]}
    meeting.wait([meeting.ready(rank) for rank in range(meeting.size)])
    listener, text = _library.listen(_reachable_host())
    try:
        meeting.ask("set", meeting.key, text)
    except BaseException:
        _library.forget_listener(listener)
        raise
    return {"listener": listener}


def _open(group, name, words, stale):
    """`stale`: a handle of an earlier group, which is closed first, or None."""
    if not group or dist.get_world_size(group) == 1:
        if stale:
            stale.close()
        return _library.Handle(words=words)
    number = _opened[name] = _opened.get(name, 0) + 1
    restart = os.environ.get("TORCHELASTIC_RESTART_COUNT", "0")
    place = f"ckptbench/{restart}/{name}/{number}", dist.get_rank(group), dist.get_world_size(group)
    if stale:
        try:
            stale.close()
        except _library.Error as failure:
            with contextlib.suppress(_library.Error):
                _Meeting(*place).fail(failure)
            raise
    meeting = _Meeting(*place)
    try:
        found = _meet(meeting, _library.timeout(words))
    except _FailedElsewhere as failure:
        _close_others(name)
        raise _library.Error(str(failure), failure.code) from None
    except BaseException as failure:
        meeting.fail(failure)
        _close_others(name)
        raise
    return _library.Handle(meeting.rank, meeting.size, words=words, **found)


def _close_others(name):
    """Ends the group's other connections: a rank that has other options may wait for this one there, and so learns of it."""
    for key in [key for key in list(_handles) if key[0] == name]:
        _, opened = _handles.pop(key, (None, None))
        with contextlib.suppress(_library.Error):  # of a save in progress: its result() raises it
            if opened:
                opened.close()


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
    global _process
    if _process != os.getpid():  # also a process of multiprocessing, which calls no function of atexit
        _process = os.getpid()
        multiprocessing.util.Finalize(None, _close_at_exit, exitpriority=100)
    opened = _open(group, name, words, known and known[1])
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
