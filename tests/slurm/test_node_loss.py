"""A node's slurmd is killed, with all that it runs, in each phase of a run: the node is named, the outcome is
infrastructure, and whoever waits or collects ends with 4. Each test on a cluster of its own. Before a run has started,
Slurm gives it other nodes, or its nodes never come up (test_slurm_long.py)."""
import contextlib
import os
import signal
import subprocess
import time
import uuid
from pathlib import Path

import pytest
from services import slurm
from harness import PROGRAM
from slurm_harness import Cluster, own_service

THREE = ("model=gpt2-tiny", "nodes=3", "ranks_per_node=1", "baseline=false", "ops=save", "verify=none", "slurm.time=5m")
SLOW = ("store=fault:delay=300ms:./slow", "iterations=1000")
# In front of the real srun: what a phase starts waits at its gate until the test has done its work.
GATE = """\
#!/bin/sh
case " $* " in
    *" --mpi=pmix "*) gate="{folder}/launch" ;;
    *" node --head "*) gate="{folder}/rendezvous" ;;
    *) gate= ;;
esac
if [ -d "$gate" ]; then
    touch "$gate/reached"
    tries=0
    while [ ! -e "$gate/open" ] && [ $tries -lt 600 ]; do sleep 0.1; tries=$((tries + 1)); done
fi
exec {srun} "$@"
"""

PROLOG = """\
#!/bin/sh
touch "{gate}/reached"
tries=0
while [ ! -e "{gate}/open" ] && [ $tries -lt 600 ]; do sleep 0.1; tries=$((tries + 1)); done
"""


@pytest.fixture
def service(tmp_path_factory):
    with own_service(tmp_path_factory.mktemp("slurm"), slurmd_timeout=6) as folder:
        yield folder


class Losing(Cluster):
    """A run that somebody waits for, and the end that it must have."""

    def __init__(self, folder, service):
        super().__init__(folder, service / "slurm.conf")
        self.service = service
        self.run = f"lose-{uuid.uuid4().hex[:8]}"
        self.waiter = None
        self.gates = folder / "gates"
        (self.gates / "bin").mkdir(parents=True)
        program = self.gates / "bin/srun"
        program.write_text(GATE.format(folder=self.gates, srun=slurm.find("srun")))
        program.chmod(0o755)

    def begin(self, *words):
        self.waiter = subprocess.Popen([PROGRAM, "submit", "--wait", "--id", self.run, *words], cwd=self.folder, stdout=subprocess.PIPE,
                                       stderr=subprocess.STDOUT, text=True,
                                       env=self.environment(PATH=f"{self.gates}/bin:{os.environ['PATH']}"))

    def until(self, condition, seconds=200):
        deadline = time.monotonic() + seconds
        while not condition():
            assert self.waiter.poll() is None, self.waiter.communicate()[0]
            assert time.monotonic() < deadline, self.slurm("squeue", "-a")
            time.sleep(0.1)

    def until_running(self):
        self.until((self.run_folder(self.run) / "job.json").exists)
        self.wait_for(self.run, "running", seconds=200)

    def gate(self, name):
        """Of a phase, before the run is begun; close behind what it holds back with reach()."""
        (self.gates / name).mkdir()

    def reach(self, name):
        self.until((self.gates / name / "reached").exists)

    def nodes(self):
        return self.slurm("squeue", "-h", "-n", self.run, "-o", "%N")

    def names(self):
        return self.slurm("scontrol", "show", "hostnames", self.nodes().strip()).split()

    def lose(self, node):
        slurm.stop_node(self.service, node, signal.SIGKILL)
        slurm.end_steps(self.service, node)

    def check(self, node):
        said, _ = self.waiter.communicate(timeout=240)
        line = self.status(self.run)[self.run]
        assert line["outcome"] == "infrastructure" and node in line["note"], line
        assert self.waiter.returncode == 4, said
        slurm.start_node(self.service, node)
        assert subprocess.run([PROGRAM, "collect", self.run], env=self.environment(), capture_output=True, timeout=120).returncode == 4


@contextlib.contextmanager
def loses(folder, service):
    losing = Losing(folder, service)
    try:
        yield losing
    finally:
        if losing.waiter and losing.waiter.poll() is None:
            losing.waiter.kill()
            losing.waiter.wait()


@pytest.fixture
def losing(tmp_path, service):
    with loses(tmp_path, service) as losing:
        yield losing


def test_when_the_job_has_its_nodes_and_its_script_has_not_begun(tmp_path, tmp_path_factory):
    """slurmd is in its prolog, which waits: Slurm says RUNNING, and no agent has been started."""
    gate = tmp_path / "gates/prolog"
    program = tmp_path / "prolog"
    program.write_text(PROLOG.format(gate=gate))
    program.chmod(0o755)
    with own_service(tmp_path_factory.mktemp("slurm"), slurmd_timeout=6, prolog=program) as service, loses(tmp_path, service) as losing:
        losing.gate("prolog")
        losing.begin(*THREE, *SLOW)
        losing.reach("prolog")
        node = losing.names()[0]
        losing.lose(node)
        (gate / "open").touch()  # for the node, when it is back
        losing.check(node)
        assert losing.manifest(losing.run)["sealed_by"] == "collect"
        assert not (losing.run_folder(losing.run) / "attempts/1/progress.json").exists()


@pytest.mark.parametrize("phase", ["rendezvous", "launch"])
def test_while_agents_meet_and_while_ranks_are_started(losing, phase):
    losing.gate(phase)
    losing.begin(*THREE, *SLOW)
    losing.reach(phase)
    node = losing.names()[1]
    losing.lose(node)
    (losing.gates / phase / "open").touch()
    losing.check(node)


@pytest.mark.parametrize("which", [0, 2], ids=["head", "other"])
def test_while_ranks_work(losing, which):
    losing.begin(*THREE, *SLOW)
    losing.until_running()
    losing.until(lambda: "save" in (losing.status(losing.run)[losing.run]["progress"] or ""))
    node = losing.names()[which]
    losing.lose(node)
    losing.check(node)
    assert losing.manifest(losing.run)["outcome"] == "infrastructure"


def processes(name, run):
    """Of that program, with the run's id in a word."""
    for entry in Path("/proc").iterdir():
        with contextlib.suppress(OSError):
            words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            if words and words[0].endswith(name.encode()) and any(run.encode() in word for word in words[1:]):
                yield int(entry.name)


def test_when_all_ranks_have_ended_and_nothing_is_sealed(losing):
    losing.begin(*THREE, "store=fault:delay=300ms:./slow", "iterations=20")
    losing.until_running()
    losing.until(lambda: "save" in (losing.status(losing.run)[losing.run]["progress"] or ""))
    head = min(processes("ckptbench-agent", losing.run))
    node = losing.names()[0]
    os.kill(head, signal.SIGSTOP)  # the ranks go on to their end; what they leave waits for it
    losing.until(lambda: not list(processes("ckptbench-worker", losing.run)))
    losing.lose(node)
    losing.check(node)
    assert losing.manifest(losing.run)["sealed_by"] == "collect"
