"""Runs as jobs of a real Slurm: submitted, followed, collected, cancelled."""
import os
import shutil
import subprocess
import time
from pathlib import Path

import pytest
from harness import PROGRAM
from site_harness import install
from slurm_harness import MISSING, TINY, VARIABLE, shared_cluster

pytestmark = pytest.mark.skipif(not os.environ.get(VARIABLE), reason=MISSING)
assert VARIABLE == "CKPTBENCH_TEST_SLURM"  # tests/run.py looks for the name in this file
EXPERIMENTS = Path(__file__).resolve().parents[2] / "experiments"
SLOW = ("store=fault:delay=300ms:./slow", "iterations=2000", "ops=save", "verify=none")


@pytest.fixture
def cluster(tmp_path):
    with shared_cluster(tmp_path) as cluster:
        yield cluster


def test_a_submitted_run_passes_and_is_collected_by_status(cluster):
    run, job = cluster.submit_one(*TINY)
    assert job.isdigit()
    line = cluster.wait_final(run)[run]
    assert line["state"] == "done" and line["outcome"] == "pass" and line["job"] == job and line["nodes"] == 1
    assert line["queue_s"] >= 0 and line["boot_s"] == 0 and line["launch_s"] > 0 and line["run_s"] > 0
    assert "MiB/s" in line["progress"] or "GiB/s" in line["progress"]
    assert set(line) == {"run", "state", "outcome", "job", "nodes", "queue_s", "boot_s", "launch_s", "run_s", "progress", "note"}
    shown = cluster.document("show", run)
    assert shown["outcome"] == "pass" and shown["metrics"]["save_s"]["n"] == 1
    states = cluster.states(run)
    assert states[:2] == ["planned", "submitted"] and states[-1] == "done"
    assert "0 ingested, 1 known" in cluster.call("collect", run).stdout


def test_waiting_gives_the_exit_code_of_the_run(cluster):
    cluster.call("submit", *TINY, f"store={cluster.folder}/store", "--wait")
    failed = cluster.call("submit", *TINY, f"store=fault:error_at=3/EIO:{cluster.folder}/store", "--wait", code=3)
    assert "benchmark_failed" in failed.stderr


def test_a_sweep_is_a_job_each_and_is_compared(cluster):
    sent = cluster.document("submit", *TINY, f"store={cluster.folder}/store", "ops=save", "io.depth=1,2", "repeat=2")
    runs = [run["run"] for run in sent["runs"]]
    assert runs == [f"{sent['sweep']}.0{n}" for n in (1, 2, 3, 4)]
    assert len({run["job"] for run in sent["runs"]}) == 4
    lines = cluster.wait_final(sent["sweep"])
    assert [lines[run]["outcome"] for run in runs] == ["pass"] * 4
    assert len(cluster.document("list", sent["sweep"])) == 4


def test_a_sweep_over_nodes_runs_on_so_many(cluster):
    sent = cluster.document("submit", "model=gpt2-tiny", "baseline=false", "iterations=1", "warmup=0", f"store={cluster.folder}/store",
                            "nodes=2,4", "ranks_per_node=2")
    lines = cluster.wait_final(sent["sweep"])
    assert [(line["outcome"], line["nodes"]) for line in lines.values()] == [("pass", 2), ("pass", 4)]
    assert [cluster.document("show", run)["experiment"]["ranks"] for run in lines] == [4, 8]
    assert "all with model=gpt2-tiny store=" in cluster.call("show", sent["sweep"]).stdout  # ranks follow the nodes


def test_equal_members_are_an_array_where_asked_for(cluster):
    sent = cluster.document("submit", *TINY, f"store={cluster.folder}/store", "ops=save", "repeat=3", "--array")
    jobs = [run["job"] for run in sent["runs"]]
    base = jobs[0].split("_")[0]
    assert jobs == [f"{base}_{n}" for n in range(3)]
    lines = cluster.wait_final(sent["sweep"])
    assert all(line["outcome"] == "pass" for line in lines.values())
    for run in lines:
        assert cluster.manifest(run)["run"] == run
    script = (cluster.run_folder(sent["runs"][0]["run"]) / "job.sbatch").read_text()
    assert "#SBATCH --array=0-2\n" in script
    cluster.call("logs", sent["runs"][2]["run"], "-f")


