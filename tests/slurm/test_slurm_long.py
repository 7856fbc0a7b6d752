"""Ends of jobs that take their time: limits, lost nodes, preemption, a Slurm that forgets. Each on a cluster of its own."""
import contextlib
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from services import slurm
from harness import PROGRAM
from slurm_harness import TINY, Cluster, own_service

SLOW = ("ops=save", "verify=none", "store=fault:delay=300ms:./slow", "iterations=1000")


@pytest.fixture
def service(tmp_path_factory):
    with own_service(tmp_path_factory.mktemp("slurm"), slurmd_timeout=6) as folder:
        yield folder


@pytest.fixture
def cluster(tmp_path, service):
    (tmp_path / "store").mkdir()
    return Cluster(tmp_path, service / "slurm.conf")


def test_the_time_limit_is_a_timeout_and_keeps_what_was_measured(cluster):
    run, _ = cluster.submit_one(*TINY, *SLOW, "slurm.time=1m")
    line = cluster.wait_final(run, seconds=200)[run]
    assert line["state"] == "failed" and line["outcome"] == "timeout" and "time limit" in line["note"]
    manifest = cluster.manifest(run)
    assert manifest["sealed_by"] == "agent" and manifest["samples"] > 0


@pytest.mark.parametrize("agent_lives", [False, True])
def test_a_lost_node_is_named_and_is_infrastructure(cluster, service, agent_lives):
    run, _ = cluster.submit_one(*TINY, *SLOW)
    until_it_saves(cluster, run)
    (node,) = [cluster.record(run)["slurm"]["nodes"]]
    slurm.stop_node(service, node, signal.SIGKILL)
    if not agent_lives:
        slurm.end_steps(service)
    line = cluster.wait_final(run, seconds=200)[run]
    assert line["state"] in ("failed", "lost") and line["outcome"] == "infrastructure", line
    assert f"node {node} lost" in line["note"]
    slurm.start_node(service, node)
    result = subprocess.run([PROGRAM, "collect", run], env=cluster.environment(), capture_output=True, text=True, timeout=120)
    assert result.returncode == 4


def until_it_saves(cluster, run):
    """Before it, Slurm says RUNNING, and there may be no agent."""
    deadline = time.monotonic() + 200
    while "save" not in (cluster.status(run)[run]["progress"] or ""):
        assert time.monotonic() < deadline
        time.sleep(0.1)


def start_on_three(cluster):
    run, job = cluster.submit_one("model=gpt2-tiny", "nodes=3", "ranks_per_node=1", "baseline=false", *SLOW)
    until_it_saves(cluster, run)
    return run, job


def test_a_job_that_was_suspended_blames_no_node(cluster):
    run, job = start_on_three(cluster)
    cluster.slurm("scontrol", "suspend", job)
    assert cluster.wait_for(run, "running")["note"] == "SUSPENDED"
    time.sleep(16)  # longer than an agent may be silent
    cluster.slurm("scontrol", "resume", job)
    line = cluster.wait_final(run)[run]
    assert line["outcome"] == "infrastructure" and "the agent stood still for" in line["note"] and "was suspended" in line["note"], line


def test_a_node_agent_that_stands_still_is_named(cluster):
    run, _ = start_on_three(cluster)
    node = names(cluster, run)[1]
    (agent,) = [int(path.parent.name) for path in Path("/proc").glob("[0-9]*/cmdline") if is_agent(path, cluster, node)]
    os.kill(agent, signal.SIGSTOP)
    try:
        line = cluster.wait_final(run)[run]
        assert line["outcome"] == "infrastructure" and line["note"].startswith(f"node {node} is lost (its agent: it has said nothing for"), line
    finally:
        with contextlib.suppress(ProcessLookupError):
            os.kill(agent, signal.SIGKILL)


