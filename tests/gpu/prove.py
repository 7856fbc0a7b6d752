"""`make test-gpu`, after the plugin's own tests: whole runs on the GPUs of this machine, each with what it has to show.

usage: tests/gpu/prove.py BUILD
Every claim is a line, "ok" or "FAILED" with why; what this machine cannot show (NCCL between GPUs where there is one) is said. Exits 1
where anything failed or there is no GPU.
"""
import csv
import json
import math
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

TRAINING = ("workload=train", "model=gpt2-tiny", "train.batch_size=8", "train.seq_length=64", "train.lr=0.001", "train.schedule=constant",
            "warmup=0")
LOSS_TOLERANCE = 1e-4  # relative, after twenty steps: sums are made in another order
BF16_TOLERANCE = 1e-2  # a GPU also rounds what it multiplies with weights
MODEL = ("model=gpt2", "baseline=false", "verify=full", "iterations=2", "warmup=0")
ROWS = ("gpu_copy_bytes_per_s", "gpu_triad_bytes_per_s", "gpu_to_device_bytes_per_s", "gpu_to_host_bytes_per_s", "gpu_to_device_pageable_bytes_per_s",
        "gpu_to_host_pageable_bytes_per_s", "gpu_gemm_fp32_flops", "gpu_gemm_tf32_flops", "gpu_gemm_bf16_flops", "gpu_launch_s")
BETWEEN = ("gpu_all_reduce_bus_bytes_per_s", "gpu_all_gather_bus_bytes_per_s", "gpu_reduce_scatter_bus_bytes_per_s", "gpu_broadcast_bus_bytes_per_s",
           "gpu_all_to_all_bus_bytes_per_s")
OVERLAP = ("gpu_overlap_products_s", "gpu_overlap_all_reduce_s", "gpu_overlap_both_s", "gpu_overlap_all_reduce_fraction",
           "gpu_overlap_all_gather_fraction", "gpu_overlap_reduce_scatter_fraction")


class Proof:
    def __init__(self, build):
        self.build = build
        self.folder = Path(tempfile.mkdtemp(prefix="ckptbench-prove-"))
        self.environment = {"CKPTBENCH_CUDA_PLUGIN": str(build / "ckptbench-cuda.so"), **os.environ, "CKPTBENCH_HOME": str(self.folder / "home")}
        self.failed = 0

    def call(self, *words):
        return subprocess.run([str(word) for word in words], env=self.environment, capture_output=True, text=True, timeout=900)

    def claim(self, what, holds, why=""):
        self.failed += 0 if holds else 1
        print(f"{'ok     ' if holds else 'FAILED '} {what}{'' if holds or not why else ': ' + why}", flush=True)

    def run(self, what, *words):
        """Metrics and facts of a run; None where it failed, which is told."""
        store = Path(tempfile.mkdtemp(dir=self.folder))
        result = self.call(self.build / "ckptbench", "run", "--json", "-q", f"store={store}", *words)
        shutil.rmtree(store, ignore_errors=True)
        if result.returncode:
            self.claim(what, False, f"{' '.join(words)}: {result.stdout[-2000:]} {result.stderr[-2000:]}")
            return None
        exported = json.loads(self.call(self.build / "ckptbench", "export", "LATEST", "--json").stdout)
        return json.loads(result.stdout)["metrics"], dict(fact.split("=", 1) for fact in exported["facts"])

    def run_and_claim(self, what, holds, *words):
        run = self.run(what, *words)
        if run:
            shown = {key: value for key, value in run[1].items() if key in ("device", "device.place", "affinity", "load.path")}
            self.claim(what, holds(*run), json.dumps(shown))
        return run


def prove_cufile(proof):
    """Where cuFile is: most bytes skip this machine's memory, and are right. Where it is not, that is said and nothing is claimed."""
    words = (*MODEL, "ranks=1", "device=cuda", "checksum=none")
    run = proof.run("cuFile is used where it can be", *words, "io.gds=auto")
    if not run:
        return
    if run[1].get("io.gds", "not used").startswith("not used"):
        print(f"--      saves and loads by cuFile cannot be shown here: {run[1].get('io.gds')}")
        return
    print(f"        {run[1]['io.gds']}; {run[1]['io.used']}")
    total = {}
    for row in csv.DictReader(proof.call(proof.build / "ckptbench", "export", "LATEST", "--csv").stdout.splitlines()):
        total[row["op"], row["metric"]] = total.get((row["op"], row["metric"]), 0) + float(row["value"])
    few = all(0 < total[op, "bytes_needed"] > 100 * total[op, "bytes_copied"] for op in ("save", "load"))
    proof.claim("cuFile saves and loads a state on the GPU without this machine's memory", few, json.dumps(run[1]))


