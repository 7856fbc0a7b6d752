"""Trainings with a GPU for each rank: processes over the CUDA plugin's own source, built for the processor (tests/cuda_on_cpu), whose NCCL has what ranks
send in files. Their losses and what they exchange are those of the same ranks without devices."""
import json
import math
import os
import shutil
import tempfile

import pytest

from harness import ROOT, ckptbench
from train_harness import PLUGIN, facts, losses, train, values

SSHD = os.environ.get("CKPTBENCH_TEST_SSHD")
TOLERANCE = 1e-5
pytestmark = pytest.mark.skipif(PLUGIN is None, reason="the plugin's source is not built for the processor in this build")
TINY = ("layers=1", "train.seq_length=6", "train.steps=3", "train.backward_prefetch=BACKWARD_PRE")


@pytest.fixture
def gpus(monkeypatch):
    """Four devices, and a folder for what ranks send; NCCL's ids have room for a short name."""
    folder = tempfile.mkdtemp(prefix="nccl-", dir="/tmp")
    monkeypatch.setenv("CKPTBENCH_CUDA_PLUGIN", str(PLUGIN))
    monkeypatch.setenv("CUDA_ON_CPU_DEVICES", "4")
    monkeypatch.setenv("CUDA_ON_CPU_BYTES", str(96 << 20))  # too little for the large products that mfu compares with
    monkeypatch.setenv("CUDA_ON_CPU_STAYS_OPEN", "1")
    monkeypatch.setenv("CUDA_ON_CPU_FOLDER", folder)
    yield
    shutil.rmtree(folder)


def both(place, *words):
    """The folders of the same training without devices and with them."""
    here, there = place / "here", place / "there"
    for folder, device in ((here, "cpu"), (there, "cuda")):
        folder.mkdir()
        train(folder, f"device={device}", *TINY, *words)
    return here, there


def same(ours, theirs, tolerance=TOLERANCE):
    assert ours.keys() == theirs.keys()
    for step, loss in ours.items():
        assert math.isclose(loss, theirs[step], rel_tol=tolerance), (step, loss, theirs[step])


@pytest.mark.parametrize("words", [
    ("ranks=2", "train.data_parallel=ddp", "train.dropout=0.1"),
    ("ranks=2", "train.forward_prefetch=true"),
    ("ranks=2", "dtype=bf16", "layers=2", "train.backward_prefetch=BACKWARD_POST"),
    ("ranks=2", "train.cpu_offload=true"),
    ("ranks=4", "sharding=hybrid(2)", "train.validate_every=2", "train.backward_prefetch=NONE"),
], ids=["ddp", "fsdp", "bf16+post", "offload", "hybrid+none"])
def test_ranks_with_a_gpu_each_have_the_losses_and_the_exchange_of_ranks_without(tmp_path, gpus, words):
    here, there = both(tmp_path, "train.batch_size=2", *words)
    same(losses(there), losses(here), 2e-3 if "dtype=bf16" in words else TOLERANCE)  # GPUs also round what they multiply with weights
    for metric in ("comm_bytes", "gathered_bytes", "offload_bytes"):
        assert values(there, metric) == values(here, metric)
    assert values(here, "comm_s") and not values(there, "comm_s")  # the host does not know it of devices
    told, untold = facts(there), facts(here)
    assert told["train.exchange"] == untold["train.exchange"] and "CUDA on a CPU" in told["device"]


def test_a_checkpoint_goes_from_gpus_to_ranks_without_and_to_an_offloaded_gpu(tmp_path, gpus):
    train(tmp_path, *TINY, "ranks=2", "train.batch_size=2", "train.steps=6")
    straight, seen = losses(tmp_path), {}
    for steps, words in ((2, ("ranks=2", "train.batch_size=2", "device=cuda", "save.async=true")), (4, ("ranks=1", "train.batch_size=4")),
                         (6, ("ranks=2", "train.batch_size=2", "device=cuda", "train.cpu_offload=true", "save.async=true"))):
        train(tmp_path, *TINY, *words, "train.checkpoint_every=2", f"train.steps={steps}", "suffix=a", "train.resume=latest", store=tmp_path / "store")
        seen.update(losses(tmp_path))
    same(seen, straight)


def test_two_ranks_on_one_gpu_are_refused_with_the_reason(tmp_path, gpus, monkeypatch):
    monkeypatch.setenv("CUDA_ON_CPU_DEVICES", "1")
    assert "a GPU for each rank" in train(tmp_path, *TINY, "ranks=2", "train.batch_size=2", "device=cuda", code=3)["message"]


