"""The same from a laptop to a login node behind SSH: CKPTBENCH_TEST_SSHD in front of CKPTBENCH_TEST_SLURM."""
import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
import uuid
from pathlib import Path

import pytest
from harness import BUILD, PROGRAM
from site_harness import Laptop, fake_program
from slurm_harness import FINAL, MISSING, TINY, VARIABLE
from ssh_proxy import Proxy

SSHD = "CKPTBENCH_TEST_SSHD"
assert VARIABLE == "CKPTBENCH_TEST_SLURM"  # tests/run.py looks for the names in this file
pytestmark = [pytest.mark.skipif(not os.environ.get(VARIABLE), reason=MISSING),
              pytest.mark.skipif(not os.environ.get(SSHD), reason=f"{SSHD} names no folder: an sshd is missing (tests/services/sshd.py)")]


@pytest.fixture
def laptop(tmp_path):
    laptop = Laptop(tmp_path, os.environ[VARIABLE])
    (tmp_path / "laptop-user/.ssh").mkdir()
    shutil.copy(Path(os.environ[SSHD]) / "config", tmp_path / "laptop-user/.ssh/config")
    yield laptop
    laptop.end_all()


def parent_of(pid):
    return int(Path(f"/proc/{pid}/stat").read_text().rsplit(")", 1)[1].split()[1])


def cut_session_of(pid):
    """Kills the session of sshd that runs the process, as a network that goes away does."""
    server = int((Path(os.environ[SSHD]) / "sshd.pid").read_text())
    while parent_of(pid) != server:
        pid = parent_of(pid)
    os.kill(pid, signal.SIGKILL)


def wait_for_file(path, process, seconds=200):
    deadline = time.monotonic() + seconds
    while not (path.exists() and path.read_text().strip()):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.05)
    return path.read_text().strip()


