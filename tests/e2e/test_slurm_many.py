"""Many runs at once on a real Slurm: how often its commands are called, how many at a time, and that nothing is lost or sent twice
where that breaks off."""
import contextlib
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import time
import uuid

import pytest
from harness import PROGRAM
from slurm_harness import MISSING, TINY, VARIABLE, Cluster, shared_cluster

pytestmark = pytest.mark.skipif(not os.environ.get(VARIABLE), reason=MISSING)
assert VARIABLE == "CKPTBENCH_TEST_SLURM"  # tests/run.py looks for the name in this file
COMMANDS = ("sbatch", "squeue", "scontrol", "sacct", "sinfo", "scancel")
HELD = (*TINY, "ops=save", "slurm.extra=--hold")


class Counted(Cluster):
    """Commands of Slurm leave a line each; `send` is what sbatch does with a script, $SBATCH the real one."""
    log = property(lambda self: self.folder / "calls")
    bin = property(lambda self: self.folder / "bin")

    def __init__(self, folder, configuration):
        super().__init__(folder, configuration)
        self.bin.mkdir()
        self.path = {"PATH": f"{self.bin}:{os.environ['PATH']}"}
        for name in COMMANDS:
            if shutil.which(name):
                self.put(name, f'exec {shutil.which(name)} "$@"')

    def put(self, name, text):
        program = self.bin / name
        program.write_text(f'#!/bin/sh\necho "{name} $1 $2" >> {self.log}\nSBATCH={shutil.which("sbatch")}\n{text}\n')
        program.chmod(0o755)

    def put_sbatch(self, send):
        """What asks only (--test-only) goes through as ever."""
        self.put("sbatch", f'case "$1" in --parsable) {send};; *) exec "$SBATCH" "$@";; esac')

    def counted(self, *words, **options):
        """What was called, pings left out."""
        self.log.write_text("")
        result = self.call(*words, **options, **self.path)
        return result, [line.strip() for line in self.log.read_text().splitlines() if line.strip() != "scontrol ping"]

    def records(self, sweep):
        return {path.name: json.loads((path / "job.json").read_text()) for path in sorted((self.home / "runs").glob(f"{sweep}.*"))}


@pytest.fixture
def cluster(tmp_path):
    with shared_cluster(tmp_path, Counted) as cluster:
        yield cluster


def sweep_of(result):
    return json.loads(result.stdout)["sweep"]


def names_in_slurm(cluster, sweep):
    """name: how many jobs of it Slurm remembers, arrays counted by their tasks."""
    names = {}
    for line in cluster.slurm("squeue", "-h", "-a", "-r", "--me", "-t", "all", "-o", "%j %K").splitlines():
        if line.startswith(f"{sweep}."):
            names[line] = names.get(line, 0) + 1
    return names


def test_many_equal_members_are_one_array_that_is_sent_once(cluster):
    result, calls = cluster.counted("submit", *HELD, f"store={cluster.folder}/store", "repeat=24", "--json")
    assert [call for call in calls if call.startswith("sbatch")] == ["sbatch --test-only", "sbatch --parsable"]
    assert len(calls) == 3  # and what Slurm's configuration says of arrays
    runs = json.loads(result.stdout)["runs"]
    base = runs[0]["job"].split("_")[0]
    assert [run["job"] for run in runs] == [f"{base}_{n}" for n in range(24)]
    assert set(names_in_slurm(cluster, sweep_of(result)).values()) == {1}
    after = cluster.submit_one(*HELD, "--after", runs[3]["run"])[0]
    assert f"--dependency=afterok:{base}_3\n" in (cluster.run_folder(after) / "job.sbatch").read_text()
    cluster.call("cancel", runs[3]["run"])
    lines = cluster.status(sweep_of(result))
    assert [line["state"] for line in lines.values()].count("cancelled") == 1 and lines[runs[3]["run"]]["outcome"] == "cancelled"


def test_status_of_many_runs_asks_once_and_touches_only_what_has_changed(cluster):
    result, _ = cluster.counted("submit", *HELD, f"store={cluster.folder}/store", "repeat=24", "--json")
    sweep = sweep_of(result)
    cluster.status(sweep)
    times = {path: path.stat().st_mtime_ns for path in (cluster.home / "runs").glob("*/job.json")}
    looked, calls = cluster.counted("status", "--json")
    assert [call.split()[0] for call in calls] == ["squeue"]
    assert {line["state"] for line in json.loads(looked.stdout)} == {"pending"}
    assert times == {path: path.stat().st_mtime_ns for path in times}
    cluster.call("cancel", f"{sweep}.05")
    looked, calls = cluster.counted("status", sweep, "--json")
    assert [call.split()[0] for call in calls].count("squeue") == 1 and len(calls) <= 2
    assert [line["run"] for line in json.loads(looked.stdout) if line["state"] == "cancelled"] == [f"{sweep}.05"]


