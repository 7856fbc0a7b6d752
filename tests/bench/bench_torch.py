"""`make bench-torch`: ckptbench.checkpoint inside PyTorch against PyTorch's own checkpoints, on one FSDP2 state.

usage: tests/bench/bench_torch.py [--build DIR] [--pairs N] [--mib N] [--tensors N] [--folder DIR] [--memory DIR] [--only WORD…]
       [--json FILE]
Two processes hold the state, --mib MiB each (a model's fp32 parameters and Adam's moments), and all contenders use it in
turn: a round has one turn of each, and the rounds begin with another one. First ours against itself: what two equal
things differ by. A part that fails is named, the others go on, and the end is an error.
A small --mib shows that every part works, and measures nothing.
"""
import argparse
import json
import os
import shutil
import signal
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from bench import GIB, ROOT, warm_pages
from ratio import Table

sys.path.insert(0, str(ROOT / "tests/services"))
import ceph_cluster  # noqa: E402
import rgw  # noqa: E402
from ports import free_ports  # noqa: E402
from s3_client import Client  # noqa: E402

MIB = 2**20
RANKS = 2
LONGEST_S = 300  # of one turn: what hangs must not hang the benchmark
KEYS = {"AWS_ACCESS_KEY_ID": rgw.ACCESS_KEY, "AWS_SECRET_ACCESS_KEY": rgw.SECRET_KEY, "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1"}
S3_MIB = 256  # a rank: server and clients share this machine's memory


class Failed(Exception):
    pass


class Ranks:
    """The processes that hold a state (torch_ranks.py)."""

    def __init__(self, bench, kind, size, **environment):
        (port,) = free_ports(1)
        given = dict(os.environ, MASTER_ADDR="127.0.0.1", MASTER_PORT=str(port), WORLD_SIZE=str(RANKS), OMP_NUM_THREADS="1",
                     CKPTBENCH_LIBRARY=str(bench.build / "libckptbench.so"), **environment)
        self.log = tempfile.TemporaryFile("w+")
        command = [sys.executable, str(ROOT / "tests/bench/torch_ranks.py"), kind, str(size)]
        self.processes = [subprocess.Popen(command, env=dict(given, RANK=str(rank)), stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                                           stderr=self.log, text=True) for rank in range(RANKS)]
        try:
            self.bytes = sum(answer["bytes"] for answer in self.ask("describe"))
        except Failed:
            self.close()
            raise

    def __enter__(self):
        return self

    def __exit__(self, *_):
        self.close()

    def close(self):
        for process in self.processes:
            process.stdin.close()
        for process in self.processes:
            try:
                process.wait(30)
            except subprocess.TimeoutExpired:
                process.kill()
                process.wait()
        self.log.close()

    def kill(self):
        for process in self.processes:
            process.send_signal(signal.SIGKILL)

    def ask(self, method, **arguments):
        """The answers of all ranks to one call."""
        line = json.dumps(dict(arguments, method=method)) + "\n"
        watchdog = threading.Timer(LONGEST_S, self.kill)
        watchdog.start()
        try:
            for process in self.processes:
                process.stdin.write(line)
                process.stdin.flush()
            answers = [json.loads(process.stdout.readline()) for process in self.processes]
        except (json.JSONDecodeError, BrokenPipeError):
            self.log.seek(0)
            raise Failed(f"{method} {arguments}: the ranks have ended, or hung for {LONGEST_S} s: {self.log.read()[-2000:]}") from None
        finally:
            watchdog.cancel()
        for answer in answers:
            if "error" in answer:
                raise Failed(f"{method} {arguments}: {answer['error']}")
        return answers


def slowest(answers, name="seconds"):
    return max(answer[name] for answer in answers)


def total(answers, name="cpu_s"):
    return sum(answer[name] for answer in answers)


class Bench:
    def __init__(self, arguments):
        self.build, self.pairs, self.mib, self.tensors = (ROOT / arguments.build).resolve(), arguments.pairs, arguments.mib, arguments.tensors
        self.table, self.count = Table(), 0
        self.disk = Path(tempfile.mkdtemp(prefix="ckptbench-bench-", dir=arguments.folder))
        self.memory = Path(tempfile.mkdtemp(prefix="bench-of-ckptbench-", dir=arguments.memory))
        self.home = Path(tempfile.mkdtemp(prefix="ckptbench-bench-torch-"))

    def clean(self):
        if (self.home / "rgw").exists():
            rgw.stop(self.home / "rgw")
        for folder in (self.disk, self.memory, self.home):
            shutil.rmtree(folder, ignore_errors=True)

    def fresh(self, place):
        """A path where nothing is yet."""
        self.count += 1
        return str(place / f"checkpoint-{self.count}")

    def rounds(self, turns):
        """name -> its result in each round; the first round warms up."""
        names, found = list(turns), []
        for index in range(self.pairs + 1):
            at = index % len(names)
            found.append({name: turns[name]() for name in names[at:] + names[:at]})
        return {name: [row[name] for row in found[1:]] for name in names}

    def compare(self, what, found, first, second, target, unit, value):
        self.table.add(what, [(value(a), value(b)) for a, b in zip(found[first], found[second])], target, unit)


