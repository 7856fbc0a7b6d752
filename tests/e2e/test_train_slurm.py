"""Trainings as jobs of a real Slurm: on all of its nodes, and again where Slurm runs one again."""
import os
import time

import pytest
from slurm_harness import MISSING, VARIABLE, Cluster

pytestmark = pytest.mark.skipif(not os.environ.get(VARIABLE), reason=MISSING)
assert VARIABLE == "CKPTBENCH_TEST_SLURM"  # tests/run.py looks for the name in this file
TRAIN = ("model=gpt2-tiny", "layers=1", "train.seq_length=16", "train.batch_size=1", "slurm.time=3m", "workload=train")


@pytest.fixture
def cluster(tmp_path):
    (tmp_path / "store").mkdir()
    cluster = Cluster(tmp_path, os.environ[VARIABLE])
    yield cluster
    for line in cluster.document("status"):
        if line["job"] and line["state"] not in ("done", "failed", "cancelled", "lost"):
            cluster.slurm("scancel", line["job"], check=False)


def test_a_training_runs_on_four_nodes(cluster):
    run, _ = cluster.submit_one(*TRAIN, "nodes=4", "ranks_per_node=1", "train.steps=4", "train.checkpoint_every=2", "sharding=hybrid(2)")
    line = cluster.wait_final(run, seconds=120)[run]
    assert (line["outcome"], line["nodes"]) == ("pass", 4), line
    metrics = cluster.document("show", run)["metrics"]
    assert metrics["checkpoints"]["median"] == 2 and metrics["step.loss"]["n"] == 3


def test_a_training_that_slurm_runs_again_goes_on_from_its_last_checkpoint(cluster):
    run, job = cluster.submit_one(*TRAIN, "ranks=2", "train.steps=500", "train.checkpoint_every=5", "train.resume=latest",
                                  "slurm.requeue=true", "keep.last=2")
    end = time.monotonic() + 90
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