def test_two_ranks_of_a_hybrid_sharding_on_one_gpu_are_refused_although_they_exchange_nothing(tmp_path, gpus, monkeypatch):
    monkeypatch.setenv("CUDA_ON_CPU_DEVICES", "3")  # ranks 0 and 3 share one; the groups are {0, 1}, {2, 3}, {0, 2} and {1, 3}
    words = ("ranks=4", "sharding=hybrid(2)", "train.batch_size=2", "device=cuda")
    assert "a GPU for each rank" in train(tmp_path, *TINY, *words, code=3)["message"]


def test_the_suite_and_the_gpt2_of_the_training_example_are_one_job_on_gpus(tmp_path, gpus):
    file = ROOT / "experiments/suite-and-gpt2.yaml"
    told = ckptbench(tmp_path, "plan", file, "workload=train", "nodes=4", f"store={tmp_path}/store").stdout
    assert "2,648,931,840 parameters" in told and "32 ranks" in told
    scripts = ckptbench(tmp_path, "render", file, f"store={tmp_path}/store", "nodes=4", "slurm.one_job=false").stdout.split()
    assert len(scripts) == 2 and all("#SBATCH --nodes=4" in text and "gpus-per-node=8" in text for text in (open(path).read() for path in scripts))
    scaled = next(line for line in file.read_text().splitlines() if line.startswith("# Scaled: ")).removeprefix("# Scaled: ").split()
    ckptbench(tmp_path, "run", file, *scaled, "suite.only=net", "suite.message_bytes=64", f"store={tmp_path}/run")
    assert "CUDA on a CPU" in facts(tmp_path)["device"] and len(losses(tmp_path)) == 4


def test_memory_at_the_stages_is_what_the_device_has_less_and_traces_show_the_exchange(tmp_path, gpus):
    run = train(tmp_path, *TINY, "ranks=2", "train.batch_size=2", "device=cuda", "warmup=1", "train.trace=1")["run"]
    for rank in range(2):
        lines = (tmp_path / f"home/runs/{run}/attempts/1/memory/rank-{rank}.jsonl").read_text().splitlines()
        data, model, warm = (json.loads(line) for line in lines)
        assert data["cuda_memory_allocated_GB"] == 0 < data["cuda_memory_reserved_GB"]  # the libraries' own
        assert 0 < model["cuda_memory_allocated_GB"] == warm["cuda_memory_allocated_GB"]
        for before, record in ((data, model), (model, warm)):
            assert record["cuda_memory_allocated_GB"] <= record["cuda_memory_reserved_GB"] <= record["cuda_max_memory_reserved_GB"]
            assert record["cuda_max_memory_allocated_GB"] == max(record["cuda_memory_allocated_GB"], before["cuda_max_memory_allocated_GB"])
    trace = json.loads(next((tmp_path / f"home/runs/{run}/attempts/1/traces").rglob("rank-1.pt.trace.json")).read_text())
    spans = [(event["name"], event["cat"]) for event in trace["traceEvents"] if event["ph"] == "X"]
    assert trace["distributedInfo"]["backend"] == "nccl"
    # The root and the block are gathered once and scattered once.
    assert sorted(name for name, kind in spans if kind == "communication") == ["all-gather 0", "all-gather 1", "reduce-scatter 0", "reduce-scatter 1"]


@pytest.fixture
def cupti(gpus, monkeypatch):
    monkeypatch.setenv("LD_LIBRARY_PATH", str(PLUGIN.parent))


def at_once(one, other):
    return one["ts"] < other["ts"] + other["dur"] and other["ts"] < one["ts"] + one["dur"]


