"""A cluster with accounting (slurmdbd and MariaDB): how jobs ended that squeue and scontrol have forgotten, and accounts that Slurm
does not take."""
import shutil
import signal
import subprocess
import time

import pytest
from services import accounting, slurm
from harness import BUILD, PROGRAM
from site_harness import Laptop
from slurm_harness import TINY, Cluster

pytestmark = pytest.mark.xdist_group("accounting")  # one cluster for all of them
# In the place of the agent: leaves nothing, so that Slurm alone knows how it ended. The warning before a time limit is not its end.
AGENT = """\
#!/bin/sh
trap '' USR1
[ "$1" = run ] || exit 0
case "$2" in
    *-completed) exit 0 ;;
    *-failed | *-stolen) exit 7 ;;
    *-again) [ "${SLURM_RESTART_COUNT:-0}" = 0 ] || exit 3 ;;
esac
exec sleep 300
"""
ENDS = {  # state in accounting; state, outcome and note of the run
    "completed": ("COMPLETED", "lost", "lost", "COMPLETED, but the agent left no result"),
    "failed": ("FAILED", "failed", "infrastructure", "exit status 7"),
    "timeout": ("TIMEOUT", "failed", "timeout", "time limit passed"),
    "cancelled": ("CANCELLED by", "cancelled", "cancelled", "cancelled in Slurm"),
    "lost": ("NODE_FAIL", "failed", "infrastructure", "n3"),
    "preempted": ("PREEMPTED", "failed", "preempted", "preempted"),
    "again": ("FAILED", "failed", "infrastructure", "exit status 3"),  # of its second start
}


@pytest.fixture(scope="module")
def service(tmp_path_factory):
    folder = tmp_path_factory.mktemp("accounting")
    try:
        accounting.start(folder, slurmd_timeout=6)
        yield folder
    except slurm.Missing as missing:
        pytest.skip(str(missing))
    finally:
        accounting.stop(folder)


class Accounted(Cluster):
    def __init__(self, folder, service):
        super().__init__(folder, service / "slurm.conf")
        (folder / "store").mkdir()
        (folder / "bin").mkdir()
        shutil.copy2(BUILD / "ckptbench", folder / "bin/ckptbench")
        agent = folder / "bin/ckptbench-agent"
        agent.write_text(AGENT)
        agent.chmod(0o755)

    def start(self, end, node, *words):
        """A run that ends so, on that node."""
        sent = subprocess.run([self.folder / "bin/ckptbench", "submit", "--id", f"end-{end}", *TINY, f"store={self.folder}/store",
                               "slurm.time=1m", f"slurm.extra=--nodelist={node}", *words],
                              cwd=self.folder, env=self.environment(), capture_output=True, text=True, timeout=120)
        assert sent.returncode == 0, sent.stderr
        return self.record(f"end-{end}")["job"]

    def until(self, what, *words, seconds=200):
        """A command of Slurm says it."""
        deadline = time.monotonic() + seconds
        while what not in (said := self.slurm(*words)):
            assert time.monotonic() < deadline, f"{words}: {said}"
            time.sleep(0.1)

    def until_state(self, job, state, seconds=200):
        self.until(state, "squeue", "-h", "-a", "-t", "all", "-j", job, "-o", "%T", seconds=seconds)

    def push_off(self, job, node):
        """A job of urgent takes the node for a moment."""
        self.until_state(job, "RUNNING")
        self.slurm("sbatch", "--parsable", "-p", "urgent", "-w", node, "--exclusive", "--wrap", "sleep 0.5", "-o", "/dev/null")


@pytest.fixture
def cluster(tmp_path, service):
    return Accounted(tmp_path, service)


