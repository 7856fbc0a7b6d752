"""What goes wrong between a controller and Slurm, on a cluster of these tests alone: they stop its daemons."""
import os
import signal
import stat
import subprocess
import time

import pytest
from harness import PROGRAM
from slurm_harness import MISSING, TINY, VARIABLE, Cluster, own_service, slurm

pytestmark = [pytest.mark.skipif(not os.environ.get("CKPTBENCH_TEST_SLURM"), reason=MISSING),
              pytest.mark.xdist_group("slurm_faults")]
assert VARIABLE == "CKPTBENCH_TEST_SLURM"
LONG = ("ops=save", "verify=none", "store=fault:delay=300ms:./slow", "iterations=2000")


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    with own_service(tmp_path_factory.mktemp("slurm")) as folder:
        yield folder


@pytest.fixture
def cluster(tmp_path, service):
    (tmp_path / "store").mkdir()
    cluster = Cluster(tmp_path, service / "slurm.conf")
    yield cluster
    if not slurm.process_of(service / "slurmctld.pid", "slurmctld"):
        slurm.restart_controller(service)
    cluster.slurm("scancel", "--state=PENDING", "--me", check=False)
    cluster.slurm("scancel", "--me", check=False)


def put_sbatch(cluster, text):
    """A sbatch of ours in front of the real one, which it calls as $SBATCH."""
    folder = cluster.folder / "bin"
    folder.mkdir(exist_ok=True)
    program = folder / "sbatch"
    program.write_text(f"#!/bin/sh\nSBATCH={slurm.find('sbatch')}\n{text}\n")
    program.chmod(program.stat().st_mode | stat.S_IXUSR)
    return {"PATH": f"{folder}:{os.environ['PATH']}"}


def test_without_a_controller_nothing_is_planned_and_states_stand(cluster, service):
    run, _ = cluster.submit_one(*TINY, *LONG)
    cluster.wait_for(run, "running")
    slurm.stop_controller(service)
    refused = cluster.call("submit", *TINY, "store=./store", code=4)
    assert "does not answer: Slurmctld(primary)" in refused.stderr
    line = cluster.status(run, code=4)[run]
    assert line["state"] == "running"
    assert "does not answer" in cluster.call("status", code=4).stderr
    assert len(cluster.document("status", code=4)) == 1
    slurm.restart_controller(service)
    cluster.wait_for(run, "running")
    cluster.call("cancel", run)
    assert cluster.wait_final(run)[run]["outcome"] == "cancelled"


def test_a_run_outlives_its_controller_daemon(cluster, service):
    run, _ = cluster.submit_one(*TINY, "store=fault:delay=50ms:./slow", "iterations=20", "ops=save", "verify=none")
    cluster.wait_for(run, "running")
    deadline = time.monotonic() + 200
    while run.encode() not in (service / "state/job_state").read_bytes():  # what it has not saved, it would forget
        assert time.monotonic() < deadline
        time.sleep(0.2)
    slurm.stop_controller(service)
    time.sleep(1)
    slurm.restart_controller(service)
    assert cluster.wait_final(run)[run]["outcome"] == "pass"


