"""What people are told: which checkpoint is meant, and what is true of it."""
import json
import os
import shutil
import subprocess
from pathlib import Path

import pytest

PROGRAM = str(Path(os.environ.get("CKPTBENCH_BUILD", "build")).resolve() / "ckptbench")
TINY = ("model=gpt2-tiny", "ranks=1", "baseline=false", "iterations=2", "warmup=0", "verify=none")


@pytest.fixture
def place(tmp_path):
    (tmp_path / "store").mkdir()
    return tmp_path


def call(place, *words, code=0):
    result = subprocess.run([PROGRAM, *map(str, words)], cwd=place, env=dict(os.environ, CKPTBENCH_HOME=str(place / "home")),
                            capture_output=True, text=True, stdin=subprocess.DEVNULL, timeout=150)
    assert result.returncode == code, f"{words}: {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result


def document(place, *words, code=0):
    return json.loads(call(place, *words, "--json", code=code).stdout)


def saved(place, *words):
    """The folder of a new run."""
    return place / "store" / document(place, "run", *TINY, "store=./store", "ops=save", *words)["run"]


def test_of_a_run_the_last_checkpoint_is_looked_at_and_of_many_none(place):
    run = saved(place)
    shutil.copytree(run / "iteration-1", run / "iteration-0", copy_function=shutil.copy)  # the last is the one that was written last
    for verb in ("verify", "inspect"):
        assert f"{run}/iteration-0 (the last of 2): dcp" in call(place, verb, run).stdout
        assert document(place, verb, run)["chosen"] == "the last of 2"
        assert document(place, verb, run / "iteration-0")["chosen"] is None
    many = place / "many"
    shutil.copytree(run / "iteration-0", many / "a")
    assert document(place, "verify", many)["path"] == f"{many}/a"
    shutil.copytree(run / "iteration-1", many / "c")
    (many / "a/__0_0.distcp").unlink()
    for words in (("verify",), ("inspect",), ("convert",)):
        target = [place / "converted"] if words == ("convert",) else []
        said = call(place, *words, many, *target, code=2).stderr
        assert f"{many} is no checkpoint, but 2 lie below it: name one of a, c" in said
    assert "name one of a, c" in call(place, "run", "workload=verify", f"store={many}", code=3).stderr


def test_what_cannot_be_read_is_not_advised_to_be_made(place):
    for verb in ("inspect", "verify"):
        said = call(place, verb, "/nonexist", code=2).stderr
        assert "there is no folder '/nonexist'" in said and "mkdir" not in said
