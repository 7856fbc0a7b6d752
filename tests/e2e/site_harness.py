"""A laptop and a login node on one machine: homes of their own, and the cluster of CKPTBENCH_TEST_SLURM behind the second."""
import json
import os
import shutil
import subprocess
import time
from pathlib import Path

from harness import BUILD, PROGRAM
from slurm_harness import FINAL

PROGRAMS = ("ckptbench", "ckptbench-agent", "ckptbench-worker")


def install(prefix):
    """The programs of this build as an installation of their own."""
    (prefix / "bin").mkdir(parents=True)
    for name in PROGRAMS:
        shutil.copy2(BUILD / name, prefix / "bin" / name)
    return prefix


class Laptop:
    """Knows no Slurm: what it learns of jobs it learns from the site."""

    def __init__(self, folder, configuration):
        self.folder = folder
        self.home = folder / "laptop"
        self.there = folder / "login/home"  # the site's CKPTBENCH_HOME
        self.configuration = configuration
        self.prefix = install(folder / "login/ckptbench")
        (folder / "laptop-user").mkdir()
        (folder / "login/store").mkdir()
        self.environment = {name: value for name, value in os.environ.items() if not name.startswith(("SLURM_", "SBATCH_", "OMPI_"))}
        self.environment.update(HOME=str(folder / "laptop-user"), CKPTBENCH_HOME=str(self.home),
                                XDG_CONFIG_HOME=str(folder / "laptop-user/config"))

    def words_of_site(self):
        return (f"prefix={self.prefix}", f"home={self.there}", f"environment.SLURM_CONF={self.configuration}",
                "environment.OMPI_MCA_btl=self,tcp", f"environment.HOME={self.folder}/login")

    def write_site(self, name, **keys):
        """The file as a person would write it, without what `site add` checks."""
        folder = self.folder / "laptop-user/config/ckptbench/sites"
        folder.mkdir(parents=True, exist_ok=True)
        values = dict(word.split("=", 1) for word in self.words_of_site())
        values.update(keys)
        (folder / f"{name}.yaml").write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in values.items()))
        return name

    def call(self, *words, code=0, timeout=400, **more):
        result = subprocess.run([PROGRAM, *words], cwd=self.folder, env=dict(self.environment, **more), capture_output=True, text=True,
                                timeout=timeout, stdin=subprocess.DEVNULL)
        assert result.returncode == code, f"{words}: {result.returncode}\n{result.stdout}\n{result.stderr}"
        return result

    def document(self, *words, **options):
        return json.loads(self.call(*words, "--json", **options).stdout)

    def submit(self, site, *words, **options):
        return self.document("submit", "--site", site, f"store={self.folder}/login/store", *words, **options)

    def wait_final(self, *words, seconds=200):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            lines = {line["run"]: line for line in self.document("status", *words)}
            if all(line["state"] in FINAL for line in lines.values()):
                return lines
            time.sleep(0.3)
        raise AssertionError(f"not all have ended: {lines}")

    def wait_state(self, run, state, seconds=200):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            line, = self.document("status", run)
            if line["state"] == state:
                return line
            assert line["state"] not in FINAL, line
            time.sleep(0.2)
        raise AssertionError(f"{run} is {line}, not {state}")

    def there_call(self, *words):
        """The same program on the login node, by somebody who is logged in there."""
        environment = dict(self.environment, CKPTBENCH_HOME=str(self.there), SLURM_CONF=str(self.configuration), OMPI_MCA_btl="self,tcp")
        return subprocess.run([PROGRAM, *words], cwd=self.folder, env=environment, capture_output=True, text=True,
                              timeout=120, check=True).stdout

    def jobs_named(self, run):
        return subprocess.run(["squeue", "-h", "-a", "-t", "all", "-n", run, "-o", "%i"], env=dict(os.environ, SLURM_CONF=str(self.configuration)),
                              capture_output=True, text=True, timeout=120, check=True).stdout.split()

    def end_all(self):
        for line in json.loads(self.there_call("status", "--json")):
            if line["job"] and line["state"] not in FINAL:
                subprocess.run(["scancel", line["job"]], env=dict(os.environ, SLURM_CONF=str(self.configuration)), timeout=120, check=False)


def fake_program(prefix, text):
    """In the place of the ckptbench of an installation."""
    program = Path(prefix) / "bin/ckptbench"
    program.unlink(missing_ok=True)
    program.write_text(text)
    program.chmod(0o755)