def test_render_plans_a_run_that_sbatch_takes_by_hand(cluster):
    script = cluster.call("render", *TINY, f"store={cluster.folder}/store").stdout
    assert subprocess.run(["sh", "-n"], input=script, text=True, timeout=120).returncode == 0
    assert len(script.splitlines()) < 20
    (line,) = cluster.document("status")
    assert line["state"] == "planned" and line["job"] is None
    (cluster.folder / "job.sbatch").write_text(script)
    job = cluster.slurm("sbatch", "--parsable", "job.sbatch").strip()
    ended = cluster.wait_final(line["run"])[line["run"]]
    assert ended["outcome"] == "pass" and ended["job"] == job


def test_a_dry_run_leaves_nothing(cluster):
    out = cluster.call("submit", *TINY, "store=./store", "--dry-run").stdout
    assert out.startswith("#!/bin/sh\n")
    assert cluster.document("status") == [] and not list(cluster.home.glob("runs/*"))


def test_a_load_after_a_save_takes_its_checkpoint(cluster):
    save, job = cluster.submit_one(*TINY, "ops=save")
    load, _ = cluster.submit_one(*TINY, "ops=load", "--after", save)
    assert f"--dependency=afterok:{job}\n" in (cluster.run_folder(load) / "job.sbatch").read_text() or \
        cluster.status(save)[save]["state"] == "done"
    lines = cluster.wait_final(save, load)
    assert [lines[run]["outcome"] for run in (save, load)] == ["pass", "pass"]
    assert cluster.document("show", load)["experiment"]["suffix"] == save


def test_what_comes_after_a_failure_is_not_started(cluster):
    first, _ = cluster.submit_one(*TINY, *SLOW)
    second, _ = cluster.submit_one(*TINY, "--after", first)
    cluster.wait_for(first, "running", "pending")
    cluster.call("cancel", first)
    line = cluster.wait_final(second)[second]
    assert line["outcome"] == "cancelled" and "waits for" in line["note"]
    cluster.call("submit", *TINY, "store=./store", "--after", first, code=2)


def test_a_cancelled_job_keeps_what_it_has_measured(cluster):
    run, _ = cluster.submit_one(*TINY, *SLOW)
    until(lambda: saves(cluster, run))  # before it, Slurm says RUNNING, and there may be no agent
    cluster.call("cancel", run)
    line = cluster.wait_final(run)[run]
    assert line["state"] == "cancelled" and line["outcome"] == "cancelled"
    assert cluster.manifest(run)["sealed_by"] == "agent"
    assert "ended already" in cluster.call("cancel", run).stderr


def test_a_job_that_slurm_gives_up_in_the_queue_says_why_and_what_to_try(cluster):
    """Its node is taken, so it cannot start; Slurm ends it, also while nobody looks."""
    there = "slurm.extra=--nodelist=n1"
    first, _ = cluster.submit_one(*TINY, *SLOW, there)
    cluster.wait_for(first, "running", seconds=200)
    second, _ = cluster.submit_one(*TINY, "store=./store", there, "slurm.pending=1s", "slurm.time=1m")
    assert "#SBATCH --deadline=now+61\n" in (cluster.home / f"runs/{second}/job.sbatch").read_text()
    line = cluster.wait_final(second)[second]
    members, _ = cluster.submit(*TINY, "store=./store", there, "slurm.pending=1s", "slurm.time=1m", "--array", "repeat=2")
    lines = [line, *cluster.wait_final(*members).values()]
    cluster.call("cancel", first)
    assert len(lines) == 3
    for line in lines:
        assert line["outcome"] == "timeout" and "not started in time (slurm.pending)" in line["note"], line
    refused = cluster.call("submit", *TINY, "store=./store", "slurm.pending=1h", "slurm.requeue=true", code=2)
    assert "slurm.pending does not go with slurm.requeue" in refused.stderr


