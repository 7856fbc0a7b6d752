"""What interop tests share: the build, checkpoints made by our writers, and runs of stock PyTorch."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("CKPTBENCH_BUILD", ROOT / "build"))


def call(*words, timeout=240):
    return subprocess.run([str(word) for word in words], capture_output=True, text=True, timeout=timeout)


@pytest.fixture
def make(tmp_path):
    """make(words, alignment) writes a checkpoint as all ranks of that layout would, and gives its folder."""

    def run(words, alignment=4096, name="ck"):
        folder = tmp_path / name
        result = call(BUILD / "tests/make_checkpoint", folder, alignment, *words.split())
        assert result.returncode == 0, result.stderr
        return folder

    return run


@pytest.fixture
def verify():
    def run(folder, *flags):
        return call(BUILD / "ckptbench", "verify", *flags, folder)

    return run


@pytest.fixture
def load_with_torch():
    def run(folders, ranks, seed=0):
        result = call(sys.executable, Path(__file__).parent / "load_ranks.py", ranks, seed, *folders)
        assert result.returncode == 0, result.stderr[-3000:]
        assert result.stdout.count(f"tensors are right at {ranks} ranks") == len(folders)

    return run
