"""The README followed to its end by somebody new: a cluster behind SSH is added, a sweep over nodes with repeats runs there,
watched live, one of its members loses a node, and what came of it is collected once and compared."""
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from services import slurm, sshd
from harness import BUILD, PROGRAM
from site_harness import Laptop
from slurm_harness import FINAL

ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
def cluster(tmp_path_factory):
    """Folders of a Slurm and of the sshd of its login node."""
    folder = tmp_path_factory.mktemp("cluster")
    try:
        slurm.start(folder / "slurm", slurmd_timeout=6)
        sshd.start(folder / "sshd")
        yield folder
    except (slurm.Missing, sshd.Missing) as missing:
        pytest.skip(str(missing))
    finally:
        sshd.stop(folder / "sshd")
        slurm.stop(folder / "slurm")


@pytest.fixture
def laptop(tmp_path, cluster):
    laptop = Laptop(tmp_path, cluster / "slurm/slurm.conf")
    (tmp_path / "laptop-user/.ssh").mkdir()
    shutil.copy(cluster / "sshd/config", tmp_path / "laptop-user/.ssh/config")
    yield laptop
    laptop.end_all()


def lose_a_node(laptop, service, sweep):
    """Of the first member that saves on four nodes; returns that member and its node."""
    environment, deadline = slurm.clean_environment(service), time.monotonic() + 240
    while True:
        for line in slurm.call("squeue", "-h", "-t", "R", "-o", "%j %D %N", env=environment).stdout.splitlines():
            run, nodes, names = line.split()
            progress = laptop.there / "runs" / run / "attempts/1/progress.json"
            if run.startswith(sweep) and nodes == "4" and progress.exists() and '"save"' in progress.read_text():
                node = slurm.call("scontrol", "show", "hostnames", names, env=environment).stdout.split()[2]
                slurm.stop_node(service, node, signal.SIGKILL)
                slurm.end_steps(service, node)
                return run, node
        assert time.monotonic() < deadline, watched_states(laptop, sweep)
        time.sleep(0.1)


def watched_states(laptop, sweep):
    return {line["run"]: line["state"] for line in laptop.document("status", sweep)}


def test_a_new_user_with_the_readme_alone(laptop, cluster):
    added = laptop.call("site", "add", "tor", "--host", "node-a", *laptop.words_of_site(), "--nodes", "4", timeout=300)
    assert "site tor is ready" in added.stdout and "4 nodes met" in added.stdout
    sent = laptop.call("submit", "--site", "tor", "model=gpt2-tiny", "nodes=2,3,4", "ranks_per_node=1", "repeat=2", "ops=save", "iterations=40",
                       "baseline=false", f"store=fault:delay=100ms:{laptop.folder}/login/store").stdout
    assert "submitted 6 runs" in sent
    sweep = sent.split("(sweep ")[1].split(")")[0]
    watched = laptop.folder / "watched"
    with open(watched, "w") as out:
        watch = subprocess.Popen([PROGRAM, "status", "--watch", sweep], cwd=laptop.folder, env=laptop.environment, stdout=out,
                                 stderr=subprocess.STDOUT)
    try:
        lost, node = lose_a_node(laptop, cluster / "slurm", sweep)
        deadline = time.monotonic() + 200
        while watched_states(laptop, sweep)[lost] not in FINAL:
            assert time.monotonic() < deadline
            time.sleep(0.5)
        slurm.start_node(cluster / "slurm", node)
        lines = laptop.wait_final(sweep, seconds=300)
        watch.wait(timeout=120)  # it ends when nothing can change any more
    finally:
        watch.kill()
        watch.wait()
    assert len(lines) == 6 and sorted(line["nodes"] for line in lines.values()) == [2, 2, 3, 3, 4, 4]
    assert lines.pop(lost)["outcome"] == "infrastructure" and {line["outcome"] for line in lines.values()} == {"pass"}
    seen = watched.read_text()
    assert "running" in seen and "save" in seen and all(run in seen for run in lines)
    shown = laptop.call("show", lost).stdout
    assert node in shown and "infrastructure" in shown
    assert laptop.call("collect", lost, code=4)
    before = laptop.document("sql", "select count(*) as samples from sample")
    for _ in range(2):
        assert "0 ingested, 6 known, 0 not sealed, 0 failed" in laptop.call("collect").stdout
    assert laptop.document("sql", "select count(*) as samples from sample") == before
    compared = subprocess.run([PROGRAM, "compare", sweep, "--by", "nodes"], cwd=laptop.folder, env=laptop.environment, capture_output=True,
                              text=True, timeout=120)
    assert compared.returncode in (0, 5, 6) and "save_s" in compared.stdout, compared
    assert "nodes=2" in compared.stdout and "nodes=3" in compared.stdout


def test_the_cluster_to_play_with_shows_itself_and_goes(tmp_path):
    shown = subprocess.run(["scripts/demo_slurm.sh", str(BUILD)], cwd=ROOT, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=280,
                           env=dict(os.environ, HOME=str(tmp_path)))
    assert shown.returncode == 0, shown.stdout + shown.stderr
    assert "$ sinfo" in shown.stdout and "$ ckptbench submit" in shown.stdout and shown.stdout.count("done") >= 3
    assert not Path(shown.stdout.split("Runs and history are in ")[1].split(",")[0]).exists()