def until(condition, seconds=200):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def saves(cluster, run):
    return "save" in (cluster.status(run)[run]["progress"] or "")


def test_ranks_that_a_signal_stopped_are_no_pass(cluster):
    """scancel gives it to the steps alone: their agent hears nothing of it."""
    run, job = cluster.submit_one("model=gpt2-tiny", "nodes=2", "ranks_per_node=1", "baseline=false", *SLOW)
    until(lambda: saves(cluster, run))
    cluster.slurm("scancel", "--signal=INT", job)
    line = cluster.wait_final(run)[run]
    assert line["outcome"] == "cancelled" and "of 2000 iterations" in line["note"], line


def test_a_run_whose_folder_is_removed_ends_and_is_lost(cluster):
    run, _ = cluster.submit_one(*TINY, *SLOW)
    until(lambda: saves(cluster, run))
    shutil.rmtree(cluster.run_folder(run), ignore_errors=True)
    shutil.rmtree(cluster.run_folder(run), ignore_errors=True)  # the agent may have written in between
    line = cluster.status(run)[run]
    assert (line["state"], line["outcome"]) == ("lost", "lost") and "was removed" in line["note"]
    until(lambda: not cluster.slurm("squeue", "-h", "-n", run, "-o", "%i").strip())
    assert "has ended already (lost)" in cluster.call("cancel", run).stderr
    assert cluster.document("list", run)[0]["state"] == "failed"


def test_a_run_folder_that_cannot_be_written_to_stops_neither_cancelling_nor_other_runs(cluster):
    run, _ = cluster.submit_one(*TINY, *SLOW)
    other, _ = cluster.submit_one(*TINY, "ops=save")
    until(lambda: saves(cluster, run))
    obstacle = cluster.run_folder(run) / "job.json.tmp"
    obstacle.mkdir()
    said = cluster.call("cancel", run, code=4).stderr
    assert "cancelled all the same" in said and "job.json.tmp" in said
    until(lambda: not cluster.slurm("squeue", "-h", "-n", run, "-o", "%i").strip())
    until(lambda: {line["run"]: line for line in cluster.document("status", code=4)}[other]["outcome"] == "pass")
    obstacle.rmdir()
    assert cluster.wait_final(run)[run]["outcome"] == "cancelled"


