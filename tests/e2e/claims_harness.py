"""A run that waits in its store, the claim that it holds there, and other runs that want the same folder."""
import contextlib
import fcntl
import json
import os
import re
import signal
import subprocess
import time

from harness import PROGRAM, ckptbench, environment, has_stopped

TINY = ("model=gpt2-tiny", "ranks=1", "launcher=none", "baseline=false", "iterations=1", "warmup=0", "verify=none", "ops=save", "suffix=nightly")
TRAIN = ("workload=train", "model=gpt2-tiny", "layers=2", "train.seq_length=32", "warmup=0", "train.steps=2", "train.checkpoint_every=1", "ranks=1", "launcher=none",
         "suffix=nightly")


class Background:
    """A run that waits in its store until it is told to go on."""

    def __init__(self, place, *words, ops="write", words_before=TINY):
        self.place, self.gate = place, place / "go"
        store = f"fault:until={self.gate}+ops={ops}:{place}/store"
        self.process = subprocess.Popen([PROGRAM, "run", "--json", *words_before, f"store={store}", *words], cwd=place, env=environment(place),
                                        stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True)

    def __enter__(self):
        return self

    def __exit__(self, *failure):
        self.gate.touch()
        if self.process.poll() is None:
            try:
                self.process.communicate(timeout=120)
            except subprocess.TimeoutExpired:
                os.killpg(self.process.pid, signal.SIGKILL)
                raise

    def finish(self, code=0):
        self.gate.touch()
        out, err = self.process.communicate(timeout=120)
        assert self.process.returncode == code, (out, err)
        return out


def until(condition, what, process=None):
    deadline = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < deadline, what
        assert process is None or process.poll() is None, process.communicate()
        time.sleep(0.02)


def stop(pid, place):
    """Stops a run, but not while it holds the lock of its claim, which would keep all others out."""
    for _ in range(1000):
        os.kill(pid, signal.SIGSTOP)
        until(lambda: has_stopped(pid), "the run stands still")
        with open(claim_file(place), "r+") as file, contextlib.suppress(OSError):
            fcntl.lockf(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
            fcntl.lockf(file, fcntl.LOCK_UN)
            return
        os.kill(pid, signal.SIGCONT)
        time.sleep(0.01)
    raise AssertionError("the claim is always locked")


def claim_file(place):
    return place / "store/nightly/.ckptbench-run"


def claim(place):
    """The claim's lines as a dictionary; "run" and "kept" are the first two."""
    lines = claim_file(place).read_text().splitlines()
    return {"run": lines[0], "kept": lines[1], **dict(line.split("=", 1) for line in lines[2:])}


def change_claim(place, age_s=0, **values):
    """Other values in the claim's lines, written age_s seconds ago."""
    text = claim_file(place).read_text()
    for key, value in values.items():
        text = re.sub(rf"^{key}=.*$", f"{key}={value}", text, flags=re.M)
    claim_file(place).write_text(text)
    os.utime(claim_file(place), (time.time() - age_s,) * 2)


def wait_for_claim(run):
    until(lambda: claim_file(run.place).exists() and list((run.place / "store/nightly").rglob("*.distcp")), "the first run writes", run.process)


def markers(place):
    return list((place / "store").rglob(".metadata"))


def run(place, *words, code=0, words_before=TINY):
    return json.loads(ckptbench(place, "run", "--json", *words_before, f"store={place}/store", *words, code=code).stdout)


def killed(place, *words):
    """A run whose rank was killed and that did not seal anything; its claim."""
    with Background(place, "keep=false", *words) as first:
        wait_for_claim(first)
        os.kill(int(claim(place)["pid"]), signal.SIGKILL)
        first.finish(code=4)
    return claim(place)
