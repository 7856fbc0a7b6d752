"""Saves and loads of a program that uses libckptbench, recorded as a run: what collect, show, compare and list make of it."""
import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness import BUILD, ROOT, ckptbench, environment

# A program that preloads no sanitizer cannot load a library built with one; tests/unit/test_library_record.c runs under them.
pytestmark = pytest.mark.without_sanitizers

# Two ranks, each a process; rank 0 prints a line when its saves are done. "stay": then waits to be killed.
PROGRAM = """
import os, sys, time
from ckptbench import _library
rank, stays, place = int(sys.argv[1]), sys.argv[2] == "stay", sys.argv[3]
if rank == 0:
    listener, meeting = _library.listen("127.0.0.1")
    print(meeting.decode(), flush=True)
    handle = _library.Handle(0, 2, listener=listener, words=sys.argv[4:])
else:
    handle = _library.Handle(1, 2, meeting=sys.stdin.readline().strip().encode(), words=sys.argv[4:])
state = _library.State((), {f"value.{rank}": bytes(1000 + rank), "both": b"the same"}, {})
handle.save(f"{place}/step-1", state)
handle.save_async(f"{place}/step-2", state).wait(-1)
handle.load(f"{place}/step-1", state)
print("done", flush=True)
if stays:
    time.sleep(600)
handle.close()
"""


class Ranks:
    def __init__(self, place, ends, *words, **variables):
        variables = environment(place, PYTHONPATH=str(ROOT / "python"), CKPTBENCH_LIBRARY=str(BUILD / "libckptbench.so"), **variables)
        self.ranks = []
        for rank in range(2):
            self.ranks.append(subprocess.Popen([sys.executable, "-c", PROGRAM, str(rank), ends, place / "saved", *words], env=variables,
                                               stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True))
        meeting = self.ranks[0].stdout.readline()
        self.ranks[1].stdin.write(meeting)
        self.ranks[1].stdin.flush()
        for rank in self.ranks:
            assert rank.stdout.readline() == "done\n"

    def end(self):
        for rank in self.ranks:
            rank.communicate(timeout=120)
            assert rank.returncode == 0

    def kill(self):
        for rank in self.ranks:
            rank.send_signal(signal.SIGKILL)
            rank.communicate(timeout=120)


def show(place, run):
    return json.loads(ckptbench(place, "show", run, "--json").stdout)


def sums(place, run, metric):
    """(op, iteration) -> sum over the ranks."""
    rows = json.loads(ckptbench(place, "sql", "--json", "select op, iteration, sum(value) s from sample_value "
                                f"where run='{run}' and metric='{metric}' group by op, iteration").stdout)
    return {(row["op"], row["iteration"]): row["s"] for row in (rows["rows"] if isinstance(rows, dict) else rows)}


@pytest.fixture(scope="module")
def recorded(tmp_path_factory):
    place = tmp_path_factory.mktemp("recorded")
    Ranks(place, "end", "label.job=nightly", "folder=overwrite", CKPTBENCH_RUN="nightly-7").end()
    return place


def test_collect_seals_a_program_that_has_ended_at_once(recorded):
    assert "1 ingested" in ckptbench(recorded, "collect").stdout
    shown = show(recorded, "nightly-7")
    assert shown["outcome"] == "pass" and shown["experiment"]["ranks"] == 2
    assert shown["metrics"]["save_s"]["n"] == 2 and shown["metrics"]["load_s"]["n"] == 1
    report = ckptbench(recorded, "show", "nightly-7").stdout
    assert "2 ranks of libckptbench 1.0: 2 saves (1 asynchronous), 1 load" in report and "saved in" in report
    assert "nightly-7" in ckptbench(recorded, "list", "label.job=nightly").stdout


def test_times_in_states_are_those_of_the_save(recorded):
    ckptbench(recorded, "collect")
    whole = sums(recorded, "nightly-7", "op_s")
    assert sorted(whole) == [("load", 1), ("save", 1), ("save", 2)]
    states = ["other_s", "plan_s", "stage_s", "serialize_s", "io_s", "fsync_s", "exchange_s", "commit_s", "wait_s", "in_backoff_s"]
    parts = [sums(recorded, "nightly-7", state) for state in states]
    for key, seconds in whole.items():
        assert sum(part.get(key) or 0 for part in parts) == pytest.approx(seconds, abs=1e-6)
    assert set(sums(recorded, "nightly-7", "durable_s")) >= {("save", 1), ("save", 2)}
    requests = sums(recorded, "nightly-7", "requests")
    assert all(requests[key] > 0 for key in whole)


def test_a_second_program_is_compared_and_a_restart_is_another_attempt(recorded):
    Ranks(recorded, "end", "record=nightly-8", "folder=overwrite").end()
    Ranks(recorded, "end", "record=nightly-8", "folder=overwrite").end()
    ckptbench(recorded, "collect")
    attempts = sorted((recorded / "home/runs/nightly-8/attempts").iterdir())
    assert [path.name for path in attempts] == ["1", "2"] and all((path / "manifest.json").exists() for path in attempts)
    compared = ckptbench(recorded, "compare", "nightly-7", "nightly-8")
    assert "save" in compared.stdout
    assert json.loads(ckptbench(recorded, "collect", "--rebuild", "--json").stdout)


def test_a_killed_program_keeps_what_it_recorded(tmp_path):
    ranks = Ranks(tmp_path, "stay", "record=killed")
    assert "not sealed" in ckptbench(tmp_path, "collect", "--silence", "0s").stdout  # it runs: its lock says so
    assert not (tmp_path / "home/runs/killed/attempts/1/manifest.json").exists()
    ranks.kill()
    ckptbench(tmp_path, "collect")
    assert not (tmp_path / "home/runs/killed/attempts/1/manifest.json").exists()  # heard of a moment ago
    ckptbench(tmp_path, "collect", "--silence", "0s")
    shown = show(tmp_path, "killed")
    assert shown["outcome"] == "lost" and "not every process" in shown["message"]
    assert shown["metrics"]["save_s"]["n"] == 2
