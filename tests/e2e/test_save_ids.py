"""Saves in one folder do not mix: nothing of an older one is left, and a file of another one is refused by its save id."""
import json
import re
import shutil

import pytest
from harness import PROGRAM
from s3_harness import Client, call
from s3_faults import FaultServer  # its folder is put in the path by the harness

TINY = ("model=gpt2-tiny", "iterations=1", "warmup=0", "baseline=false", "verify=none", "io.block=64KiB")
TWO = ("ranks=2", "zero=3")
ANOTHER = re.compile(r"(\S+) in (\S+) at offset \d+, \d+ bytes: the file is of another save: its save id is (\w+), the checkpoint's (\w+)")


class Disk:
    def __init__(self, place):
        self.place, self.uri, self.environment = place, f"{place}/store", {}
        (place / "store").mkdir()

    def names(self, folder):
        top = self.place / "store" / folder
        return sorted(str(path.relative_to(top)) for path in top.rglob("*") if path.is_file())

    def get(self, name):
        return (self.place / "store" / name).read_bytes()

    def put(self, name, content):
        (self.place / "store" / name).write_bytes(content)


class Bucket:
    def __init__(self, server):
        self.uri = "s3://bucket/p"
        self.client = Client(server.endpoint, server.access_key, server.secret_key)
        self.client.make_bucket("bucket")
        self.environment = {"AWS_ACCESS_KEY_ID": server.access_key, "AWS_SECRET_ACCESS_KEY": server.secret_key, "AWS_ENDPOINT_URL": server.endpoint}

    def names(self, folder):
        return sorted(name.removeprefix(f"p/{folder}/") for name in self.client.keys("bucket", f"p/{folder}/"))

    def get(self, name):
        return self.client.get("bucket", f"p/{name}")

    def put(self, name, content):
        self.client.put("bucket", f"p/{name}", content)


@pytest.fixture
def store(request, tmp_path):
    if getattr(request, "param", "disk") == "disk":
        yield Disk(tmp_path)
        return
    with FaultServer() as server:
        yield Bucket(server)


@pytest.fixture
def run(store, tmp_path):
    def run_words(*words, outcome="pass"):
        document = json.loads(call(PROGRAM, "run", "--json", *TINY, f"store={store.uri}", *words, code=None, timeout=120,
                                   CKPTBENCH_HOME=str(tmp_path / "home"), **store.environment).stdout)
        assert document["outcome"] == outcome, document["message"]
        return document
    return run_words


def said(store, *words, code=0):
    result = call(PROGRAM, *words, code=code, timeout=120, **store.environment)
    return result.stdout + result.stderr


PROBLEMS = 3  # verify's exit code


def save(run, *words, outcome="pass"):
    return run("ops=save", "keep=true", *words, outcome=outcome)


def overwrite(run, *words, outcome="pass"):
    return save(run, "suffix=x", "folder=overwrite", "--replace-kept", *words, outcome=outcome)


OVERWRITES = {"copies": ((*TWO, "copies=2"), TWO), "ranks": (TWO, ("ranks=1",)), "format": ((*TWO, "format=dcp+safetensors"), TWO),
              "files": ((*TWO, "io.files=item"), TWO)}


@pytest.mark.parametrize("store, words", [*(("disk", words) for words in OVERWRITES), ("bucket", "copies")], indirect=["store"])
def test_nothing_of_an_overwritten_save_is_left(store, run, words):
    older, newer = OVERWRITES[words]
    overwrite(run, *older, "seed=1")
    overwrite(run, *newer, "seed=2")
    save(run, "suffix=fresh", "folder=overwrite", *newer)
    assert store.names("x/checkpoint") == store.names("fresh/checkpoint")
    said(store, "verify", f"{store.uri}/x")


@pytest.mark.parametrize("store", ["disk", "bucket"], indirect=True)
def test_a_copy_that_the_newest_save_did_not_write_is_not_loaded(run):
    overwrite(run, *TWO, "copies=2", "seed=1")
    overwrite(run, *TWO, "copies=1", "seed=2")
    run("ops=load", "suffix=x", *TWO, "copies=2", "seed=2", outcome="benchmark_failed")
    run("ops=load", "suffix=x", *TWO, "seed=2")


def test_files_of_other_names_in_an_overwritten_folder_stay(store, run):
    overwrite(run, *TWO)
    store.put("x/checkpoint/notes.txt", b"mine")
    overwrite(run, "ranks=1")
    assert "notes.txt" in store.names("x/checkpoint")


FORMATS = {"dcp": (*TWO, "format=dcp"), "raw": (*TWO, "format=raw"), "safetensors": ("ranks=2", "pp=2", "format=safetensors"),
           "dcp+safetensors": (*TWO, "format=dcp+safetensors"), "values": (*TWO, "io.files=item", "format=raw")}


