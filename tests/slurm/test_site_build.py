"""A site that has no programs yet gets them: built there from the sources of this release, once."""
import os
import shutil
import subprocess
from pathlib import Path

import pytest
from harness import BUILD
from site_harness import Laptop
from slurm_harness import MISSING, TINY, VARIABLE

pytestmark = pytest.mark.skipif(not os.environ.get(VARIABLE), reason=MISSING)
assert VARIABLE == "CKPTBENCH_TEST_SLURM"  # tests/run.py looks for the name in this file
ROOT = Path(__file__).resolve().parents[2]


def make_mpich(folder):
    """A folder as `mpi=` wants it, with MPICH's programs under their usual names."""
    (folder / "bin").mkdir(parents=True)
    for name in ("mpicc", "mpirun"):
        (folder / "bin" / name).write_text(f'#!/bin/sh\nexec /usr/bin/{name}.mpich "$@"\n')
        (folder / "bin" / name).chmod(0o755)
    return folder


@pytest.mark.parametrize("mpi", ["Open MPI", "MPICH"])
def test_a_site_is_built_once_with_its_mpi_and_used(tmp_path, mpi):
    subprocess.run(["make", "-s", f"BUILD={BUILD}", "dist"], cwd=ROOT, check=True, timeout=120)
    laptop = Laptop(tmp_path, os.environ[VARIABLE])
    shutil.rmtree(laptop.prefix)
    words = [word for word in laptop.words_of_site() if not word.startswith("prefix=")]
    words += [f"mpi={make_mpich(tmp_path / 'login/mpich')}"] if mpi == "MPICH" else []
    first = laptop.call("site", "add", "tor", *words, timeout=1800)
    assert "building" in first.stderr and "site tor is ready" in first.stdout
    prefix = Path(laptop.document("site", "show", "tor")["prefix"])
    assert (prefix / "bin/ckptbench-worker").exists() and not list(prefix.parent.glob("*.sources"))
    assert prefix.is_relative_to(tmp_path / "login")
    again = laptop.call("site", "add", "tor")
    assert "building" not in again.stderr and "site tor is ready" in again.stdout
    laptop.call("submit", "--site", "tor", "--wait", *TINY, f"store={tmp_path}/login/store")
    (run,) = laptop.document("list")
    assert run["outcome"] == "pass"
    records = next((laptop.home / "runs" / run["run"]).glob("attempts/*/records")).read_bytes()
    assert f"mpi={mpi}".encode() in records


def test_what_building_lacks_is_named(tmp_path):
    subprocess.run(["make", "-s", f"BUILD={BUILD}", "dist"], cwd=ROOT, check=True, timeout=120)
    laptop = Laptop(tmp_path, os.environ[VARIABLE])
    bare = tmp_path / "bare"
    bare.mkdir()
    for program in ("sh", "bash", "printenv", "env", "tar", "gzip", "pkg-config"):
        (bare / program).symlink_to(shutil.which(program))
    words = [word for word in laptop.words_of_site() if not word.startswith("prefix=")]
    lacking = laptop.call("site", "add", "tor", *words, f"environment.PATH={bare}", code=2)
    assert "lacks, to build there: make gcc ar mpicc" in lacking.stderr


def test_where_ranks_start_in_an_image_no_mpi_is_needed_and_no_worker_built(tmp_path):
    """What `make` would do there is looked at; doing it is the test above."""
    subprocess.run(["make", "-s", f"BUILD={BUILD}", "dist"], cwd=ROOT, check=True, timeout=120)
    laptop = Laptop(tmp_path, os.environ[VARIABLE])
    bare = tmp_path / "bare"
    bare.mkdir()
    for program in Path("/usr/bin").iterdir():
        if not program.name.startswith(("mpi", "ompi", "opal", "orte")) and program.name != "make":
            (bare / program.name).symlink_to(program)
    (bare / "make").write_text(f'#!/bin/sh\n/usr/bin/make -n "$@" > {tmp_path}/made\necho nothing is made >&2\nexit 1\n')
    (bare / "make").chmod(0o755)
    words = [word for word in laptop.words_of_site() if not word.startswith("prefix=")]
    failed = laptop.call("site", "add", "tor", *words, f"environment.PATH={bare}", "container=ch-run /image --", code=4)
    assert "nothing is made" in failed.stderr
    made = (tmp_path / "made").read_text()
    assert "build/ckptbench-agent " in made and "mpicc" not in made and "comm/comm_mpi.c" not in made
    assert "install -m 755 build/ckptbench build/ckptbench-agent " in made
