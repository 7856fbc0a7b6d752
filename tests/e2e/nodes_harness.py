"""A run on several nodes, with our worker in the place of the real one, and what must not be left of it."""
import contextlib
import json
import os
import shutil
import signal
import time
from pathlib import Path

from harness import BUILD

SHM = Path("/dev/shm")


class Run:
    def __init__(self, folder, worker="tests/fake_worker", **settings):
        self.folder = folder
        folder.mkdir()
        self.programs = folder / "programs"
        self.programs.mkdir()
        shutil.copy(BUILD / "ckptbench-agent", self.programs / "ckptbench-agent")
        shutil.copy(BUILD / worker, self.programs / "ckptbench-worker")
        self.run = folder / f"run-{os.getpid()}-{os.urandom(3).hex()}"
        (self.run / "attempts").mkdir(parents=True)
        settings = {"iterations": 3, "warmup": 1, "store": str(folder / "store"), **settings}
        lines = ["version: 1"] + [f'{key.replace("_", ".")}: "{value}"' for key, value in settings.items()]
        (self.run / "experiment.yaml").write_text("\n".join(lines) + "\n")
        self.attempt = self.run / "attempts/1"

    def await_(self, condition, seconds=200):
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < deadline, f"it did not happen in time: {self.logs()}"
            time.sleep(0.05)
        return found

    def logs(self):
        return {path.name: path.read_text(errors="replace")[-2000:] for path in (*self.run.glob("attempts/*/logs/*.log"), *self.folder.glob("*.log"))}

    def read(self, name):
        try:
            return json.loads((self.attempt / name).read_text())
        except (OSError, ValueError):
            return {}

    def await_manifest(self, seconds=200):
        return self.await_(lambda: self.read("manifest.json"), seconds)

    def progress(self):
        return self.read("progress.json")

    def rendezvous(self):
        return self.read("rendezvous.json")

    def processes(self, *words):
        """Those of this run's programs; of one program and first argument, where given."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                arguments = path.read_bytes().decode(errors="replace").split("\0")
            except OSError:
                continue
            named = arguments[0].startswith(str(self.programs))
            if named and (not words or arguments[:2] == [f"{self.programs}/{words[0]}", *words[1:]]):
                found.append(int(path.parent.name))
        return found

    def only_process(self, *words):
        found = self.await_(lambda: self.processes(*words))
        assert len(found) == 1, found
        return found[0]

    def assert_nothing_left(self, seconds=60, stale_pages=False):
        """No process and no folder of status pages; those of an agent that was killed stay until the next start."""
        deadline = time.monotonic() + seconds
        while True:
            left = self.processes(), [] if stale_pages else [path.name for path in SHM.glob(f"ckptbench-{self.run.name}-*")]
            if not any(left) or time.monotonic() >= deadline:
                break
            time.sleep(0.05)
        assert left == ([], []), self.logs()

    def end(self):
        for pid in self.processes():
            with contextlib.suppress(ProcessLookupError):  # it has ended by itself meanwhile
                os.kill(pid, signal.SIGKILL)
        for path in SHM.glob(f"ckptbench-{self.run.name}-*"):
            shutil.rmtree(path, ignore_errors=True)
