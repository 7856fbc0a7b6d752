"""Saves that go on behind the workload: measured, verified, kept and removed; faults and kills behind training's back."""
import os
import signal
import time
from pathlib import Path

import pytest

from harness import has_stopped
from worker_harness import FLAG_FAILED, FLAG_WARMUP, WORKER, Run, failed, passed

SANITIZED = any(word in WORKER.read_bytes() for word in (b"__asan_init", b"__tsan_init"))
TINY_BYTES = 11796736  # gpt2-tiny, weights+adam


def markers(run):
    return sorted(str(path.parent.relative_to(run.store)) for path in run.store.glob("**/.metadata"))


def newest(run):
    return max(int(marker.rpartition("-")[2]) for marker in markers(run))


def test_what_training_waits_for_and_what_goes_on_is_measured(tmp_path):
    run = passed(Run(tmp_path, dp=2, ops="save", iterations=3, warmup=1, save__async="true", compute_gap="50ms").run())
    for rank in range(2):
        samples = run.samples("save", rank)
        assert [sample["iteration"] for sample in samples] == [0, 1, 2, 3]
        assert [sample["flags"] & FLAG_WARMUP for sample in samples] == [1, 0, 0, 0]
        for sample in samples:
            parts = ("other", "plan", "stage", "serialize", "io", "fsync", "exchange", "commit", "wait")
            assert sum(sample[f"{part}_s"] for part in parts) == pytest.approx(sample["op_s"], rel=1e-6)
            assert sample["stall_s"] + sample["persist_s"] == pytest.approx(sample["op_s"], rel=1e-6)
            assert sample["durable_s"] == sample["op_s"] and sample["stall_wait_s"] <= sample["stall_s"]
            assert sample["plan_cache_hit"] == (sample["iteration"] > 0)
            assert "interference_fraction" not in sample
        assert run.samples("verify", rank)[0]["verified_bytes"] > 0
    assert sum(run.samples("save", rank)[0]["bytes_needed"] for rank in range(2)) == TINY_BYTES
    assert markers(run) == ["run/iteration-3"]
    assert len(run.samples("delete")) == 3


def test_what_is_loaded_is_what_was_saved_last(tmp_path):
    run = passed(Run(tmp_path, tp=2, iterations=3, save__async="true", save__staging_bytes="1MiB", io__block="128KiB").run())
    assert len(run.samples("save")) == len(run.samples("load")) == len(run.samples("verify")) == 3
    assert {entry.name for entry in run.store.iterdir()} == {".ckptbench-store"}


@pytest.mark.parametrize("keys", [{}, {"save__async": "true"}, {"save__async": "true", "save__inflight": 2}])
def test_the_last_checkpoints_are_kept_and_older_ones_go(tmp_path, keys):
    run = passed(Run(tmp_path, ops="save", iterations=5, keep__last=2, keep="true", **keys).run())
    assert markers(run) == ["run/iteration-3", "run/iteration-4"]
    assert not (run.store / "run/iteration-2").exists()
    loaded = passed(Run(tmp_path, name="again", ops="load", suffix="run/iteration-3").run())
    assert loaded.samples("verify")[0]["verified_bytes"] > 0


def test_what_others_left_beside_the_checkpoints_stays(tmp_path):
    run = Run(tmp_path, ops="save", iterations=1000, keep__last=1, save__async="true").start()
    run.wait_until(lambda page: len(page[0]["samples"]) > 4)
    mine = run.store / "run/notes.txt"
    mine.write_text("mine")
    run.stop("later")
    passed(run.wait())
    assert mine.read_text() == "mine"
    assert len(markers(run)) == 1


def test_an_older_checkpoint_stays_until_the_newer_one_is_durable(tmp_path):
    (tmp_path / "store").mkdir()
    store = f"fault:stall_at=2+ops=publish+rank=0:{tmp_path}/store"
    run = Run(tmp_path, ops="save", iterations=9, save__async="true", store=store).start()
    run.wait_until(lambda page: page[0]["behind_state"] == "commit" and page[0]["behind_iteration"] == 1)
    time.sleep(0.3)
    assert markers(run) == ["run/iteration-0"]
    run.stop("now")
    run.wait()
    assert run.code != 0 and markers(run) == ["run/iteration-0"]


def test_computing_beside_a_save_is_slowed_down_and_says_by_how_much(tmp_path):
    (tmp_path / "store").mkdir()
    store = f"fault:delay=30ms+ops=write:{tmp_path}/store"
    run = passed(Run(tmp_path, ops="save", iterations=2, save__async="true", compute_gap="400ms", interference="compute", store=store,
                     io__depth=1, io__block="1MiB", verify="none").run())
    for rank in range(2):
        for sample in run.samples("save", rank):
            assert sample["interference_fraction"] < 1  # how much depends on the machine


def test_interference_without_a_gap_says_what_it_needs(tmp_path):
    failed(Run(tmp_path, interference="compute").run(), "usage", "compute_gap=")


