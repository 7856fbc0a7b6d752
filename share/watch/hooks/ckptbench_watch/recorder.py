"""Operations of one process and the time they spent in each state, written as a line of JSON each.

An operation is a save or a load of one rank. It is in one state at a time, so the times of its states add up to its
own. One thread owns its time; an asynchronous save passes from the caller's thread to the one that writes.
"""
import json
import multiprocessing
import os
import re
import socket
import sys
import threading
import time
import traceback

STATES = ("other", "plan", "stage", "serialize", "io", "fsync", "exchange", "commit", "wait")
NS = 1e9

# Modules of writers that work in other processes; writers.py hooks them.
SPLIT_WRITERS = [f"{package}.{name}" for package, names in (
    ("megatron.core.dist_checkpointing.strategies", ("state_dict_saver", "filesystem_async", "async_utils")),
    ("nvidia_resiliency_ext.checkpointing.async_ckpt", ("state_dict_saver", "filesystem_async", "core")),
) for name in names]

WHY_BYTES = 150

now_ns = time.monotonic_ns
_local = threading.local()


def current():
    """The operation that this thread works for, or None."""
    return getattr(_local, "operation", None)


def set_current(operation):
    before = current()
    _local.operation = operation
    return before


def absolute(path):
    """As it is given if it is relative to a working directory that is gone: the program's call will say so."""
    try:
        return os.path.abspath(path)
    except OSError:
        return os.fspath(path)


def reason_of(error):
    """The class of an exception and the first line of its text. One that stands for those of all ranks has them as `failures`."""
    try:
        failures = getattr(error, "failures", None)
        if isinstance(failures, dict) and failures:
            first = failures[min(failures)]
            error = first[0] if isinstance(first, tuple) and first else first
        text = str(error).strip().partition("\n")[0]
    except Exception:
        text = ""  # the class of the program's exception has a mistake of its own
    return f"{type(error).__name__}{': ' if text else ''}{text}".encode(errors="replace")[:WHY_BYTES].decode(errors="ignore")


