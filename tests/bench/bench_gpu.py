"""`make bench-gpu`: what this program gets out of a GPU against programs that do one thing each, as ratios with intervals.

usage: tests/bench/bench_gpu.py [--build DIR] [--pairs N] [--torch PYTHON] [--folder DIR] [--only WORD...] [--json FILE]
Needs a GPU; products also need a Python with a PyTorch that is built for CUDA (--torch, or $TORCH_PYTHON). What could not be measured is
said, and why. One GPU: number 0 of those that CUDA_VISIBLE_DEVICES leaves.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ratio import Table, alternate

ROOT = Path(__file__).resolve().parents[2]
GIB = 2**30
ACROSS, INSIDE, ROWS = 256 << 20, 1 << 30, 8192  # as the suite has them
STATE = 2 * GIB  # of tests/bench/two-gib.yaml, bf16
GPT2 = (50257, 768, 12, 12)  # vocabulary, width, layers, heads of model=gpt2
BATCH, SEQUENCE, STEPS, WARMUP = 4, 1024, 20, 5


class Bench:
    def __init__(self, arguments):
        self.build = (ROOT / arguments.build).resolve()
        self.pairs, self.torch = arguments.pairs, arguments.torch
        self.table = Table()
        self.missing = []
        self.folder = Path(tempfile.mkdtemp(prefix="bench-of-ckptbench-", dir=arguments.folder))
        self.environment = dict(os.environ, CKPTBENCH_HOME=str(self.folder / "home"), CKPTBENCH_CUDA_PLUGIN=str(self.build / "ckptbench-cuda.so"))

    def clean(self):
        shutil.rmtree(self.folder, ignore_errors=True)

    def call(self, *command):
        return subprocess.run([str(word) for word in command], cwd=ROOT, env=self.environment, capture_output=True, text=True, timeout=1800)

    def run(self, *words):
        """Metrics of one run."""
        store = Path(tempfile.mkdtemp(dir=self.folder))
        try:
            result = self.call(self.build / "ckptbench", "run", "--json", "-q", f"store={store}", "ranks=1", *words)
        finally:
            shutil.rmtree(store, ignore_errors=True)
        if result.returncode:
            sys.exit(f"{' '.join(words)}\n{result.stdout}\n{result.stderr}")
        return json.loads(result.stdout)["metrics"]

    def suite(self):
        return {name: metric["median"] for name, metric in self.run("workload=suite", "suite.only=gpu", "iterations=1", "warmup=0").items()}

    def plain(self, across=ACROSS):
        result = self.call(self.build / "tests/plain_cuda", across, INSIDE)
        if result.returncode:
            sys.exit(f"plain_cuda: {result.stderr}")
        return json.loads(result.stdout)

    def miss(self, what, why):
        self.missing.append(f"{what}: {why}")
        print(f"{what:58s} not measured: {why}", flush=True)

    def add(self, name, pairs, target, unit, scale):
        self.table.add(name, [(a / scale, b / scale) for a, b in pairs], target, unit)


def bench_memory(bench):
    """All rows from the same runs, since one run of either side measures them all."""
    rows = {
        "gpu_to_host_bytes_per_s": ("to_host_bytes_per_s", "pinned copy from the GPU against cudaMemcpyAsync"),
        "gpu_to_device_bytes_per_s": ("to_device_bytes_per_s", "pinned copy to the GPU against cudaMemcpyAsync"),
        "gpu_copy_bytes_per_s": ("copy_bytes_per_s", "copy inside the GPU against its measured peak"),
    }
    for what, other, target in ((", A against A", bench.suite, "1.00"), ("", bench.plain, ">= 0.9")):
        measured = alternate(bench.suite, other, bench.pairs)
        for ours, (theirs, name) in rows.items():
            bench.add(name + what, [(a[ours], b.get(theirs, b.get(ours))) for a, b in measured], target, "GiB/s", GIB)


def bench_stall(bench):
    """What training waits for at an asynchronous save of 2 GiB, as a rate, against a copy of as much."""
    words = ["model=tests/bench/two-gib.yaml", "state=weights", "device=cuda", "ops=save", "save.async=true", "compute_gap=2s", "baseline=false",
             "verify=none", "keep=false", "iterations=3", "warmup=1"]
    ours = lambda: STATE / bench.run(*words)["stall_s"]["median"]
    peer = lambda: bench.plain(STATE)["to_host_bytes_per_s"]
    bench.add("stall of an asynchronous save, A against A", alternate(ours, ours, bench.pairs), "1.00", "GiB/s", GIB)
    bench.add("stall of an asynchronous save against the pinned copy", alternate(ours, peer, bench.pairs), ">= 0.9", "GiB/s", GIB)


def bench_gemm(bench):
    result = bench.call(bench.torch, ROOT / "tests/bench/gpu_peer.py", ROWS)
    if result.returncode:
        bench.miss("matrix products against PyTorch", f"{result.stderr.strip().splitlines()[-1]}; --torch names a Python whose PyTorch has CUDA")
        return
    peer = lambda: json.loads(bench.call(bench.torch, ROOT / "tests/bench/gpu_peer.py", ROWS).stdout)["flops"]
    for name in json.loads(result.stdout)["flops"]:
        metric = f"gpu_gemm_{name}_flops"
        pairs = alternate(bench.suite, peer, bench.pairs)
        bench.add(f"matrix product in {name}, {ROWS} rows, against PyTorch", [(a[metric], b[name]) for a, b in pairs], ">= 0.9", "Tflop/s", 1e12)


def bench_train(bench):
    """Steps of gpt2 in fp32 on one rank: against the same attention (products over all keys), then beside fused ones."""
    words = ["workload=train", "model=gpt2", "device=cuda", f"train.batch_size={BATCH}", f"train.seq_length={SEQUENCE}", f"train.steps={STEPS + WARMUP}",
             f"warmup={WARMUP}"]
    ours = lambda: bench.run(*words)["tokens_per_s"]["median"]
    call = lambda attention: bench.call(bench.torch, ROOT / "tests/bench/gpu_train_peer.py", *GPT2, BATCH, SEQUENCE, STEPS, attention)
    bench.add("training step, A against A", alternate(ours, ours, bench.pairs), "1.00", "ktokens/s", 1000)
    for attention, what, target in (("math", "the same attention (math)", ">= 0.9"), ("efficient", "fused attention (memory-efficient)", "beside"),
                                    ("flash", "flash attention, bf16 autocast", "beside")):
        result = call(attention)
        if result.returncode:
            bench.miss(f"a training step against PyTorch, {what}",
                       f"{(result.stderr.strip() or 'it ended').splitlines()[-1]}; --torch names a Python whose PyTorch has CUDA")
            continue
        peer = lambda: json.loads(call(attention).stdout)["tokens_per_s"]
        bench.add(f"training step against PyTorch, {what}", alternate(ours, peer, bench.pairs), target, "ktokens/s", 1000)


BENCHES = {"memory": bench_memory, "stall": bench_stall, "gemm": bench_gemm, "train": bench_train}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--torch", default=os.environ.get("TORCH_PYTHON", sys.executable), help="a Python whose PyTorch is built for CUDA")
    parser.add_argument("--folder", default="/dev/shm", help="where checkpoints go")
    parser.add_argument("--only", choices=BENCHES, nargs="*", default=list(BENCHES))
    parser.add_argument("--json", default=str(ROOT / "build/bench-gpu.json"))
    arguments = parser.parse_args()
    bench = Bench(arguments)
    device = ""
    try:
        devices = bench.call(bench.build / "ckptbench-worker", "--devices").stdout.strip()
        if not devices or devices.startswith("none"):
            sys.exit(f"bench-gpu: nothing to measure: {devices or 'no ckptbench-worker; build first'}")
        device = devices.splitlines()[0]
        print(f"-- {device}", flush=True)
        for name in arguments.only:
            BENCHES[name](bench)
    finally:
        bench.clean()
        if device:
            Path(arguments.json).write_text(json.dumps({"device": device, "missing": bench.missing, "rows": bench.table.rows}, indent=1))


if __name__ == "__main__":
    main()
