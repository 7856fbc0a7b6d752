"""One home used by several machines: each has an index of its own, and sees what the others do to the run folders."""
import contextlib
import fcntl
import json
import os
import shutil
import signal
import sqlite3
import subprocess
import time
import uuid
from pathlib import Path

import pytest

from harness import BUILD, PROGRAM

MOUNT = "CKPTBENCH_TEST_CEPHFS"
TINY = ("model=gpt2-tiny", "iterations=1", "warmup=0", "baseline=false")
HOUR_NS = 3600 * 10**9


class Machine:
    """`home` is the way to the shared folder from here; the index lies in `own`."""

    def __init__(self, home, own, **environment):
        self.home, self.own = home, own
        own.mkdir(exist_ok=True)
        self.environment = {**os.environ, "CKPTBENCH_HOME": str(home), **environment}

    def start(self, *words, prefix=()):
        return subprocess.Popen([*prefix, PROGRAM, *map(str, words)], env=self.environment, cwd=self.own, stdin=subprocess.DEVNULL,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def call(self, *words, code=0, prefix=()):
        process = self.start(*words, prefix=prefix)
        out, error = process.communicate(timeout=150)
        assert process.returncode == code, f"{words}: {process.returncode}\n{out}\n{error}"
        return subprocess.CompletedProcess(words, code, out, error)

    def json(self, *words, code=0):
        return json.loads(self.call(*words, "--json", code=code).stdout)

    def runs(self, *words):
        return sorted(run["run"] for run in self.json("list", *words))

    def make(self, run, *words):
        folder = self.home / "runs" / run
        subprocess.run([BUILD / "tests/make_run", folder, *words], check=True, timeout=120)
        subprocess.run(["sync", "--file-system", self.home], check=True, timeout=120)  # as agents do: else another client waits for it
        return folder

    def index(self):
        (found,) = self.own.rglob("history.db")
        return found


@pytest.fixture(params=["one disk", "CephFS"])
def machines(request, tmp_path):
    if request.param == "one disk":
        yield [Machine(tmp_path / "home", tmp_path / name, CKPTBENCH_INDEX=str(tmp_path / name)) for name in ("first", "second")]
        return
    if MOUNT not in os.environ:
        pytest.skip(f"{MOUNT} is not set: CephFS is missing (tests/services/cephfs.py)")
    name = uuid.uuid4().hex[:12]
    yield [Machine(Path(os.environ[variable]) / name, tmp_path / variable.lower(), XDG_CACHE_HOME=str(tmp_path / variable.lower()))
           for variable in (MOUNT, MOUNT + "_SECOND")]
    shutil.rmtree(Path(os.environ[MOUNT]) / name, ignore_errors=True)


def test_a_run_of_one_machine_is_in_the_history_of_the_other(machines):
    first, second = machines
    run = first.json("run", *TINY, f"store={first.own}/store", "label.kind=nightly")["run"]
    (line,) = second.json("list", "label.kind=nightly")
    assert (line["run"], line["state"], line["outcome"]) == (run, "done", "pass")
    shown, there = first.json("show", run), second.json("show", run)
    assert there["metrics"] == shown["metrics"]
    assert second.index() != first.index() and not (first.home / "history.db").exists()
    other = second.json("run", *TINY, f"store={second.own}/store")["run"]
    assert first.runs() == sorted([run, other])


def test_a_run_under_way_ends_for_the_other_machine(machines):
    first, second = machines
    folder = first.make("20261121-aaaa", "outcome=none")
    assert [run["outcome"] for run in second.json("list")] == [None]
    first.call("collect", "--silence", "0s")
    assert json.loads((folder / "attempts/1/manifest.json").read_text())["outcome"] == "lost"
    assert [(run["state"], run["outcome"]) for run in second.json("list")] == [("failed", "lost")]


def test_a_later_attempt_of_a_run_that_had_ended_is_noticed(machines):
    first, second = machines
    folder = first.make("20261121-aaaa", "outcome=timeout")
    assert [run["outcome"] for machine in machines for run in machine.json("list")] == ["timeout", "timeout"]
    subprocess.run([BUILD / "tests/make_run", first.home / "spare/20261121-aaaa"], check=True, timeout=120)
    spare = first.home / "spare/20261121-aaaa/attempts/1"
    (spare / "manifest.json").write_text((spare / "manifest.json").read_text().replace('"attempt": 1', '"attempt": 2'))
    shutil.copytree(spare, folder / "attempts/2")
    first.call("collect")
    assert [run["outcome"] for run in second.json("list")] == ["pass"]
    assert [run["outcome"] for run in first.json("list")] == ["pass"]


def test_labels_count_everywhere_after_a_rebuild_on_one_machine(machines):
    first, second = machines
    folder = first.make("20261121-aaaa", "label.kind=x")
    assert second.json("list")[0]["labels"] == {"kind": "x"}
    (folder / "labels.yaml").write_text("kind: nightly\n")
    first.call("collect", "--rebuild")
    assert second.json("list")[0]["labels"] == first.json("list")[0]["labels"] == {"kind": "nightly"}


def test_baselines_are_one_set(machines):
    first, second = machines
    for name in ("20261121-aaaa", "20261121-bbbb"):
        first.make(name)
    first.call("baseline", "set", "good", "20261121-aaaa")
    assert [line["runs"] for line in second.json("baseline")] == [["20261121-aaaa"]]
    second.call("baseline", "set", "good", "20261121-aaaa", "20261121-bbbb")
    assert [line["n"] for line in first.json("baseline")] == [2]
    assert first.runs("good") == ["20261121-aaaa", "20261121-bbbb"]
    first.call("baseline", "remove", "good")
    assert second.json("baseline") == [] and second.json("sql", "select * from baseline") == []


def test_a_removed_run_leaves_both_histories(machines):
    first, second = machines
    for name in ("20261121-aaaa", "20261121-bbbb"):
        first.make(name)
    assert first.runs() == second.runs() == ["20261121-aaaa", "20261121-bbbb"]
    shutil.rmtree(first.home / "runs/20261121-aaaa")
    assert second.runs() == first.runs() == ["20261121-bbbb"]
    assert second.json("sql", "select count(*) as n from sample where run_id not in (select id from run)") == [{"n": 0}]


def test_a_checkpoint_cleaned_through_one_machine_is_gone_for_the_other(machines):
    first, second = machines
    run = first.json("run", *TINY, "ops=save", f"store={first.own}/store")["run"]
    assert [line["run"] for line in second.json("clean")] == [run]
    first.call("clean", run, "--yes")
    assert second.json("clean", run) == [] and second.runs() == [run]


def test_both_at_once_lose_nothing(machines):
    first, second = machines
    names = [f"20261121-{machine}{i:03}" for machine in "ab" for i in range(12)]
    for name in names:
        first.make(name)
    calls = [machine.start(*words) for machine in machines for words in (("collect",), ("list", "--json"), ("collect", "--rebuild"))]
    calls += [machine.start("run", "--json", *TINY, f"store={machine.own}/store") for machine in machines]
    ends = [(call.communicate(timeout=150), call.returncode) for call in calls]
    assert [code for _, code in ends] == [0] * len(calls), ends
    assert first.runs() == second.runs() == sorted(names + [json.loads(out)["run"] for (out, _), _ in ends[-2:]])
    for machine in machines:
        with contextlib.closing(sqlite3.connect(machine.index())) as database:
            assert database.execute("pragma integrity_check").fetchone() == ("ok",)


def test_the_lock_of_a_run_holds_on_the_other_machine(machines):
    first, second = machines
    first.call("run", *TINY, "repeat=2", f"store={first.own}/store")
    sweep = first.json("list")[0]["sweep"]
    for folder in (first.home / "runs").glob(f"{sweep}.*"):
        shutil.rmtree(folder / "attempts/1")
        (folder / "state").unlink()
    shutil.rmtree(first.index().parent)
    with open(first.home / "runs" / f"{sweep}.01/lock", "r+") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        assert "is being run by another ckptbench" in second.call("run", "--resume", sweep, code=2).stderr
    second.call("run", "--resume", sweep)
    assert {line["outcome"] for line in first.json("list", sweep)} == {"pass"}


@pytest.mark.parametrize("machines", ["one disk"], indirect=True)  # the index lies on one anyway
def test_a_kill_while_the_index_is_made_costs_nothing_but_time(machines):
    first, second = machines
    names = [f"20261121-{i:03}" for i in range(40)]
    for name in names:
        first.make(name)
    for delay in (0.01, 0.02, 0.04, 0.08):
        call = second.start("list")
        time.sleep(delay)
        call.send_signal(signal.SIGKILL)
        call.communicate(timeout=120)
    assert second.runs() == names
    assert second.json("show", names[7])["outcome"] == "pass"


def test_half_a_line_of_a_killed_writer_hides_no_other_line(machines):
    first, second = machines
    folder = first.make("20261121-aaaa", "label.kind=x")
    assert second.runs("label.kind=x") == ["20261121-aaaa"]
    with open(first.home / "changes", "a") as changes:
        changes.write("\n20261121-")
    (folder / "labels.yaml").write_text("kind: y\n")
    first.call("collect", "--rebuild")
    assert second.runs("label.kind=y") == ["20261121-aaaa"]


@pytest.mark.parametrize("shift_ns", [-HOUR_NS, HOUR_NS])
def test_clocks_that_differ_hide_no_change(machines, shift_ns):
    first, second = machines
    runs = first.home / "runs"
    first.make("20261121-aaaa")
    assert second.runs() == ["20261121-aaaa"]
    folder = first.make("20261121-bbbb", "outcome=none")
    for path in (folder, runs):
        os.utime(path, ns=(time.time_ns() + shift_ns,) * 2)
    assert second.runs() == ["20261121-aaaa", "20261121-bbbb"]
    first.call("collect", "--silence", "0s") if shift_ns < 0 else first.make("20261121-cccc")
    before = os.stat(runs)
    shutil.rmtree(runs / "20261121-aaaa")
    os.utime(runs, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert "20261121-aaaa" not in second.runs()


def test_a_lost_index_is_made_again_and_said_once(machines):
    first, second = machines
    for name in ("20261121-aaaa", "20261121-bbbb"):
        first.make(name)
    second.runs()
    shutil.rmtree(second.index().parent)
    result = second.call("list")
    assert result.stderr.count("was made from 2 run folders") == 1
    assert second.call("list").stderr == ""


def test_a_damaged_index_is_made_again_and_said_once(machines):
    first, second = machines
    first.make("20261121-aaaa")
    first.runs()
    first.index().write_bytes(b"spoiled " * 1000)
    result = first.call("list")
    assert result.stderr.count("is damaged") == 1 and "20261121-aaaa" in result.stdout
    assert "damaged" not in first.call("list").stderr


def test_a_database_of_an_earlier_version_is_where_the_index_begins(machines):
    first, second = machines
    for name in ("20261121-aaaa", "20261121-gone"):
        first.make(name)
    first.call("collect")
    shutil.rmtree(first.home / "runs/20261121-gone")
    with contextlib.closing(sqlite3.connect(first.index(), isolation_level=None)) as database:  # what is in no folder
        database.execute("update run set message='told by nobody else'")
        database.execute("drop index run_unfinished")
        database.execute("drop index metric_by_name")
        database.execute("delete from meta")
        database.execute("update run set folder='/where/it/was/runs/20261121-aaaa'")
        database.execute("pragma user_version=3")
    shutil.copy(first.index(), first.home / "history.db")
    first.make("20261121-bbbb")
    result = second.call("list")
    assert "20261121-aaaa" in result.stdout and "20261121-bbbb" in result.stdout and "20261121-gone" not in result.stdout
    assert result.stderr.count("1 run whose folder is gone leaves the history") == 1
    with contextlib.closing(sqlite3.connect(f"{second.index()}.earlier")) as database:
        assert database.execute("select outcome from run where run='20261121-gone'").fetchone() == ("pass",)
    assert second.json("sql", "select message from run order by run")[0] == {"message": "told by nobody else"}
    assert second.json("sql", "select folder from run order by run")[0] == {"folder": f"{second.home}/runs/20261121-aaaa"}


def calls_below_runs(machine, tmp_path):
    """System calls of `list` that name a run's folder or something in it, and those that list runs/."""
    trace = tmp_path / "trace"
    machine.call("list", prefix=["strace", "-f", "-e", "trace=%file", "-o", trace])
    lines = [line for line in trace.read_text().splitlines() if f"{machine.home}/runs" in line]
    return [line for line in lines if "/runs/" in line], [line for line in lines if "/runs/" not in line and "openat" in line]


@pytest.mark.without_sanitizers
def test_nothing_new_costs_one_listing_however_many_runs_there_are(machines, tmp_path):
    first, _ = machines
    for i in range(30):
        first.make(f"20261121-{i:03}")
    first.call("list")
    first.call("list")
    inside, listings = calls_below_runs(first, tmp_path)
    assert inside == [] and len(listings) == 1
    first.make("20261121-new")
    inside, _ = calls_below_runs(first, tmp_path)
    assert inside and all("20261121-new" in line for line in inside)


def test_a_group_shares_a_home(machines):
    """Files take their permissions from the umask, and the index belongs to each user."""
    first, _ = machines
    first.home.mkdir()
    first.home.chmod(0o2770)
    mask = os.umask(0o002)
    try:
        run = first.json("run", *TINY, f"store={first.own}/store")["run"]
    finally:
        os.umask(mask)
    folder = first.home / "runs" / run
    for path in (first.home / "runs", folder, folder / "attempts", folder / "attempts/1"):
        assert path.stat().st_mode & 0o020, path
    for path in [folder / name for name in ("experiment.yaml", "labels.yaml", "planned.json", "lock", "attempts/1/records")]:
        assert path.stat().st_mode & 0o020, path
    assert first.index().parent.stat().st_mode & 0o077 == 0