def prove_checkpoints(proof):
    right = lambda metrics, facts: "device" in facts and "device.place" in facts and "affinity" in facts
    run = proof.run_and_claim("a state on the GPU is saved, loaded and compared there", right, *MODEL, "ranks=1", "device=cuda")
    if run:
        print(f"        {run[1].get('device')}; {run[1].get('device.place')}; cores {run[1].get('affinity')}")
    proof.run_and_claim("the same behind training", lambda metrics, facts: metrics["stall_s"]["median"] > 0, *MODEL, "ranks=1", "device=cuda",
                        "save.async=true")
    proof.run_and_claim("the same in rounds through 64 MiB of staging memory", right, *MODEL, "ranks=1", "device=cuda", "save.async=true",
                        "save.staging_bytes=64MiB", "io.block=4MiB")
    prove_cufile(proof)
    host = lambda metrics, facts: facts.get("load.path", "").startswith("through memory of this machine")
    visible = proof.environment.get("CUDA_VISIBLE_DEVICES")
    proof.environment["CUDA_VISIBLE_DEVICES"] = proof.first
    proof.run_and_claim("two ranks with one GPU exchange a load through this machine's memory", host, *MODEL, "ranks=2", "device=cuda",
                        "load.exchange=split")
    proof.environment.pop("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        proof.environment["CUDA_VISIBLE_DEVICES"] = visible


def losses_of(proof, what, *words):
    """{step: loss} of a training; None where it failed, which is told."""
    result = proof.call(proof.build / "ckptbench", "run", "--json", "-q", *TRAINING, *words)
    if result.returncode:
        proof.claim(what, False, f"{' '.join(words)}: {result.stdout[-2000:]} {result.stderr[-2000:]}")
        return None
    rows = csv.DictReader(proof.call(proof.build / "ckptbench", "export", "LATEST", "--csv").stdout.splitlines())
    return {int(row["iteration"]): float(row["value"]) for row in rows if row["op"] == "step" and row["metric"] == "loss"}


def near(ours, theirs, tolerance):
    return ours.keys() == theirs.keys() and all(math.isclose(ours[step], theirs[step], rel_tol=tolerance) for step in ours)


def prove_training(proof):
    for name, words in (("in fp32", ()), ("with dropout", ("train.dropout=0.1",)), ("with SGD", ("train.optimizer=sgd",)), ("in bf16", ("dtype=bf16",))):
        what = f"a training on the GPU {name} has the losses of one on the CPU"
        gpu, cpu = (losses_of(proof, what, "store=null:", "ranks=1", "train.steps=20", f"device={device}", *words) for device in ("cuda", "cpu"))
        if gpu and cpu:
            proof.claim(what, near(gpu, cpu, BF16_TOLERANCE if "bf16" in name else LOSS_TOLERANCE), f"{gpu} {cpu}")
    for name, words in (("", ()), (" behind its steps", ("save.async=true",)), (", by cuFile where it can be", ("io.gds=auto", "checksum=none"))):
        what = f"a training on the GPU that is resumed from what it saved{name} goes on with the same losses"
        parts = [losses_of(proof, what, f"store={proof.folder}/{folder}", "ranks=1", "device=cuda", "train.checkpoint_every=4", "suffix=a", "train.resume=latest",
                           f"train.steps={steps}", *words) for folder, steps in (("straight", 8), ("resumed", 4), ("resumed", 8))]
        if all(parts):
            proof.claim(what, {**parts[1], **parts[2]} == parts[0] and len(parts[2]) == 4, f"{parts}")
        for folder in ("straight", "resumed"):
            shutil.rmtree(proof.folder / folder, ignore_errors=True)


def spans_of(folder):
    """The complete events of rank 0's trace."""
    return [event for event in json.loads((Path(folder) / "rank-0.pt.trace.json").read_text())["traceEvents"] if event["ph"] == "X"]


def prove_traces(proof, count):
    """Stages and exchanges have the device's times within their steps; kernels are there if CUPTI may record them."""
    run = proof.run("a training on the GPU is traced", *TRAINING, "store=null:", f"ranks={count}", "train.steps=3", "train.trace=3", "device=cuda")
    if not run:
        return
    spans, kernels = spans_of(run[1]["train.trace"]), run[1]["train.kernels"]
    steps = {event["args"]["step"]: event for event in spans if event["name"].startswith("ProfilerStep#")}
    stages = [event for event in spans if event["name"].startswith(("forward", "backward"))]
    exchanges = [event for event in spans if event["cat"] == "communication"]
    outside = [event for event in (*stages, *exchanges) for step in [steps[event["args"]["step"]]]
               if event["ts"] < step["ts"] - 100 or event["ts"] + event["dur"] > step["ts"] + step["dur"] + 100]
    proof.claim("the device's times of stages and exchanges are within their steps", bool(stages) and not outside, json.dumps(outside[:3]))
    if count > 1:
        beside = [one for one in exchanges if any(one["ts"] < other["ts"] + other["dur"] and other["ts"] < one["ts"] + one["dur"] for other in stages)]
        proof.claim(f"exchanges between GPUs are beside computing: {len(beside)} of {len(exchanges)}", bool(beside))
    if kernels.startswith("none"):
        print(f"--      kernels: {kernels}")
    else:
        proof.claim(f"a trace has the GPU's kernels: {kernels}", any(event["cat"] == "kernel" for event in spans) and kernels.endswith(" 0 lost"))


def prove_suite(proof):
    proof.run_and_claim("the suite measures one GPU", lambda metrics, facts: all(metrics[row]["median"] > 0 for row in ROWS if row in metrics) and
                        all(row in metrics for row in ROWS), "workload=suite", "suite.only=gpu", "ranks=1", "iterations=2", "warmup=0")


def prove_several(proof, count):
    if count < 2:
        print("--      one GPU: what goes from GPU to GPU (NCCL of several ranks) cannot be shown here")
        return
    ranks = f"ranks={count}"
    devices = lambda metrics, facts: facts.get("load.path") == "from device to device"
    for words in (("load.exchange=broadcast",), ("load.exchange=split",), (f"load.tp={count}", "load.exchange=split"), ("load.exchange=split", "load.shift=1")):
        proof.run_and_claim(f"a load goes from GPU to GPU: {' '.join(words)}", devices, *MODEL, ranks, "device=cuda", *words)
    for name, words in (("with DDP", ("train.data_parallel=ddp",)), ("with FSDP", ()), ("with FSDP and CPU offload", ("train.cpu_offload=true",))):
        what = f"a training on {count} GPUs {name} has the losses of {count} ranks on the CPU"
        gpu, cpu = (losses_of(proof, what, "store=null:", ranks, "train.steps=20", f"device={device}", *words) for device in ("cuda", "cpu"))
        if gpu and cpu:
            proof.claim(what, near(gpu, cpu, LOSS_TOLERANCE), f"{gpu} {cpu}")
    prove_traces(proof, count)
    run = proof.run_and_claim("the suite measures NCCL between all GPUs, alone and beside matrix products",
                              lambda metrics, facts: all(row in metrics for row in (*BETWEEN, *OVERLAP)), "workload=suite", "suite.only=gpu", ranks,
                              "iterations=2", "warmup=0")
    if run:
        print("        " + ", ".join(f"{row} {run[0][row]['median']:.4g}" for row in OVERLAP if row in run[0]))


def main():
    proof = Proof(Path(sys.argv[1]).resolve())
    devices = proof.call(proof.build / "ckptbench-worker", "--devices").stdout.strip()
    if not devices or devices.startswith("none"):
        sys.exit(f"test-gpu: nothing could be shown: {devices}")
    print(devices)
    proof.first = os.environ.get("CUDA_VISIBLE_DEVICES", "0").split(",")[0]
    try:
        prove_checkpoints(proof)
        prove_training(proof)
        prove_traces(proof, 1)
        prove_suite(proof)
        prove_several(proof, len(devices.splitlines()))
    finally:
        shutil.rmtree(proof.folder, ignore_errors=True)
    print(f"test-gpu: {'all of it holds' if not proof.failed else f'{proof.failed} FAILED'}")
    sys.exit(1 if proof.failed else 0)


if __name__ == "__main__":
    main()
