"""One store in folders of several mounts: store=A+B."""
import json
import os
import subprocess

import pytest
from harness import BUILD
from mounts_harness import Mounts


@pytest.fixture
def mounts(tmp_path):
    return Mounts(tmp_path)


def test_ranks_are_spread_over_mounts_and_all_else_is_in_the_first(mounts):
    run = json.loads(mounts.run("keep=true", "suffix=s").stdout)
    assert run["experiment"]["store"] == f"{mounts.a}+{mounts.b}"
    assert mounts.files(mounts.a, mounts.b) == {"a": ["s/.ckptbench-run", "s/iteration-0/.metadata", "s/iteration-0/__0_0.distcp"],
                                                "b": ["s/iteration-0/__1_0.distcp"]}
    mounts.run("ops=load", "suffix=s", "tp=2")
    for verb in ("verify", "inspect"):
        mounts.call(verb, f"{mounts.a}/s/iteration-0+{mounts.b}/s/iteration-0")
    mounts.call("convert", f"{mounts.a}/s/iteration-0+{mounts.b}/s/iteration-0", mounts.folder / "whole")
    mounts.call("verify", mounts.folder / "whole")
    assert "__1_0.distcp" in mounts.call("verify", mounts.a / "s", code=3).stdout  # half of it is not here
    assert "save" in mounts.call("show", run["run"]).stdout


@pytest.mark.parametrize("words", [("format=safetensors", "io.files=3", "io.fanout=2"), ("format=raw", "io.files=2", "tp=2"),
                                   ("format=dcp+safetensors", "save.async=true"), ("copies=2", "save.plan_cache=false"),
                                   ("folder=overwrite", "iterations=3", "baseline=true", "io.engine=psync")],
                         ids=lambda words: words[0])
def test_nothing_is_left_of_what_is_not_kept(mounts, words):
    mounts.run("keep=false", *words, "store.record=find {path} -name '*0*.*' -type f")
    assert mounts.files(mounts.a, mounts.b) == {"a": [], "b": []}
    (record,) = mounts.folder.glob("home/runs/*/attempts/1/store-record.txt")
    first, second = record.read_text().split("# ")[1:]
    assert first.startswith(f"{mounts.a}/") and second.startswith(f"{mounts.b}/")
    assert first.count("\n") > 1 and second.count("\n") > 1


def test_a_training_resumes_from_several_mounts(mounts):
    words = ("workload=train", "model=gpt2-tiny", "layers=1", "ranks=2", "store=./a+./b", "train.batch_size=1", "train.seq_length=16",
             "train.checkpoint_every=2", "suffix=t", "train.resume=latest", "--json")
    mounts.call("run", *words, "train.steps=2")
    assert any(name.endswith(".distcp") for name in mounts.files(mounts.b)["b"])
    again = json.loads(mounts.call("run", *words, "train.steps=4").stdout)
    facts = [path.read_bytes() for path in mounts.folder.glob(f"home/runs/{again['run']}/attempts/1/records")]
    assert b"resumed from step 2" in facts[0] or b"t/iteration-2" in facts[0], again


def test_clean_removes_from_all_mounts(mounts):
    run = json.loads(mounts.run("keep=true").stdout)
    assert mounts.files(mounts.b)["b"]
    mounts.call("clean", "--yes", run["run"])
    assert mounts.files(mounts.a, mounts.b) == {"a": [], "b": []}


def test_a_mount_belongs_to_one_store(mounts):
    """The claims are in the first mount, so no other run may use the second by itself, nor in another place."""
    mounts.run()
    refused = mounts.run(store="./b", code=3).stderr
    assert f"{mounts.b} is mount 2 of 2 of the ckptbench store that begins with {mounts.a}" in refused, refused
    for other in ("./b+./c", "./a+./c+./b", "./c+./b"):
        assert "is mount 2 of 2" in mounts.run(store=other, code=3).stderr
    assert f"{mounts.a} is a store of its own" in mounts.run(store="./c+./a", code=3).stderr
    assert not list((mounts.folder / "c").iterdir())  # what was refused has left no mark
    mounts.run(store="./own")
    assert f"{mounts.folder}/own is a store of its own" in mounts.run(store="./c+./own", code=3).stderr


@pytest.mark.parametrize("words, wanted", [
    (("io.files=shared",), "cannot be spread over"), (("engine=torch-dcp",), "writes to one"),
    (("store=./a+./a",), "twice"), (("store=./a+/nowhere/b/c",), "/nowhere/b/c does not exist")], ids=lambda value: str(value)[:24])
def test_what_cannot_be_spread_is_refused(mounts, words, wanted):
    assert wanted in mounts.run(*words, code=2).stderr


def test_doctor_looks_at_each_mount(mounts):
    checks = json.loads(mounts.call("doctor", "store=./a+/proc", "--json", code=4).stdout)
    found = [check["found"] for check in checks["checks"] if check["name"] == "store"]
    assert len(found) == 2 and "/a:" in found[0] and found[1].startswith("/proc:"), checks


def test_a_folder_with_a_plus_in_its_name_is_not_split(mounts):
    (mounts.folder / "c++").mkdir()
    mounts.run("keep=true", "suffix=s", store="./c++/store")
    assert len(mounts.files(mounts.folder / "c++/store")["store"]) == 4
    (mounts.folder / "a+").mkdir()
    mounts.run("keep=true", "suffix=s", store="./a+/b")
    assert len(mounts.files(mounts.folder / "a+/b")["b"]) == 4 and not mounts.a.exists()


@pytest.mark.parametrize("rank, words", [(0, ()), (1, ()), (1, ("io.engine=psync", "save.async=true"))])
def test_a_failing_mount_is_named_ends_the_save_and_leaves_no_marker(mounts, rank, words):
    run = mounts.run("ops=save", "suffix=s", *words, store=f"fault:error_at=1/ENOSPC+rank={rank}:./a+./b", code=3)
    assert f"in store '{[mounts.a, mounts.b][rank]}': No space left" in json.loads(run.stdout)["message"], run.stdout
    assert not list(mounts.a.rglob(".metadata"))


def test_the_fullest_mount_is_named_before_anything_is_written(mounts):
    mounts.b.mkdir()
    words = ["run", "model=gpt2-tiny", "ranks=2", "store=./a+./b", "baseline=false", "iterations=1", "warmup=0"]
    space = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"])]
    script = 'mount -t tmpfs -o size=1m none "$1"; shift; exec "$@"'
    run = subprocess.run([*space, "sh", "-ec", script, "sh", mounts.b, BUILD / "ckptbench", *words], cwd=mounts.folder, env=mounts.environment, capture_output=True, text=True, timeout=120)
    assert run.returncode == 2, run
    assert f"is free (ranks fill its mounts evenly, and {mounts.b} is the fullest)" in run.stderr, run.stderr
    assert not list(mounts.b.iterdir()) and not mounts.a.exists()
