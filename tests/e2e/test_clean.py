"""Checkpoints that runs left in their stores: listed, and removed only where they are ours."""
import json
import sqlite3

import pytest

from harness import ckptbench

TINY = ("model=gpt2-tiny", "ranks=1", "baseline=false", "iterations=2", "warmup=0", "verify=none")


@pytest.fixture
def place(tmp_path):
    (tmp_path / "store").mkdir()
    return tmp_path


def document(place, *words):
    return json.loads(ckptbench(place, *words, "--json").stdout)


def saved(place, *words):
    return document(place, "run", *TINY, "store=./store", "ops=save", *words)["run"]


def test_nothing_left_is_nothing_to_remove(place):
    document(place, "run", *TINY, "store=./store")
    assert document(place, "clean", "--yes") == []


def test_what_was_kept_is_listed_and_goes_only_by_name(place):
    run = saved(place)
    (line,) = document(place, "clean", "--yes")
    assert line["run"] == run and line["kept"] and not line["removed"] and line["files"] == 2 and line["bytes"] > 0
    assert "kept on purpose" in ckptbench(place, "clean").stdout
    assert (place / "store" / run).exists()
    (line,) = document(place, "clean", run, "--yes")
    assert line["removed"] and not (place / "store" / run).exists()
    assert document(place, "clean") == []


def test_without_yes_and_a_terminal_nothing_is_removed(place):
    run = saved(place)
    assert "--yes" in ckptbench(place, "clean", run).stderr
    assert (place / "store" / run).exists()


def test_files_of_others_stay_with_their_folder(place):
    run = saved(place)
    (place / "store" / run / "notes.txt").write_text("mine")
    ckptbench(place, "clean", run, "--yes")
    left = sorted(str(path.relative_to(place / "store")) for path in (place / "store").rglob("*") if path.is_file())
    assert f"{run}/notes.txt" in left and f"{run}/.ckptbench-run" in left
    assert not [name for name in left if "iteration-" in name]


def test_a_folder_that_another_run_claims_is_left_alone(place):
    run = saved(place)
    (place / "store" / run / ".ckptbench-run").write_text("20200101-othr")
    assert document(place, "clean", run, "--yes") == []
    assert list((place / "store" / run).glob("*/.metadata"))


def test_a_store_without_our_marker_is_left_alone(place):
    run = saved(place)
    (place / "store/.ckptbench-store").unlink()
    assert document(place, "clean", run, "--yes") == []
    assert list((place / "store" / run).glob("*/.metadata"))


def test_what_a_failed_run_left_is_listed_with_what_removing_it_frees(place):
    kept = saved(place)
    run = json.loads(ckptbench(place, "run", *TINY, "store=fault:error_at=2/EIO:./store", "ops=save", "io.block=64KiB", "--json", code=3).stdout)["run"]
    lines = {line["run"]: line for line in document(place, "clean")}
    assert set(lines) == {kept, run} and lines[run]["files"] >= 1 and not lines[run]["kept"] and lines[run]["ended"]
    text = ckptbench(place, "clean").stdout
    assert "left behind" in text and "of 1 run to be freed" in text and "of 1 run kept on purpose" in text
    ckptbench(place, "clean", "--yes")
    assert not (place / "store" / run).exists() and (place / "store" / kept).exists()


def test_an_empty_folder_of_a_run_is_listed_and_goes(place):
    run = document(place, "run", *TINY, "store=./store")["run"]
    (place / "store" / run).mkdir()
    (place / "store" / run / ".ckptbench-run").write_text(run)
    assert "an empty folder" in ckptbench(place, "clean").stdout
    ckptbench(place, "clean", "--yes")
    assert not (place / "store" / run).exists() and document(place, "clean") == []


def test_what_a_run_that_has_not_ended_writes_is_listed_and_stays(place):
    run = saved(place)
    with sqlite3.connect(place / "home/history.db") as database:
        database.execute("UPDATE run SET state='running', outcome=NULL")
    (line,) = document(place, "clean", run, "--yes")
    assert not line["ended"] and not line["removed"] and line["files"] == 2
    result = ckptbench(place, "clean", run)
    assert "not ended" in result.stdout and "`ckptbench collect` looks" in result.stdout
    assert (place / "store" / run).exists()
