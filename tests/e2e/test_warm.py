"""Warm pools on a real Slurm: allocations that are held, nodes that are touched, and their ends."""
import fcntl
import json
import os
import shutil
import time

import pytest
from site_harness import Laptop
from slurm_harness import FINAL, MISSING, TINY, VARIABLE, Cluster

pytestmark = pytest.mark.skipif(not os.environ.get(VARIABLE), reason=MISSING)
assert VARIABLE == "CKPTBENCH_TEST_SLURM"  # tests/run.py looks for the name in this file
SLOW = (*TINY, "store=fault:delay=300ms:./slow", "iterations=2000", "ops=save", "verify=none")
QUICK = (*TINY, "ops=save")
A_MINUTE = 1 / 60  # in node-hours; what Slurm may take to end a job on a busy machine


class Pools(Cluster):
    def list(self):
        return {line["pool"]: line for line in self.document("warm", "list")}

    def start(self, name, *words, **options):
        (line,) = [line for line in self.document("warm", "start", name, *words, **options) if line["pool"] == name and line["state"] != "ended"]
        return line

    def folder_of(self, name):
        return self.home / "pools" / self.list()[name]["id"]

    def jobs_of(self, line):
        return self.slurm("squeue", "-h", "-a", "-n", line["id"], "-o", "%i").split()

    def wait_until(self, name, test, seconds=200):
        deadline = time.monotonic() + seconds
        while time.monotonic() < deadline:
            line = self.list()[name]
            if test(line):
                return line
            time.sleep(0.2)
        raise AssertionError(f"pool {name} is {line}")

    def wait_for_saves(self, run):
        """Until ranks are at work: before that, a run that is "running" may have no agent."""
        deadline = time.monotonic() + 200
        while "save" not in (self.status(run)[run]["progress"] or ""):
            assert time.monotonic() < deadline, self.status(run)
            time.sleep(0.1)

    def wait_gone(self, line, seconds=200):
        deadline = time.monotonic() + seconds
        while self.jobs_of(line):
            assert time.monotonic() < deadline, self.slurm("squeue", "-a")
            time.sleep(0.2)


@pytest.fixture
def pools(tmp_path):
    (tmp_path / "store").mkdir()
    (tmp_path / "slow").mkdir()
    pools = Pools(tmp_path, os.environ[VARIABLE])
    yield pools
    for line in pools.document("warm", "list"):
        pools.slurm("scancel", "-Q", "-n", line["id"], check=False)


def test_a_run_goes_through_a_held_allocation_as_a_step_of_it(pools):
    started = pools.start("night", "mode=hold", "nodes=1", "for=5m", "budget=1node-hours")
    run, job = pools.submit_one(*QUICK, "--warm", "night")
    assert job is None
    line = pools.wait_final(run)[run]
    assert line["outcome"] == "pass" and line["job"].split(".")[0] == started["job"] and line["job"].split(".")[1].isdigit()
    assert line["queue_s"] >= 0 and line["boot_s"] == 0
    assert pools.states(run)[:2] == ["planned", "submitted"] and pools.states(run)[-1] == "done"
    assert pools.jobs_named(run) == []
    listed = pools.list()["night"]
    assert listed["state"] == "up" and listed["runs"] == 1 and 0 < listed["node_hours"] < 1 and listed["saved_s"] == 0
    assert "is there" in pools.call("warm", "start", "night", "nodes=1", "for=1m", code=2).stderr
    pools.call("warm", "stop", "night")
    assert pools.list()["night"]["state"] == "ended" and not pools.jobs_of(listed)
    (kept,) = pools.document("sql", "select pool, mode, nodes, runs, jobs, node_hours, ended_ns, note from pool")
    assert (kept["pool"], kept["mode"], kept["nodes"], kept["runs"], kept["jobs"]) == ("night", "hold", 1, 1, 1)
    assert kept["node_hours"] >= listed["node_hours"] and kept["ended_ns"] and kept["note"]
    pools.call("collect", "--rebuild")
    assert pools.document("sql", "select pool from pool") == [{"pool": "night"}]
    pools.call("submit", *QUICK, "store=./store", "--warm", "night", code=2)
    assert "ended" in pools.call("warm", "stop", "night").stderr


