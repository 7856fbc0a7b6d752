"""Runs on several machines without Slurm: hosts=a,b over a real sshd, whose names all lead to this machine."""
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
from pathlib import Path

import pytest

from harness import BUILD
from nodes_harness import Run

SSHD = os.environ.get("CKPTBENCH_TEST_SSHD")
needs_sshd = pytest.mark.skipif(not SSHD, reason="no sshd (CKPTBENCH_TEST_SSHD, see tests/services/sshd.py)")


def environment(path, **more):
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    return dict(kept, PATH=f"{path}:{os.environ['PATH']}", OMPI_MCA_btl="self,tcp", OMPI_MCA_btl_tcp_if_include="lo", **more)


class Hosts(Run):
    process = None

    def start(self, path=None, fake=""):
        self.process = subprocess.Popen([self.programs / "ckptbench-agent", "run", self.run], start_new_session=True,
                                        env=environment(path or f"{SSHD}/bin", CKPTBENCH_FAKE=fake),
                                        stdin=subprocess.DEVNULL)
        return self

    def finish(self, timeout=120):
        self.process.wait(timeout=timeout)
        return self.read("manifest.json")

    def end(self):
        super().end()
        if self.process:
            self.process.wait(timeout=120)


@pytest.fixture
def hosts(tmp_path):
    made = []

    def make(names, **settings):
        made.append(Hosts(tmp_path / f"run{len(made)}", hosts=names, **settings))
        return made[-1]

    yield make
    for one in made:
        one.end()


@needs_sshd
def test_ranks_of_all_hosts_are_sealed(hosts):
    run = hosts("node-a,node-b", ranks=3).start()
    manifest = run.finish()
    assert (manifest["outcome"], manifest["message"]) == ("pass", ""), run.logs()
    assert (manifest["ranks"], manifest["samples"]) == (3, 3 * 4 * 3)
    report = run.rendezvous()
    assert [(node["node"], node["state"], node["ranks"]) for node in report["nodes"]] == [("node-a", "joined", 2), ("node-b", "joined", 1)]
    assert json.loads((run.attempt / "fingerprint.json").read_text()) == json.loads((run.attempt / "nodes/node-a/fingerprint.json").read_text())
    run.assert_nothing_left()


@needs_sshd
def test_the_machine_itself_may_be_one_of_them(hosts):
    run = hosts("localhost,node-b", ranks=2).start()
    manifest = run.finish()
    assert (manifest["outcome"], manifest["message"], manifest["ranks"]) == ("pass", "", 2), run.logs()
    assert [node["state"] for node in run.rendezvous()["nodes"]] == ["head", "joined"]
    run.assert_nothing_left()


@needs_sshd
def test_host_that_refuses_is_named_with_the_words_of_ssh(hosts):
    manifest = hosts("node-a,127.0.0.1:1", ranks=2).start().finish()
    assert manifest["outcome"] == "infrastructure"
    assert "no agent on node 127.0.0.1:1: ssh ended with exit status 255" in manifest["message"]


@needs_sshd
def test_killed_agent_of_a_host_is_named(hosts):
    run = hosts("node-a,node-b", ranks=2, iterations=2000).start()
    run.await_(lambda: run.progress().get("iteration", 0) > 2)
    victim, = [pid for pid in run.processes("ckptbench-agent", "node")
               if b"node-b" in Path(f"/proc/{pid}/cmdline").read_bytes()]
    os.kill(victim, signal.SIGKILL)
    manifest = run.finish()
    assert manifest["outcome"] == "infrastructure" and manifest["message"].startswith("node node-b is lost")
    run.assert_nothing_left(stale_pages=True)