def is_agent(path, cluster, node):
    """The process that runs the node's part of a run."""
    with contextlib.suppress(OSError):
        words = path.read_bytes().split(b"\0")
        variables = (path.parent / "environ").read_bytes().split(b"\0")
        return (words[0].endswith(b"ckptbench-agent") and words[1:2] == [b"node"] and f"SLURMD_NODENAME={node}".encode() in variables
                and f"CKPTBENCH_HOME={cluster.home}".encode() in variables)
    return False


def names(cluster, run):
    return cluster.slurm("scontrol", "show", "hostnames", cluster.record(run)["slurm"]["nodes"]).split()


@pytest.mark.parametrize("which", [0, 2])
def test_one_of_several_nodes_that_is_lost_is_named(cluster, service, which):
    run, _ = start_on_three(cluster)
    node = names(cluster, run)[which]
    slurm.stop_node(service, node, signal.SIGKILL)
    slurm.end_steps(service, node)
    line = cluster.wait_final(run, seconds=150)[run]
    assert line["outcome"] == "infrastructure" and node in line["note"], line


def test_a_lost_node_before_the_job_began_is_another_nodes_job(cluster, service):
    """Nodes that are down are not given to jobs: it runs on another."""
    slurm.stop_node(service, "n1", signal.SIGKILL)
    deadline = time.monotonic() + 200
    while "n1" not in cluster.slurm("sinfo", "-h", "-t", "down", "-o", "%N"):
        assert time.monotonic() < deadline
        time.sleep(0.5)
    run, _ = cluster.submit_one(*TINY)
    assert cluster.wait_final(run)[run]["outcome"] == "pass"


def preempted(cluster, *words):
    """A run in scavenge that jobs of urgent push off its node."""
    run, _ = cluster.submit_one(*TINY, *words, "slurm.partition=scavenge")
    until_it_saves(cluster, run)
    cluster.slurm("sbatch", "--parsable", "-p", "urgent", "-N", "4", "--exclusive", "--wrap", "sleep 3", "-o", "/dev/null")
    return run


def test_a_preempted_job_runs_again_as_another_attempt(cluster):
    run = preempted(cluster, "ops=save", "verify=none", "store=fault:delay=150ms:./slow", "iterations=60", "slurm.requeue=true")
    time.sleep(2)
    cluster.call("collect")  # knows the first attempt, and that there will be another
    assert cluster.status()[run]["state"] not in ("done", "failed", "cancelled", "lost")
    line = cluster.wait_final(run, seconds=200)[run]
    assert line["outcome"] == "pass", line
    assert cluster.manifest(run, 1)["outcome"] != "pass" and cluster.manifest(run, 2)["outcome"] == "pass"
    states = cluster.states(run)
    assert states.count("running") >= 2 and states.index("pending", states.index("running")) > 0
    assert cluster.record(run)["slurm"]["restarts"] >= 1


