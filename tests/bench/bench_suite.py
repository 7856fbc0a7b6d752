"""`make bench-suite`: the cluster suite against programs that measure one thing each, as ratios with intervals.

usage: tests/bench/bench_suite.py [--build DIR] [--pairs N] [--folder DIR] [--only WORD...] [--json FILE]
Each pair is one run of a section of the suite and one of its peer, in turn; A against A first. What a ratio above 1 means is
said in the row: rates are ours / peer's, latencies likewise (so there lower is better).
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import huge_page_words
from ratio import Table, alternate

ROOT = Path(__file__).resolve().parents[2]
FILE = 256 << 20
GEMM = 4096
ROUND = ["iterations=1", "warmup=1"]


class Bench:
    def __init__(self, arguments):
        self.build = (ROOT / arguments.build).resolve()
        self.pairs = arguments.pairs
        self.table = Table()
        self.folder = Path(tempfile.mkdtemp(prefix="ckptbench-bench-", dir=arguments.folder))
        self.home = Path(tempfile.mkdtemp(prefix="ckptbench-home-"))

    def clean(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self.home, ignore_errors=True)

    def suite(self, *words):
        """Metrics of one run of the suite."""
        store = Path(tempfile.mkdtemp(dir=self.folder))
        command = [str(self.build / "ckptbench"), "run", "--json", "-q", "workload=suite", f"store={store}", *words]
        try:
            result = subprocess.run(command, cwd=ROOT, env=dict(os.environ, CKPTBENCH_HOME=str(self.home)), capture_output=True, text=True)
        finally:
            shutil.rmtree(store, ignore_errors=True)
        if result.returncode:
            sys.exit(f"{' '.join(command)}\n{result.stdout}\n{result.stderr}")
        return {name.removeprefix("suite."): metric["median"] for name, metric in json.loads(result.stdout)["metrics"].items()}

    def peer(self, *command, **environment):
        result = subprocess.run([str(word) for word in command], cwd=ROOT, env=dict(os.environ, **environment), capture_output=True, text=True)
        if result.returncode:
            sys.exit(f"{' '.join(map(str, command))}\n{result.stderr}")
        return json.loads(result.stdout)

    def tool(self, name):
        return self.build / "tests" / name

    def compare(self, name, ours, peer, target, unit):
        self.table.add(f"{name}, A against A", alternate(ours, ours, self.pairs), 1.00, unit)
        self.table.add(name, alternate(ours, peer, self.pairs), target, unit)


def bench_memory(bench):
    """Arrays of the same bytes: the suite's two ranks have half each."""
    ours = lambda: bench.suite("suite.only=memory", "ranks=2", *ROUND)["memory_triad_bytes_per_s"] / 2**30
    cache = int(subprocess.run(["getconf", "LEVEL3_CACHE_SIZE"], capture_output=True, text=True).stdout.strip() or 0)
    array = 2 * max(32 << 20, 4 * cache // 2)
    peer = lambda: bench.peer(bench.tool("plain_triad"), array, OMP_NUM_THREADS="2", OMP_PROC_BIND="true")["bytes_per_s"] / 2**30
    bench.compare("triad on 2 cores against a plain OpenMP triad", ours, peer, ">= 0.95", "GiB/s")


def bench_cpu(bench):
    ours = lambda: bench.suite("suite.only=cpu", "ranks=2", "iterations=1", "warmup=0", f"suite.gemm_size={GEMM}")["cpu_gemm_flops"] / 1e9
    peer = lambda: bench.peer(bench.tool("plain_gemm"), GEMM)["flops"] / 1e9
    bench.compare("matrix product on one core against OpenBLAS", ours, peer, ">= 0.95", "Gflop/s")


def bench_net(bench):
    mpirun = ["mpirun", *(["--allow-run-as-root"] if os.geteuid() == 0 else []), "--oversubscribe", "-n", "2"]
    ours = lambda: bench.suite("suite.only=net", "ranks=2", "suite.message_bytes=1MiB", *ROUND)["local_latency_s"] * 1e6
    peer = lambda: bench.peer(*mpirun, bench.tool("plain_ping_pong"))["latency_s"] * 1e6
    bench.compare("ping-pong of 8 bytes on one node against plain MPI (lower is better)", ours, peer, "<= 1.10", "us")


def fio(bench, mode, block, depth, *extra):
    """One job, O_DIRECT through io_uring; its figures."""
    folder = bench.folder / "fio"
    folder.mkdir(exist_ok=True)
    if mode == "write":
        for path in folder.iterdir():
            path.unlink()
    extra = [*extra, *huge_page_words()] if block != "4k" else extra
    out = bench.peer("fio", "--name=peer", f"--rw={mode}", "--ioengine=io_uring", "--fixedbufs=1", "--direct=1", f"--bs={block}", f"--iodepth={depth}",
                     f"--size={FILE}", "--fallocate=none", f"--directory={folder}", "--output-format=json", *extra)
    return out["jobs"][0]["read" if "read" in mode else "write"]


def bench_storage(bench):
    """All rows from the same runs, since one of the suite measures all of them."""
    words = ["suite.only=storage", "ranks=1", "io.block=4MiB", "io.depth=8", f"suite.file_bytes={FILE}", "iterations=1", "warmup=1"]
    random = ("--time_based", "--runtime=1", "--norandommap")
    seconds = lambda figures: figures["runtime"] / 1000
    rows = {
        "storage_write_bytes_per_s": ("sequential write, fsync inside", 2**30, "GiB/s"),
        "storage_read_bytes_per_s": ("sequential cold read", 2**30, "GiB/s"),
        "storage_read_4k_depth_1_per_s": ("random reads of 4 KiB, one at a time", 1, "requests/s"),
        "storage_read_4k_depth_32_per_s": ("random reads of 4 KiB, 32 in flight", 1, "requests/s"),
    }
    ours = lambda: bench.suite(*words)
    peer = lambda: {
        "storage_write_bytes_per_s": FILE / seconds(fio(bench, "write", "4m", 8, "--end_fsync=1")),
        "storage_read_bytes_per_s": FILE / seconds(fio(bench, "read", "4m", 8)),
        "storage_read_4k_depth_1_per_s": fio(bench, "randread", "4k", 1, *random)["iops"],
        "storage_read_4k_depth_32_per_s": fio(bench, "randread", "4k", 32, *random)["iops"],
    }
    for what, other, target in ((", A against A", ours, 1.00), (", against fio", peer, "0.95 to 1.05")):
        pairs = alternate(ours, other, bench.pairs)
        for metric, (name, scale, unit) in rows.items():
            bench.table.add(name + what, [(a[metric] / scale, b[metric] / scale) for a, b in pairs], target, unit)


def bench_whole(bench):
    start = time.monotonic()
    bench.suite("ranks=2")
    bench.table.add_value("the whole default suite, 2 ranks", time.monotonic() - start, "s", "< 180")


BENCHES = {"memory": bench_memory, "cpu": bench_cpu, "net": bench_net, "storage": bench_storage, "whole": bench_whole}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--folder", default=str(ROOT / "build"), help="a folder on the disk to measure")
    parser.add_argument("--only", choices=BENCHES, nargs="*", default=list(BENCHES))
    parser.add_argument("--json", default=str(ROOT / "build/bench-suite.json"))
    arguments = parser.parse_args()
    bench = Bench(arguments)
    try:
        for name in arguments.only:
            print(f"-- {name}", flush=True)
            BENCHES[name](bench)
    finally:
        bench.clean()
        Path(arguments.json).write_text(json.dumps(bench.table.rows, indent=1))


if __name__ == "__main__":
    main()
