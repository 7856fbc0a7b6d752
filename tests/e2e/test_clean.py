"""Checkpoints that runs left in their stores: listed, and removed only where they are ours."""
import json
import os
import re
import signal
import sqlite3
import subprocess

import pytest

from claims_harness import until
from harness import PROGRAM, ckptbench, environment

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


# ---- other runs, and runs that are not as ended as they seem ----

@pytest.mark.without_sanitizers
def test_a_run_that_begins_in_a_folder_while_it_is_cleaned_is_refused(place):
    run = saved(place, "suffix=nightly")
    trace = place / "trace"
    stopped = ["strace", "-f", "-o", trace, "-e", "trace=unlinkat", "-e", "inject=unlinkat:signal=SIGSTOP:when=1", PROGRAM, "clean", run, "--yes"]
    with subprocess.Popen(stopped, cwd=place, env=environment(place), stdin=subprocess.DEVNULL) as clean:
        try:
            until(lambda: trace.exists() and "stopped by SIGSTOP" in trace.read_text(), "the first removal", clean)
            refused = ckptbench(place, "run", *TINY, "store=./store", "ops=save", "suffix=nightly", "folder=overwrite", "--replace-kept", code=3)
        finally:
            for number in set(re.findall(r"^(\d+) +unlinkat", trace.read_text(), re.M)):
                os.kill(int(number), signal.SIGCONT)
    assert f"is in use by run {run}" in refused.stdout
    assert clean.returncode == 0 and not (place / "store/nightly").exists()


def test_a_folder_whose_claim_is_being_renewed_is_named_and_stays(place):
    run, other = saved(place), saved(place)
    claim = place / "store" / run / ".ckptbench-run"
    claim.write_text(f"{run}\nkept\ntoken=1\nhost=far\nlasts_ns=10000000000\n")
    with subprocess.Popen(["sh", "-c", 'while sleep 0.2; do touch "$0"; done', claim]) as renews:
        try:
            said = ckptbench(place, "clean", run, other, "--yes").stderr
        finally:
            renews.kill()
    assert f"{run}: looking for up to 15s whether a run still renews its claim" in said
    assert f"is in use by run {run}" in said and "host far" in said and "removed the checkpoints of 1 run" in said
    assert list((place / "store" / run).glob("*/.metadata")) and not (place / "store" / other).exists()


def test_a_full_store_is_cleaned(place):
    """No new claim can be written there."""
    script = """
mount -t tmpfs -o size=32m none store
"$@" >&2
run=$(ls store)
! cat /dev/zero > store/fill 2> /dev/null
"$1" clean $run --yes
ls store
"""
    space = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    words = [PROGRAM, "run", *TINY, "store=./store", "ops=save"]
    said = subprocess.run([*space, "sh", "-ec", script, "sh", *words], cwd=place, env=environment(place), capture_output=True, text=True, timeout=120)
    assert said.returncode == 0 and said.stdout.split()[-1] == "fill" and "removed the checkpoints of 1 run" in said.stderr, said


# ---- kept checkpoints and other people's files ----

def contents(folder):
    return {path.relative_to(folder): path.read_bytes() for path in folder.rglob("*") if path.is_file()}


@pytest.mark.parametrize("folder", ["overwrite", "rotate"])
def test_a_kept_checkpoint_of_another_run_stays_and_the_run_that_would_replace_it_says_how(place, folder):
    run = saved(place, "suffix=nightly", "keep=true")
    before = contents(place / "store")
    refused = ckptbench(place, "run", *TINY, "store=./store", "suffix=nightly", f"folder={folder}", code=3).stdout
    assert run in refused and "is kept" in refused and "--replace-kept" in refused
    assert contents(place / "store") == before


def test_replace_kept_replaces_a_kept_checkpoint(place):
    first = saved(place, "suffix=nightly", "folder=overwrite")
    second = saved(place, "suffix=nightly", "folder=overwrite", "--replace-kept", "seed=7")
    (line,) = document(place, "clean")
    assert first != second and line["run"] == second and line["kept"]
    document(place, "run", *TINY, "store=./store", "suffix=nightly", "folder=overwrite", "--replace-kept")
    assert not (place / "store/nightly").exists()


def test_replace_kept_is_refused_where_nothing_is_replaced(place):
    assert "needs folder=overwrite" in ckptbench(place, "run", *TINY, "store=./store", "--replace-kept", code=3).stdout
    assert not (place / "store/.ckptbench-store").exists()


def test_what_a_failed_run_left_is_overwritten_if_it_was_not_to_be_kept(place):
    words = (*TINY, "suffix=mine", "folder=overwrite", "io.block=64KiB")
    ckptbench(place, "run", *words, "store=fault:error_at=2/EIO:./store", code=3)
    assert (place / "store/mine").exists()
    document(place, "run", *words, "store=./store")
    assert not (place / "store/mine").exists()


def test_a_kept_checkpoint_stays_when_the_run_that_was_to_replace_it_fails(place):
    saved(place, "suffix=nightly", "keep=true")
    words = ("suffix=nightly", "folder=overwrite", "io.block=64KiB", "--replace-kept")
    ckptbench(place, "run", *TINY, "store=fault:error_at=2/EIO:./store", *words, code=3)
    document(place, "clean", "--yes")
    assert list((place / "store/nightly").glob("iteration-*/.metadata"))


def test_a_store_with_files_of_others_is_used_and_they_stay(place):
    (place / "store/theirs").mkdir()
    (place / "store/theirs/data").write_text("precious")
    (place / "store/file").write_text("precious")
    run = saved(place)
    saved(place)  # a store in which runs have saved already, too
    document(place, "clean", run, "--yes")
    assert not (place / "store" / run).exists()
    assert (place / "store/theirs/data").read_text() == (place / "store/file").read_text() == "precious"


def test_no_run_saves_inside_the_folder_of_another(place):
    run = saved(place, "suffix=nightly")
    refused = ckptbench(place, "run", *TINY, "store=./store", "suffix=nightly/iteration-9", code=3).stdout
    assert f"lies in the folder of run {run}" in refused


TRAINING = ("workload=train", "model=gpt2-tiny", "layers=2", "train.seq_length=32", "warmup=0", "ranks=1", "launcher=none", "suffix=nightly")


def test_the_checkpoints_of_a_training_stay_when_the_run_that_resumes_from_them_fails(place):
    ckptbench(place, "run", *TRAINING, "store=./store", "train.steps=2", "train.checkpoint_every=1")
    markers = sorted((place / "store/nightly").glob("iteration-*/.metadata"))
    ckptbench(place, "run", *TRAINING, "store=fault:fail=create/EIO:./store", "train.steps=4", "train.checkpoint_every=1", "train.resume=latest", "keep.last=9", code=3)
    document(place, "clean", "--yes")
    assert markers and set(markers) <= set((place / "store/nightly").glob("iteration-*/.metadata"))
