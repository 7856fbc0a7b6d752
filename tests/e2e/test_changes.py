"""What comes in kinds is a table: each patch in tests/changes/ adds one more, changes at most three files beside tests
and documentation, and works."""
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

from harness import BUILD

ROOT = Path(__file__).resolve().parents[2]
PATCHES = sorted((ROOT / "tests/changes").glob("*.patch"))
MOST_FILES = 3
pytestmark = pytest.mark.without_sanitizers
TINY = ("model=gpt2-tiny", "iterations=1", "warmup=0", "baseline=false", "launcher=none")


class Copy:
    """The tree with its built objects, copied, so that only what a patch touches is compiled; and a home for runs."""

    def __init__(self, folder):
        self.folder, self.tree = folder, folder / "tree"
        for name in subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.splitlines():
            if (ROOT / name).is_file():
                (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
                shutil.copy2(ROOT / name, self.tree / name)
        where = BUILD.relative_to(ROOT)  # the same name: objects and their dependencies are listed with it
        unneeded = shutil.ignore_patterns("venv", "tests", "plugin", "lint", "asan", "tsan", "fuzz", "cuda", "*.so")
        shutil.copytree(BUILD, self.tree / where, symlinks=True, ignore=unneeded)
        self.build = self.tree / where

    def apply(self, patch):
        subprocess.run(["git", "apply", "--whitespace=nowarn", patch], cwd=self.tree, check=True, timeout=120)

    def make(self):
        """Builds the programs; what is not touched is not compiled anew, and the rest is without optimization."""
        options = [f"BUILD={self.build.relative_to(self.tree)}", "OPTIMIZE=-O0", "WARNINGS="]
        kept = [word for name in ("flags", "identity") for word in ("-o", f"{self.build.relative_to(self.tree)}/{name}")]
        environment = {name: value for name, value in os.environ.items() if not name.startswith(("MAKE", "MFLAGS"))}
        programs = [f"{self.build.relative_to(self.tree)}/{name}" for name in ("ckptbench", "ckptbench-agent", "ckptbench-worker")]
        result = subprocess.run(["make", "-s", "-j2", *kept, *options, *programs], cwd=self.tree, env=environment,
                                capture_output=True, text=True, timeout=900)
        assert result.returncode == 0, result.stdout + result.stderr

    def call(self, *words, codes=(0,)):
        environment = {**os.environ, "CKPTBENCH_HOME": str(self.folder / "home")}
        result = subprocess.run([self.build / "ckptbench", *words], cwd=self.folder, env=environment, capture_output=True,
                                text=True, timeout=120)
        assert result.returncode in codes, result.stdout + result.stderr
        return result.stdout

    def run(self, *words):
        document = json.loads(self.call("run", "--json", *TINY, *words))
        assert document["outcome"] == "pass"
        return document


def show_store_kind(copy):
    """What is saved to mem:NAME is loaded again, by another run too, and `clean` removes it."""
    name = f"{copy.folder.name}-{os.getpid()}"
    folder = Path(f"/dev/shm/ckptbench-{name}")
    try:
        assert copy.run(f"store=mem:{name}")["verified"] == {"iterations": 1, "of": 1}
        kept = copy.run(f"store=mem:{name}", "ops=save", "suffix=kept")["run"]
        assert (folder / "kept/iteration-0/.metadata").is_file()
        assert copy.run(f"store=mem:{name}", "ops=load", "suffix=kept")["verified"] == {"iterations": 1, "of": 1}
        copy.call("clean", "--yes", kept)
        assert sorted(path.name for path in folder.iterdir()) == [".ckptbench-store"]
    finally:
        shutil.rmtree(folder, ignore_errors=True)


def show_checkpoint_format(copy):
    """What is saved with format=plain lies in files of its own kind, is loaded again, and its bytes are right."""
    store = copy.folder / "store"
    store.mkdir()
    assert copy.run(f"store={store}", "format=plain", "suffix=kept", "keep=true")["verified"] == {"iterations": 1, "of": 1}
    assert [path.name for path in sorted(store.glob("kept/iteration-0/*.bin"))] == ["__0_0.bin"]
    assert copy.run(f"store={store}", "format=plain", "suffix=kept", "ops=load")["verified"] == {"iterations": 1, "of": 1}
    assert "raw" in copy.call("inspect", f"{store}/kept")  # as it says of itself


def show_metric(copy):
    """The new metric has a row in the report of a run, a column in the list, a line in a comparison and a place in JSON."""
    printed = copy.call("run", *TINY, "store=store", "ops=save")
    assert re.search(r"^save_bytes_per_request +\d.* MiB", printed, re.M), printed
    runs = [copy.run("store=store", "ops=save") for _ in range(2)]
    assert runs[0]["metrics"]["save_bytes_per_request"]["median"] > 0
    assert "SAVE BYTES PER REQUEST" in copy.call("list").splitlines()[0]
    assert "save_bytes_per_request" in copy.call("compare", "--all", *(run["run"] for run in runs), codes=(0, 5, 6))


SHOWS = {"store_kind": show_store_kind, "checkpoint_format": show_checkpoint_format, "metric": show_metric}  # name of the patch -> what it can do then


def test_every_patch_is_shown_at_work():
    assert {patch.stem for patch in PATCHES} == set(SHOWS)


@pytest.mark.parametrize("patch", PATCHES, ids=lambda patch: patch.stem)
def test_one_more_of_a_kind_is_a_small_change(patch, tmp_path):
    changed = set(re.findall(r"^diff --git a/\S+ b/(\S+)$", patch.read_text(), re.M))
    changed = {name for name in changed if not name.startswith(("tests/", "docs/")) and not name.endswith(".md")}
    assert 0 < len(changed) <= MOST_FILES, changed
    copy = Copy(tmp_path)
    copy.apply(patch)
    copy.make()
    SHOWS[patch.stem](copy)
