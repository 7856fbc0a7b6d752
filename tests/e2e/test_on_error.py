"""on_error=continue: an iteration that the store failed is recorded as failed by all ranks together, and the run goes on."""
import json
import sqlite3

import pytest

from harness import ckptbench

TINY = ("model=gpt2-tiny", "ranks=2", "tp=2", "warmup=0", "baseline=false", "on_error=continue")


@pytest.fixture
def place(tmp_path):
    (tmp_path / "store").mkdir()
    return tmp_path


def run(place, spec, *words, code=0):
    return json.loads(ckptbench(place, "run", *TINY, f"store=fault:{spec}:./store", *words, "--json", code=code).stdout)


def median(document, metric):
    return document["metrics"][metric]["median"]


def samples(place, op):
    """The iterations of an operation, with whether they failed."""
    with sqlite3.connect(place / "home/history.db") as history:
        rows = history.execute("select iteration, max(flags & 8) from sample where op = ? group by iteration", (op,))
        return {iteration: bool(failed) for iteration, failed in rows}


def test_a_run_goes_on_after_failed_saves_and_says_how_many(place):
    done = run(place, "error_every=3+ops=finish+rank=1", "ops=save", "iterations=6")
    assert done["outcome"] == "pass"
    assert median(done, "failed_fraction") == pytest.approx(2 / 6)
    assert samples(place, "save") == {0: False, 1: False, 2: True, 3: False, 4: False, 5: True}
    assert done["metrics"]["save_s"]["n"] == 4
    assert done["message"].startswith("2 of 6 iterations failed (33.3 %); iteration 3: saving ")
    shown = ckptbench(place, "show", done["run"]).stdout
    assert "continued     2 of 6 iterations failed" in shown and "nothing: the last save failed, verify=" in shown


def test_every_failure_is_named_with_its_rank_and_iteration(place):
    done = run(place, "error_every=3/ESTALE+ops=finish+rank=1", "ops=save", "iterations=6")
    lines = [line for line in ckptbench(place, "show", done["run"], "--failures").stdout.splitlines() if line.startswith("rank ")]
    assert [line.split(":")[0] for line in lines] == ["rank 1  iteration 3", "rank 1  iteration 6"]
    assert all("Stale file handle" in line for line in lines)


def test_what_failed_counts_in_the_success_ratio(place):
    done = run(place, "error_every=3+ops=finish+rank=1", "ops=save", "iterations=6")
    assert 0 < median(done, "success_ratio") < 1


def test_a_read_error_fails_its_load_alone(place):
    done = run(place, "error_at=1+ops=read+rank=0", "iterations=3")
    assert median(done, "failed_fraction") == pytest.approx(1 / 3)
    assert samples(place, "load") == {0: True, 1: False, 2: False}
    assert not any(samples(place, "save").values())


@pytest.mark.parametrize("words", [("load.shift=0",), ("tp=1",), ("ranks=1", "tp=1")])
def test_a_save_after_a_failed_load_saves_the_state_and_not_poison(place, words):
    done = run(place, "error_at=1+ops=read+rank=0", "iterations=3", *words)
    assert samples(place, "load") == {0: True, 1: False, 2: False}
    assert done["outcome"] == "pass"


@pytest.mark.parametrize("workload", ["checkpoint", "raw"])
def test_a_request_that_hangs_costs_its_iteration_alone(place, workload):
    done = run(place, "stall_at=2+rank=1", f"workload={workload}", "iterations=3", "timeout.op=15s")
    assert samples(place, "save") == {0: True, 1: False, 2: False}
    assert median(done, "failed_fraction") == pytest.approx(1 / 3)


def test_failed_saves_leave_nothing_in_the_store(place):
    run(place, "error_every=2+ops=finish+rank=1", "ops=save", "iterations=4", "suffix=kept", "keep=true")
    assert not list((place / "store/kept").glob("iteration-*"))  # the last one failed, and each made room for the next


def test_a_failed_warm_up_is_not_counted(place):
    done = run(place, "error_at=1+ops=finish+rank=1", "ops=save", "iterations=2", "warmup=1")
    assert median(done, "failed_fraction") == 0


def test_a_run_of_failures_alone_has_failed(place):
    done = run(place, "fail=finish/ENOSPC+rank=1", "ops=save", "iterations=3", code=3)
    assert done["outcome"] == "benchmark_failed"
    assert "rank 1: every one of 3 iterations failed; the first: saving " in done["message"]


def test_wrong_bytes_end_the_run(place):
    done = run(place, "bit_flip=1+rank=1", "iterations=3", code=3)
    assert done["outcome"] == "benchmark_failed" and "CRC-32" in done["message"]


def test_a_rank_that_never_comes_back_ends_the_run(place):
    done = run(place, "block_at=2+rank=1", "ops=save", "iterations=3", "timeout.op=15s", code=4)
    assert done["outcome"] == "timeout" and "another rank did not come" in done["message"]


def test_without_it_the_first_failure_ends_the_run(place):
    done = run(place, "error_every=3+ops=finish+rank=1", "ops=save", "iterations=6", "on_error=stop", code=3)
    assert samples(place, "save") == {0: False, 1: False, 2: True}
    assert "failed_fraction" not in done["metrics"]


@pytest.mark.parametrize("words, reason", [
    (["save.async=true"], "does not go with save.async"),
    (["keep.last=2"], "does not go with keep.last"),
    (["engine=command", "command=true", "ops=save"], "is for engine=native"),
    (["workload=train"], "a training goes on by itself"),
    (["workload=suite"], "is for workload=checkpoint"),
])
def test_it_is_refused_where_iterations_are_not_apart(place, words, reason):
    assert reason in ckptbench(place, "run", *TINY, "store=./store", *words, code=2).stderr