def test_what_has_ended_is_shown_from_the_history_alone(cluster):
    run, _ = cluster.submit_one(*TINY, "ops=save")
    before = cluster.wait_final(run)[run]
    (cluster.run_folder(run) / "attempts").rename(cluster.folder / "moved")
    looked, calls = cluster.counted("status", run, "--json")
    assert json.loads(looked.stdout) == [before] and calls == []


def test_few_members_and_unequal_ones_are_jobs_of_their_own_some_at_a_time(cluster):
    going = cluster.folder / "going"
    going.mkdir()
    cluster.put_sbatch(f'touch {going}/$$; ls {going} | wc -l >> {cluster.folder}/at-once; "$SBATCH" "$@"; code=$?; rm {going}/$$; exit $code')
    result, calls = cluster.counted("submit", *HELD, f"store={cluster.folder}/store", "repeat=40", "--no-array", "--json")
    assert calls.count("sbatch --parsable") == 40 and calls.count("sbatch --test-only") == 1 and len(calls) == 41
    at_once = [int(line) for line in (cluster.folder / "at-once").read_text().split()]
    assert at_once[0] == 1 and 1 < max(at_once) <= 6
    runs = json.loads(result.stdout)["runs"]
    assert len({run["job"] for run in runs}) == 40 and all(run["job"].isdigit() for run in runs)
    assert names_in_slurm(cluster, sweep_of(result)) == {f"{run['run']} N/A": 1 for run in runs}
    assert all(record["job"] == run["job"] for run, record in zip(runs, cluster.records(sweep_of(result)).values()))
    mixed, calls = cluster.counted("submit", *TINY, "ops=save", "slurm.extra=--hold", f"store={cluster.folder}/store", "slurm.time=5m,6m", "repeat=11", "--json")
    assert calls.count("sbatch --test-only") == 2
    assert not [run for run in json.loads(mixed.stdout)["runs"] if "_" in run["job"]]  # they take turns: no array passes others over


def test_a_time_limit_that_differs_makes_another_array(cluster):
    """Of a larger model, say: what is not written out is part of what a job asks for."""
    out = cluster.call("submit", "model=gpt2-tiny", "ranks=2", "ops=save", f"store={cluster.folder}/store", "rate.rank=1KiB/s",
                       "iterations=1,2000", "--array", "--dry-run").stdout
    limits = {line for line in out.splitlines() if line.startswith("#SBATCH --time=")}
    assert len(limits) == 2 and "--array" not in out


def test_an_array_that_is_refused_leaves_all_planned_and_is_sent_on(cluster):
    cluster.put_sbatch('echo "sbatch: error: Batch job submission failed: Job violates accounting/QOS policy" >&2; exit 1')
    broken, _ = cluster.counted("submit", *HELD, f"store={cluster.folder}/store", "repeat=20", code=2)
    assert "0 of 20 runs submitted" in broken.stderr and "QOS" in broken.stderr
    sweep = broken.stderr.split("--resume ")[1].split("`")[0]
    assert {line["state"] for line in cluster.status(sweep).values()} == {"planned"}
    cluster.call("submit", "--resume", sweep)
    assert len(names_in_slurm(cluster, sweep)) == 20 and set(names_in_slurm(cluster, sweep).values()) == {1}


def test_a_controller_killed_among_many_sends_none_of_them_twice(cluster):
    """Killed when the tenth has reached Slurm: nobody has read its answer, nor those of others that were under way."""
    cluster.put_sbatch(f'"$SBATCH" "$@"; echo x >> {cluster.folder}/sent; [ "$(wc -l < {cluster.folder}/sent)" -lt 10 ] || kill -9 $PPID')
    killed = subprocess.run([PROGRAM, "submit", *HELD, f"store={cluster.folder}/store", "repeat=20", "--no-array"], cwd=cluster.folder,
                            env=cluster.environment(**cluster.path), capture_output=True, timeout=120)
    assert killed.returncode == -signal.SIGKILL
    (sweep,) = {path.name.split(".")[0] for path in (cluster.home / "runs").iterdir()}
    deadline = time.monotonic() + 200  # for what sbatch had under way when it lost its parent
    while len(names_in_slurm(cluster, sweep)) < 10:
        assert time.monotonic() < deadline
        time.sleep(0.1)
    before = names_in_slurm(cluster, sweep)
    lines = cluster.status(sweep)
    sent = {run for run, line in lines.items() if line["job"]}
    assert len(lines) == 20
    assert {name.split()[0] for name in before} <= sent <= {name.split()[0] for name in names_in_slurm(cluster, sweep)}
    refused = cluster.call("submit", "--resume", sweep, code=4)
    assert "may still appear" in refused.stderr
    for run in set(lines) - sent:
        cluster.age_intent(run)
    cluster.call("submit", "--resume", sweep)
    names = names_in_slurm(cluster, sweep)
    assert len(names) == 20 and set(names.values()) == {1}


