"""Runs on several nodes of a real Slurm cluster, with a worker that behaves as it is told: what ranks of all nodes
measured is sealed, whoever dies; the node is named; nothing runs on."""
import json
import os
import re
import shutil
import signal
import socket
import ssl
import subprocess
import time
from pathlib import Path

import pytest

from nodes_harness import Run

CLUSTER = os.environ.get("CKPTBENCH_TEST_SLURM")
pytestmark = pytest.mark.skipif(not CLUSTER, reason="no Slurm cluster (CKPTBENCH_TEST_SLURM, see tests/services/slurm.py)")


def slurm(*words):
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_"))}
    return subprocess.run(words, env=dict(kept, SLURM_CONF=CLUSTER), capture_output=True, text=True, timeout=120, check=True).stdout


# In front of srun: keeps the words with which agents of other nodes are started, and holds these back until they may go.
SRUN = """\
#!/bin/sh
case " $* " in *" node --head "*)
    echo "$*" > "{folder}/words.new"
    mv "{folder}/words.new" "{folder}/words"
    tries=0
    while [ ! -e "{folder}/open" ] && [ $tries -lt 2400 ]; do sleep 0.1; tries=$((tries + 1)); done ;;
esac
exec {srun} "$@"
"""


class Job(Run):
    def hold_back_agents(self):
        srun = self.folder / "bin/srun"
        srun.parent.mkdir()
        srun.write_text(SRUN.format(folder=self.folder, srun=shutil.which("srun")))
        srun.chmod(0o755)
        return srun.parent

    def start(self, nodes, fake="", path=None):
        script = self.folder / "job.sh"
        # The nodes share a kernel: what Open MPI does between processes of one machine must not be tried.
        script.write_text(f"#!/bin/sh\nexport PATH='{path or self.programs}':$PATH CKPTBENCH_FAKE='{fake}' OMPI_MCA_btl=self,tcp OMPI_MCA_btl_tcp_if_include=lo\nexec {self.programs}/ckptbench-agent run {self.run}\n")
        self.job = slurm("sbatch", "--parsable", f"--nodes={nodes}", f"--output={self.folder}/job.log", "--chdir=/", str(script)).strip()
        return self

    def is_over(self):
        return not slurm("squeue", "-h", "-a", "-o", "%i %T", "-t", "PENDING,RUNNING,COMPLETING").count(f"{self.job} ")

    def end(self):
        if getattr(self, "job", None) and not self.is_over():
            slurm("scancel", self.job)
        super().end()


@pytest.fixture
def job(tmp_path):
    made = []

    def make(**settings):
        made.append(Job(tmp_path / f"run{len(made)}", **settings))
        return made[-1]

    yield make
    for one in made:
        one.end()


def test_ranks_of_all_nodes_are_sealed(job):
    run = job(ranks=5).start(3)
    manifest = run.await_manifest()
    assert (manifest["outcome"], manifest["message"]) == ("pass", "")
    assert (manifest["ranks"], manifest["samples"]) == (5, 5 * 4 * 3)
    report = run.rendezvous()
    assert [node["state"] for node in report["nodes"]] == ["head", "joined", "joined"]
    assert [node["ranks"] for node in report["nodes"]] == [2, 2, 1] and report["rendezvous_s"] > 0
    for node in report["nodes"][1:]:
        assert abs(node["clock_offset_s"]) < 1 and node["round_trip_s"] > 0 and node["store_free_bytes"] > 0
        for name in ("fingerprint.json", "host.json"):
            assert json.loads((run.attempt / "nodes" / node["node"] / name).read_text())
    assert run.await_(run.is_over) and not (run.attempt / "rendezvous.key").exists()
    run.assert_nothing_left()


@pytest.mark.parametrize("launcher", ["srun", "mpirun"])
def test_real_ranks_are_where_the_head_expects_them(job, launcher):
    run = job(worker="ckptbench-worker", model="gpt2-tiny", ranks=5, dp=5, launcher=launcher, baseline="false", iterations=1, warmup=0).start(3)
    manifest = run.await_manifest()
    assert (manifest["outcome"], manifest["message"]) == ("pass", ""), run.logs()
    places = [name.decode() for name in re.findall(rb"node=(n\d+)\n", run.attempt.joinpath("records").read_bytes())]
    assert places == [node["node"] for node in run.rendezvous()["nodes"] for _ in range(node["ranks"])]
    assert run.await_(run.is_over)
    run.assert_nothing_left()


def test_killed_rank_on_another_node_is_named(job):
    run = job(ranks=4).start(2, "3:fsync:kill")
    manifest = run.await_manifest()
    assert manifest["outcome"] == "infrastructure" and manifest["ranks"] == 4
    node = run.rendezvous()["nodes"][1]["node"]
    assert manifest["message"].startswith(f"rank 3 on node {node} was killed by signal 9 (SIGKILL) in ")
    assert run.await_(run.is_over)
    run.assert_nothing_left()