def test_runs_of_a_spool_come_in_order_and_each_can_be_cancelled(pools):
    pools.start("p", "mode=hold", "nodes=1", "for=5m")
    first, _ = pools.submit_one(*SLOW, "--warm", "p")
    second, _ = pools.submit_one(*QUICK, "--warm", "p")
    third, _ = pools.submit_one(*QUICK, "--warm", "p")
    fourth, _ = pools.submit_one(*QUICK, "--warm", "p")
    pools.wait_for_saves(first)
    waiting = pools.status(second)[second]
    assert waiting["state"] == "pending" and "in the spool of pool p" in waiting["note"]
    pools.call("cancel", third)
    assert pools.wait_final(third)[third]["outcome"] == "cancelled"
    assert pools.status(first)[first]["state"] == "running"
    pools.call("cancel", first)
    lines = pools.wait_final(first, second, fourth)
    assert [lines[run]["outcome"] for run in (first, second, fourth)] == ["cancelled", "pass", "pass"]
    assert pools.manifest(first)["sealed_by"] == "agent"
    began = [json.loads(path.read_text())["started_wall_ns"] for path in sorted((pools.folder_of("p") / "done").iterdir())]
    assert len(began) == 3 and began == sorted(began)
    assert pools.list()["p"]["state"] == "up"
    pools.call("warm", "stop", "p")


def test_a_pool_that_is_stopped_ends_its_run_and_gives_back_what_waits(pools):
    started = pools.start("p", "mode=hold", "nodes=1", "for=5m")
    first, _ = pools.submit_one(*SLOW, "--warm", "p")
    second, _ = pools.submit_one(*QUICK, "--warm", "p")
    pools.wait_for_saves(first)
    pools.call("warm", "stop", "p")
    assert not pools.jobs_of(started)
    lines = pools.wait_final(first, second)
    assert lines[first]["outcome"] == "cancelled" and pools.manifest(first)["sealed_by"] == "agent"
    assert lines[second]["outcome"] == "cancelled" and "ended before this run was started" in lines[second]["note"]


def test_a_waiter_that_is_killed_leaves_no_run_waiting(pools):
    started = pools.start("p", "mode=hold", "nodes=1", "for=5m")
    first, _ = pools.submit_one(*SLOW, "--warm", "p")
    second, _ = pools.submit_one(*QUICK, "--warm", "p")
    pools.wait_for_saves(first)
    pools.slurm("scancel", "--signal=KILL", "--full", started["job"])
    pools.wait_gone(started)
    lines = pools.wait_final(first, second)
    assert lines[first]["outcome"] in ("cancelled", "infrastructure", "lost")
    assert lines[second]["outcome"] == "cancelled" and "ended before" in lines[second]["note"]


def test_a_budget_that_is_used_up_ends_the_pool_whoever_looks(pools):
    started = pools.start("p", "mode=hold", "nodes=1", "for=5m", "budget=0.015")  # 54 seconds
    first, _ = pools.submit_one(*SLOW, "--warm", "p")
    second, _ = pools.submit_one(*QUICK, "--warm", "p")
    pools.wait_gone(started)  # nobody has asked ckptbench for anything since
    line = pools.list()["p"]
    assert line["state"] == "ended" and "budget" in line["note"]
    assert line["node_hours"] <= line["budget_node_hours"] + A_MINUTE
    lines = pools.wait_final(first, second)
    assert lines[first]["outcome"] == "timeout" and pools.manifest(first)["samples"] > 0
    assert lines[second]["outcome"] == "cancelled"


def test_a_run_on_several_nodes_uses_those_of_the_pool(pools):
    pools.start("pair", "mode=hold", "nodes=2", "for=5m", "slurm.exclusive=false")
    words = ("model=gpt2-tiny", "baseline=false", "iterations=1", "warmup=0", f"store={pools.folder}/store", "--warm", "pair")
    assert "pair has 2" in pools.call("submit", *words, "nodes=3", code=2).stderr
    run, _ = pools.submit_one(*words[:-3], "nodes=2", "--warm", "pair")
    line = pools.wait_final(run)[run]
    assert line["outcome"] == "pass", line
    nodes = json.loads((pools.run_folder(run) / "attempts/1/rendezvous.json").read_text())["nodes"]
    assert [node["state"] for node in nodes] == ["head", "joined"]
    alone, _ = pools.submit_one(*QUICK, "--warm", "pair")  # two ranks, and no word of nodes: one, as everywhere
    line = pools.wait_final(alone)[alone]
    assert line["outcome"] == "pass" and line["nodes"] == 1
    assert not (pools.run_folder(alone) / "attempts/1/rendezvous.json").exists()
    pools.call("warm", "stop", "pair")


