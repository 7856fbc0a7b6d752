"""Trainings as jobs of a real Slurm: on all of its nodes, and again where Slurm runs one again."""
import os
import time
from pathlib import Path

import pytest
from slurm_harness import MISSING, VARIABLE, shared_cluster
from train_harness import PLUGIN

pytestmark = pytest.mark.skipif(not os.environ.get(VARIABLE), reason=MISSING)
assert VARIABLE == "CKPTBENCH_TEST_SLURM"  # tests/run.py looks for the name in this file
TRAIN = ("model=gpt2-tiny", "layers=1", "train.seq_length=16", "train.batch_size=1", "slurm.time=3m", "workload=train")


@pytest.fixture
def cluster(tmp_path):
    with shared_cluster(tmp_path) as cluster:
        yield cluster


def test_a_training_runs_on_four_nodes(cluster):
    run, _ = cluster.submit_one(*TRAIN, "nodes=4", "ranks_per_node=1", "train.steps=4", "train.checkpoint_every=2", "sharding=hybrid(2)")
    line = cluster.wait_final(run, seconds=200)[run]
    assert (line["outcome"], line["nodes"]) == ("pass", 4), line
    metrics = cluster.document("show", run)["metrics"]
    assert metrics["checkpoints"]["median"] == 2 and metrics["step.loss"]["n"] == 3


def test_a_training_runs_on_the_gpus_of_two_nodes(cluster, tmp_path, monkeypatch):
    if PLUGIN is None:
        pytest.skip("the plugin's source is not built for the processor in this build")
    (tmp_path / "n").mkdir()
    for name, value in (("CKPTBENCH_CUDA_PLUGIN", PLUGIN), ("CUDA_ON_CPU_FOLDER", tmp_path / "n"), ("CUDA_ON_CPU_NODE_IN", "SLURM_NODEID"),
                        ("CUDA_ON_CPU_BYTES", 96 << 20), ("CUDA_ON_CPU_STAYS_OPEN", 1)):
        monkeypatch.setenv(name, str(value))
    run, _ = cluster.submit_one(*TRAIN, "nodes=2", "ranks_per_node=1", "device=cuda", "train.seq_length=6", "train.steps=3", "train.checkpoint_every=2")
    line = cluster.wait_final(run, seconds=170)[run]
    assert (line["outcome"], line["nodes"]) == ("pass", 2), (line, cluster.manifest(run))
    facts = [fact for fact in cluster.document("export", run)["facts"] if fact.startswith(("device=", "train.exchange="))]
    assert any("CUDA on a CPU" in fact for fact in facts) and any("reduce-scatters" in fact for fact in facts)


def test_suite_and_training_are_one_job_on_four_nodes(cluster):
    file = Path(__file__).resolve().parents[2] / "experiments/suite-and-train.yaml"
    words = (file, "nodes=4", "ranks_per_node=1", "layers=1", "train.steps=4", "train.seq_length=16", "train.batch_size=1",
             "train.checkpoint_every=2", "warmup=0", "suite.only=cpu", "suite.gemm_size=64", "slurm.time=5m")
    (suite, train), jobs = cluster.submit(*words)
    assert jobs[0] == jobs[1] and cluster.jobs_named(suite) == [jobs[0]] and not cluster.jobs_named(train)
    script = (cluster.run_folder(suite) / "job.sbatch").read_text()
    assert script.splitlines()[-1].endswith(f"run '{cluster.run_folder(suite)}' '{cluster.run_folder(train)}'")
    lines = cluster.wait_final(suite, train, seconds=240)
    assert [(lines[run]["outcome"], lines[run]["nodes"], lines[run]["job"], lines[run]["note"]) for run in (suite, train)] == [("pass", 4, jobs[0], None)] * 2, [cluster.manifest(run) for run in (suite, train)]
    assert cluster.manifest(suite)["ended_wall_ns"] <= cluster.manifest(train)["started_wall_ns"]
    nodes = cluster.document("show", suite, "--nodes")["nodes"]
    assert len(nodes["names"]) == 4 and len(nodes["metrics"]["cpu_sort_elements_per_s"]["values"]) == 4
    assert cluster.document("show", train)["metrics"]["checkpoints"]["median"] == 2
    cluster.call("logs", train)


