"""Where the programs under test are, and how a test calls the controller."""
import contextlib
import functools
import os
import re
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
BUILD = Path(os.environ.get("CKPTBENCH_BUILD", ROOT / "build")).resolve()
PROGRAM = str(BUILD / "ckptbench")


@functools.cache
def is_mpich():
    """Whether the programs under test are built for MPICH; a stage of the long tier puts its mpirun first in PATH."""
    return "libmpich" in subprocess.run(["ldd", BUILD / "ckptbench-worker"], capture_output=True, text=True, check=True).stdout


def mpirun():
    """The start of a command line that runs `-n RANKS PROGRAM…` here, on fewer cores than ranks and as root."""
    if is_mpich():
        return ["mpirun"]
    return ["mpirun", "--oversubscribe", "--bind-to", "none", *(["--allow-run-as-root"] if os.geteuid() == 0 else [])]


def environment(place, **more):
    """That of this process, with a home of the test's own."""
    return {**os.environ, "CKPTBENCH_HOME": str(place / "home"), **more}


def has_stopped(pid):
    """Whether every thread of a process stands still, as it does some time after SIGSTOP; or there is none."""
    for path in Path(f"/proc/{pid}/task").glob("*/stat"):
        with contextlib.suppress(OSError):  # that thread has ended
            if path.read_text().rpartition(")")[2].split()[0] not in "TtZX":
                return False
    return True


def without_save_id(content):
    """The bytes of a checkpoint's file without the id of its save, which is another one each time (docs/dcp-format.md)."""
    content = re.sub(rb"(CB\x08\x00|CKPTSAVE).{8}", rb"\1", content, flags=re.S)
    return re.sub(rb'("ckptbench\.save": ?")[0-9a-f]+', rb"\1", content)


def ckptbench(place, *words, code=0, timeout=150, **more):
    """Runs the controller in `place`, whose home is place/home, and expects the exit code; `more` are variables."""
    result = subprocess.run([PROGRAM, *map(str, words)], cwd=place, env=environment(place, **more), capture_output=True, text=True,
                            stdin=subprocess.DEVNULL, timeout=timeout)
    assert result.returncode == code, f"{words}: {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result