def test_what_is_no_ticket_is_put_aside_and_a_run_is_never_done_twice(pools):
    pools.start("p", "mode=hold", "nodes=1", "for=5m")
    spool = pools.folder_of("p") / "spool"
    run, _ = pools.submit_one(*QUICK, "--warm", "p")
    pools.wait_final(run)
    (ticket,) = (pools.folder_of("p") / "done").iterdir()
    shutil.copy(ticket, spool / ticket.name)
    (spool / "00000000000000000001.folder").mkdir()
    os.mkfifo(spool / "00000000000000000001.pipe")
    (spool / "00000000000000000002.x").write_bytes(os.urandom(5000))
    (spool / "$(touch hit)").write_text("{}")
    (spool / "00000000000000000003.a").write_text('{"version":1,"run":"a","run_folder":"/etc/a"}')
    (spool / ("9" * 20 + "." + "x" * 200)).write_text("[" * 100000)
    other, _ = pools.submit_one(*QUICK, "--warm", "p")
    assert pools.wait_final(other)[other]["outcome"] == "pass"
    deadline = time.monotonic() + 200
    while list(spool.iterdir()):
        assert time.monotonic() < deadline, list(spool.iterdir())
        time.sleep(0.1)
    assert len(list((pools.folder_of("p") / "rejected").iterdir())) == 7
    assert not (pools.run_folder(run) / "attempts/2").exists() and not list(pools.folder.rglob("hit"))
    pools.call("warm", "stop", "p")


@pytest.mark.parametrize("mode", [("mode=hold",), ("mode=touch", "slurm.partition=sleepy")])
def test_a_pool_that_cannot_start_in_time_is_given_up(pools, mode):
    """Its node is taken for longer than it wants to wait."""
    taker, _ = pools.submit_one("workload=wait", "wait.for=10m", "nodes=1", "slurm.extra=--nodelist=n1")
    pools.wait_for(taker, "running", seconds=200)
    started = pools.start("p", *mode, "nodes=1", "for=4m", "slurm.extra=--nodelist=n1", "slurm.pending=1s")
    refused = "mode=hold" in mode and pools.call("submit", *QUICK, "store=./store", "--warm", "p", "slurm.pending=1s", code=2).stderr
    assert not refused or "wait in its spool" in refused
    pools.wait_gone(started)
    pools.call("cancel", taker)
    line = pools.list()["p"]
    assert line["state"] == "ended" and "not allocated in time" in line["note"] and line["jobs"] == 0, line


def test_what_never_came_into_the_spool_is_sent_again_once(pools):
    """A laptop that died between the record and the ticket: played by taking the ticket away."""
    started = pools.start("p", "mode=hold", "nodes=1", "for=5m", "slurm.extra=--hold")
    run, _ = pools.submit_one(*QUICK, "--warm", "p")
    (ticket,) = (pools.folder_of("p") / "spool").iterdir()
    ticket.unlink()
    line = pools.status(run)[run]
    assert line["state"] == "submitted" and "never came" in line["note"]
    pools.call("submit", "--resume", run)
    pools.call("submit", "--resume", run)
    assert len(list((pools.folder_of("p") / "spool").iterdir())) == 1
    assert pools.list()["p"]["state"] == "pending"
    pools.slurm("scontrol", "release", started["job"])
    assert pools.wait_final(run)[run]["outcome"] == "pass"
    pools.call("warm", "stop", "p")


def test_a_pool_of_a_site_takes_runs_from_a_laptop(tmp_path):
    laptop = Laptop(tmp_path, os.environ[VARIABLE])
    site = laptop.write_site("tor", partition="urgent")
    try:
        laptop.call("warm", "--site", site, "start", "p", "mode=hold", "nodes=1", "for=5m")
        (line,) = laptop.document("warm", "--site", site, "list")
        assert "#SBATCH --partition=urgent" in (laptop.there / "pools" / line["id"] / "job.sbatch").read_text()
        run = laptop.submit(site, *QUICK, "--warm", "p")["runs"][0]["run"]
        assert laptop.wait_final(run)[run]["outcome"] == "pass"
        (line,) = laptop.document("warm", "--site", site, "list")
        assert line["pool"] == "p" and line["runs"] == 1
    finally:
        laptop.call("warm", "--site", site, "stop", "p")


def test_there_is_nothing_to_touch_where_nodes_never_sleep(pools):
    result = pools.call("warm", "start", "t", "nodes=1", "for=1h", code=2)
    assert "nothing to touch" in result.stderr and not pools.list()