def test_the_whole_way_over_ssh(laptop):
    added = laptop.call("site", "add", "tor", "--host", "node-a", *laptop.words_of_site())
    assert "site tor is ready" in added.stdout
    (laptop.folder / "n.yaml").write_text("model: gpt2-tiny\nranks: 2\nbaseline: false\niterations: 1\nwarmup: 0\nlabel.x: \"$(touch hacked) 'q'\"\n")
    sent = laptop.submit("tor", "n.yaml", "ops=save", "io.depth=1,2")
    follower = subprocess.Popen([PROGRAM, "logs", sent["runs"][0]["run"], "-f"], cwd=laptop.folder, env=laptop.environment,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    try:
        lines = laptop.wait_final(sent["sweep"])
        follower.communicate(timeout=120)
        assert follower.returncode == 0
    finally:
        follower.kill()
    assert [line["outcome"] for line in lines.values()] == ["pass", "pass"]
    assert laptop.document("show", sent["runs"][0]["run"])["labels"]["x"] == "$(touch hacked) 'q'"
    assert "0 ingested, 2 known" in laptop.call("collect").stdout
    assert not list(laptop.folder.rglob("hacked"))


@pytest.mark.parametrize("when", ["before", "after"])
def test_a_connection_cut_in_the_middle_of_submit_makes_no_second_sweep(laptop, when):
    site = laptop.write_site("tor", host="node-a")
    sweep = f"cut-{uuid.uuid4().hex[:8]}"  # Slurm remembers names of jobs for a while
    real, marked = laptop.prefix / "bin/ckptbench-real", laptop.folder / "pid"
    shutil.copy2(BUILD / "ckptbench", real)
    stop = f'if [ "$1" = submit ] && mkdir "{laptop.folder}/once" 2>/dev/null; then {{}} fi'
    pause = f'echo $$ > "{marked}"; sleep 8;'
    if when == "before":
        text = f'#!/bin/sh\n{stop.format(pause)}\nexec "{real}" "$@"\n'
    else:
        text = f'#!/bin/sh\n"{real}" "$@" > "{laptop.folder}/said.$$" || exit\n{stop.format(pause)}\ncat "{laptop.folder}/said.$$"\n'
    fake_program(laptop.prefix, text)
    sender = subprocess.Popen([PROGRAM, "submit", "--site", site, "--id", sweep, *TINY, "ops=save", "repeat=2",
                               f"store={laptop.folder}/login/store"], cwd=laptop.folder, env=laptop.environment, stdout=subprocess.PIPE,
                              stderr=subprocess.PIPE, text=True)
    try:
        cut_session_of(int(wait_for_file(marked, sender)))
        out, said = sender.communicate(timeout=120)
    finally:
        sender.kill()
        with contextlib.suppress(OSError, ValueError):
            os.kill(int(marked.read_text()), signal.SIGKILL)
    assert sender.returncode == 0, said
    assert f"asking again what became of {sweep}" in said and f"submitted 2 runs  (sweep {sweep}) on site tor" in out
    laptop.wait_final(sweep)
    assert [len(laptop.jobs_named(f"{sweep}.0{n}")) for n in (1, 2)] == [1, 1]
    assert len(list((laptop.there / "runs").iterdir())) == 2


def test_a_host_that_refuses_us_is_told(laptop):
    shutil.rmtree(laptop.folder / "laptop-user/.ssh")
    site = laptop.write_site("tor", host=f"127.0.0.1:{(Path(os.environ[SSHD]) / 'port').read_text()}")
    refused = laptop.call("submit", "--site", site, *TINY, code=2)
    assert "site tor: the host key of 127.0.0.1" in refused.stderr and "is not known" in refused.stderr
    assert not (laptop.home / "asked").exists() or not list((laptop.home / "asked").iterdir())


@pytest.fixture
def slow_line(laptop):
    """20 ms more to the login node and back."""
    port = (Path(os.environ[SSHD]) / "port").read_text()
    proxy = Proxy(int(port), delay_s=0.01)
    config = laptop.folder / "laptop-user/.ssh/config"
    config.write_text(config.read_text().replace(f"Port {port}", f"Port {proxy.port}"))
    yield proxy
    proxy.close()


def test_over_a_slow_line_many_runs_cost_as_many_round_trips_as_few(laptop, slow_line):
    """One connection a command, and turns that do not grow with the members: neither of submit nor of fetching."""
    site = laptop.write_site("tor", host="node-a")

    def turns_of(*words, code=0):
        turns, connections = slow_line.turns, slow_line.accepted
        laptop.call(*words, code=code)
        assert slow_line.accepted - connections == 1
        return slow_line.turns - turns

    few, many = (f"slow-{uuid.uuid4().hex[:8]}" for _ in range(2))
    words = ("submit", "--site", site, *TINY, "ops=save", "slurm.extra=--hold", f"store={laptop.folder}/login/store")
    spare = 12  # signs of life of a connection that waits, answers in more packets
    assert turns_of(*words, "repeat=6", "--id", many) <= turns_of(*words, "repeat=2", "--id", few) + spare
    laptop.there_call("cancel", few, many)
    deadline = time.monotonic() + 200
    while any(line["state"] not in FINAL for line in json.loads(laptop.there_call("status", "--json", few, many))):
        assert time.monotonic() < deadline
        time.sleep(0.3)
    of_few, of_many = turns_of("status", few), turns_of("status", many)
    assert of_many <= of_few + spare
    lines = laptop.document("list", few, many)
    assert len(lines) == 8 and {line["outcome"] for line in lines} == {"cancelled"}
    assert all((laptop.home / "runs" / line["run"] / "attempts/1/manifest.json").exists() for line in lines)
    assert not list((laptop.home / "runs").glob(".*"))


def test_logs_that_are_followed_go_on_when_the_connection_is_cut(laptop, slow_line):
    site = laptop.write_site("tor", host="node-a")
    sent = laptop.submit(site, *TINY, "iterations=2000", "ops=save", "verify=none", f"store=fault:delay=300ms:{laptop.folder}/login/store")
    run = sent["runs"][0]["run"]
    laptop.wait_state(run, "running")
    follower = subprocess.Popen([PROGRAM, "logs", run, "-f"], cwd=laptop.folder, env=laptop.environment, stdout=subprocess.PIPE, text=True)
    try:
        for _ in range(2):
            connections, turns, deadline = slow_line.accepted, slow_line.turns, time.monotonic() + 200
            while slow_line.turns < turns + 30:  # it has logged in, and looks again and again
                assert time.monotonic() < deadline and follower.poll() is None
                time.sleep(0.1)
            slow_line.cut_now()
            while slow_line.accepted == connections:
                assert time.monotonic() < deadline and follower.poll() is None
                time.sleep(0.1)
        laptop.call("cancel", run)
        out, _ = follower.communicate(timeout=120)
    finally:
        follower.kill()
    assert follower.returncode == 0
    assert laptop.wait_final(run)[run]["outcome"] == "cancelled"
    # Slurm's file and mpirun's grow at once: followed, lines come as they are written; later, file by file.
    assert sorted(laptop.call("logs", run).stdout.splitlines()) == sorted(out.splitlines())