def test_a_laptop_killed_after_sbatch_finds_its_job_again(cluster):
    path = put_sbatch(cluster, 'case "$1" in --parsable) "$SBATCH" "$@" >/dev/null; kill -9 $PPID;; *) exec "$SBATCH" "$@";; esac')
    killed = subprocess.run([PROGRAM, "submit", *TINY, f"store={cluster.folder}/store"], cwd=cluster.folder,
                            env=cluster.environment(**path), capture_output=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    (line,) = cluster.document("status")
    assert line["job"] and [line["job"]] == cluster.jobs_named(line["run"])
    assert cluster.wait_final(line["run"])[line["run"]]["outcome"] == "pass"
    assert "nothing to send" in cluster.call("submit", "--resume", line["run"]).stdout
    assert len(cluster.jobs_named(line["run"])) == 1


@pytest.mark.parametrize("words", ["Socket timed out on send/recv operation", "Unable to contact slurm controller (receive failure)"])
def test_a_lost_answer_is_looked_for_and_nothing_is_sent_twice(cluster, words):
    path = put_sbatch(cluster, 'case "$1" in --parsable) "$SBATCH" "$@" >/dev/null;'
                               f' echo "sbatch: error: Batch job submission failed: {words}" >&2; exit 1;;'
                               ' *) exec "$SBATCH" "$@";; esac')
    run, job = cluster.submit_one(*TINY, **path)
    assert cluster.jobs_named(run) == [job]
    assert cluster.wait_final(run)[run]["outcome"] == "pass"


def test_a_controller_that_starts_again_during_a_submit_is_waited_for(cluster, service):
    reached, go = cluster.folder / "reached", cluster.folder / "go"
    path = put_sbatch(cluster, f'case "$1" in --parsable) touch "{reached}"; while [ ! -e "{go}" ]; do sleep 0.05; done;; esac; exec "$SBATCH" "$@"')
    with subprocess.Popen([PROGRAM, "submit", "--id", "restarted", *TINY, f"store={cluster.folder}/store"], cwd=cluster.folder,
                          env=cluster.environment(**path), stdout=subprocess.DEVNULL) as sender:
        deadline = time.monotonic() + 200
        while not reached.exists():
            assert sender.poll() is None and time.monotonic() < deadline
            time.sleep(0.05)
        slurm.stop_controller(service)
        go.touch()
        time.sleep(1)
        slurm.restart_controller(service)
        assert sender.wait(timeout=120) == 0
    assert len(cluster.jobs_named("restarted")) == 1
    assert cluster.wait_final("restarted")["restarted"]["outcome"] == "pass"


def test_a_controller_that_goes_away_during_a_submit_is_no_mistake_of_the_user(cluster):
    path = put_sbatch(cluster, 'case "$1" in --parsable) echo "sbatch: error: Batch job submission failed: Unable to contact slurm controller'
                               ' (connect failure)" >&2; exit 1;; esac; exec "$SBATCH" "$@"')
    cluster.call("submit", "--id", "away", *TINY, "store=./store", code=4, **path)
    assert cluster.status("away")["away"]["state"] == "planned"
    cluster.call("submit", "--resume", "away")
    assert cluster.wait_final("away")["away"]["outcome"] == "pass" and len(cluster.jobs_named("away")) == 1


def test_a_sweep_broken_off_is_sent_to_its_end_once(cluster):
    path = put_sbatch(cluster, f'''case "$1" in --parsable)
        if [ -e "{cluster.folder}/first" ]; then echo "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy" >&2; exit 1; fi
        touch "{cluster.folder}/first";; esac
        exec "$SBATCH" "$@"''')
    broken = cluster.call("submit", *TINY, f"store={cluster.folder}/store", "ops=save", "repeat=3", code=2, **path)
    assert "1 of 3 runs submitted" in broken.stderr
    sweep = broken.stderr.split("--resume ")[1].split("`")[0]
    assert [line["state"] for line in cluster.status(sweep).values()].count("planned") == 2
    cluster.call("cancel", f"{sweep}.03")
    cluster.call("submit", "--resume", sweep)
    lines = cluster.wait_final(sweep)
    assert [line["outcome"] for line in lines.values()] == ["pass", "pass", "cancelled"]
    assert [len(cluster.jobs_named(run)) for run in lines] == [1, 1, 0]


def test_a_job_cancelled_by_hand_is_cancelled_running_or_not(cluster):
    running, job = cluster.submit_one(*TINY, *LONG)
    held, held_job = cluster.submit_one(*TINY, "slurm.extra=--hold")
    cluster.wait_for(running, "running")
    assert "JobHeldUser" in cluster.wait_for(held, "pending")["note"]
    cluster.slurm("scancel", job, held_job)
    lines = cluster.wait_final(running, held)
    assert [lines[run]["outcome"] for run in (running, held)] == ["cancelled"] * 2
    assert "in Slurm (scancel" in lines[held]["note"] and cluster.manifest(held)["sealed_by"] == "collect"
    result = subprocess.run([PROGRAM, "collect", held], env=cluster.environment(), capture_output=True, text=True, timeout=120)
    assert result.returncode == 4


def test_many_controllers_at_once_write_one_story(cluster):
    run, _ = cluster.submit_one(*TINY, "ops=save")
    deadline = time.monotonic() + 200
    while cluster.status(run)[run]["state"] not in ("done", "failed") and time.monotonic() < deadline:
        looking = [subprocess.Popen([PROGRAM, verb, run], env=cluster.environment(), stdout=subprocess.DEVNULL,
                                    stderr=subprocess.PIPE) for verb in ("status", "status", "collect", "status")]
        for process in looking:
            _, said = process.communicate(timeout=120)
            assert process.returncode in (0, 4), said
    assert cluster.status(run)[run]["outcome"] == "pass"
    states = cluster.states(run)
    assert states[0] == "planned" and states[-1] == "done"
    assert all(one != other for one, other in zip(states, states[1:]))
    events = cluster.document("sql", f"select state from event where run = '{run}'")
    assert len([event for event in events if "done" in event or (isinstance(event, dict) and event.get("state") == "done")]) == 1
