"""Two runs in one folder of a store: the lease in the claim decides which of them may write, remove and commit."""
import json
import os
import re
import signal
import subprocess
import time

import pytest

from claims_harness import TINY, TRAIN, Background, change_claim, claim, claim_file, killed, markers, run, stop, until, wait_for_claim
from harness import PROGRAM, ckptbench, environment
from worker_harness import Run, failed, passed


@pytest.fixture
def place(tmp_path):
    (tmp_path / "store").mkdir()
    return tmp_path


# ---- while the owner lives ----

@pytest.mark.parametrize("folder", ["overwrite", "rotate"])
def test_a_run_in_the_folder_of_a_live_one_is_refused_with_its_name_and_that_one_ends_well(place, folder):
    with Background(place, f"folder={folder}", "keep=true") as first:
        wait_for_claim(first)
        owner = claim(place)
        refused = run(place, f"folder={folder}", "--replace-kept", code=3)["message"]
        assert f"is in use by run {owner['run']} (attempt 1, process {owner['pid']} on host {owner['host']}, since 20" in refused
        assert "choose another suffix" in refused
        first.finish()
    assert len(markers(place)) == 1
    ckptbench(place, "verify", place / "store/nightly")


def test_a_training_that_would_resume_from_a_live_one_is_refused(place):
    words = ("train.resume=latest",)
    with Background(place, *words, words_before=TRAIN) as first:
        wait_for_claim(first)
        owner = claim(place)["run"]
        assert f"is in use by run {owner}" in run(place, *words, code=3, words_before=TRAIN)["message"]
        first.finish()
    assert "since" not in claim_file(place).read_text() and claim(place)["run"] == owner


def test_the_attempt_of_a_requeued_job_is_refused_while_the_old_one_lives(tmp_path):
    gate, words = tmp_path / "go", {"suffix": "nightly", "ops": "save", "timeout.lease": "2s"}
    old = Run(tmp_path, ranks=1, store=f"fault:until={gate}+ops=write:{tmp_path}/store", **words).start()
    until(lambda: list((tmp_path / "store").rglob("*.distcp")), "the old attempt writes")
    (tmp_path / "again").mkdir()
    new = Run(tmp_path / "again", ranks=1, store=tmp_path / "store", **words)
    failed(new.run(attempt=2), "exists", "is in use by run run (attempt 1")
    gate.touch()
    passed(old.wait())


def test_the_claim_is_renewed_and_stays_the_same(place):
    with Background(place, "timeout.lease=1s") as first:
        wait_for_claim(first)
        text, written = claim_file(place).read_text(), claim_file(place).stat().st_mtime_ns
        until(lambda: claim_file(place).stat().st_mtime_ns > written, "the claim is renewed", first.process)
        assert claim_file(place).read_text() == text
        first.finish()


def test_a_kept_checkpoint_has_a_claim_without_a_lease_and_nothing_else_is_left(place):
    run(place)
    assert claim_file(place).read_text().splitlines()[1:] == ["kept"]
    assert sorted(path.name for path in (place / "store/nightly").iterdir()) == [".ckptbench-run", "iteration-0"]
    run(place, "suffix=other", "keep=false")
    assert not (place / "store/other").exists()


# ---- taking over ----

def test_the_folder_of_a_run_that_was_killed_here_is_taken_over_at_once(place):
    killed(place, "timeout.lease=1h")
    change_claim(place, run_folder="/nowhere")
    run(place, "folder=overwrite", "keep=false")
    assert not (place / "store/nightly").exists()


def test_a_process_number_that_is_used_again_is_another_process(place):
    killed(place, "timeout.lease=1h")
    change_claim(place, run_folder="/nowhere", pid=os.getpid())
    run(place, "folder=overwrite")


def test_the_folder_of_an_attempt_that_is_sealed_is_taken_over_at_once(place):
    killed(place, "timeout.lease=1h")
    change_claim(place, machine="another")
    run(place, "folder=overwrite")


def test_an_owner_elsewhere_keeps_its_folder_until_its_lease_has_run_out(place):
    owner = killed(place, "timeout.lease=1h")
    change_claim(place, machine="another", host="far", run_folder="/nowhere")
    refused = run(place, "folder=overwrite", code=3)["message"]
    assert f"run {owner['run']}" in refused and "host far" in refused and "1h after" in refused
    change_claim(place, age_s=3600, lasts_ns=1_000_000_000)
    run(place, "folder=overwrite")


def test_a_lease_that_has_run_out_and_is_renewed_after_all_holds(place):
    killed(place, "timeout.lease=10s")
    change_claim(place, age_s=3600, machine="another", run_folder="/nowhere")
    with subprocess.Popen(["sh", "-c", 'for i in $(seq 600); do sleep 0.5; touch -d "-3500 seconds" "$0"; done', str(claim_file(place))]) as skewed:
        refused = run(place, "folder=overwrite", code=3)["message"]
        skewed.kill()
    assert "is in use by" in refused


