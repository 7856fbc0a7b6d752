"""Watched trainings as jobs of Slurm: tasks of srun that join a run, and submitted commands with status, cancel, collect."""
import json
import os
import subprocess
import sys

import pytest
from harness import PROGRAM
from slurm_harness import Cluster, own_service

TRAINING = os.path.join(os.path.dirname(os.path.abspath(__file__)), "../e2e/watched_training.py")


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with own_service(tmp_path_factory.mktemp("slurm")) as folder:
        yield folder


@pytest.fixture
def cluster(tmp_path, service):
    (tmp_path / "store").mkdir()
    return Cluster(tmp_path, service / "slurm.conf")


# The training finds its rank among the tasks of srun.
TASK = 'RANK=$SLURM_PROCID WORLD_SIZE=$SLURM_STEP_NUM_TASKS MEETING={place}/meeting OMP_NUM_THREADS=1 exec "$@"'


def shown(cluster, run):
    return cluster.document("show", run)


def srun_of(place):
    script = place / "task.sh"
    script.write_text(TASK.format(place=place))
    return script


def test_tasks_of_srun_on_two_nodes_join_one_run(cluster, tmp_path):
    script = srun_of(tmp_path)
    output = cluster.slurm("srun", "-N2", "-n2", PROGRAM, "watch", "--join", "of-srun", "--", "sh", script, sys.executable, TRAINING, tmp_path,
                           "save:a", "thread:b", "load:b")
    run = shown(cluster, "of-srun")
    assert run["outcome"] == "pass" and run["metrics"]["save_s"]["n"] == 2 and run["metrics"]["load_s"]["n"] == 1, output
    report = cluster.call("show", "of-srun").stdout
    assert "2 ranks of torch" in report and "limit         measured after the command by 2 nodes at the same time" in report
    assert len(list((cluster.run_folder("of-srun") / "attempts/1/watch").glob("*.task"))) == 2


def test_a_submitted_training_on_two_nodes_is_followed_and_collected(cluster, tmp_path):
    script = srun_of(tmp_path)
    command = f"srun sh {script} {sys.executable} {TRAINING} {tmp_path} save:a save:b load:b"
    run, _ = cluster.submit_one("workload=watch", "nodes=2", "slurm.time=5m", f"command={command}")
    line = cluster.wait_final(run, seconds=240)[run]
    assert line["state"] == "done" and line["outcome"] == "pass", line
    cluster.call("collect", run)
    check_limit_of_nodes(cluster, run, 2)
    assert shown(cluster, run)["metrics"]["save_s"]["n"] == 2
    assert "2 ranks of torch" in cluster.call("show", run).stdout


def check_limit_of_nodes(cluster, run, nodes):
    """Each node's task has written and read what its rank had, as often as the others."""
    lines = [json.loads(line) for file in (cluster.run_folder(run) / "attempts/1/watch").glob("*.task") for line in file.read_text().splitlines()]
    results = [line for line in lines if line["op"] == "limit"]
    assert len(results) == nodes and all(line["nodes"] == nodes and line["files"] == 1 for line in results), lines
    assert len({(len(line["write_s"]), len(line["read_s"])) for line in results}) == 1 and results[0]["read_s"]
    document = shown(cluster, run)
    assert document["watched"]["limit"].startswith(f"measured after the command by {nodes} node"), document["watched"]
    limit = min(sum(line["bytes"] for line in results) / max(seconds) for seconds in zip(*(line["write_s"] for line in results)))
    assert 0 < document["limits"]["save_limit_fraction"] and document["limits"]["baseline_write_bytes_per_s"] >= limit * 0.999
    assert not [path.name for path in cluster.folder.iterdir() if path.name.startswith(".ckptbench-limit")]


def watched_run(cluster, *words):
    """The run of `ckptbench watch`, started by the words before it."""
    report = subprocess.run([*words], cwd=cluster.folder, env=cluster.environment(), capture_output=True, text=True, timeout=300)
    assert report.returncode == 0, report
    return next(line.split()[1] for line in report.stderr.splitlines() if line.startswith("run 20"))


def test_the_nodes_of_an_allocation_measure_after_a_command_that_was_started_outside_of_them(cluster, tmp_path):
    script = srun_of(tmp_path)
    for nodes in (2, 1):
        run = watched_run(cluster, "salloc", f"-N{nodes}", PROGRAM, "watch", "--", "srun", f"-n{nodes}", "sh", script, sys.executable, TRAINING,
                          tmp_path, f"save:of-{nodes}", f"load:of-{nodes}")
        check_limit_of_nodes(cluster, run, nodes)


def test_no_limit_is_measured_where_the_command_did_not_run(cluster, tmp_path):
    """srun has an allocation of its own, which has ended with it."""
    run = watched_run(cluster, PROGRAM, "watch", "--", "srun", "-N1", "sh", srun_of(tmp_path), sys.executable, TRAINING, tmp_path, "save:a")
    document = shown(cluster, run)
    assert document["watched"]["limit"].startswith("not measured: the command ran on ")
    assert document["limits"]["save_limit_fraction"] is None and document["metrics"]["save_s"]["n"] == 1


def test_a_cancelled_job_keeps_what_was_watched(cluster, tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    command = f"{sys.executable} {TRAINING} {tmp_path} save:a tell:{tmp_path}/saved read:{gate}"
    run, _ = cluster.submit_one("workload=watch", "slurm.time=5m", "baseline=false", f"command={command}")
    cluster.wait_for(run, "running", seconds=200)
    while not (tmp_path / "saved").exists():
        assert cluster.status(run)[run]["state"] == "running"
    cluster.call("cancel", run)
    line = cluster.wait_final(run, seconds=200)[run]
    assert line["outcome"] == "cancelled", line
    assert json.loads((cluster.run_folder(run) / "attempts/1/manifest.json").read_text())["samples"] == 1
