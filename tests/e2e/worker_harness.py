"""Runs ckptbench-worker under the real launcher with status pages made by worker_pages, for tests."""
import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from harness import BUILD, mpirun

WORKER = BUILD / "ckptbench-worker"
PAGES = BUILD / "tests/worker_pages"

FLAG_WARMUP, FLAG_SUSPECTED, FLAG_UNKNOWN, FLAG_FAILED = 1, 2, 4, 8


class Run:
    """One run of N ranks over a store folder; keys are options of the experiment."""

    def __init__(self, where, ranks=2, name="run", store=None, **keys):
        self.ranks, self.name = ranks, name
        self.run_folder, self.pages = where / name, where / f"{name}-pages"
        self.store = where / "store"
        self.pages.mkdir()
        settings = {"model": "gpt2-tiny", "ranks": ranks, "iterations": 1, "warmup": 0, "baseline": "false"}
        settings["store"] = store or self.store
        settings.update({key.replace("__", "."): value for key, value in keys.items()})
        words = [f"{key}={value}" for key, value in settings.items()]
        subprocess.run([PAGES, "make", self.run_folder, self.pages, str(ranks), *words], check=True, timeout=120)

    def start(self, attempt=1):
        command = [WORKER, "--run-folder", self.run_folder, "--attempt", str(attempt), "--pages", self.pages]
        launcher = [*mpirun(), "-n", str(self.ranks)]
        environment = dict(os.environ)
        environment.setdefault("CKPTBENCH_PYTHON", sys.executable)
        # Ranks that are killed leave their shared memory here, where it goes with the test's folder.
        environment["OMPI_MCA_btl_vader_backing_directory"] = str(self.pages)
        self.process = subprocess.Popen(
            [*launcher, *command], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment,
            start_new_session=True,
        )
        return self

    def wait(self, timeout=120):
        try:
            self.stdout, self.stderr = self.process.communicate(timeout=timeout)
        except subprocess.TimeoutExpired:
            os.killpg(self.process.pid, signal.SIGKILL)
            self.process.communicate()
            raise
        self.code = self.process.returncode
        return self

    def run(self, timeout=120, attempt=1):
        return self.start(attempt).wait(timeout)

    def stop(self, when):
        subprocess.run([PAGES, "stop", self.pages, str(self.ranks), when], check=True, timeout=120)

    @property
    def page(self):
        shown = subprocess.run([PAGES, "show", self.pages, str(self.ranks)], check=True, capture_output=True, timeout=120)
        return json.loads(shown.stdout)

    def samples(self, op, rank=0):
        return [sample for sample in self.page[rank]["samples"] if sample["op"] == op]

    def facts(self, rank=0):
        return dict(line.split("=", 1) for line in self.page[rank]["facts"].splitlines())

    def failures(self):
        """Reasons, without those of ranks that only heard of another's."""
        return "\n".join(page["failures"] for page in self.page if page["failure"] != "aborted").strip()

    def wait_until(self, condition, timeout=120):
        end = time.monotonic() + timeout
        while not condition(self.page):
            assert time.monotonic() < end, self.page
            assert self.process.poll() is None, self.wait().stderr
            time.sleep(0.02)

    def wait_until_ranks_are_gone(self, timeout=120):
        """A killed rank still uses its files until the kernel has ended it; a zombie does not."""
        end = time.monotonic() + timeout
        for rank in self.page:
            stat = Path(f"/proc/{rank['pid']}/stat")
            while rank["pid"]:
                try:
                    if stat.read_text().rpartition(")")[2].split()[0] in "ZX":
                        break
                except (FileNotFoundError, ProcessLookupError):
                    break
                assert time.monotonic() < end, f"rank process {rank['pid']} lives on"
                time.sleep(0.02)

    def checkpoint(self):
        """The one checkpoint in the store that has its commit marker."""
        markers = list(self.store.glob("**/.metadata"))
        assert len(markers) == 1, markers
        return markers[0].parent

    def assert_no_half_checkpoint(self):
        """No marker without all of the bytes: what is committed must load."""
        for marker in self.store.glob("**/.metadata"):
            assert marker.stat().st_size > 0


def passed(run):
    assert run.code == 0, (run.stderr, run.failures())
    assert [page["phase"] for page in run.page] == ["done"] * run.ranks
    return run


def failed(run, code, *words):
    assert run.code != 0
    page = run.page
    assert all(rank["phase"] in ("failed", "ready", "running", "starting") for rank in page)
    assert code in [rank["failure"] for rank in page], page
    text = run.failures()
    for word in words:
        assert word in text, text
    return run
