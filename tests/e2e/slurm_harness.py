"""What the tests of jobs share: a home on the cluster of CKPTBENCH_TEST_SLURM, and ways to ask."""
import contextlib
import json
import os
import subprocess
import sys
import time
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parent.parent))
from harness import PROGRAM
from services import slurm  # noqa: E402

VARIABLE = "CKPTBENCH_TEST_SLURM"
MISSING = f"{VARIABLE} names no slurm.conf: a Slurm cluster is missing (tests/services/slurm.py starts one)"
TINY = ("model=gpt2-tiny", "ranks=2", "baseline=false", "iterations=1", "warmup=0")
FINAL = ("done", "failed", "cancelled", "lost")


class Cluster:
    """A controller of its own (home and store) on a cluster that others use, too."""

    def __init__(self, folder, configuration):
        self.folder = folder
        self.configuration = Path(configuration)
        self.home = folder / "home"

    def environment(self, **more):
        """Shared memory between ranks of two "nodes" of one machine crashes Open MPI: it must not take them for one."""
        return dict(os.environ, CKPTBENCH_HOME=str(self.home), SLURM_CONF=str(self.configuration), OMPI_MCA_btl="self,tcp", **more)

    def call(self, *words, code=0, timeout=400, **more):
        result = subprocess.run([PROGRAM, *words], cwd=self.folder, env=self.environment(**more), capture_output=True, text=True,
                                timeout=timeout)
        assert result.returncode == code, f"{words}: {result.returncode}\n{result.stdout}\n{result.stderr}"
        return result

    def document(self, *words, **options):
        return json.loads(self.call(*words, "--json", **options).stdout)

    def slurm(self, *words, check=True, **more):
        """A command of Slurm itself."""
        result = subprocess.run(words, cwd=self.folder, env=self.environment(**more), capture_output=True, text=True, timeout=120)
        assert not check or result.returncode == 0, f"{words}: {result.stdout}{result.stderr}"
        return result.stdout

    def submit(self, *words, **options):
        """The ids of the runs, and their jobs."""
        sent = self.document("submit", f"store={self.folder}/store", *words, **options)["runs"]
        return [run["run"] for run in sent], [run["job"] for run in sent]

    def submit_one(self, *words, **options):
        runs, jobs = self.submit(*words, **options)
        return runs[0], jobs[0]

    def status(self, *runs, **options):
        return {line["run"]: line for line in self.document("status", *runs, **options)}

    def wait_for(self, run, *states, seconds=200):
        """The run's line once it is in one of the states (any final one: only those)."""
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            line = self.status(run)[run]
            if line["state"] in states:
                return line
            assert line["state"] not in FINAL, line
            time.sleep(0.1)
        raise AssertionError(f"{run} is {line}, not {states}")

    def wait_final(self, *runs, seconds=200):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            lines = self.status(*runs)
            if all(line["state"] in FINAL for line in lines.values()):
                return lines
            time.sleep(0.2)
        raise AssertionError(f"not all have ended: {lines}")

    def run_folder(self, run):
        return self.home / "runs" / run

    def record(self, run):
        return json.loads((self.run_folder(run) / "job.json").read_text())

    def age_intent(self, run):
        """As if it had been given to sbatch a minute earlier: what has not come to Slurm by then never will."""
        record = self.record(run)
        record["intent_wall_ns"] = max(record["intent_wall_ns"] - 61 * 10**9, 0)
        (self.run_folder(run) / "job.json").write_text(json.dumps(record))

    def states(self, run):
        return [transition["state"] for transition in self.record(run)["transitions"]]

    def manifest(self, run, attempt=1):
        return json.loads((self.run_folder(run) / f"attempts/{attempt}/manifest.json").read_text())

    def jobs_named(self, run):
        """Every job of that name that Slurm remembers."""
        return self.slurm("squeue", "-h", "-a", "-t", "all", "-n", run, "-o", "%i").split()


@contextlib.contextmanager
def shared_cluster(folder, kind=Cluster):
    """On the cluster that others use, too; what is left of its jobs is ended."""
    (folder / "store").mkdir()
    cluster = kind(folder, os.environ[VARIABLE])
    yield cluster
    jobs = {line["job"].split("_")[0] for line in cluster.document("status") if line["job"] and line["state"] not in FINAL}
    if jobs:
        cluster.slurm("scancel", "-Q", *sorted(jobs), check=False)


@contextlib.contextmanager
def own_service(folder, **options):
    """A cluster of a test's own, which it may hurt; `folder` is the service's."""
    try:
        slurm.start(folder, **options)
        yield folder
    except slurm.Missing as missing:
        pytest.skip(str(missing))
    finally:
        slurm.stop(folder)
