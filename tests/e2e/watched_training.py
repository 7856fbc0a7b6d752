"""A training of two ranks, or one, whose checkpoints test_watch.py observes. It knows nothing of that.

usage: watched_training.py FOLDER STEP…   each STEP is a function below, with its arguments after colons"""
import atexit
import ctypes
import os
import resource
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp

FOLDER = sys.argv[1]
RANK, WORLD = int(os.environ.get("RANK", 0)), int(os.environ.get("WORLD_SIZE", 1))
is_writing, group_is_gone = threading.Event(), threading.Event()
own_files = []


def make_state():
    torch.manual_seed(0)
    weight = torch.randn(256 * WORLD, 1024)
    if WORLD > 1:
        from torch.distributed.device_mesh import init_device_mesh
        try:
            from torch.distributed.tensor import Shard, distribute_tensor
        except ImportError:  # PyTorch 2.4
            from torch.distributed._tensor import Shard, distribute_tensor

        weight = distribute_tensor(weight, init_device_mesh("cpu", (WORLD,)), [Shard(0)])
    return {"weight": weight, "bias": torch.ones(1000), "epoch": 3}


def save(name):
    dcp.save(state, checkpoint_id=f"{FOLDER}/{name}")


def close_files(name):
    """As a program that becomes a daemon does; the numbers are then those of its own files."""
    os.closerange(3, 1024)
    own_files.extend(open(f"{FOLDER}/{name}-{number}", "w+") for number in range(8))


def load(name):
    dcp.load(state, checkpoint_id=f"{FOLDER}/{name}")


def thread(name):
    """Steps go on until the save behind them has ended."""
    result = dcp.async_save(state, checkpoint_id=f"{FOLDER}/{name}")
    steps(3)
    while not result.done():
        steps(3)
    result.result()


def process(name):
    kind = dcp.state_dict_saver.AsyncCheckpointerType.PROCESS
    dcp.async_save(state, checkpoint_id=f"{FOLDER}/{name}", async_checkpointer_type=kind).result()


def forget(name):
    """Ends without waiting for the save, which writes only after the process group is gone."""
    dcp.async_save(state, storage_writer=LateWriter(f"{FOLDER}/{name}"))
    assert is_writing.wait(120)  # not while ranks plan together


class LateWriter(dcp.FileSystemWriter):
    def write_data(self, plan, planner):
        is_writing.set()
        group_is_gone.wait()
        return super().write_data(plan, planner)


def early(name):
    """An asynchronous save that copies for long, and whose thread has written before async_save returns, and commits after that."""
    has_written, has_returned = threading.Event(), threading.Event()

    class EarlyWriter(dcp.FileSystemWriter):
        def stage(self, state_dict):
            time.sleep(2)
            return super().stage(state_dict)

        def write_data(self, plan, planner):
            try:
                return super().write_data(plan, planner)
            finally:
                has_written.set()

        def finish(self, metadata, results):
            has_returned.wait()
            super().finish(metadata, results)

    executor = getattr(dcp.state_dict_saver, "ThreadPoolExecutor", ThreadPoolExecutor)  # the first before PyTorch 2.7
    submit = executor.submit

    def submit_and_wait(*args, **keywords):
        future = submit(*args, **keywords)
        assert has_written.wait(120)
        return future

    executor.submit = submit_and_wait
    result = dcp.async_save(state, storage_writer=EarlyWriter(f"{FOLDER}/{name}"))
    executor.submit = submit
    has_returned.set()
    result.result()


def own(name, kind="wait"):
    """By the package of this project: the two lines that a training changes."""
    import ckptbench.checkpoint as checkpoint

    saved = checkpoint.save(f"{FOLDER}/{name}", state, async_checkpoint=kind == "behind")
    steps(3)
    saved.result()


def own_waited(name):
    """An asynchronous save that the caller waits for a second in vain, and then until its end."""
    import ckptbench.checkpoint as checkpoint

    go = Path(FOLDER, f"{name}.go")
    saved = checkpoint.save(f"fault:until={go}+ops=finish:{FOLDER}/{name}", state, async_checkpoint=True)
    try:
        saved.result(timeout=1)
        print("no time-out")
    except TimeoutError:
        dist.barrier()
        go.touch()
        saved.result()


def own_mistaken(name):
    """Mistakes of the program: arguments in the wrong order, and names that a function does not have."""
    import ckptbench.checkpoint as checkpoint

    path = f"{FOLDER}/{name}"
    for call in (lambda: checkpoint.save(state, path), lambda: checkpoint.save(state=state, checkpoint_id=path), lambda: checkpoint.load(state, path),
                 lambda: dcp.save(state, checkpoint_id=state), lambda: dcp.async_save(state, checkpoint_id=state).result()):
        try:
            call()
        except Exception as error:
            print("mistaken", type(error).__name__)


def own_unasked(*names):
    """Nobody asks how these saves went on, and only close() would wait for them: they have ended long before."""
    import ckptbench.checkpoint as checkpoint

    saves = [checkpoint.save(f"{FOLDER}/{name}", state, async_checkpoint=True) for name in names]
    saves[-1]._pending.wait(-1.0)  # the library's own, which is not hooked
    time.sleep(2)
    steps(3)
    checkpoint.close()
    for name, saved in zip(names, saves):
        print(f"total {name} {RANK} {saved.times.total_s}\n", end="", flush=True)