@pytest.mark.parametrize("phase", ["joining", "saving"])
def test_a_preempted_job_of_several_nodes_meets_once_more(cluster, phase):
    """Its nodes meet, lose each other and meet again: two rendezvous, two attempts, each sealed by its own agent."""
    gate = cluster.folder / "gate"
    gate.mkdir()
    srun = gate / "srun"
    srun.write_text(f"""#!/bin/sh
case " $* " in *" node --head "*)
    if [ {phase} = joining ] && mkdir "{gate}/reached" 2>/dev/null; then exec sleep 300; fi ;;
esac
exec {slurm.find("srun")} "$@"
""")
    srun.chmod(0o755)
    run, job = cluster.submit_one("model=gpt2-tiny", "nodes=3", "ranks_per_node=1", "baseline=false", "ops=save", "verify=none",
                                  "store=fault:delay=150ms:./slow", "iterations=60", "slurm.partition=scavenge", "slurm.requeue=true",
                                  PATH=f"{gate}:{os.environ['PATH']}")
    cluster.wait_for(run, "running")
    deadline = time.monotonic() + 200
    while not ((gate / "reached").exists() if phase == "joining" else "save" in (cluster.status(run)[run]["progress"] or "")):
        assert time.monotonic() < deadline
        time.sleep(0.1)
    cluster.slurm("sbatch", "--parsable", "-p", "urgent", "-N", "4", "--exclusive", "--wrap", "sleep 3", "-o", "/dev/null")
    attempts = cluster.run_folder(run) / "attempts"
    deadline = time.monotonic() + 200
    while not (attempts / "1/manifest.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    while not (attempts / "2").exists():  # whoever looks in between sees one that goes on
        assert cluster.status(run)[run]["state"] in ("pending", "running", "sealing") and time.monotonic() < deadline + 60
        time.sleep(0.2)
    line = cluster.wait_final(run, seconds=200)[run]
    assert line["outcome"] == "pass" and line["job"] == job and line["nodes"] == 3, line
    first, second = cluster.manifest(run, 1), cluster.manifest(run, 2)
    assert (first["outcome"], first["sealed_by"]) == ("preempted", "agent") and "back into its queue" in first["message"], first
    assert (first["ranks"], first["samples"] > 0) == (3, phase == "saving")
    assert (second["outcome"], second["sealed_by"], second["ranks"], second["samples"] >= 3 * 61) == ("pass", "agent", 3, True)
    met = [json.loads((attempts / f"{number}/rendezvous.json").read_text())["nodes"] for number in ((2,) if phase == "joining" else (1, 2))]
    assert all([node["state"] for node in nodes] == ["head", "joined", "joined"] for nodes in met), met
    assert cluster.document("show", run)["metrics"]["save_s"]["n"] == 60  # of the second alone
    assert cluster.states(run).count("running") == 2 and not list(attempts.glob("*/rendezvous.key"))
    assert "0 ingested, 1 known" in cluster.call("collect").stdout


def test_a_preempted_job_that_may_not_run_again_has_ended(cluster):
    run = preempted(cluster, *SLOW)
    line = cluster.wait_final(run, seconds=200)[run]
    assert line["outcome"] in ("preempted", "cancelled") and not (cluster.run_folder(run) / "attempts/2").exists()


@pytest.fixture
def sleeping(tmp_path, tmp_path_factory):
    """A cluster whose nodes are off."""
    folder = tmp_path_factory.mktemp("slurm")
    (tmp_path / "store").mkdir()
    with own_service(folder, power_saving={"boot_s": 4, "suspend_time": 60, "resume_timeout": 60}):
        yield Cluster(tmp_path, folder / "slurm.conf")


def test_nodes_that_boot_are_no_part_of_the_queue(sleeping):
    run, _ = sleeping.submit_one("model=gpt2-tiny", "nodes=2", "ranks_per_node=1", "baseline=false", "iterations=1")
    booting = sleeping.wait_for(run, "booting")
    assert "powering up" in booting["note"] and booting["queue_s"] >= 0 and booting["boot_s"] >= 0
    sleeping.call("cancel", run)
    line = sleeping.wait_final(run)[run]
    assert line["outcome"] == "cancelled" and line["queue_s"] == sleeping.record(run)["queue_s"]


def test_a_node_that_never_boots_ends_the_run_as_infrastructure(sleeping):
    (sleeping.configuration.parent / "resume").write_text("#!/bin/sh\nexit 0\n")
    sleeping.folder.joinpath("store").mkdir(exist_ok=True)
    with subprocess.Popen([PROGRAM, "submit", "--wait", "--id", "never", *TINY, f"store={sleeping.folder}/store"], cwd=sleeping.folder,
                          env=sleeping.environment(), stderr=subprocess.PIPE, stdout=subprocess.DEVNULL, text=True) as waiter:
        _, said = waiter.communicate(timeout=300)
    line = sleeping.status("never")["never"]
    assert line["outcome"] == "infrastructure" and line["boot_s"] is None and re.search(r"\bn[1-4]\b", line["note"]), line
    assert "booting" in sleeping.states("never") and waiter.returncode == 4 and "infrastructure" in said, said
    sleeping.call("collect", "never", code=4)


def test_a_job_that_slurm_forgot_before_it_ran_is_lost(cluster, service):
    run, _ = cluster.submit_one(*TINY, "slurm.extra=--hold")
    cluster.wait_for(run, "pending")
    slurm.forget_jobs(service)
    line = cluster.wait_final(run, seconds=200)[run]
    assert line["outcome"] == "lost" and "does not know the job any more" in line["note"]


def test_a_run_that_slurm_forgot_is_what_its_agent_says(cluster, service):
    run, _ = cluster.submit_one(*TINY, "ops=save")
    deadline = time.monotonic() + 200
    while not (cluster.run_folder(run) / "attempts/1/manifest.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.1)
    slurm.forget_jobs(service)
    assert cluster.wait_final(run)[run]["outcome"] == "pass"


def test_what_was_given_to_sbatch_and_never_came_is_not_sent_again_at_once(cluster):
    folder = cluster.folder / "bin"
    folder.mkdir()
    program = folder / "sbatch"
    program.write_text(f'#!/bin/sh\ncase "$1" in --parsable) echo "sbatch: error: Socket timed out" >&2; exit 1;; esac\n'
                       f'exec {slurm.find("sbatch")} "$@"\n')
    program.chmod(0o755)
    result = cluster.call("submit", *TINY, "store=./store", code=4, PATH=f"{folder}:{os.environ['PATH']}")
    assert "may still come" in result.stderr
    (line,) = cluster.document("status")
    assert line["state"] == "submitted" and line["job"] is None
    cluster.call("submit", "--resume", line["run"], code=4)
    cluster.age_intent(line["run"])
    cluster.call("submit", "--resume", line["run"])
    assert cluster.wait_final(line["run"])[line["run"]]["outcome"] == "pass"
    assert len(cluster.jobs_named(line["run"])) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="mounting a small file system needs root")
def test_a_full_disk_under_the_run_folder_is_said_and_got_over(cluster):
    cluster.home.mkdir()
    subprocess.run(["mount", "-t", "tmpfs", "-o", "size=2m", "tmpfs", cluster.home], check=True, timeout=120)
    try:
        run, _ = cluster.submit_one(*TINY, "store=fault:delay=100ms:./slow", "iterations=20", "ops=save", "verify=none")
        cluster.wait_for(run, "running")
        filler = cluster.home / "filler"
        with open(filler, "wb", buffering=0) as file, contextlib.suppress(OSError):
            while file.write(b"x" * 4096):
                pass
        time.sleep(12)
        result = subprocess.run([PROGRAM, "status", run, "--json"], env=cluster.environment(), capture_output=True, text=True,
                                timeout=120)
        assert result.returncode in (0, 3, 4), result.stderr
        if result.returncode:
            assert "No space left" in result.stderr or "full" in result.stderr
        filler.unlink()
        line = cluster.wait_final(run, seconds=200)[run]
        assert line["outcome"] in ("pass", "infrastructure", "lost")
        assert json.loads((cluster.run_folder(run) / "attempts/1/manifest.json").read_text())["outcome"] == line["outcome"]
    finally:
        subprocess.run(["umount", "-l", cluster.home], timeout=120)


def test_a_second_job_of_the_same_run_does_no_harm(cluster):
    """Somebody who calls sbatch with the script once more: the run has a second attempt, and status an answer."""
    run, _ = cluster.submit_one(*TINY, "ops=save")
    cluster.wait_final(run)
    cluster.slurm("sbatch", str(cluster.run_folder(run) / "job.sbatch"))
    deadline = time.monotonic() + 200
    while not (cluster.run_folder(run) / "attempts/2/manifest.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.2)
    assert cluster.status(run)[run]["state"] == "done"