def test_an_account_is_used_and_one_that_does_not_exist_is_refused(cluster, tmp_path):
    refused = cluster.call("submit", *TINY, "store=./store", "slurm.account=nobody", code=2).stderr
    assert "slurm.account=nobody" in refused and "Invalid account" in refused
    assert cluster.document("list") == []
    run, job = cluster.submit_one(*TINY, "ops=save", f"slurm.account={accounting.ACCOUNT}")
    assert cluster.wait_final(run)[run]["outcome"] == "pass"
    cluster.until(f"{accounting.ACCOUNT}|COMPLETED", "sacct", "-X", "-n", "-P", "-j", job, "-o", "Account,State")
    (tmp_path / "laptop").mkdir()
    laptop = Laptop(tmp_path / "laptop", cluster.configuration)
    added = laptop.call("site", "add", "tor", f"account={accounting.ACCOUNT}", *laptop.words_of_site()).stdout
    assert "accounting" in added and "sacct answers" in added and "site tor is ready" in added
    assert "Invalid account" in laptop.call("site", "add", "tor", "account=nobody", *laptop.words_of_site(), code=4).stdout


def end_all(cluster, service):
    """Runs that end in every way, on a node each; their jobs by how they end."""
    jobs = {"stolen": cluster.start("stolen", "n4")}  # the first: its number is the first to be given again
    jobs |= {end: cluster.start(end, "n4") for end in ("completed", "failed")}
    jobs["preempted"] = cluster.start("preempted", "n4", "slurm.partition=scavenge")
    jobs["timeout"] = cluster.start("timeout", "n1")
    jobs["lost"] = cluster.start("lost", "n3")
    jobs["cancelled"] = cluster.start("cancelled", "n2")
    jobs["again"] = cluster.start("again", "n2", "slurm.partition=scavenge", "slurm.requeue=true")
    cluster.until_state(jobs["timeout"], "RUNNING")
    cluster.slurm("scontrol", "update", f"JobId={jobs['timeout']}", "EndTime=now+1")  # looked at every 30 s
    cluster.until_state(jobs["lost"], "RUNNING")
    slurm.stop_node(service, "n3", signal.SIGKILL)  # what the job has there lives: it has no word in this
    cluster.until_state(jobs["cancelled"], "RUNNING")
    cluster.slurm("scancel", jobs["cancelled"])
    cluster.push_off(jobs["preempted"], "n4")
    cluster.push_off(jobs["again"], "n2")
    for end, (state, *_) in ENDS.items():
        cluster.until(state, "sacct", "-X", "-n", "-P", "-j", jobs[end], "-o", "State")
    cluster.until("7:0", "sacct", "-X", "-n", "-P", "-j", jobs["stolen"], "-o", "ExitCode")
    return jobs


def test_accounting_tells_the_end_of_jobs_that_slurm_has_forgotten(cluster, service):
    slurm.forget_jobs(service)  # numbers begin at 1
    jobs = end_all(cluster, service)
    assert len(cluster.slurm("sacct", "-D", "-X", "-n", "-P", "-j", jobs["again"], "-S", "now-1hour", "-o", "JobName").split("end-again\n")) == 3
    slurm.forget_jobs(service)
    assert not cluster.slurm("squeue", "-h", "-a", "-t", "all").strip()
    other = ""
    while other != jobs["stolen"]:  # not tested before: tests take numbers, too
        other = cluster.slurm("sbatch", "--parsable", "-w", "n4", "-J", "somebody-elses", "--wrap", "sleep 60", "-o", "/dev/null").strip()
        assert int(other) <= int(jobs["stolen"])
    accounting.stop_slurmdbd(service)
    silent = cluster.call("status", "--json", code=4)
    assert "accounting does not answer" in silent.stderr and '"lost"' not in silent.stdout
    accounting.start_slurmdbd(service)
    lines = cluster.status()
    for end, (_, state, outcome, note) in ENDS.items():
        line = lines[f"end-{end}"]
        assert (line["state"], line["outcome"]) == (state, outcome) and note in line["note"], line
    stolen = lines["end-stolen"]
    assert stolen["outcome"] in ("lost", "infrastructure"), stolen  # whether accounting still tells it from the other, which runs
    assert subprocess.run([PROGRAM, "collect", "end-lost"], env=cluster.environment(), capture_output=True, timeout=120).returncode == 4
    cluster.slurm("scancel", "--me")
    slurm.end_steps(service, "n3")
    slurm.start_node(service, "n3")