def is_planned(cluster):
    """Whether all is written that a second one would find."""
    try:
        with contextlib.closing(sqlite3.connect(f"file:{cluster.home}/history.db?mode=ro", uri=True, timeout=1)) as history:
            return history.execute("select count(*) from run").fetchone()[0] > 0
    except sqlite3.OperationalError:
        return False


def is_history_free(cluster):
    """Whether no process is in the middle of a transaction: one that is stopped there would keep all others out."""
    with contextlib.closing(sqlite3.connect(f"{cluster.home}/history.db", timeout=0, isolation_level=None)) as history:
        try:
            history.execute("begin immediate")
        except sqlite3.OperationalError:
            return False
        history.execute("rollback")
        return True


def stop_outside_of_transactions(process, cluster):
    while process.poll() is None:
        process.send_signal(signal.SIGSTOP)
        os.waitid(os.P_PID, process.pid, os.WSTOPPED | os.WEXITED | os.WNOWAIT)
        if is_history_free(cluster):
            return
        process.send_signal(signal.SIGCONT)
        time.sleep(0.002)


@pytest.mark.parametrize("array", ["--array", "--no-array"])
def test_two_who_submit_the_same_send_it_once(cluster, array):
    """The first is stopped where it has planned all and sent nothing, or little; whoever comes second finishes or leaves it."""
    words = ["submit", "--id", f"twice-{uuid.uuid4().hex[:8]}", *HELD, f"store={cluster.folder}/store", "repeat=40", array]
    with subprocess.Popen([PROGRAM, *words], cwd=cluster.folder, env=cluster.environment(), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                          text=True) as first:
        while first.poll() is None and not is_planned(cluster):
            time.sleep(0.0005)
        stop_outside_of_transactions(first, cluster)
        second = subprocess.run([PROGRAM, *words], cwd=cluster.folder, env=cluster.environment(), capture_output=True, text=True, timeout=120)
        first.send_signal(signal.SIGCONT)
        _, said = first.communicate(timeout=120)
    for code, text in ((first.returncode, said), (second.returncode, second.stderr)):
        assert code == 0 or code == 4 and ("being submitted by another" in text or "may still appear" in text), text
    names = names_in_slurm(cluster, words[2])
    assert set(names.values()) == {1} and 0 in (first.returncode, second.returncode), names


def test_answers_lost_among_many_are_found_again(cluster):
    cluster.put_sbatch(f'"$SBATCH" "$@"; echo x >> {cluster.folder}/sent; [ "$(wc -l < {cluster.folder}/sent)" -lt 5 ] ||'
                       ' { echo "sbatch: error: Socket timed out on send/recv operation" >&2; exit 1; }')
    result, _ = cluster.counted("submit", *HELD, f"store={cluster.folder}/store", "repeat=8", "--json")
    runs = json.loads(result.stdout)["runs"]
    names = names_in_slurm(cluster, sweep_of(result))
    assert all(run["job"] and run["job"].isdigit() for run in runs) and len(names) == 8 and set(names.values()) == {1}


def test_a_hold_pool_at_work_takes_a_run_without_asking_slurm(cluster):
    cluster.call("warm", "start", "p", "mode=hold", "nodes=1", "for=5m")
    try:
        deadline = time.monotonic() + 200
        while cluster.document("warm", "list")[0]["jobs"] == 0:  # its waiter has said that it is there
            assert time.monotonic() < deadline
            time.sleep(0.1)
        result, calls = cluster.counted("submit", *TINY, "ops=save", f"store={cluster.folder}/store", "--warm", "p", "--json")
        assert calls == [] and "scontrol ping" not in cluster.log.read_text()
        run = json.loads(result.stdout)["runs"][0]["run"]
        assert cluster.wait_final(run)[run]["outcome"] == "pass"
    finally:
        cluster.call("warm", "stop", "p")