def evict(folder):
    """Takes what is in a folder out of the page cache."""
    for path in Path(folder).iterdir():
        descriptor = os.open(path, os.O_RDONLY)
        try:
            os.fsync(descriptor)
            os.posix_fadvise(descriptor, 0, 0, os.POSIX_FADV_DONTNEED)
        finally:
            os.close(descriptor)


def settle(bench, ranks, place):
    """The same start for every turn: nothing waits to be written, and there are free pages."""
    os.sync()
    if place == bench.memory:
        warm_pages(ranks.bytes + 64 * MIB)


def save_turn(bench, ranks, place, how, **options):
    path = bench.fresh(place)
    settle(bench, ranks, place)
    try:
        return ranks.ask("save", how=how, path=path, **options)
    finally:
        shutil.rmtree(path, ignore_errors=True)


def best_threads(ranks, what, save):
    """The thread_count with which a save of PyTorch is the fastest here; the ranks use it from now on."""
    taken = {}
    for count in (1, 2, 4):
        ranks.ask("use_threads", count=count)
        taken[count] = statistics.median(slowest(save()) for _ in range(3))
    best = min(taken, key=taken.get)
    ranks.ask("use_threads", count=best)
    print(f"{what} by thread_count: " + ", ".join(f"{count}: {seconds:.2f} s" for count, seconds in taken.items()), flush=True)


def bench_saves(bench, place, where, target):
    with Ranks(bench, "layers", bench.mib) as ranks:
        best_threads(ranks, "dcp.save", lambda: save_turn(bench, ranks, place, "dcp"))
        contenders = {"ours": "ours", "again": "ours", "dcp": "dcp", "Writer": "writer"}
        found = bench.rounds({name: lambda how=how: save_turn(bench, ranks, place, how) for name, how in contenders.items()})
        rate = lambda answers: ranks.bytes / GIB / slowest(answers)
        cpu = lambda answers: total(answers) * GIB / ranks.bytes
        bench.compare(f"{where} save, A against A", found, "ours", "again", "-", "GiB/s", rate)
        bench.compare(f"{where} save, against dcp.save", found, "ours", "dcp", f">= {target}", "GiB/s", rate)
        bench.compare(f"{where} save, dcp.save with our Writer against it", found, "Writer", "dcp", "shown beside it", "GiB/s", rate)
        bench.compare(f"CPU seconds a GiB, {where} save, against dcp.save", found, "ours", "dcp", "<= 0.25" if where == "disk" else "-", "s/GiB", cpu)
        bench.compare(f"CPU seconds a GiB, {where} save, Writer against it", found, "Writer", "dcp", "-", "s/GiB", cpu)


def bench_loads(bench, place, where, target):
    """From a disk cold: the page cache has nothing of the checkpoint."""
    with Ranks(bench, "layers", bench.mib) as ranks:
        paths = {"ours": bench.fresh(place), "dcp": bench.fresh(place)}
        for how, path in paths.items():
            ranks.ask("save", how=how, path=path)

        def turn(how, saved):
            settle(bench, ranks, place)
            if place == bench.disk:
                evict(paths[saved])
            return ranks.ask("load", how=how, path=paths[saved])

        contenders = {"ours": ("ours", "ours"), "again": ("ours", "ours"), "dcp": ("dcp", "dcp"), "ours of dcp's": ("ours", "dcp"),
                      "Reader": ("reader", "ours")}
        found = bench.rounds({name: lambda words=words: turn(*words) for name, words in contenders.items()})
        rate = lambda answers: ranks.bytes / GIB / slowest(answers)
        bench.compare(f"{where} load, A against A", found, "ours", "again", "-", "GiB/s", rate)
        bench.compare(f"{where} load, against dcp.load, each its own save", found, "ours", "dcp", target, "GiB/s", rate)
        bench.compare(f"{where} load, of what dcp.save wrote, against it", found, "ours of dcp's", "dcp", "shown beside it", "GiB/s", rate)
        bench.compare(f"{where} load, dcp.load with our Reader against it", found, "Reader", "dcp", "shown beside it", "GiB/s", rate)
        bench.compare(f"CPU seconds a GiB, {where} load, against dcp.load", found, "ours", "dcp", "-", "s/GiB",
                      lambda answers: total(answers) * GIB / ranks.bytes)
    for path in paths.values():
        shutil.rmtree(path)