def test_one_job_has_one_script_and_is_no_array(cluster):
    words = ("workload=suite", "suite.only=cpu", "store=null:", "repeat=2", "slurm.one_job=true", "slurm.time=5m")
    out = cluster.call("submit", *words, "--dry-run").stdout
    assert out.count("#!/bin/sh") == 1 and out.splitlines()[-1].count("/runs/") == 2
    assert "slurm.one_job" in cluster.call("submit", *words, "--array", code=2).stderr
    assert "slurm.one_job" in cluster.call("render", *words, code=2).stderr
    assert "slurm.time" in cluster.call("submit", *words[:-1], "--dry-run", code=2).stderr
    assert cluster.document("status") == []


def test_a_sweep_over_nodes_is_one_job_of_the_most(cluster):
    words = ("model=gpt2-tiny", "baseline=false", "iterations=1", "warmup=0", "ranks_per_node=1", "nodes=1,2", "repeat=2", "slurm.one_job=true", "slurm.time=5m", "verify=none", "ops=save")
    assert "slurm" not in cluster.call("submit", *words, "nodes=1,9", "store=null:", code=2).stdout
    runs, jobs = cluster.submit(*words)
    assert len(set(jobs)) == 1 and "#SBATCH --nodes=2\n" in (cluster.run_folder(runs[0]) / "job.sbatch").read_text()
    lines = cluster.wait_final(*runs, seconds=240)
    assert sorted((lines[run]["outcome"], lines[run]["nodes"]) for run in runs) == [("pass", 1)] * 2 + [("pass", 2)] * 2
    for run in runs:
        asked = cluster.document("show", run)["experiment"]["nodes"]
        assert (lines[run]["nodes"], (cluster.run_folder(run) / "attempts/1/nodes").exists()) == (asked, asked == 2)
    out = cluster.call("submit", *words, "slurm.exclusive=false", "store=null:", "repeat=1", "--dry-run").stdout
    assert out.count("#!/bin/sh") == 2


def test_what_a_cancelled_job_has_not_begun_is_cancelled_too(cluster):
    runs, jobs = cluster.submit(*TRAIN, "ranks=1", "train.steps=100000", "repeat=2", "slurm.one_job=true")
    assert jobs[0] == jobs[1]
    end = time.monotonic() + 200
    while cluster.status(runs[0])[runs[0]]["state"] != "running" or not list(cluster.run_folder(runs[0]).glob("attempts/1/progress.json")):
        assert time.monotonic() < end
        time.sleep(0.2)
    assert runs[0] in cluster.wait_for(runs[1], "pending")["note"]
    cluster.call("cancel", runs[0])
    lines = cluster.wait_final(*runs, seconds=200)
    assert [lines[run]["outcome"] for run in runs] == ["cancelled"] * 2


def test_a_training_that_slurm_runs_again_goes_on_from_its_last_checkpoint(cluster):
    run, job = cluster.submit_one(*TRAIN, "ranks=2", "train.steps=500", "train.checkpoint_every=5", "train.resume=latest",
                                  "slurm.requeue=true", "keep.last=2")
    end = time.monotonic() + 200
    while not list((cluster.folder / "store" / run).glob("iteration-*/.metadata")):
        assert time.monotonic() < end, cluster.status(run)
        time.sleep(0.1)
    cluster.slurm("scontrol", "requeue", job)
    line = cluster.wait_final(run, seconds=180)[run]
    assert line["outcome"] == "pass", line
    facts = dict(fact.split("=", 1) for fact in cluster.document("export", run)["facts"])
    step = int(facts["train.resumed"].rsplit(" ", 1)[1])
    assert step > 0 and facts["train.resumed"].startswith(f"{run}/iteration-{step}")
    metrics = cluster.document("show", run)["metrics"]
    assert metrics["step.loss"]["n"] == 500 - step - 1
    assert metrics["recovery_s"]["median"] > 0
