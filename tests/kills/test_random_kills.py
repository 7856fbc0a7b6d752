"""Kills a rank, the agent, the controller, or two of them with -9 at random moments, many times.

Whatever dies: nothing hangs, no process stays, no half checkpoint is accepted, no run that did not finish is stored as
a pass, and where older checkpoints are kept until a newer one is durable, one is there if one had been. The seed is printed; CKPTBENCH_KILL_SEED repeats it, CKPTBENCH_KILLS sets how many.
"""
import json
import os
import random
import signal
import subprocess
import time
from pathlib import Path

import pytest

from harness import BUILD

KILLS = int(os.environ.get("CKPTBENCH_KILLS", "100"))
SEED = int(os.environ.get("CKPTBENCH_KILL_SEED", random.SystemRandom().randrange(2**31)))
PROGRAMS = {"rank": "ckptbench-worker", "agent": "ckptbench-agent", "controller": "ckptbench"}
VICTIMS = [("rank",), ("agent",), ("controller",), ("rank", "rank"), ("rank", "agent"), ("rank", "controller"), ("agent", "controller")]
WAYS = [[], ["folder=rotate"], ["keep.last=1"], ["keep.last=1", "save.async=true"], ["folder=rotate", "save.async=true", "save.inflight=2"]]
ITERATIONS = 4
END_WITHIN_S = 120


def processes(home):
    """(pid, program) of everything that was started for this home folder."""
    found = []
    for entry in Path("/proc").iterdir():
        if not entry.name.isdigit():
            continue
        try:
            words = (entry / "cmdline").read_bytes().split(b"\0")
            environment = (entry / "environ").read_bytes()
            state = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0]
        except OSError:
            continue
        if f"CKPTBENCH_HOME={home}".encode() in environment.split(b"\0") and state != "Z":
            found.append((int(entry.name), os.path.basename(words[0].decode(errors="replace"))))
    return found


def wait_until_gone(home, seconds):
    deadline = time.monotonic() + seconds
    while processes(home) and time.monotonic() < deadline:
        time.sleep(0.05)
    return processes(home)


def ckptbench(home, *words, timeout=120):
    environment = dict(os.environ, CKPTBENCH_HOME=str(home))
    return subprocess.run([str(BUILD / "ckptbench"), *words], env=environment, capture_output=True, text=True, timeout=timeout)


def start_run(home, store, way=()):
    environment = dict(os.environ, CKPTBENCH_HOME=str(home))
    words = ["run", "model=gpt2-tiny", "ranks=2", "tp=2", f"store={store}", f"iterations={ITERATIONS}", "warmup=0",
             "keep=true", "baseline=false", "io.fsync=true", "--json", *way]
    return subprocess.Popen([str(BUILD / "ckptbench"), *words], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


@pytest.fixture(scope="module")
def usual_duration(tmp_path_factory):
    """How long an undisturbed run takes here, so that kills fall anywhere in it."""
    folder = tmp_path_factory.mktemp("usual")
    (folder / "store").mkdir()
    start = time.monotonic()
    process = start_run(folder / "home", folder / "store")
    out, err = process.communicate(timeout=120)
    assert process.returncode == 0, err
    assert json.loads(out)["outcome"] == "pass"
    return time.monotonic() - start


def victims_among(home, kinds, generator):
    """A process for each kind that has one left."""
    running, victims = processes(home), []
    for kind in kinds:
        candidates = [pid for pid, program in running if program == PROGRAMS[kind] and pid not in victims]
        victims += [generator.choice(candidates)] if candidates else []
    return victims


def markers_of(store):
    return list(store.rglob(".metadata"))


def check_checkpoints(home, store):
    """Every folder with a commit marker must verify; one without a marker was never accepted."""
    for marker in markers_of(store):
        result = ckptbench(home, "verify", str(marker.parent))
        assert result.returncode == 0, f"an accepted checkpoint is not whole: {result.stdout}{result.stderr}"


def check_history(home):
    collected = ckptbench(home, "collect", "--silence", "0s")  # nobody is left who could seal them
    listed = ckptbench(home, "list", "--json")
    assert listed.returncode == 0, listed.stderr
    for entry in json.loads(listed.stdout):
        if entry["outcome"] == "pass":
            shown = json.loads(ckptbench(home, "show", entry["run"], "--json").stdout)
            assert shown["metrics"]["save_s"]["n"] == ITERATIONS
            assert shown["metrics"]["load_s"]["n"] == ITERATIONS
        elif entry["state"] == "planned":  # the controller died before anything had started
            assert not list((home / "runs" / entry["run"] / "attempts").glob("*")), f"{entry} after {collected.stdout}"
        else:
            assert entry["state"] != "running", f"{entry} after {collected.stdout}{collected.stderr}"


@pytest.mark.parametrize("number", range(KILLS))
def test_kill_leaves_nothing_half(number, tmp_path, usual_duration):
    generator = random.Random(SEED * 1000003 + number)
    kinds, way = VICTIMS[number % len(VICTIMS)], WAYS[number % len(WAYS)]
    delay = generator.uniform(0, usual_duration * 1.05)
    home, store = tmp_path / "home", tmp_path / "store"
    store.mkdir()
    print(f"seed {SEED} number {number}: kill {kinds} of {way} after {delay:.3f} s")
    process = start_run(home, store, way)
    time.sleep(delay)
    had_one = bool(markers_of(store))
    for victim in victims_among(home, kinds, generator):
        try:
            os.kill(victim, signal.SIGKILL)
        except ProcessLookupError:
            pass
    try:
        process.communicate(timeout=END_WITHIN_S)
    except subprocess.TimeoutExpired:
        pytest.fail(f"hangs after {kinds} were killed: {processes(home)}")
    left = wait_until_gone(home, 60)
    assert not left, f"left running after {kinds} were killed: {left}"
    check_history(home)
    check_checkpoints(home, store)
    assert not way or not had_one or markers_of(store), "the older checkpoint is gone, and there is no newer one"
