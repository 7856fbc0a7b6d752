"""Programs of two releases side by side, on a cluster: told before anything waits in a queue, or where they meet."""
import os
import subprocess

import pytest
from harness import BUILD
from site_harness import install
from slurm_harness import MISSING, TINY, VARIABLE, shared_cluster, slurm

pytestmark = pytest.mark.skipif(not os.environ.get(VARIABLE), reason=MISSING)
assert VARIABLE == "CKPTBENCH_TEST_SLURM"  # tests/run.py looks for the name in this file
OTHER = "9.9.9"
# In front of srun: agents of other nodes find another program where theirs was, as after an installation in the middle of a job.
SRUN = """\
#!/bin/sh
case " $* " in *" node --head "*) mv "{other}" "{agent}" ;; esac
exec {srun} "$@"
"""


def release_of(program):
    return subprocess.run([program, "--version"], capture_output=True, text=True, check=True, timeout=120).stdout.split()[1]


def write_other(program, path):
    """The same program, but for what it says to be."""
    old = release_of(program).encode()
    assert len(old) == len(OTHER)
    path.write_bytes(program.read_bytes().replace(old + b"\0", OTHER.encode() + b"\0"))
    path.chmod(0o755)
    assert release_of(path) == OTHER


@pytest.fixture
def cluster(tmp_path):
    with shared_cluster(tmp_path) as cluster:
        cluster.programs = install(tmp_path / "programs") / "bin"
        yield cluster


def call(cluster, *words, code, **more):
    """By the programs of this test."""
    result = subprocess.run([cluster.programs / "ckptbench", *words], cwd=cluster.folder, env=cluster.environment(**more), capture_output=True,
                            text=True, timeout=120)
    assert result.returncode == code, f"{words}: {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result


def test_an_agent_of_another_release_is_refused_before_anything_is_planned(cluster):
    agent = cluster.programs / "ckptbench-agent"
    agent.unlink()
    write_other(BUILD / "ckptbench-agent", agent)
    for words in (("submit", *TINY), ("submit", *TINY, "--dry-run"), ("render", *TINY), ("run", *TINY), ("warm", "start", "p", "mode=hold", "nodes=1", "for=1m")):
        said = call(cluster, *words, *(["store=./store"] if words[0] != "warm" else []), code=2).stderr
        assert f"{agent} is of release {OTHER}" in said and f"this is ckptbench {release_of(BUILD / 'ckptbench')}" in said
        assert "install ckptbench, ckptbench-agent and ckptbench-worker of one release" in said
    assert cluster.document("status") == [] and not list(cluster.home.glob("runs/*")) and not list(cluster.home.glob("warm/*"))


@pytest.mark.parametrize("nodes", [1, 2])
def test_a_worker_of_another_release_starts_nothing_and_says_why(cluster, nodes):
    worker = cluster.programs / "ckptbench-worker"
    worker.unlink()
    write_other(BUILD / "ckptbench-worker", worker)
    said = call(cluster, "submit", "--wait", "model=gpt2-tiny", f"nodes={nodes}", "ranks_per_node=1", f"store={cluster.folder}/store", code=4).stderr
    assert f"the ranks did not start: " in said and f"this is ckptbench-worker {OTHER}" in said and "install one release" in said
    (line,) = cluster.document("status")
    assert line["outcome"] == "infrastructure"


def test_an_agent_of_another_release_on_another_node_ends_the_run_with_its_name(cluster):
    write_other(BUILD / "ckptbench-agent", cluster.programs / "other")
    (cluster.folder / "bin").mkdir()
    srun = cluster.folder / "bin/srun"
    srun.write_text(SRUN.format(other=cluster.programs / "other", agent=cluster.programs / "ckptbench-agent", srun=slurm.find("srun")))
    srun.chmod(0o755)
    said = call(cluster, "submit", "--wait", "model=gpt2-tiny", "nodes=2", "ranks_per_node=1", f"store={cluster.folder}/store", code=4,
                PATH=f"{cluster.folder}/bin:{os.environ['PATH']}").stderr
    assert f"has ckptbench-agent {OTHER}" in said and "install one release on all nodes" in said
    (line,) = cluster.document("status")
    assert line["outcome"] == "infrastructure" and line["note"].startswith("node n")