def test_a_run_that_stood_still_until_another_took_its_folder_commits_and_removes_nothing(place):
    with Background(place, "folder=overwrite", "timeout.lease=1s") as first:
        wait_for_claim(first)
        pid = int(claim(place)["pid"])
        stop(pid, place)
        until(lambda: time.time() - claim_file(place).stat().st_mtime > 2.5, "the lease runs out")
        second = run(place, "folder=overwrite", "--replace-kept", "seed=7")["run"]
        before = {path: path.read_bytes() for path in (place / "store").rglob("*") if path.is_file()}
        os.kill(pid, signal.SIGCONT)
        said = first.finish(code=3)
    assert f"belongs to run {second}" in json.loads(said)["message"]
    assert {path: path.read_bytes() for path in (place / "store").rglob("*") if path.is_file()} == before
    ckptbench(place, "verify", place / "store/nightly")


@pytest.mark.parametrize("words", [("folder=overwrite",), ("folder=rotate",), (), ("save.async=true",), ("format=safetensors",), ("ranks=2", "launcher=auto")])
def test_a_run_whose_claim_is_anothers_commits_nothing(place, words):
    with Background(place, *words) as first:
        until(lambda: claim_file(place).exists() and list((place / "store/nightly").rglob("*00*")) + list((place / "store/nightly").rglob("*.distcp")),
              "the run writes", first.process)
        change_claim(place, token="0" * 32)
        said = first.finish(code=3)
    assert "commits and removes nothing there" in said
    assert not markers(place) and not list((place / "store").rglob("*.json"))


def test_a_training_whose_claim_is_anothers_commits_nothing(place):
    with Background(place, words_before=TRAIN) as first:
        wait_for_claim(first)
        change_claim(place, token="0" * 32)
        first.finish(code=3)
    assert not markers(place)


def test_a_run_whose_claim_was_removed_commits_nothing(place):
    with Background(place) as first:
        wait_for_claim(first)
        claim_file(place).unlink()
        assert "has been removed" in json.loads(first.finish(code=3))["message"]
    assert not markers(place)


def test_a_folder_that_is_lost_while_a_command_saves_is_reported(place):
    words = ("engine=command", "command=mkdir -p {path}; sed -i s/^token=.*/token=0/ {path}/../.ckptbench-run")
    assert "commits and removes nothing there" in run(place, *words, code=3)["message"]


# ---- claims of earlier versions ----

@pytest.mark.parametrize("text, kept", [("20200101-aaaa\nkept\n", True), ("20200101-aaaa\ntemporary\n", False), ("20200101-aaaa", True)])
def test_claims_of_earlier_versions_have_no_lease_and_say_what_is_kept(place, text, kept):
    run(place)
    claim_file(place).write_text(text)
    if kept:
        assert "run 20200101-aaaa that is kept" in run(place, "folder=overwrite", code=3)["message"]
    run(place, "folder=overwrite", "--replace-kept")


def test_a_claim_cannot_write_to_the_terminal(place):
    killed(place, "timeout.lease=1h")
    change_claim(place, machine="another", run_folder="/nowhere", host="\033]0;title\007")
    assert "\033" not in ckptbench(place, "run", *TINY, f"store={place}/store", "folder=overwrite", code=3).stdout


def test_a_refusal_names_all_that_replaces_a_kept_checkpoint(place):
    run(place)
    assert "that is kept: choose another suffix, remove it, or use folder=overwrite --replace-kept" in run(place, code=3)["message"]
    run(place, "folder=overwrite", "--replace-kept")


def test_a_lease_longer_than_time_can_be_counted_has_not_run_out(place):
    killed(place)
    change_claim(place, age_s=3600, machine="another", run_folder="/nowhere", lasts_ns=2**64 - 1)
    assert "is in use by run" in run(place, "folder=overwrite", "timeout.stall=5s", code=3)["message"]


# ---- what a power cut leaves ----

@pytest.mark.without_sanitizers
def test_the_folder_above_a_new_store_is_made_durable(tmp_path):
    command = ["strace", "-ff", "-y", "-o", tmp_path / "trace", "-e", "trace=fsync", PROGRAM, "run", *TINY, f"store={tmp_path}/new"]
    subprocess.run(command, cwd=tmp_path, env=environment(tmp_path), check=True, capture_output=True, timeout=120)
    traces = "".join(trace.read_text() for trace in tmp_path.glob("trace.*"))  # of each process: no call is cut by another's
    assert re.search(rf"fsync\(\d+<{re.escape(str(tmp_path))}>\) += 0", traces)