def bench_stall(bench):
    """What the caller waits for until its state may change; the next turn begins when the save is durable."""
    with Ranks(bench, "layers", bench.mib) as ranks:

        def turn(how):
            path = bench.fresh(bench.memory)
            try:
                return ranks.ask("stall", how=how, path=path)
            finally:
                shutil.rmtree(path, ignore_errors=True)

        contenders = {"ours": "ours", "again": "ours", **{how: how for how in ("stager", "memcpy", "thread", "process", "writer")}}
        found = bench.rounds({name: lambda how=how: turn(how) for name, how in contenders.items()})
        for what, first, second, target in (
                ("A against A", "ours", "again", "-"), ("against a warm DefaultStager", "ours", "stager", "<= 1"),
                ("against Tensor.copy_ into memory that is there", "ours", "memcpy", "<= 1.1"),
                ("against async_save as it comes (a thread)", "ours", "thread", "-"),
                ("against async_save with a process", "ours", "process", "-"),
                ("async_save with our Writer against a warm DefaultStager", "writer", "stager", "shown beside it")):
            bench.compare(f"stall, {what}", found, first, second, target, "s", lambda answers: slowest(answers, "stall_s"))


def bench_steps(bench):
    """A small FSDP2 training steps on while the large state is saved to the disk behind it."""
    with Ranks(bench, "layers", bench.mib) as ranks:
        best_threads(ranks, "dcp.save", lambda: save_turn(bench, ranks, bench.disk, "dcp"))

        def turn(how):
            path = bench.fresh(bench.disk)
            settle(bench, ranks, bench.disk)
            try:
                return ranks.ask("train", how=how, path=path, steps=40)[0]
            finally:
                shutil.rmtree(path, ignore_errors=True)

        contenders = {"ours": "ours", "again": "ours", **{how: how for how in ("stager", "thread", "process")}}
        found = bench.rounds({name: lambda how=how: turn(how) for name, how in contenders.items()})
        for name, (unit, what) in {"beside": ("tokens/s", "tokens/s while a save goes on"), "lost_s": ("s", "training time that a save costs")}.items():
            target = ">= 1" if name == "beside" else "lower is better"
            value = lambda answer, name=name: answer[name]
            bench.compare(f"{what}, A against A", found, "ours", "again", "-", unit, value)
            for how, text in (("stager", "async_save with a warm DefaultStager"), ("thread", "async_save as it comes"),
                              ("process", "async_save with a process")):
                bench.compare(f"{what}, against {text}", found, "ours", how, target, unit, value)
        for name in contenders:
            alone, seconds = (statistics.median(answer[key] for answer in found[name]) for key in ("alone", "save_s"))
            bench.table.add_value(f"{name}: tokens/s without a save", alone, "tokens/s", "-")
            bench.table.add_value(f"{name}: from the call of the save to its end", seconds, "s", "-")


def bench_plan(bench):
    """A warm save of many small tensors: what each part of it takes."""
    with Ranks(bench, "many", bench.tensors) as ranks:
        found = bench.rounds({name: lambda how=how: save_turn(bench, ranks, bench.memory, how)
                              for name, how in {"ours": "ours", "again": "ours", "dcp": "dcp"}.items()})
        what = f"{bench.tensors:,} tensors x {RANKS} ranks"
        for name, target, of in (
                ("planning of a warm save", "< 5", lambda answer: answer["plan_s"]),
                ("describing the state in Python", "-", lambda answer: answer["seconds"] - answer["total_s"]),
                ("the whole save", "-", lambda answer: answer["seconds"])):
            values = sorted(1e3 * max(map(of, answers)) for answers in found["ours"])
            bench.table.add_value(f"{what}: {name} [{values[0]:.2f}, {values[-1]:.2f}]", statistics.median(values), "ms", target)
        if not all(answer["plan_is_kept"] for answers in found["ours"] for answer in answers):
            raise Failed("a warm save was planned anew")
        bench.compare(f"{what}: whole save, A against A", found, "ours", "again", "-", "s", slowest)
        bench.compare(f"{what}: whole save, against dcp.save", found, "ours", "dcp", "-", "s", slowest)