def storage(name, kind="wait"):
    """By the package of this project as storage of torch.distributed.checkpoint."""
    import ckptbench.checkpoint as checkpoint

    writer = checkpoint.Writer(f"{FOLDER}/{name}")
    if kind == "process":
        dcp.async_save(state, storage_writer=writer, async_checkpointer_type=dcp.state_dict_saver.AsyncCheckpointerType.PROCESS).result()
    elif kind == "behind":
        dcp.async_save(state, storage_writer=writer).result()
    else:
        dcp.save(state, storage_writer=writer)


def storage_load(name):
    import ckptbench.checkpoint as checkpoint

    dcp.load(state, storage_reader=checkpoint.Reader(f"{FOLDER}/{name}"))


def own_failing(name):
    """Nobody asks about this save either, which fails since files may not become as long as its own."""
    import ckptbench.checkpoint as checkpoint

    _, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (512 * 1024, hard))
    checkpoint.save(f"{FOLDER}/{name}", state, async_checkpoint=True)


def own_load(name):
    import ckptbench.checkpoint as checkpoint

    checkpoint.load(f"{FOLDER}/{name}", state)


def meet(name, own, other):
    """A save that lasts until the one of another process has begun, and that one, too."""

    class MeetingWriter(dcp.FileSystemWriter):
        def write_data(self, plan, planner):
            teller = threading.Thread(target=lambda: Path(own).write_text("begun"))
            teller.start()
            Path(other).read_text()
            teller.join()
            return super().write_data(plan, planner)

    dcp.save(state, storage_writer=MeetingWriter(f"{FOLDER}/{name}"))


def read(path):
    """Waits until somebody writes to it."""
    Path(path).read_text()


def tell(path):
    """That what stands before it has been done."""
    Path(path).touch()


def differ(name):
    dcp.save({**state, "seed": 10 + RANK, "counter": torch.full((3,), float(RANK))}, checkpoint_id=f"{FOLDER}/{name}")


def whole(name):
    if RANK == 0:
        path = Path(FOLDER, name)
        path.parent.mkdir(exist_ok=True)
        torch.save(torch.ones(1000), path)
        assert torch.load(str(path)).sum() == 1000


class SlowValue:
    """A value that takes its time to become bytes."""

    def __reduce__(self):
        time.sleep(2)
        return int, (3,)


def slow_value(name):
    dcp.save({**state, "slow": SlowValue()}, checkpoint_id=f"{FOLDER}/{name}")


def steps(count):
    for _ in range(int(count)):
        optimizer.zero_grad()
        model(torch.ones(4, 8)).sum().backward()
        optimizer.step()


def delay(call, rank, milliseconds):
    """Every call of that kind on a shard's file waits on one rank (slow_calls.c)."""
    slow = ctypes.CDLL(os.environ["LD_PRELOAD"])
    slow.slow_calls((call == "write") + 2 * (call == "fsync"), int(milliseconds) if RANK == int(rank) else 0)


def waited():
    """How long the delayed calls of this rank have waited since the last time."""
    slow = ctypes.CDLL(os.environ["LD_PRELOAD"])
    slow.slow_calls_waited_ns.restype = ctypes.c_ulonglong
    print(f"waited {RANK} {slow.slow_calls_waited_ns()}\n", end="", flush=True)


def refuse(name):
    """A save that fails: its folder would lie in a file."""
    try:
        dcp.save(state, checkpoint_id=f"{FOLDER}/{name}/below")
    except dcp.CheckpointException:
        print("refused")


def gone(name):
    """A save that fails: its path is relative to a working directory that was removed."""
    before = os.getcwd()
    os.mkdir(f"{FOLDER}/{name}")
    os.chdir(f"{FOLDER}/{name}")
    os.rmdir(f"{FOLDER}/{name}")
    try:
        dcp.save(state, checkpoint_id="relative")
    except dcp.CheckpointException:
        print("gone")
    os.chdir(before)


def elsewhere(name):
    """By a writer whose files are not PyTorch's own."""
    from torch.distributed.checkpoint._fsspec_filesystem import FsspecWriter

    dcp.save(state, storage_writer=FsspecWriter(f"{FOLDER}/{name}"))


def sabotage():
    """A hook that fails, from here on."""
    import ckptbench_watch.dcp

    ckptbench_watch.dcp._bytes_of = None


def show_variables():
    """Of a program that is not Python."""
    print(subprocess.run(["printenv"], capture_output=True, text=True, check=True).stdout, flush=True)


def say(*words):
    print(*words, flush=True)


def end(code):
    sys.exit(int(code))


if __name__ == "__main__":
    if WORLD > 1:
        meeting = os.environ.get("MEETING")  # a file, where no torchrun starts the ranks
        dist.init_process_group("gloo", init_method=f"file://{meeting}" if meeting else None, rank=RANK, world_size=WORLD)
    state = make_state()
    model = torch.nn.Linear(8, 8)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    for step in sys.argv[2:]:
        name, *arguments = step.split(":")
        globals()[name](*arguments)
    if WORLD > 1:
        # Kept: in PyTorch 2.4 its destructor, with Python's lock, can wait for a thread that waits for the lock.
        group = dist.group.WORLD
        dist.destroy_process_group()
        group_is_gone.set()
        # PyTorch now and then aborts while a process of a group ends, when its threads are destroyed: leave before that.
        threading._shutdown()
        atexit._run_exitfuncs()
        sys.stdout.flush()
        os._exit(0)
