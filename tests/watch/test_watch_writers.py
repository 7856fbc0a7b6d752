"""ckptbench watch: the writers of Megatron-Core and NVRx, whose own processes write for the training that is watched.

The packages go into an environment of their own over that of the tests, without what they depend on beside PyTorch."""
import fcntl
import site
import subprocess
import sys
from pathlib import Path

import pytest

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "e2e"), str(TESTS)]
from harness import BUILD  # noqa: E402
from test_watch import Watched  # noqa: E402

REQUIREMENTS = Path(__file__).with_name("requirements.txt")
PROGRAM = Path(__file__).with_name("watched_writers.py")

pytestmark = pytest.mark.xdist_group("writers")  # one process of tests makes the saves


@pytest.fixture(scope="module")
def python():
    """The interpreter of the environment; several test processes make it once."""
    folder = BUILD.parent / "venv-writers" if BUILD.name != "build" else BUILD / "venv-writers"
    folder.parent.mkdir(exist_ok=True)
    made = folder / "requirements.txt"
    with open(f"{folder}.lock", "w", encoding="utf-8") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not made.exists() or made.read_text() != REQUIREMENTS.read_text():
            subprocess.run([sys.executable, "-m", "venv", "--clear", folder], check=True)
            (below,) = (folder / "lib").glob("python*/site-packages")
            (below / "tests.pth").write_text("\n".join(site.getsitepackages()) + "\n")
            subprocess.run([folder / "bin/python", "-m", "pip", "install", "-q", "--no-deps", "-r", REQUIREMENTS], check=True)
            made.write_text(REQUIREMENTS.read_text())
    return folder / "bin/python"


@pytest.fixture(scope="module", params=["megatron", "nvrx"])
def saved(request, python, tmp_path_factory):
    """Saves by this process and its children, by a forked process, by a spawned one, and one that is never finalized."""
    place = tmp_path_factory.mktemp(request.param)
    return Watched(place, python, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", PROGRAM, place, request.param,
                   "sync:a", "fork:b", "spawn:c", "forget:d", words=["baseline=false"])


def test_each_save_has_its_bytes_and_states_of_whichever_process(saved):
    saved.check_sums("save")
    moved, asynchronous = saved.values("save", "bytes_moved"), saved.values("save", "persist_s")
    for iteration, name in enumerate("abc", 1):
        assert sum(moved[iteration]) == sum(path.stat().st_size for path in (saved.place / name).iterdir())
        for state in ("plan_s", "io_s", "fsync_s", "serialize_s"):
            assert all(seconds > 0 for seconds in saved.values("save", state)[iteration]), (name, state)
        assert saved.values("save", "commit_s")[iteration][0] > 0
    assert 1 not in asynchronous and {2, 3} <= set(asynchronous)
    assert "reported nothing" not in saved.report() and "hook had failed" not in saved.report()


def test_a_save_that_is_never_finalized_is_a_fault(saved):
    assert not (saved.place / "d/.metadata").exists()
    assert f"the save to {saved.place}/d by " in saved.report() and "was never finalized" in saved.report()
    assert "1 of 4 saves failed" in saved.report()
    assert saved.shown["metrics"]["save_s"]["n"] == 3