@needs_sshd
def test_a_real_checkpoint_is_saved_by_two_hosts_and_each_loads_what_the_other_wrote(tmp_path):
    command = [BUILD / "ckptbench", "run", "--json", "hosts=node-a,node-b", "model=gpt2-tiny", "ranks=4", "dp=4", "zero=1",
               f"store={tmp_path}/store", "iterations=1", "warmup=0", "baseline=false"]
    result = subprocess.run(command, env=environment(f"{SSHD}/bin", CKPTBENCH_HOME=str(tmp_path / "home")), stdin=subprocess.DEVNULL,
                            capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr + result.stdout
    run, = (tmp_path / "home/runs").iterdir()
    manifest = json.loads((run / "attempts/1/manifest.json").read_text())
    assert (manifest["outcome"], manifest["ranks"]) == ("pass", 4)
    shown = subprocess.run([BUILD / "ckptbench", "show", "LATEST", "--nodes"], env=dict(os.environ, CKPTBENCH_HOME=str(tmp_path / "home")),
                           capture_output=True, text=True, timeout=120, check=True).stdout
    assert [line.split()[0] for line in shown.splitlines() if "joined" in line] == ["node-a", "node-b"]
    assert re.search(r"^save +node-[ab] +2 .*\n +node-[ab] +2 ", shown, re.M)
    assert b"load.shift=2 ranks: one node further" in (run / "attempts/1/records").read_bytes()
    document = subprocess.run([BUILD / "ckptbench", "show", "LATEST", "--time", "--json"], env=dict(os.environ, CKPTBENCH_HOME=str(tmp_path / "home")),
                              capture_output=True, text=True, timeout=120, check=True).stdout
    document = json.loads(document)["time"]
    assert [host["node"] for host in document["host"]] == ["node-a", "node-b"]
    assert all(max(filter(None, host["cpu_fraction"])) > 0 for host in document["host"])
    reads = next(entry for entry in document["operations"] if (entry["operation"], entry["request"]) == ("load", "read"))
    assert [rank["rank"] for rank in reads["ranks"]] == [0, 1, 2, 3]
    for rank in reads["ranks"]:  # every node counts from the moment at which the head's attempt began
        assert 0 < (rank["first_bucket"] + len(rank["bytes"]) - 1) * reads["bucket_s"] < document["duration_s"]


@needs_sshd
def test_progress_on_a_wide_terminal_has_the_rate_of_every_host(tmp_path):
    """Slowed down, so that there is something to look at, until it has been seen."""
    terminal, program_side = pty.openpty()
    fcntl.ioctl(program_side, termios.TIOCSWINSZ, struct.pack("HHHH", 50, 200, 0, 0))
    command = [BUILD / "ckptbench", "run", "hosts=node-a,node-b", "model=gpt2-tiny", "ranks=2", "dp=2", "zero=1", "ops=save", "verify=none",
               f"store=fault:bandwidth=4MiB:{tmp_path}/store", "io.block=256KiB", "iterations=1000", "warmup=0", "baseline=false"]
    process = subprocess.Popen(command, env=environment(f"{SSHD}/bin", CKPTBENCH_HOME=str(tmp_path / "home")), stdin=subprocess.DEVNULL,
                               stdout=subprocess.DEVNULL, stderr=program_side)
    os.close(program_side)
    shown, is_seen = b"", False
    try:
        while block := os.read(terminal, 65536):
            shown += block
            if not is_seen and re.search(rb"save +\d+/1000  .* node-a [\d.]+ [KMG]iB/s, node-b [\d.]+ [KMG]iB/s", shown):
                is_seen = True
                process.send_signal(signal.SIGINT)
    except OSError:  # the program has ended
        pass
    os.close(terminal)
    assert process.wait(timeout=120) == 4 and is_seen, shown


@needs_sshd
def test_a_host_that_is_slow_is_named_while_ranks_run(hosts, tmp_path):
    run = hosts("node-a,node-b", worker="ckptbench-worker", ranks=2, model="gpt2-tiny", ops="save", baseline="false", io_block="64KiB",
                io_direct="false", store=f"fault:bandwidth=256KiB/s+rank=1:{tmp_path}/store").start()
    run.await_(lambda: re.fullmatch(r"node node-b is slow: \d+ % done, all others \d+ % or more", run.progress().get("note", "")))


def test_host_that_does_not_join_in_time_is_named(hosts, tmp_path):
    silent = tmp_path / "bin"
    silent.mkdir()
    (silent / "ssh").write_text("#!/bin/sh\nexec sleep 600\n")
    (silent / "ssh").chmod(0o755)
    run = hosts("far-away,farther", ranks=2, rendezvous_timeout="1s").start(silent)
    manifest = run.finish(30)
    assert manifest["outcome"] == "infrastructure"
    assert "node far-away, farther has not joined within rendezvous.timeout=1s" in manifest["message"]
    assert not (run.attempt / "rendezvous.key").exists()
    run.assert_nothing_left()


def test_a_key_in_no_command_line_and_no_environment(hosts, tmp_path):
    spy = tmp_path / "bin"
    spy.mkdir()
    (spy / "ssh").write_text(f'#!/bin/sh\n(tr "\\0" "\\n" < /proc/$$/cmdline; env) > {tmp_path}/seen\ncat > {tmp_path}/key\n')
    (spy / "ssh").chmod(0o755)
    run = hosts("far-away", ranks=1, rendezvous_timeout="10s").start(spy)
    run.finish(30)
    key = (tmp_path / "key").read_text().strip()
    assert len(key) == 64 and key not in (tmp_path / "seen").read_text()
    for path in run.run.rglob("*"):
        assert not path.is_file() or key not in path.read_text(errors="replace")


def test_hosts_that_are_options_of_ssh_are_refused(tmp_path):
    result = subprocess.run([BUILD / "ckptbench", "run", "hosts=-oProxyCommand=x,b", "model=gpt2-tiny"], stdin=subprocess.DEVNULL,
                            env=dict(os.environ, CKPTBENCH_HOME=str(tmp_path)), capture_output=True, text=True, timeout=120)
    assert result.returncode == 2 and "hosts=" in result.stderr