def test_an_agent_told_that_its_time_is_near_ends_as_a_timeout_with_its_samples(cluster):
    run, job = cluster.submit_one(*TINY, *SLOW)
    cluster.wait_for(run, "running")
    deadline = time.monotonic() + 200
    while not list(cluster.run_folder(run).glob("attempts/1/progress.json")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    cluster.slurm("scancel", "--signal=USR1", "--batch", job)
    line = cluster.wait_final(run)[run]
    assert line["outcome"] == "timeout" and "time limit" in line["note"]
    assert cluster.manifest(run)["sealed_by"] == "agent"


def test_what_the_job_waited_for_is_in_the_history(cluster):
    run, _ = cluster.submit_one(*TINY, "ops=save")
    line = cluster.wait_final(run)[run]
    metrics = cluster.document("show", run)["metrics"]
    assert metrics["queue_s"]["median"] == line["queue_s"] and metrics["boot_s"]["median"] == 0


@pytest.mark.parametrize("words, lines", [
    (("save", "nodes=2", "copies=2"), ("--nodes=2", "--cpus-per-task=16")), (("load", "suffix=x", "nodes=4"), ("--nodes=4", "--cpus-per-task=8")),
    (("save-and-load", "nodes=3", "slurm.cpus_per_task=4"), ("--nodes=3", "--cpus-per-task=4")),
    (("wait",), ("--nodes=160", "--exclusive", "--time=4")), (("wait", "nodes=3", "wait.for=2h"), ("--nodes=3", "--time=122"))], ids=lambda row: row[0])
def test_experiments_that_ship_render_scaled(cluster, words, lines):
    out = cluster.call("render", f"{EXPERIMENTS}/{words[0]}.yaml", "store=./store", *words[1:]).stdout
    assert all(f"#SBATCH {line}\n" in out for line in lines), out


def test_experiments_that_ship_are_submitted_scaled_one_after_the_other(cluster):
    small = ("model=gpt2-tiny", "nodes=2", "slurm.cpus_per_task=1", "baseline=false")
    refused = cluster.call("submit", f"{EXPERIMENTS}/save.yaml", "store=./store", code=2).stderr
    assert "nodes=50" in refused
    save, _ = cluster.submit_one(f"{EXPERIMENTS}/save.yaml", *small, "copies=2")
    load, _ = cluster.submit_one(f"{EXPERIMENTS}/load.yaml", *small, "copies=2", "--after", save)
    both, _ = cluster.submit_one(f"{EXPERIMENTS}/save-and-load.yaml", *small, "copies=2")
    wait, _ = cluster.submit_one(f"{EXPERIMENTS}/wait.yaml", "nodes=2", "wait.for=1s")
    lines = cluster.wait_final(save, load, both, wait)
    assert [lines[run]["outcome"] for run in (save, load, both, wait)] == ["pass"] * 4, lines
    assert cluster.document("show", load)["experiment"]["ranks"] == 4


def test_a_planned_run_is_cancelled_without_slurm(cluster):
    cluster.call("render", *TINY, "store=./store")
    (line,) = cluster.document("status")
    (line,) = cluster.document("cancel", line["run"])
    assert line["state"] == "cancelled"


def test_logs_show_the_job_and_one_rank_and_follow_to_the_end(cluster):
    run, _ = cluster.submit_one(*TINY, "engine=command", "command=sleep 1; exit 7", "ops=save", "verify=none")
    followed = cluster.call("logs", run, "-f", timeout=120).stdout
    assert "[1,0]<stderr>" in followed and "[1,1]<stderr>" in followed
    assert cluster.status(run)[run]["state"] == "failed"
    only = cluster.call("logs", run, "--rank", "1").stdout
    assert only and all(line.startswith("[1,1]<") for line in only.splitlines())
    cluster.call("logs", run, "--attempt", "2", code=2)


def test_logs_of_several_nodes_have_what_srun_said_and_one_rank_is_found(cluster):
    run, _ = cluster.submit_one(*TINY, "nodes=2", "engine=command", "command=exit 7", "ops=save", "verify=none")
    cluster.wait_final(run)
    said = cluster.call("logs", run).stdout
    ranks, nodes = ((cluster.run_folder(run) / f"attempts/1/logs/{name}.log").read_text() for name in ("ranks", "nodes"))
    assert said and ranks in said and nodes in said
    only = cluster.call("logs", run, "--rank", "1").stdout
    assert only and only.splitlines() == [line for line in ranks.splitlines() if line.startswith("1: ")]
    assert "ranks=2 nodes=2" in cluster.call("show", run).stdout


def test_what_was_submitted_is_told_with_its_lowest_and_highest_job(cluster):
    said = cluster.call("submit", *TINY, "nodes=1,2", "repeat=3", "slurm.extra=--hold", "store=./store").stdout
    jobs = sorted(int(line["job"]) for line in cluster.document("status"))
    assert f": job {jobs[0]} … {jobs[-1]} " in said and len(jobs) == 6
    sweep = said.split("(sweep ")[1].split(")")[0]
    cluster.call("cancel", sweep)
    assert "all with model=gpt2-tiny ranks=2 store=" in cluster.call("show", sweep).stdout


@pytest.mark.parametrize("words, sentence", [
    (("slurm.partition=nosuch",), "partition"),
    (("nodes=5", "ranks=5"), "nodes"),
    (("slurm.partition=$(touch x)",), "slurm.partition"),
    (("slurm.extra=--wrap=id",), "slurm.extra"),
    (("nodes=2", "ranks_per_node=2", "ranks=3"), "ranks"),
    (("slurm.reservation=nosuch",), "eservation"),
])
def test_what_slurm_would_refuse_is_refused_before_anything_is_planned(cluster, words, sentence):
    result = cluster.call("submit", "model=gpt2-tiny", "store=./store", *words, code=2)
    assert sentence in result.stderr
    assert cluster.document("status") == [] and not list(cluster.home.glob("runs/*"))


def test_hostile_words_reach_no_shell(cluster):
    hostile = "$(touch hit) `touch hit` '; touch hit; ' \" \\ \n #"
    (cluster.folder / "st'o r$e").mkdir()
    run, _ = cluster.submit_one(*TINY, f"label.kind={hostile}", f"label.long={'x' * 10000}", f"name={hostile}",
                                f"store={cluster.folder}/st'o r$e/`touch hit`")
    assert cluster.wait_final(run)[run]["outcome"] == "pass"
    assert cluster.document("show", run)["labels"]["kind"] == hostile
    assert not list(cluster.folder.rglob("hit"))
    script = (cluster.run_folder(run) / "job.sbatch").read_text()
    assert "touch" not in script and "xxxx" not in script


HOSTILE = "$(touch hit)`touch hit`';touch hit;'\"\n\t\\ #%n&|<>*" + "x" * 10000


def test_no_key_and_no_name_reaches_a_shell_whatever_it_holds(cluster):
    keys = [option["name"] for option in cluster.document("options")]
    assert len(keys) > 100
    for key in [*keys, "label.kind", f"label.{HOSTILE}", HOSTILE]:
        result = subprocess.run([PROGRAM, "submit", "--dry-run", "model=gpt2-tiny", f"{key}={HOSTILE}"], cwd=cluster.folder,
                                env=cluster.environment(), capture_output=True, text=True, timeout=120)
        assert result.returncode in (0, 2), (key, result.stderr[-500:])
        assert "touch" not in result.stdout and "xxxx" not in result.stdout, key
        assert len(result.stderr) < 1200 and not result.stderr.endswith("xxxx\n"), result.stderr  # what is wrong comes last
    for words in (("status",), ("cancel",), ("logs",), ("collect",), ("show",), ("submit", *TINY, "--after"), ("submit", *TINY, "--warm"),
                  ("submit", "--resume"), ("submit", *TINY, "--id"), ("submit", *TINY, "--site"), ("warm", "stop"),
                  ("warm", "start", "nodes=1", "for=1m"), ("site", "add"), ("site", "doctor")):
        result = subprocess.run([PROGRAM, *words, HOSTILE], cwd=cluster.folder, env=cluster.environment(), capture_output=True, text=True, timeout=120)
        assert result.returncode == 2 and 0 < len(result.stderr) < 1200, (words, result.returncode, result.stderr[-500:])
    assert not list(cluster.folder.rglob("hit")) and not list(cluster.home.glob("runs/*"))


def test_paths_of_programs_home_and_store_may_hold_anything_that_slurm_takes(cluster):
    place = cluster.folder / "a b; (touch hit) & 'é' %n #"
    cluster.home = cluster.folder / "home of; (touch hit) & é %n #"
    programs = install(place) / "bin"
    sent = subprocess.run([programs / "ckptbench", "submit", "--wait", "model=gpt2-tiny", "nodes=2", "ranks_per_node=1", "iterations=1",
                           "warmup=0", f"store={place}/st'o\"re $(touch hit)\n`touch hit`", f"suffix=s'u \"$(touch hit)"], cwd=place, env=cluster.environment(),
                          capture_output=True, text=True, timeout=120)
    assert sent.returncode == 0, sent.stderr
    (line,) = cluster.document("status")
    assert line["outcome"] == "pass" and line["nodes"] == 2
    assert not list(cluster.folder.rglob("hit"))


def test_a_home_that_slurm_cannot_write_to_is_refused(cluster):
    cluster.home = cluster.folder / "a'b"
    result = cluster.call("submit", *TINY, "store=./store", code=2)
    assert "CKPTBENCH_HOME" in result.stderr


def test_variables_of_slurm_do_not_reach_the_job(cluster):
    variables = {"SBATCH_PARTITION": "nosuch", "SLURM_NTASKS": "64", "SBATCH_JOB_NAME": "other", "SQUEUE_FORMAT": "%i"}
    run, _ = cluster.submit_one(*TINY, **variables)
    assert len(cluster.jobs_named(run)) == 1
    assert cluster.wait_final(run)[run]["outcome"] == "pass"