@pytest.mark.parametrize("keys, word", [({"engine": "command", "command": "true"}, "a command ends"), ({"workload": "raw"}, "workload=raw"),
                                        ({"folder": "rotate", "keep__last": 2}, "folder=per_iteration")])
def test_what_does_not_go_with_it_is_refused(tmp_path, keys, word):
    if "keep__last" not in keys:
        keys = dict(keys, save__async="true")
    failed(Run(tmp_path, **keys).run(), "usage", word)


@pytest.mark.parametrize("spec, code", [("enospc_after=20MiB", "no_space"), ("fail=finish/ENOSPC", "no_space"), ("error_at=60+ops=write", "system")])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_failure_behind_trainings_back_is_told_and_the_checkpoint_before_stays(tmp_path, spec, code, rank):
    first = passed(Run(tmp_path, name="first", ops="save", tp=2).run())
    store = f"fault:{spec}+rank={rank}:{tmp_path}/store"
    run = Run(tmp_path, ops="save", iterations=20, tp=2, save__async="true", keep__last=3, store=store, io__block="256KiB").run()
    failed(run, code, f"behind, rank {rank}", "run/iteration-")
    assert run.page[rank]["failure"] == code and run.page[1 - rank]["failure"] == "aborted"
    last = run.samples("save")[-1]
    assert last["flags"] & FLAG_FAILED
    assert f"run/iteration-{last['iteration']}" not in markers(run)
    assert markers(first)[0].startswith("first/")
    passed(Run(tmp_path, name="again", ops="load", suffix="first", tp=2).run())


def wait_until_stopped(pid):
    """A process stands still some time after SIGSTOP, with all of its threads."""
    end = time.monotonic() + 200
    while not has_stopped(pid):
        assert time.monotonic() < end, f"process {pid} goes on"
        time.sleep(0.02)


def kill(run, victims, also=None):
    """Nothing of these ranks goes on; the launcher ends the others."""
    pids = [run.page[victim]["pid"] for victim in victims] + ([also] if also else [])
    for pid in pids:
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    run.wait(60)
    assert run.code != 0


STEPS = [  # where the store stalls, and what the thread behind does then
    ("stall_at=30+ops=write", "io"), ("stall_at=4+ops=finish", "fsync"), ("stall_at=2+ops=publish", "commit"),
]


@pytest.mark.parametrize("who", ["one", "all"])
@pytest.mark.parametrize("spec, state", STEPS)
def test_kills_at_each_step_leave_the_checkpoint_before(tmp_path, spec, state, who):
    """The second save stalls, and dies there."""
    (tmp_path / "store").mkdir()
    rank = 0 if "publish" in spec else 1
    spec = spec.replace("stall_at=4+ops=finish", "stall_at=2+ops=finish")
    run = Run(tmp_path, ranks=2, tp=2, ops="save", iterations=9, save__async="true", io__block="256KiB", keep__last=2,
              store=f"fault:{spec}+rank={rank}:{tmp_path}/store", timeout__op="60s").start()
    run.wait_until(lambda page: page[rank]["behind_state"] == state and page[rank]["behind_iteration"] == 1)
    time.sleep(0.2)
    kill(run, range(2) if who == "all" else [rank])
    assert markers(run) == ["run/iteration-0"]
    loaded = passed(Run(tmp_path, name="again", ops="load", suffix="run", tp=2).run())
    assert loaded.samples("verify")[0]["verified_bytes"] > 0


@pytest.mark.parametrize("who", ["one", "all"])
@pytest.mark.parametrize("spec, state", [("stall_at=40+ops=write", "io"), ("stall_at=2+ops=finish", "fsync")])
def test_kills_while_the_state_is_staged_in_rounds_leave_the_checkpoint_before(tmp_path, spec, state, who):
    """At a write training still waits, since the rest of its state is not copied; at fsync it has gone on."""
    (tmp_path / "store").mkdir()
    run = Run(tmp_path, ranks=2, tp=2, ops="save", iterations=9, save__async="true", io__block="256KiB", save__staging_bytes="1MiB",
              store=f"fault:{spec}+rank=1:{tmp_path}/store", timeout__op="60s").start()
    run.wait_until(lambda page: page[1]["behind_state"] == state and page[1]["behind_iteration"] == 1
                   and (page[1]["op"] == "save" and page[1]["state"] == "io") == (state == "io"))
    kill(run, range(2) if who == "all" else [1])
    assert markers(run) == ["run/iteration-0"]
    passed(Run(tmp_path, name="again", ops="load", suffix="run", tp=2).run())