def swapped_file(store, kind):
    """A file of the last rank; for values one that has nothing else."""
    names = [name for name in store.names("a/iteration-0") if not name.startswith(".") and not name.endswith(".json")]
    return min(names, key=lambda name: (len(store.get(f"a/iteration-0/{name}")), name)) if kind == "values" else names[-1]


@pytest.mark.parametrize("store, kind", [*(("disk", kind) for kind in FORMATS), ("bucket", "dcp"), ("bucket", "safetensors")], indirect=["store"])
def test_a_file_of_another_save_is_refused_by_loads_and_conversions_and_found_by_verify(store, run, kind, tmp_path):
    for suffix in "ab":  # with the same values: only the id tells them apart
        save(run, *FORMATS[kind], f"suffix={suffix}")
    name = swapped_file(store, kind)
    store.put(f"a/iteration-0/{name}", store.get(f"b/iteration-0/{name}"))
    loaded = run("ops=load", "suffix=a", *FORMATS[kind], outcome="benchmark_failed")
    tensor, file, found, expected = ANOTHER.search(loaded["message"]).groups()
    assert file == f"a/iteration-0/{name}" and found != expected and found != "missing"
    problems = said(store, "verify", f"{store.uri}/a/iteration-0", code=PROBLEMS)
    assert f"{name}: the file is of another save: its save id is {found}, the checkpoint's {expected}" in problems
    assert problems.count("another save") == 1  # not of each item
    converted = said(store, "convert", f"{store.uri}/a/iteration-0", str(tmp_path / "converted"), "format=dcp", code=None)
    assert "the file is of another save" in converted and name in converted
    assert not (tmp_path / "converted/.metadata").exists()


@pytest.mark.parametrize("store", ["disk", "bucket"], indirect=True)
def test_a_copy_of_another_save_is_refused_by_loads_and_found_by_verify(store, run):
    for suffix in "ab":
        save(run, *TWO, "copies=2", f"suffix={suffix}")
    name = "copy-1/__0_0.distcp"
    store.put(f"a/iteration-0/{name}", store.get(f"b/iteration-0/{name}"))
    run("ops=load", "suffix=a", *TWO)
    loaded = run("ops=load", "suffix=a", *TWO, "copies=2", outcome="benchmark_failed")
    assert ANOTHER.search(loaded["message"])[2] == f"a/iteration-0/{name}"
    assert f"{name}: the file is of another save" in said(store, "verify", f"{store.uri}/a/iteration-0", code=PROBLEMS)


@pytest.mark.parametrize("target", ["dcp", "raw", "safetensors", "dcp+safetensors"])
def test_a_conversion_is_a_save_of_its_own(store, run, tmp_path, target):
    save(run, "ranks=1", "suffix=a")
    for name in ("one", "two"):
        said(store, "convert", f"{store.uri}/a/iteration-0", str(tmp_path / name), f"format={target}")
        said(store, "verify", str(tmp_path / name))
    data = next(path for path in (tmp_path / "two").iterdir() if not path.name.startswith(".") and path.suffix != ".json")
    shutil.copy(data, tmp_path / "one")
    assert f"{data.name}: the file is of another save" in said(store, "verify", str(tmp_path / "one"), code=PROBLEMS)


def test_a_command_that_dies_over_an_older_save_leaves_no_checkpoint_of_it(store, run, tmp_path):
    overwrite(run, "ranks=2", "pp=2", "format=safetensors")
    said(store, "verify", f"{store.uri}/x")
    overwrite(run, "ranks=2", "engine=command", "command=false", outcome="benchmark_failed")
    assert "model.safetensors.index.json" not in store.names("x/checkpoint")
    said(store, "verify", f"{store.uri}/x/checkpoint", code=PROBLEMS)


@pytest.mark.parametrize("folder", ["overwrite", "rotate"])
def test_checkpoints_of_another_folder_mode_go_once_the_run_has_its_own(store, run, folder):
    save(run, *TWO, "suffix=x", "copies=2")
    save(run, *TWO, "suffix=x", f"folder={folder}", "--replace-kept")
    assert {name.split("/")[0] for name in store.names("x") if "/" in name} == {"checkpoint" if folder == "overwrite" else "checkpoint-0"}


def test_an_engine_of_others_overwrites_all_of_an_older_save(store, run):
    overwrite(run, *TWO, "copies=2")
    overwrite(run, "ranks=2", "engine=command", "command=echo x > {path}/{rank}")
    assert not [name for name in store.names("x/checkpoint") if "distcp" in name or name == ".metadata"]
