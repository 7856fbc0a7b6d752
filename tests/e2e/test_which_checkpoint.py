"""What people are told: which checkpoint is meant, and what is true of it."""
import json
import os
import shutil

import pytest

from harness import ckptbench

TINY = ("model=gpt2-tiny", "ranks=1", "baseline=false", "iterations=2", "warmup=0", "verify=none")


@pytest.fixture
def place(tmp_path):
    (tmp_path / "store").mkdir()
    return tmp_path


def document(place, *words, code=0):
    return json.loads(ckptbench(place, *words, "--json", code=code).stdout)


def saved(place, *words):
    """The folder of a new run."""
    return place / "store" / document(place, "run", *TINY, "store=./store", "ops=save", *words)["run"]


def test_of_a_run_the_last_checkpoint_is_looked_at_and_of_many_none(place):
    run = saved(place)
    shutil.copytree(run / "iteration-1", run / "iteration-0", copy_function=shutil.copy)  # the last is the one that was written last
    for verb in ("verify", "inspect"):
        assert f"{run}/iteration-0 (the last of 2): dcp" in ckptbench(place, verb, run).stdout
        assert document(place, verb, run)["chosen"] == "the last of 2"
        assert document(place, verb, run / "iteration-0")["chosen"] is None
    many = place / "many"
    shutil.copytree(run / "iteration-0", many / "a")
    assert document(place, "verify", many)["path"] == f"{many}/a"
    shutil.copytree(run / "iteration-1", many / "c")
    (many / "a/__0_0.distcp").unlink()
    for words in (("verify",), ("inspect",), ("convert",)):
        target = [place / "converted"] if words == ("convert",) else []
        said = ckptbench(place, *words, many, *target, code=2).stderr
        assert f"{many} is no checkpoint, but 2 lie below it: name one of a, c" in said
    assert "name one of a, c" in ckptbench(place, "run", "workload=verify", f"store={many}", code=3).stderr


def test_nothing_is_kept_in_a_store_that_keeps_nothing(place):
    for store in ("null:", "fault:delay=1us:null:"):
        assert "load it with" not in ckptbench(place, "run", *TINY, f"store={store}", "ops=save").stdout
    assert "load it with" in ckptbench(place, "run", *TINY, "store=./store", "ops=save").stdout


def test_what_is_refused_is_named_as_what_it_is(place):
    document(place, "run", *TINY, "store=null:", "ops=save", "label.kind=nightly")
    ckptbench(place, "baseline", "set", "nightly", "window=10", "label.kind=nightly")
    assert "nightly is a baseline, and show takes one run" in ckptbench(place, "show", "nightly", code=2).stderr
    assert "-n 0 lists nothing" in ckptbench(place, "list", "-n", "0", code=2).stderr
    said = ckptbench(place, "list", "outcome=pass,failed", code=2).stderr
    assert "outcome=failed: there is no such outcome; there are pass, benchmark_failed" in said
    assert len(document(place, "list", "outcome=pass,benchmark_failed")) == len(document(place, "list", "outcome=pas*")) == 1
    for words in (("inspect", "s3:/foo/x"), ("run", *TINY, "store=s3:/foo/x")):
        assert "did you mean s3://foo/x?" in ckptbench(place, *words, code=2).stderr
    assert "--by was given twice" in ckptbench(place, "compare", "nightly", "--by", "tp", "--by", "dp", code=2).stderr
    assert "no key has blocksize in its name" in ckptbench(place, "options", "blocksize", code=2).stderr
    for given, meant in (("4MB", "4MiB"), ("4097", "8KiB"), ("64kB", "64KiB")):
        said = ckptbench(place, "run", *TINY, "store=null:", "ops=save", f"io.block={given}", code=2).stderr
        assert f"must be a multiple of 4KiB; did you mean {meant}?" in said


def test_contents_that_nothing_proves_are_not_called_verified(place):
    run = saved(place, "format=safetensors", "state=weights")
    said = ckptbench(place, "verify", run).stdout
    assert "complete   every element of every tensor is there once; contents not checked: the format has no checksums" in said
    assert "verified " not in said
    answer = document(place, "verify", run)
    assert answer["contents"] == "not checked: the format has no checksums"
    assert document(place, "verify", run, "--seed", "1")["contents"] in ("checked", answer["contents"])


def test_ranks_that_verify_say_it_as_the_verb_does(place):
    runs = {"format=safetensors": "complete      every element of every tensor is there once; contents not checked: the format has no checksums",
            "format=dcp": "verified      every element of every tensor is there once"}
    for words, wanted in runs.items():
        run = saved(place, words, "state=weights", "seed=7")
        counts = ckptbench(place, "verify", run).stdout.splitlines()[0].split("): ")[1]
        for said in (ckptbench(place, "run", "workload=verify", f"store={run}", "ranks=2").stdout, ckptbench(place, "show", "LATEST").stdout):
            lines = said.splitlines()
            assert wanted in lines and f"holds         {counts}" in lines, said


def test_a_place_without_a_checkpoint_is_not_looked_through_without_end(place):
    deep = place / "x/a/b/c/d/e"
    deep.mkdir(parents=True)
    (deep / ".metadata").write_bytes(b"not looked at")
    for verb in (("inspect",), ("convert",)):
        said = ckptbench(place, *verb, place / "x", *[place / "target"] * (verb == ("convert",)), code=2).stderr
        assert f"there is no complete checkpoint in {place}/x: of 0 files in it and in 4 levels of folders below it none is" in said
        assert ".metadata" in said and "*.safetensors" in said
    assert "name one of b/c/d/e" in ckptbench(place, "inspect", place / "x/a", code=2).stderr


def test_a_file_that_is_too_short_is_a_line_or_two(place):
    run = saved(place)
    (file,) = run.rglob("__0_0.distcp")
    os.truncate(file, 1000)
    all_items = document(place, "verify", run, code=3)["problems"]
    assert len(all_items) > 10
    lines = [line for line in ckptbench(place, "verify", run, code=3).stdout.splitlines() if line.startswith("short")]
    assert len(lines) == 2 and f"{len(all_items) - 1} more items" in lines[1]
    assert len([line for line in ckptbench(place, "verify", run, "--all", code=3).stdout.splitlines() if line.startswith("short")]) == len(all_items)


def test_clean_says_that_what_is_kept_stays_and_how_it_goes(place):
    run = saved(place)
    said = ckptbench(place, "clean", "--yes")
    assert "nothing was removed" in said.stderr and f"ckptbench clean {run.name}" in said.stderr and run.exists()


def test_what_cannot_be_read_is_not_advised_to_be_made(place):
    for verb in ("inspect", "verify"):
        said = ckptbench(place, verb, "/nonexist", code=2).stderr
        assert "there is no folder '/nonexist'" in said and "mkdir" not in said


@pytest.mark.parametrize("verb", ["verify", "inspect", "convert"])
def test_a_damaged_checkpoint_has_one_exit_code_for_every_verb(place, verb):
    checkpoint = saved(place) / "iteration-1"
    metadata = checkpoint / ".metadata"
    metadata.write_bytes(metadata.read_bytes()[:-50])
    ckptbench(place, verb, checkpoint, *[place / "target"] * (verb == "convert"), code=3)