def test_touches_go_on_until_their_time_is_over(pools):
    """The partition's SuspendTime is 4 s, so a touch comes every two or, where Slurm's scheduler takes its time, more."""
    short = pools.start("short", "nodes=1", "for=14s", "slurm.partition=sleepy")
    started = pools.start("t", "nodes=2", "for=1h", "slurm.partition=sleepy")
    assert started["mode"] == "touch" and started["period_s"] == 2
    pools.wait_until("t", lambda line: line["jobs"] >= 3)
    run, _ = pools.submit_one("model=gpt2-tiny", "nodes=2", "baseline=false", "iterations=1", "warmup=0", "ops=save", "--warm", "t")
    script = (pools.run_folder(run) / "job.sbatch").read_text()
    assert "#SBATCH --nodelist=n" in script
    assert pools.wait_final(run)[run]["outcome"] == "pass"
    pools.wait_gone(short)
    pools.call("warm", "stop", "t")
    ended, line = (pools.list()[name] for name in ("short", "t"))
    assert ended["state"] == "ended" and "time is over" in ended["note"] and ended["node_hours"] < ended["budget_node_hours"] + A_MINUTE
    assert line["state"] == "ended" and line["runs"] == 1 and line["job_node_hours"] < line["node_hours"]


def test_a_touch_pool_ends_with_its_budget(pools):
    started = pools.start("t", "nodes=1", "for=1h", "budget=0.0012", "slurm.partition=sleepy")  # two touches of 2 s
    pools.wait_gone(started)
    line = pools.list()["t"]
    assert line["state"] == "ended" and "budget" in line["note"] and line["node_hours"] <= line["budget_node_hours"] + A_MINUTE


def test_a_touch_pool_that_is_stopped_leaves_nothing_behind(pools):
    started = pools.start("t", "nodes=2", "for=1h", "slurm.partition=sleepy")
    pools.wait_until("t", lambda line: line["jobs"] > 0)
    pools.call("warm", "stop", "t")
    time.sleep(1)
    assert not pools.jobs_of(started) and pools.list()["t"]["state"] == "ended"


def test_an_allocation_is_held_for_a_time_and_ended_in_order(pools):
    run, _ = pools.submit_one("workload=wait", "wait.for=1s")
    assert pools.wait_final(run)[run]["outcome"] == "pass"
    long, _ = pools.submit_one("workload=wait", "wait.for=5m")
    pools.wait_for(long, "running")
    pools.call("cancel", long)
    line = pools.wait_final(long)[long]
    assert line["outcome"] == "cancelled" and pools.manifest(long)["sealed_by"] == "agent"
    pools.call("run", "workload=wait", "wait.for=100ms")
    assert all(line["state"] in FINAL for line in pools.status().values())


@pytest.mark.parametrize("words, sentence", [
    (("start", "a/b", "nodes=1", "for=1h"), "no name for a pool"),
    (("start", "p", "nodes=1"), "how long"),
    (("start", "p", "nodes=9", "for=1h", "mode=hold"), "nodes"),
    (("start", "p", "nodes=1", "for=1h", "mode=held"), "touch or hold"),
    (("start", "p", "nodes=1", "for=1h", "budget=lots"), "node-hours"),
    (("start", "p", "node=1", "for=1h"), "did you mean nodes"),
    (("start", "p", "nodes=1", "for=1h", "mode=hold", "slurm.partition=$(id)"), "slurm.partition"),
    (("stop",), "which pool"),
    (("keep",), "warm start"),
])
def test_what_makes_no_pool_is_refused_and_leaves_none(pools, words, sentence):
    assert sentence in pools.call("warm", *words, code=2).stderr
    assert pools.list() == {}


def test_two_starts_at_the_same_moment_make_one_pool(pools):
    """Another ckptbench that is between its look at the pools and its own is played by its lock."""
    pools.list()
    (pools.home / "pools").mkdir(parents=True, exist_ok=True)
    with open(pools.home / "pools/lock", "w") as lock:
        fcntl.lockf(lock, fcntl.LOCK_EX)
        assert "is starting a pool" in pools.call("warm", "start", "p", "nodes=1", "for=1m", "mode=hold", code=2).stderr
    assert pools.list() == {}
    pools.start("p", "nodes=1", "for=1m", "mode=hold", "slurm.extra=--hold")
    pools.call("warm", "stop", "p")


def test_a_pool_that_is_not_there_takes_no_runs(pools):
    result = pools.call("submit", *QUICK, "store=./store", "--warm", "nosuch", code=2)
    assert "no pool nosuch" in result.stderr and pools.document("status") == []
