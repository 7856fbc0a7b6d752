"""What would fail as a job is refused before it starts: by run and submit, plan, and doctor."""
import json
import subprocess

import pytest

from harness import PROGRAM, ckptbench, environment

ONE_RANK = ("model=gpt2-tiny", "ranks=1", "iterations=1", "warmup=0", "ops=save", "verify=none", "baseline=false", "store=./store")
TOO_LITTLE = "save.staging_bytes=7 MiB is too little: two requests of io.block need 8 MiB"
TRAINING = ("workload=train", "model=gpt2-xl", "ranks=100000", "store=./store")


@pytest.fixture
def place(tmp_path):
    (tmp_path / "store").mkdir()
    return tmp_path


def check_of_run(place, *words):
    result = subprocess.run([PROGRAM, "doctor", *words, "--json"], cwd=place, env=environment(place), capture_output=True, text=True, timeout=150)
    return next(check for check in json.loads(result.stdout)["checks"] if check["name"] == "run")


@pytest.mark.parametrize("verb", ["run", "plan", "render"])
def test_staging_that_holds_no_two_requests_is_refused(place, verb):
    result = ckptbench(place, verb, *ONE_RANK, "save.async=true", "save.staging_bytes=7MiB", code=2)
    assert TOO_LITTLE in result.stderr
    assert not (place / "home/runs").exists()


@pytest.mark.parametrize("words", [["save.staging_bytes=8MiB"], ["save.staging_bytes=2MiB", "io.block=1MiB"],
                                   ["save.staging_bytes=12MiB", "io.block=8MiB"]])  # which holds all of it
def test_staging_that_suffices_is_accepted(place, words):
    ckptbench(place, "run", *ONE_RANK, "save.async=true", *words)


def test_a_training_whose_state_does_not_fit_is_refused(place):
    error = ckptbench(place, "run", *TRAINING, "train.data_parallel=ddp", code=2).stderr
    assert "parameters, gradients and optimizer of 100000 ranks need at least " in error and "or FSDP" in error


def test_doctor_says_whether_a_run_fits(place):
    assert check_of_run(place, *ONE_RANK) == {"name": "run", "status": "ok", "found": "room for 1 rank", "do": None}
    assert check_of_run(place, *TRAINING, "train.data_parallel=ddp")["status"] == "missing"
    staging = check_of_run(place, *ONE_RANK, "save.async=true", "save.staging_bytes=7MiB")
    assert (staging["status"], staging["found"]) == ("missing", TOO_LITTLE)