def test_killed_node_agent_is_named_and_what_it_sent_is_kept(job):
    run = job(ranks=4, iterations=2000).start(2)
    run.await_(lambda: run.progress().get("iteration", 0) > 3)
    os.kill(run.only_process("ckptbench-agent", "node"), signal.SIGKILL)
    manifest = run.await_manifest()
    node = run.rendezvous()["nodes"][1]
    assert manifest["outcome"] == "infrastructure" and manifest["message"].startswith(f"node {node['node']} is lost")
    assert "its ranks 2 to 3 were last in" in manifest["message"]
    assert node["state"] == "lost" and manifest["ranks"] == 4 and manifest["samples"] > 4 * 3
    assert run.await_(run.is_over)
    run.assert_nothing_left(stale_pages=True)  # the dead agent's: the next start on that node removes them


def test_nobody_outlives_the_head(job):
    run = job(ranks=4, iterations=2000).start(2)
    run.await_(lambda: run.progress().get("iteration", 0) > 1)
    os.kill(run.only_process("ckptbench-agent", "run"), signal.SIGKILL)
    assert run.await_(run.is_over, 60)
    run.assert_nothing_left(stale_pages=True)
    assert not (run.attempt / "manifest.json").exists()


def test_stuck_rank_on_another_node_is_named_and_ended(job):
    run = job(ranks=4, timeout_stall="2s").start(2, "2:write:stubborn")
    manifest = run.await_manifest()
    node = run.rendezvous()["nodes"][1]["node"]
    assert manifest["outcome"] == "timeout" and "rank 2 moves nothing" in manifest["message"]
    assert f"on {node}" in manifest["message"] and manifest["ranks"] == 4
    assert run.await_(run.is_over, 60)
    run.assert_nothing_left()


def test_cancelled_job_is_sealed_with_what_is_known(job):
    run = job(ranks=4, iterations=2000).start(2)
    run.await_(lambda: run.progress().get("iteration", 0) > 3)
    slurm("scancel", run.job)
    manifest = run.await_manifest()
    assert manifest["outcome"] == "cancelled" and manifest["ranks"] == 4 and manifest["samples"] > 4 * 3
    assert run.await_(run.is_over, 60)
    run.assert_nothing_left(stale_pages=True)


def test_more_nodes_than_the_allocation_has_are_refused(job):
    run = job(ranks=8, nodes=3).start(2)
    manifest = run.await_manifest()
    assert manifest["outcome"] == "benchmark_failed" and "nodes=3, but there are 2" in manifest["message"]


def throw_garbage(port):
    """At a port of the rendezvous: bytes that are no handshake, a handshake without the key, and connections that say nothing, which are left open."""
    silent = [socket.create_connection(("127.0.0.1", port), timeout=120) for _ in range(8)]
    for garbage in (b"GET / HTTP/1.1\r\n\r\n", b"\0" * 100000, os.urandom(5000), b"\x16\x03\x01\xff\xff" + b"A" * 70000):
        with socket.create_connection(("127.0.0.1", port), timeout=120) as stranger:
            try:
                stranger.sendall(garbage)
                stranger.shutdown(socket.SHUT_WR)
                assert len(stranger.recv(4096)) < 100  # an alert of TLS, at most
            except OSError:
                pass  # it has hung up on us
    context = ssl.create_default_context()
    context.check_hostname, context.verify_mode = False, ssl.CERT_NONE
    with socket.create_connection(("127.0.0.1", port), timeout=120) as stranger, pytest.raises(OSError):
        context.wrap_socket(stranger)
    return silent


def test_strangers_at_the_rendezvous_are_dropped_and_an_agent_with_another_key_never_joins(job):
    run = job(ranks=3)
    run.start(3, f"0:read:until-{run.folder}/go", path=run.hold_back_agents())
    words = run.await_(lambda: (run.folder / "words").exists() and (run.folder / "words").read_text().split())
    port = words[words.index("--port") + 1]
    silent = throw_garbage(int(port))
    node = re.search(r"--nodelist=(n\d+)", " ".join(words)).group(1)
    stranger = subprocess.run([run.programs / "ckptbench-agent", "node", "--name", node, "--head", "127.0.0.1", "--port", port, "--timeout", "1s"],
                              input=64 * "a" + "\n", capture_output=True, text=True, timeout=120)
    assert stranger.returncode == 4 and f"node {node}: the head does not answer at 127.0.0.1, port {port}" in stranger.stderr
    assert run.progress()["state"] == "joining"
    (run.folder / "open").touch()
    run.await_(lambda: run.progress().get("state") == "running")
    silent += throw_garbage(int(port))
    (run.folder / "go").touch()
    manifest = run.await_manifest()
    assert (manifest["outcome"], manifest["message"]) == ("pass", ""), run.logs()
    assert [node["state"] for node in run.rendezvous()["nodes"]] == ["head", "joined", "joined"]
    for connection in silent:
        connection.close()
    assert run.await_(run.is_over)
    run.assert_nothing_left()
