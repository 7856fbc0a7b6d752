"""The whole program as an ordinary user, with little memory to lock, and where io_uring is refused: it
runs, and what it fell back to is recorded."""
import json
import os
import pwd
import random
import resource
import shutil
import subprocess
import tempfile
from pathlib import Path

import pytest

from harness import BUILD

SANITIZERS = {key: value for key, value in os.environ.items() if key.endswith("SAN_OPTIONS")}
PROGRAMS = ("ckptbench", "ckptbench-agent", "ckptbench-worker", "tests/without_uring")


@pytest.fixture
def place():
    """Programs, home and store that an ordinary user can reach: pytest's folders are for their owner alone."""
    folder = Path(tempfile.mkdtemp(prefix="ckptbench-fallback-", dir="/var/tmp"))
    folder.chmod(0o755)
    for program in PROGRAMS:
        shutil.copy(BUILD / program, folder / Path(program).name)
    (folder / "user").mkdir(mode=0o700)
    if os.geteuid() == 0:
        # One user a test: memory to lock is counted a user, and rings of a run that has ended go a little later.
        os.chown(folder / "user", random.randrange(100_000, 2_000_000), pwd.getpwnam("nobody").pw_gid)
    yield folder
    shutil.rmtree(folder)


def as_ordinary_user(place, *words, memlock=None, wrapper=(), code=0):
    def limit_memory():
        resource.setrlimit(resource.RLIMIT_MEMLOCK, (memlock, memlock))

    user = place / "user"
    command = [*wrapper, place / "ckptbench", "run", "model=gpt2-tiny", "ranks=2", "tp=2", "iterations=2", "warmup=0",
               f"store={user}/store", *words, "--json"]
    if os.geteuid() == 0:
        command = ["setpriv", f"--reuid={user.stat().st_uid}", "--regid=nogroup", "--clear-groups", *command]
    environment = {"PATH": os.environ["PATH"], "HOME": str(user), "TMPDIR": str(user), "CKPTBENCH_HOME": str(user / "home"),
                   **SANITIZERS}
    result = subprocess.run(command, cwd=user, env=environment, capture_output=True, text=True, timeout=120,
                            preexec_fn=limit_memory if memlock is not None else None)
    assert result.returncode == code, result.stdout + result.stderr
    return json.loads(result.stdout)


def used(place, run):
    """The steps of the ladder, as the history has them."""
    environment = {"PATH": os.environ["PATH"], "CKPTBENCH_HOME": str(place / "user/home"), **SANITIZERS}
    shown = subprocess.run([place / "ckptbench", "show", run["run"]], env=environment, capture_output=True, text=True, timeout=120)
    assert shown.returncode == 0, shown.stderr
    return next(line for line in shown.stdout.splitlines() if line.startswith("used"))


def passed(run):
    assert run["outcome"] == "pass" and run["verified"] == {"iterations": 2, "of": 2}
    assert run["metrics"]["save_s"]["n"] == run["metrics"]["load_s"]["n"] == 2
    return run


def test_an_ordinary_user_runs_everything(place):
    run = passed(as_ordinary_user(place))
    assert run["limits"]["baseline_write_bytes_per_s"] > 0
    assert "io_uring" in used(place, run)


def test_little_memory_to_lock_means_unregistered_buffers(place):
    if os.geteuid() != 0 and resource.getrlimit(resource.RLIMIT_MEMLOCK)[1] < 65536:
        pytest.skip("needs a hard limit of memlock of at least 64 KiB")
    line = used(place, passed(as_ordinary_user(place, memlock=65536)))
    assert "io_uring" in line and "no registered buffers: the limit on locked memory is 64 KiB" in line


def test_refused_io_uring_means_threads(place):
    line = used(place, passed(as_ordinary_user(place, wrapper=[place / "without_uring"])))
    assert "psync" in line and "no io_uring: not permitted here" in line


def test_refused_io_uring_and_buffered_files_on_tmpfs(place):
    store = tempfile.mkdtemp(prefix="ckptbench-fallback-", dir="/dev/shm")
    try:
        os.chmod(store, 0o777)
        run = passed(as_ordinary_user(place, f"store={store}/store", "load.cold=false", wrapper=[place / "without_uring"]))
        line = used(place, run)
        assert "psync" in line and "buffered" in line
    finally:
        shutil.rmtree(store)


# Of address space, in KiB: what the programs themselves map differs from machine to machine, the rest is chosen to.
@pytest.mark.without_sanitizers
@pytest.mark.parametrize("words, kib, said", [
    (("io.engine=psync", "io.threads=256"), 1_000_000, ("for psync could not be started", "a thread takes", "use fewer threads")),
    (("model=gpt2", "layers=1", "io.depth=64", "io.block=16MiB"), 1_000_000, ("rank 0 needs", "of memory, but its limit of 977 MiB")),
], ids=["threads", "memory"])
def test_a_limit_of_address_space_is_no_failure_of_the_benchmark(tmp_path, words, kib, said):
    environment = dict(os.environ, CKPTBENCH_HOME=str(tmp_path / "home"))
    command = [BUILD / "ckptbench", "run", "--json", "model=gpt2-tiny", "ranks=1", "launcher=none", "iterations=1", "warmup=0",
               "baseline=false", f"store={tmp_path}/store", *words]
    result = subprocess.run(["sh", "-c", f'ulimit -v {kib}; exec "$@"', "sh", *map(str, command)], env=environment,
                            capture_output=True, text=True, timeout=120)
    assert result.returncode == 4, result.stdout + result.stderr
    document = json.loads(result.stdout)
    assert document["outcome"] == "infrastructure" and "(ulimit -v) leaves" in document["message"]
    for sentence in said:
        assert sentence in document["message"]