class Operation:
    def __init__(self, op, api, path, state="other"):
        self.op, self.api, self.path = op, api, path
        self.lock = threading.RLock()  # a signal handler that saves may interrupt its own thread here
        self.owner = threading.get_ident()
        self.pid = os.getpid()
        self.start_ns = self.last_ns = self.owned_ns = now_ns()  # owned_ns: since when the owner owns the time
        self.start_wall_ns = time.time_ns()
        self.cpu_ns = time.thread_time_ns()  # of the owner, when it began to own the time
        self.used_cpu_ns = 0
        self.ns = dict.fromkeys(STATES, 0)
        self.stack = [state]
        self.bytes_needed = self.bytes_moved = self.requests = self.files = 0
        self.own_ns = 0  # until this rank's bytes are done, less the time it waited for others
        self.stall_ns = None  # of an asynchronous save: how long the caller was kept
        self.waiting_ns = 0  # since when the caller waits for the result
        self.is_part = False  # done by a daemon for the process that recorded the save
        self.is_whole_file = self.is_synced = self.is_asynchronous = False
        self.is_split = False  # written by other processes (writers.py)
        self.paths = set()  # of the files that they write
        self.uses_group = True  # one of torch.distributed, which has to last as long as the save
        self.has_ended = False

    def _advance(self, at_ns=None):
        """To now, or to the time at which what is learnt only now has happened."""
        now = now_ns() if at_ns is None else max(at_ns, self.last_ns)
        self.ns[self.stack[-1]] += now - self.last_ns
        self.last_ns = now
        return now

    def advance(self, at_ns=None):
        with self.lock:
            self._advance(at_ns)

    def shift(self, one, other, ns):
        """Moves time from a state to another one, as far as it is there: another process has measured it."""
        ns = min(ns, self.ns[one])
        self.ns[one] -= ns
        self.ns[other] += ns

    def ended_part(self):
        """What a process that writes for a save of another one reports to it."""
        with self.lock:
            now = self._advance()
            self._add_cpu()
            return {"path": str(self.path), "start_ns": self.start_wall_ns, "ns": {**self.ns, "whole": now - self.start_ns},
                    "synced": self.is_synced, "bytes": self.bytes_moved, "requests": self.requests, "cpu_ns": self.used_cpu_ns}

    def enter(self, state):
        """Returns what `leave` needs: the depth of the state, or 0 where another thread owns the time."""
        with self.lock:
            if self.owner != threading.get_ident():
                return 0
            self._advance()
            self.stack.append(state)
            return len(self.stack) - 1

    def leave(self, depth):
        """Ends the state and those within it that never ended, as those of a failed call."""
        with self.lock:
            if depth and self.owner == threading.get_ident():
                self._advance()
                del self.stack[depth:]

    def move(self, state, ns):
        """Moves time that has passed in the present state to another one."""
        with self.lock:
            if self.owner == threading.get_ident() and self.stack[-1] != "commit":
                self.ns[self.stack[-1]] -= ns
                self.ns[state] += ns

    def count(self, state, ns, size):
        """A request to the file system. A commit keeps its time; a helper thread has no time of its own here."""
        with self.lock:
            self.requests += 1
            self.bytes_moved += size
        self.move(state, ns)

    def own_ended(self):
        with self.lock:
            if self.owner == threading.get_ident():
                self.own_ns = self._advance() - self.start_ns - self.ns["wait"]

    def _add_cpu(self):
        now = time.thread_time_ns()
        self.used_cpu_ns += now - self.cpu_ns
        self.cpu_ns = now

    def hand_over(self):
        """Another thread may adopt the operation from here on: the CPU time that this one has used counts."""
        with self.lock:
            if self.owner == threading.get_ident():
                self._add_cpu()

    def release(self, since_ns=None):
        """The caller's thread has done its part of an asynchronous save. It was kept since `since_ns`: by default, since it
        owns the time; the thread that saves may own it already."""
        with self.lock:
            if self.owner == threading.get_ident():
                self._advance()
                self._add_cpu()
                self.owner = None
                self.stack = ["other"]
            self.stall_ns = (self.stall_ns or 0) + now_ns() - (since_ns or self.owned_ns)
        watch.kept += 1

    def adopt(self, at_ns=None):
        """From here on, or from `at_ns` on, the time of the operation is this thread's."""
        with self.lock:
            self.owned_ns = self._advance(at_ns)
            self.owner = threading.get_ident()
            self.cpu_ns = time.thread_time_ns()
            self.stack = ["other"]

    def begin_wait(self):
        """The caller waits for the result from here on, which is part of what it was kept. False if it does already, or if
        there is nothing to wait for."""
        if self.waiting_ns or self.has_ended:
            return False
        self.waiting_ns = now_ns()
        return True

    def end_wait(self):
        """The wait is over, and the save may not be: a time-out."""
        with self.lock:
            if not self.has_ended:
                self.stall_ns = (self.stall_ns or 0) + now_ns() - self.waiting_ns
                self.waiting_ns = 0

    def end(self, error=None, at_ns=None):
        """Now, or at `at_ns` if that is learnt only now. `error`: an exception, or why it failed in words; None if it passed."""
        with self.lock:
            if self.has_ended:
                return
            now = self._advance(at_ns)
            self._add_cpu()
            self.has_ended = True
            if self.waiting_ns:
                self.stall_ns = (self.stall_ns or 0) + max(now - self.waiting_ns, 0)  # it may have ended before the wait
            is_unseen = self.requests == 0 and self.bytes_needed > 0  # written in a way that has no hooks
            stall_ns = now - self.start_ns if self.stall_ns is None else self.stall_ns  # else it kept the caller throughout
            line = {
                "op": "part" if self.is_part else self.op,
                "api": self.api,
                "path": str(self.path or ""),
                "start_ns": self.start_wall_ns,
                "failed": error is not None,
                "why": error if error is None or isinstance(error, str) else reason_of(error),
                "is_whole_file": self.is_whole_file,
                "asynchronous": self.is_asynchronous,
                "op_s": (now - self.start_ns) / NS,
                "own_s": (self.own_ns or now - self.start_ns - self.ns["wait"]) / NS,
                "stall_s": stall_ns / NS if self.op == "save" else None,
                "durable_s": (now - self.start_ns) / NS if self.is_synced else None,
                "persist_s": (now - self.start_ns - stall_ns) / NS if self.is_asynchronous else None,
                "bytes_needed": self.bytes_needed or self.bytes_moved,
                "bytes_moved": None if is_unseen else self.bytes_moved,
                "requests": None if is_unseen else self.requests,
                "files": None if is_unseen else self.files,
                "cpu_s": self.used_cpu_ns / NS,
            }
            for state in STATES:
                line[state + "_s"] = self.ns[state] / NS
            watch.kept += not self.is_asynchronous
        watch.write(line)


