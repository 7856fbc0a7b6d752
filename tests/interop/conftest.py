"""What interop tests share: the build, runs of `ckptbench run` in one place, and `ckptbench verify`."""
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import BUILD  # noqa: E402


def call(*words, timeout=120, **environment):
    """One program's end; PyTorch gets one thread, since its ranks are more than the cores of a small machine."""
    environment = dict(os.environ, OMP_NUM_THREADS="1", CKPTBENCH_PYTHON=sys.executable, **environment)
    words = [str(word) for word in words]
    return subprocess.run(words, capture_output=True, text=True, timeout=timeout, env=environment)


class Place:
    """A history and a store, and short runs of gpt2-tiny in them."""

    def __init__(self, folder):
        self.folder, self.store = folder, folder / "store"

    def run(self, words, code=0, store=None, timeout=120):
        """The document of `ckptbench run`; words override what is given here."""
        given = ["model=gpt2-tiny", "layers=2", "iterations=1", "warmup=0", "baseline=false", f"store={store or self.store}"]
        result = call(BUILD / "ckptbench", "run", "--json", *given, *words.split(), timeout=timeout,
                      CKPTBENCH_HOME=str(self.folder / "home"))
        assert result.returncode == code, f"{words}: {result.returncode}\n{result.stdout}\n{result.stderr}"
        return json.loads(result.stdout)

    def save(self, words, suffix):
        """Runs ops=save, and gives the folder of the checkpoint that it keeps."""
        self.run(f"ops=save suffix={suffix} {words}")
        return self.checkpoint(suffix)

    def checkpoint(self, suffix):
        (marker,) = (self.store / suffix).rglob(".metadata")
        return marker.parent


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    return Place(tmp_path_factory.mktemp("place"))


def verify_checkpoint(folder, *flags):
    return call(BUILD / "ckptbench", "verify", *flags, folder)


@pytest.fixture
def verify():
    return verify_checkpoint