@pytest.mark.parametrize("who", [[0], [0, 1]])
@pytest.mark.parametrize("keys", [{}, {"save__async": "true"}, {"save__async": "true", "save__staging_bytes": "1MiB"}])
def test_kills_between_the_marker_and_the_last_agreement_leave_two_whole_checkpoints(tmp_path, keys, who):
    """Rank 1 stands still once it has agreed that data is durable: rank 0 publishes, and waits for it in vain."""
    (tmp_path / "store").mkdir()
    gate, state = tmp_path / "go", "behind_state" if keys else "state"
    gate.touch()
    run = Run(tmp_path, ranks=2, tp=2, ops="save", iterations=1000, io__block="256KiB", keep__last=2, verify="none", timeout__op="250s",
              store=f"fault:until={gate}+ops=finish+rank=0:{tmp_path}/store", **keys).start()
    run.wait_until(lambda page: page[0]["samples"])
    gate.unlink()  # no save ends from here on
    for _ in range(2):  # once more after a while in which rank 1 has told that it agrees
        time.sleep(0.5)
        run.wait_until(lambda page: page[1][state] == "wait" and page[0][state] == "fsync")
    stopped, newest = run.page[1]["pid"], len(run.samples("save"))
    os.kill(stopped, signal.SIGSTOP)
    wait_until_stopped(stopped)
    gate.touch()
    try:
        run.wait_until(lambda page: (run.store / f"run/iteration-{newest}/.metadata").exists() and page[0][state] == "wait")
        assert len(run.samples("save")) == newest  # it has not ended
    finally:
        kill(run, who, also=stopped)
    numbers = (newest - 1, newest)
    assert {f"run/iteration-{number}" for number in numbers} <= set(markers(run))
    for number in numbers:
        loaded = passed(Run(tmp_path, name=f"again-{number}", ops="load", suffix=f"run/iteration-{number}", tp=2).run())
        assert loaded.samples("verify")[0]["verified_bytes"] > 0


def test_a_checkpoint_is_loaded_while_two_newer_ones_are_being_saved(tmp_path):
    (tmp_path / "store").mkdir()
    gate = tmp_path / "go"
    gate.touch()
    run = Run(tmp_path, ranks=2, tp=2, ops="save", iterations=1000, save__async="true", save__inflight=2, keep__last=4, keep="true",
              store=f"fault:until={gate}+ops=write:{tmp_path}/store").start()
    run.wait_until(lambda page: page[0]["samples"])
    gate.unlink()  # no write ends from here on
    run.wait_until(lambda page: all(rank["behind_state"] == "io" and rank["behind_iteration"] == newest(run) + 1 for rank in page))
    older = newest(run)
    loaded = passed(Run(tmp_path, name="between", ops="load", suffix=f"run/iteration-{older}", tp=2, load__cold="false").run())
    assert loaded.samples("verify")[0]["verified_bytes"] > 0
    assert run.page[0]["behind_state"] and newest(run) == older  # it was loaded beside them
    run.stop("later")
    gate.touch()
    passed(run.wait())
    assert newest(run) > older and len(markers(run)) <= 4
    for number in (newest(run) - 1, newest(run)):
        passed(Run(tmp_path, name=f"again-{number}", ops="load", suffix=f"run/iteration-{number}", tp=2).run())


def test_a_stop_request_ends_a_save_behind(tmp_path):
    (tmp_path / "store").mkdir()
    run = Run(tmp_path, ops="save", iterations=9, save__async="true", compute_gap="80s",
              store=f"fault:stall_at=2+ops=write:{tmp_path}/store").start()
    run.wait_until(lambda page: page[0]["behind_state"] == "io" and page[0]["op"] == "none")
    start = time.monotonic()
    run.stop("now")
    run.wait()
    assert time.monotonic() - start < 60 and run.code != 0 and markers(run) == []


def test_memory_stays_below_state_and_staging(tmp_path):
    """Many small tensors and some large ones: 160 MiB of state a rank, staged in rounds of 8 MiB."""
    model = tmp_path / "many.yaml"
    lines = [f"- {{name: small.{i}, shape: [16, 16], dtype: bf16}}\n" for i in range(4000)]
    lines += [f"- {{name: large.{i}, shape: [8192, 1024], dtype: bf16}}\n" for i in range(10)]
    model.write_text("".join(lines))
    keys = {"model": model, "state": "weights", "ranks": 1, "ops": "save", "iterations": 3, "io__block": "1MiB", "verify": "none"}
    small = passed(Run(tmp_path, name="none", ranks=1, model=model, state="weights", layers=0, ops="save", iterations=1, verify="none",
                       store="null:", io__block="4KiB", io__depth=1).run())
    sync = small.samples("save")[-1]["rss_bytes"]
    state = small.samples("save")[-1]["bytes_needed"]
    for name, staging in (("rounds", 8 << 20), ("whole", None)):
        extra = {"save__staging_bytes": staging} if staging else {}
        run = passed(Run(tmp_path, name=name, save__async="true", **keys, **extra).run())
        samples = run.samples("save")
        if SANITIZED:  # keeps what is freed for a while: its memory says nothing
            continue
        assert samples[-1]["rss_bytes"] - samples[0]["rss_bytes"] < 4 << 20
        bound = sync + (staging or state * 1.05 + (24 << 20))
        assert samples[-1]["rss_bytes"] < bound + (12 << 20), (samples[-1]["rss_bytes"], bound)