def test_a_trace_shows_what_gpus_compute_and_exchange_at_once_and_every_kernel(tmp_path, cupti):
    """Which of the two streams goes on is random; a trace has dozens of exchanges that may be beside what is computed."""
    run = train(tmp_path, *TINY, "layers=4", "ranks=2", "train.batch_size=2", "device=cuda", "train.forward_prefetch=true", "warmup=0", "train.trace=3")["run"]
    for rank in range(2):
        trace = json.loads(next((tmp_path / f"home/runs/{run}/attempts/1/traces").rglob(f"rank-{rank}.pt.trace.json")).read_text())
        assert trace["droppedEvents"] == 0
        spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
        steps = {event["args"]["step"]: event for event in spans if event["name"].startswith("ProfilerStep#")}
        exchanges = [event for event in spans if event["cat"] == "communication"]
        stages = [event for event in spans if event["name"].startswith(("forward", "backward"))]
        assert len(steps) == 3 and len(stages) == 3 * 2 * 6
        for event in (*exchanges, *stages):  # a device's clock is set by the host's
            step = steps[event["args"]["step"]]
            assert step["ts"] - 1000 <= event["ts"] <= event["ts"] + event["dur"] <= step["ts"] + step["dur"] + 1000
        assert any(at_once(one, other) for one in exchanges for other in stages)
        kernels = [event for event in spans if event["cat"] == "kernel"]
        of_nccl = [event for event in kernels if event["name"].startswith("ncclDevKernel_")]
        names = {event["name"] for event in kernels}
        assert {"ncclDevKernel_AllGather", "ncclDevKernel_ReduceScatter"} <= names and len(names) > 12
        assert {event["name"] for event in spans if event["cat"] == "gpu_memcpy"} == {"Memcpy HtoD", "Memcpy DtoH"}
        # Each collective's kernel is on the second stream, in their order; every kernel is within a step, though CUPTI has another clock.
        assert len({event["tid"] for event in of_nccl}) == 1 and all(event["tid"] != of_nccl[0]["tid"] for event in kernels if event not in of_nccl)
        ours, theirs = ([event["name"].split(" ")[0].removeprefix("ncclDevKernel_").lower().replace("-", "") for event in
                         sorted(events, key=lambda event: event["ts"])] for events in (exchanges, of_nccl))
        assert ours == theirs
        assert all(any(step["ts"] <= event["ts"] + 1 and event["ts"] + event["dur"] <= step["ts"] + step["dur"] + 1 for step in steps.values())
                   for event in kernels)
    assert facts(tmp_path)["train.kernels"].endswith(" kernels and copies in the trace, 0 lost")


@pytest.mark.parametrize("variable, why", [("CUDA_ON_CPU_PROFILER", "another profiler observes this process"),
                                           ("CUDA_ON_CPU_UNPRIVILEGED", "lets only administrators profile"), (None, "libcupti.so.13 cannot be loaded")])
def test_without_cupti_a_trace_has_the_times_of_stages_and_says_why_no_kernels(tmp_path, cupti, monkeypatch, variable, why):
    if variable:
        monkeypatch.setenv(variable, "1")
    else:  # found before one that this machine may have
        (tmp_path / "libcupti.so.13").write_text("not a library\n" * 100)
        monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    run = train(tmp_path, *TINY, "ranks=1", "train.batch_size=2", "train.steps=1", "device=cuda", "warmup=0", "train.trace=1")["run"]
    assert facts(tmp_path)["train.kernels"].startswith("none in the trace: ") and why in facts(tmp_path)["train.kernels"]
    trace = json.loads(next((tmp_path / f"home/runs/{run}/attempts/1/traces").rglob("rank-0.pt.trace.json")).read_text())
    assert {event["name"] for event in trace["traceEvents"] if event["ph"] == "X"} >= {"forward 0", "backward 0", "optimizer"}
    assert not [event for event in trace["traceEvents"] if event["ph"] == "M" and "stream" in event["args"].get("name", "")]


@pytest.mark.skipif(not SSHD, reason="no sshd (CKPTBENCH_TEST_SSHD, see tests/services/sshd.py)")
def test_gpus_of_two_hosts_have_the_losses_of_ranks_without(tmp_path, gpus, monkeypatch):
    (tmp_path / "ssh").write_text(f'#!/bin/sh\nexec {SSHD}/bin/ssh -o "SendEnv=CKPTBENCH_CUDA_PLUGIN CUDA_ON_CPU_*" "$@"\n')
    (tmp_path / "ssh").chmod(0o755)
    for name, value in {"PATH": f"{tmp_path}:{os.environ['PATH']}", "OMPI_MCA_btl": "self,tcp", "OMPI_MCA_btl_tcp_if_include": "lo",
                        "CUDA_ON_CPU_DEVICES": "1", "CUDA_ON_CPU_NODE_IN": "OMPI_COMM_WORLD_RANK"}.items():  # each node has one rank
        monkeypatch.setenv(name, value)
    here, there = both(tmp_path, "hosts=node-a,node-b", "ranks=2", "train.batch_size=2", "train.checkpoint_every=2")
    same(losses(there), losses(here))