def _distributed():
    """torch.distributed if it has a process group, else None."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is not None and distributed.is_available() and distributed.is_initialized():
        return distributed
    return None


def node_name():
    """As process_node_name of core/process.h: the machine, or Slurm's node with the machine after a dot where they differ."""
    host, node = socket.gethostname() or "host", os.environ.get("SLURMD_NODENAME", "")
    if not re.fullmatch(r"[A-Za-z0-9._-]{1,100}", node) or host == node or host.startswith(node + "."):
        return host
    return f"{node}.{host}"


def append_line(path, line):
    """Opens the file for each line: a descriptor that is kept may be closed by the program, and its number be another file's."""
    fd = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND | os.O_CLOEXEC, 0o666)
    try:
        os.write(fd, (json.dumps(line) + "\n").encode())
    finally:
        os.close(fd)


class Watch:
    """What this process reports: a file of lines in the folder of the run."""

    def __init__(self):
        self.folder = os.environ.get("CKPTBENCH_WATCH", "")
        self.lock = threading.RLock()
        self.broken = None  # the first error of a hook: after it nothing is recorded any more
        rank, world = os.environ.get("RANK", ""), os.environ.get("WORLD_SIZE", "")
        self.place = (int(rank), int(world)) if rank.isdecimal() and world.isdecimal() else (0, 1)
        self.open_saves = set()  # asynchronous ones that have not ended, as far as is known
        self.lookers = []  # functions that end those which have ended without telling
        self.kept = 0  # how often the program was kept by a save or load
        self.started = False

    def rank(self):
        distributed = _distributed()
        if distributed is not None:
            self.place = (distributed.get_rank(), distributed.get_world_size())
        return self.place

    def saves_under_way(self):
        """The asynchronous saves that have not ended."""
        for look in self.lookers if self.open_saves else ():
            look()
        return list(self.open_saves)

    def path_of(self, pid):
        return os.path.join(self.folder, f"{node_name()}-{pid}.jsonl")

    def write(self, line):
        rank, world = self.rank()
        line = {"rank": rank, "world": world, "child": multiprocessing.parent_process() is not None, **line}
        with self.lock:
            append_line(self.path_of(os.getpid()), line)  # a forked process has a file of its own

    def warn(self, text):
        self.write({"op": "warning", "text": text})

    def fail(self, hook, error):
        if self.broken is not None:
            return
        self.broken = error
        where = traceback.extract_tb(error.__traceback__)
        at = f" at {os.path.basename(where[-1].filename)}:{where[-1].lineno}" if where else ""
        try:
            self.write({"op": "broken", "text": f"{hook}: {type(error).__name__}: {error}{at}"})
        except Exception:
            pass  # the folder is gone, or full: then the run simply has fewer lines


watch = Watch()
os.register_at_fork(after_in_child=lambda: setattr(watch, "lock", threading.RLock()))


def last_part(pid):
    """The last line that a daemon of this process has written for a save, or None."""
    try:
        with open(watch.path_of(pid), encoding="utf-8") as file:
            parts = [line for line in map(json.loads, file) if line["op"] == "part"]
        return parts[-1] if parts else None
    except (OSError, ValueError):
        return None