class Bucket:
    """A server with a bucket, emptied between turns."""

    def __init__(self, endpoint):
        self.endpoint = endpoint
        self.client = Client(endpoint, rgw.ACCESS_KEY, rgw.SECRET_KEY)
        self.client.make_bucket("bench")

    def empty(self, prefix):
        for key, upload in self.client.uploads("bench", prefix):
            self.client.must("DELETE", "bench", key, query={"uploadId": upload})
        for key in self.client.keys("bench", prefix):
            self.client.remove("bench", key)

    def environment(self):
        return dict(KEYS, AWS_ENDPOINT_URL=self.endpoint)


def bench_puts(bench, bucket):
    with Ranks(bench, "layers", min(bench.mib, S3_MIB), **bucket.environment()) as ranks:

        def turn(how):
            path = bench.fresh(Path("turn"))
            try:
                return ranks.ask("save", how=how, path=f"s3://bench/{path}")
            finally:
                bucket.empty(path)

        best_threads(ranks, "the S3 connector's save", lambda: turn("connector"))
        found = bench.rounds({name: lambda how=how: turn(how) for name, how in {"ours": "ours", "again": "ours", "connector": "connector"}.items()})
        rate, cpu = (lambda answers: ranks.bytes / GIB / slowest(answers)), (lambda answers: total(answers) * GIB / ranks.bytes)
        bench.compare("S3 put (RGW), A against A", found, "ours", "again", "-", "GiB/s", rate)
        bench.compare("S3 put (RGW), against the S3 connector", found, "ours", "connector", ">= 1.5", "GiB/s", rate)
        bench.compare("client CPU seconds a GiB, S3 put (RGW), against it", found, "ours", "connector", "-", "s/GiB", cpu)


def bench_gets(bench, bucket):
    with Ranks(bench, "layers", min(bench.mib, S3_MIB), **bucket.environment()) as ranks:
        ranks.ask("save", how="ours", path="s3://bench/get")
        found = bench.rounds({name: lambda how=how: ranks.ask("load", how=how, path="s3://bench/get")
                              for name, how in {"ours": "ours", "again": "ours", "connector": "connector"}.items()})
        rate, cpu = (lambda answers: ranks.bytes / GIB / slowest(answers)), (lambda answers: total(answers) * GIB / ranks.bytes)
        bench.compare("S3 get (RGW), A against A", found, "ours", "again", "-", "GiB/s", rate)
        bench.compare("S3 get (RGW), against the S3 connector", found, "ours", "connector", ">= 1.5", "GiB/s", rate)
        bench.compare("client CPU seconds a GiB, S3 get (RGW), against it", found, "ours", "connector", "-", "s/GiB", cpu)
    bucket.empty("get")


def bench_s3(bench):
    """Ceph RGW, a real server."""
    ceph_cluster.MEMORY_BYTES = 6 << 30
    bucket = Bucket(rgw.start(bench.home / "rgw")[rgw.VARIABLE])
    bench_gets(bench, bucket)
    bench_puts(bench, bucket)


BENCHES = {
    "disk-save": lambda bench: bench_saves(bench, bench.disk, "disk", 1.5),
    "tmpfs-save": lambda bench: bench_saves(bench, bench.memory, "tmpfs", 1.2),
    "disk-load": lambda bench: bench_loads(bench, bench.disk, "disk", "shown beside it"),
    "tmpfs-load": lambda bench: bench_loads(bench, bench.memory, "tmpfs", ">= 2"),
    "stall": bench_stall, "steps": bench_steps, "plan": bench_plan, "s3": bench_s3,
}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--tensors", type=int, default=5000)
    parser.add_argument("--folder", default=str(ROOT / "build"), help="a folder on the disk to measure")
    parser.add_argument("--memory", default="/dev/shm", help="a folder on the memory file system to measure")
    parser.add_argument("--only", choices=BENCHES, nargs="*", default=list(BENCHES))
    parser.add_argument("--json", default=str(ROOT / "build/bench-torch.json"))
    arguments = parser.parse_args()
    bench, failures, start = Bench(arguments), [], time.monotonic()
    try:
        for name in arguments.only:
            print(f"-- {name} ({time.monotonic() - start:.0f} s)", flush=True)
            try:
                BENCHES[name](bench)
            except (Failed, rgw.Missing, RuntimeError, OSError, AssertionError, KeyError, subprocess.SubprocessError) as failure:
                failures.append(name)
                print(f"{name} failed: {type(failure).__name__}: {failure}", flush=True)
    finally:
        bench.clean()
        Path(arguments.json).write_text(json.dumps(bench.table.rows, indent=1))
    print(f"-- {time.monotonic() - start:.0f} s", flush=True)
    if failures:
        sys.exit(f"these parts failed: {', '.join(failures)}")


if __name__ == "__main__":
    main()
