"""A cluster whose compute nodes see nothing of the login node's files: programs go there by sbcast, and runs are led from
the login node. Each node has a view of its own (mount namespaces), and a folder of its own for the programs."""
import contextlib
import json
import os
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest
from image_harness import NO_RUNTIME, RUNTIME, make_image
from services import slurm
from site_harness import Laptop
from slurm_harness import FINAL, own_service

WORDS = ("model=gpt2-tiny", "baseline=false", "warmup=0", "nodes=3", "ranks_per_node=1")
SLOW = ("ops=save", "verify=none", "iterations=1000")
HIDES = shutil.which("unshare") and subprocess.run(["unshare", "--mount", "mount", "-t", "tmpfs", "none", "/mnt"], capture_output=True,
                                                   check=False).returncode == 0
pytestmark = pytest.mark.skipif(not HIDES, reason="hiding folders from nodes needs root and mount namespaces")


class Apart(Laptop):
    """The login node's folder, with the programs in it, is hidden from the nodes."""

    def __init__(self, folder, service):
        super().__init__(folder, service / "slurm.conf")
        self.service = service
        self.local = service / "local"
        (folder / "shared").mkdir()

    def login_environment(self):
        return dict(self.environment, CKPTBENCH_HOME=str(self.there), SLURM_CONF=str(self.configuration), OMPI_MCA_btl="self,tcp")

    def login(self, *words, code=0):
        """On the login node."""
        result = subprocess.run([self.prefix / "bin/ckptbench", *words], cwd=self.folder / "login", env=self.login_environment(),
                                capture_output=True, text=True, timeout=240)
        assert result.returncode == code, f"{words}: {result.returncode}\n{result.stdout}\n{result.stderr}"
        return result.stdout

    def refused(self, *words):
        """Why the login node refuses it."""
        result = subprocess.run([self.prefix / "bin/ckptbench", *words], cwd=self.folder / "login", env=self.login_environment(),
                                capture_output=True, text=True, timeout=240)
        assert (result.returncode, result.stdout) == (2, ""), result
        return result.stderr

    def start(self, run, *words, store="shared/store"):
        self.login("submit", "--id", run, *WORDS, f"slurm.sbcast={self.local}", f"store=fault:delay=200ms:{self.folder}/{store}", *words)

    def line(self, run):
        (line,) = json.loads(self.login("status", run, "--json"))
        return line

    def pool(self, name):
        """The pool's line, if it is listed."""
        return next((line for line in json.loads(self.login("warm", "list", "--json")) if line["pool"] == name), None)

    def start_pool(self, name, *words):
        self.login("warm", "start", name, f"slurm.sbcast={self.local}", *words)
        return self.pool(name)

    def submit_to(self, name, run, *words):
        self.login("submit", "--id", run, "model=gpt2-tiny", "baseline=false", "warmup=0", f"slurm.sbcast={self.local}", "--warm", name, *words)

    def slow_run_in(self, name, run):
        """Saves until somebody ends it."""
        self.submit_to(name, run, *WORDS, *SLOW, f"store=fault:delay=200ms:{self.folder}/shared/{run}")
        self.until_it_saves(run)

    def until(self, condition, seconds=200):
        deadline = time.monotonic() + seconds
        while not (found := condition()):
            assert time.monotonic() < deadline, self.login("status")
            time.sleep(0.2)
        return found

    def until_it_saves(self, run):
        self.until(lambda: "save" in (self.line(run)["progress"] or ""))

    def until_ended(self, run):
        return self.until(lambda: self.line(run) if self.line(run)["state"] in FINAL else None)

    def on_nodes(self):
        """What lies in the nodes' own folders."""
        return sorted(str(path.relative_to(self.service / "locals")) for path in (self.service / "locals").glob("*/*"))

    def process(self, *words):
        """The process of this cluster whose command line begins so, the other words being the ends of some of its words."""
        for entry in Path("/proc").glob("[0-9]*"):
            with contextlib.suppress(OSError):
                given = (entry / "cmdline").read_text().split("\0")
                ours = any(str(folder) in word for word in given for folder in (self.folder, self.service))
                if ours and given[0].endswith(words[0]) and all(any(word.endswith(end) for word in given) for end in words[1:]):
                    return int(entry.name)
        return None

    def queue(self):
        return subprocess.run(["squeue", "-h", "-a"], env=dict(os.environ, SLURM_CONF=str(self.configuration)), capture_output=True, text=True,
                              timeout=120, check=True).stdout

    def left(self):
        """Jobs, files on nodes, agents of nodes."""
        agents = [pid] if (pid := self.process("ckptbench-agent", "node")) else []
        return [*self.queue().splitlines(), *self.on_nodes(), *agents]

    def until_nothing_is_left(self):
        deadline = time.monotonic() + 200
        while left := self.left():
            assert time.monotonic() < deadline, left
            time.sleep(0.2)


def until(condition):
    """For what must not ask Slurm."""
    deadline = time.monotonic() + 200
    while not condition():
        assert time.monotonic() < deadline
        time.sleep(0.1)


@pytest.fixture(scope="module")
def shared(tmp_path_factory):
    """One cluster for the tests of pools, which come one after the other and each leave it as it was."""
    folder, service = tmp_path_factory.mktemp("pools"), tmp_path_factory.mktemp("slurm")
    apart = Apart(folder, service)
    with own_service(service, slurmd_timeout=6, hidden=[folder / "login"]):
        yield apart


@pytest.fixture
def apart(tmp_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("slurm")
    apart = Apart(tmp_path, folder)
    with own_service(folder, slurmd_timeout=6, hidden=[tmp_path / "login"]):
        yield apart


def test_a_site_that_shares_no_files_is_found_out_and_used(apart):
    words = [word for word in apart.words_of_site() if not word.startswith("sbcast=")]
    added = apart.call("site", "add", "far", *words, f"sbcast={apart.local}", "--nodes", "2", timeout=240).stdout
    assert "is not the same folder on n" in added and "by sbcast" in added and "site far is ready" in added
    assert "1 of 1 pairs exchanged messages over MPI" in added
    sent = apart.document("submit", "--site", "far", *WORDS, "iterations=2", f"store={apart.folder}/shared/store", "repeat=2")
    lines = apart.wait_final(sent["sweep"], seconds=240)
    assert [(line["outcome"], line["nodes"]) for line in lines.values()] == [("pass", 3)] * 2
    assert "0 ingested, 2 known" in apart.call("collect").stdout
    assert apart.document("show", sent["runs"][0]["run"])["metrics"]["save_s"]["n"] == 2
    apart.until_nothing_is_left()


def test_what_nobody_has_said_is_learnt_when_a_site_is_added(apart):
    apart.call("site", "add", "far", *apart.words_of_site(), timeout=240)
    assert apart.document("site", "show", "far")["sbcast"] == "/tmp"
    apart.call("site", "add", "far", f"prefix={apart.prefix}", "sbcast=/nowhere", code=4, timeout=240)
    assert "sbcast= names a folder" in apart.call("site", "doctor", "far", code=4, timeout=240).stdout


def test_runs_of_one_job_follow_each_other_on_as_many_nodes_as_each_needs(apart):
    """The first run leaves no programs on the nodes that it has not used, either."""
    apart.start("two", "nodes=1,2", "iterations=20", "ops=save", "slurm.one_job=true", "slurm.time=10m")
    apart.until_it_saves("two.02")
    assert [path for path in apart.on_nodes() if "ckptbench-programs-two.02-1" not in path] == []
    assert [apart.until_ended(f"two.0{number}")["outcome"] for number in (1, 2)] == ["pass", "pass"]
    first, second = (json.loads((apart.there / f"runs/two.0{number}/job.json").read_text()) for number in (1, 2))
    assert first["job"] == second["job"]
    apart.until_nothing_is_left()


def test_a_run_that_is_cancelled_ends_everywhere(apart):
    apart.start("gone", *SLOW)
    apart.until_it_saves("gone")
    apart.login("cancel", "gone")
    assert apart.until_ended("gone")["outcome"] == "cancelled"
    apart.until_nothing_is_left()


@pytest.mark.parametrize("how", ["cancel", "kill"])
def test_programs_that_are_being_sent_when_a_run_ends_are_removed(apart, how):
    """An sbcast that stands still in front of the second program."""
    tools, begun, go = apart.folder / "tools", apart.folder / "begun", apart.folder / "go"
    tools.mkdir()
    (tools / "sbcast").write_text(f'#!/bin/sh\ncase "$3" in *worker) touch {begun}; while [ ! -e {go} ]; do sleep 0.1; done;; esac\n'
                                  f'exec {shutil.which("sbcast")} "$@"\n')
    (tools / "sbcast").chmod(0o755)
    apart.environment["PATH"] = f"{tools}:{apart.environment.get('PATH', os.environ['PATH'])}"
    apart.start("half", *SLOW)
    apart.until(begun.exists)
    assert [path for path in apart.on_nodes() if "ckptbench-programs-half-1" in path] != []
    if how == "cancel":
        apart.login("cancel", "half")
        go.touch()
        assert apart.until_ended("half")["outcome"] == "cancelled"
    else:
        os.kill(apart.process("ckptbench-agent", "/runs/half"), signal.SIGKILL)
        apart.until_ended("half")
        go.touch()
    apart.until_nothing_is_left()


@pytest.mark.parametrize("victim", ["salloc", "ckptbench-agent"])
def test_nothing_stands_when_what_leads_the_run_is_killed(apart, victim):
    apart.start("headless", *SLOW)
    apart.until_it_saves("headless")
    os.kill(apart.process(victim, "/runs/headless"), signal.SIGKILL)
    assert apart.until_ended("headless")["outcome"] in ("cancelled", "infrastructure", "lost")
    apart.until_nothing_is_left()


def test_a_node_that_is_lost_is_named(apart):
    apart.start("lost", *SLOW)
    apart.until_it_saves("lost")
    slurm.stop_node(apart.service, "n2", signal.SIGKILL)
    slurm.end_steps(apart.service, "n2")
    line = apart.until_ended("lost")
    assert line["outcome"] == "infrastructure" and "n2" in line["note"], line
    apart.login("collect", "lost", code=4)
    assert [path for path in apart.on_nodes() if not path.startswith("n2/")] == []


def test_a_load_comes_after_its_save_and_not_after_a_failure(apart):
    given = ("baseline=false", "warmup=0", "iterations=1", "nodes=2", "ranks_per_node=1", "model=gpt2-tiny", f"slurm.sbcast={apart.local}")
    store = f"{apart.folder}/shared/store"
    apart.login("submit", "--id", "first", *given, "ops=save", "store=fault:delay=50ms:" + store)
    apart.login("submit", "--id", "second", *given, "ops=load", "--after", "first", f"store={store}", "--wait")
    assert apart.line("first")["outcome"] == apart.line("second")["outcome"] == "pass"
    apart.start("gone", *SLOW)
    apart.login("submit", "--id", "never", *given, "--after", "gone", f"store={store}")
    assert apart.line("never")["state"] == "pending"
    apart.login("cancel", "gone")
    apart.until_ended("gone")
    line = apart.until_ended("never")
    assert line["outcome"] == "cancelled" and "waits for" in line["note"], line
    apart.until_nothing_is_left()


@pytest.mark.skipif(not RUNTIME, reason=NO_RUNTIME)
def test_ranks_start_in_an_image_that_the_nodes_have(apart):
    """Agents are sent, the worker is the image's."""
    (apart.prefix / "bin/ckptbench-worker").unlink()
    words = [word for word in apart.words_of_site() if not word.startswith("sbcast=")]
    added = apart.call("site", "add", "far", *words, f"sbcast={apart.local}", f"container={make_image(apart.folder / 'image')}", "--nodes", "2",
                       timeout=240).stdout
    assert "by sbcast" in added and "has ckptbench-worker" in added and "1 of 1 pairs" in added and "site far is ready" in added
    sent = apart.document("submit", "--site", "far", *WORDS, "iterations=1", f"store={apart.folder}/shared/store")
    (line,) = apart.wait_final(sent["runs"][0]["run"], seconds=240).values()
    assert line["outcome"] == "pass", line
    apart.until_nothing_is_left()


def test_what_was_rendered_is_started_by_hand(apart):
    rendered = json.loads(apart.login("render", *WORDS, f"slurm.sbcast={apart.local}", f"store={apart.folder}/shared/store", "iterations=1", "--json"))
    (run,) = rendered["runs"]
    script = apart.there / "runs" / run["run"] / "job.salloc"
    assert script.read_text() == run["script"] and "exec salloc" in run["script"]
    assert f"sh {script}" in apart.login("show", run["run"])
    subprocess.run(["sh", script], env=apart.login_environment(), check=True, timeout=240, capture_output=True)
    assert apart.until_ended(run["run"])["outcome"] == "pass"
    apart.until_nothing_is_left()


def test_what_an_allocation_cannot_have_is_refused(apart):
    given = (*WORDS, f"slurm.sbcast={apart.local}", f"store={apart.folder}/shared/store")
    apart.login("submit", "--id", "one", *given, "--wait", "iterations=1")
    for words, why in ((("slurm.requeue=true",), "slurm.requeue"), (("slurm.sbcast=tmp",), "no absolute path"), (("launcher=none",), "launcher=none"),
                       (("slurm.sbcast=/tmp,/var/tmp",), "cannot be swept"), (("slurm.sbcast=/tmp\nTASK\n",), "no absolute path"),
                       (("workload=wait", "--array", "repeat=2"), "workload=wait")):
        assert why in apart.refused("submit", *given, *words)
    apart.login("render", *given, "slurm.requeue=true", code=2)
    apart.login("warm", "start", "pool", "nodes=1", "for=1m", "slurm.sbcast=tmp", code=2)
    assert len(list((apart.there / "runs").iterdir())) == 1


# ---- pools: their jobs are led from the login node, too ----

IN_TURN = pytest.mark.xdist_group("apart_pools")
QUICK = ("iterations=1", "ops=save")


@IN_TURN
def test_a_held_pool_sends_programs_for_each_of_its_runs(shared):
    pool = shared.start_pool("night", "mode=hold", "nodes=3", "for=10m")
    store = f"store={shared.folder}/shared/night"
    shared.submit_to("night", "whole", *QUICK, "nodes=3", "ranks_per_node=1", store)
    shared.submit_to("night", "alone", *QUICK, "ranks=2", store)
    shared.submit_to("night", "part", *QUICK, "nodes=2", "ranks_per_node=1", store)
    lines = [shared.until_ended(run) for run in ("whole", "alone", "part")]
    assert [line["outcome"] for line in lines] == ["pass"] * 3, lines
    assert [line["job"] for line in lines] == [pool["job"]] * 3
    nodes = [len(json.loads((shared.there / f"runs/{run}/attempts/1/rendezvous.json").read_text())["nodes"]) for run in ("whole", "alone", "part")]
    assert nodes == [3, 1, 2]
    assert shared.on_nodes() == []
    assert shared.pool("night")["state"] == "up" and shared.pool("night")["runs"] == 3
    shared.login("warm", "stop", "night")
    assert shared.pool("night")["state"] == "ended"
    shared.until_nothing_is_left()


@IN_TURN
def test_a_run_that_is_cancelled_leaves_its_pool_to_the_next(shared):
    shared.start_pool("calm", "mode=hold", "nodes=3", "for=10m")
    shared.slow_run_in("calm", "unwanted")
    shared.submit_to("calm", "withdrawn", *QUICK, f"store={shared.folder}/shared/calm", "ranks=1")
    shared.submit_to("calm", "next", *QUICK, f"store={shared.folder}/shared/calm", "ranks=1")
    shared.login("cancel", "unwanted", "withdrawn")
    assert [shared.until_ended(run)["outcome"] for run in ("unwanted", "withdrawn", "next")] == ["cancelled", "cancelled", "pass"]
    assert shared.on_nodes() == []
    shared.login("warm", "stop", "calm")
    shared.until_nothing_is_left()


@IN_TURN
@pytest.mark.parametrize("victim", ["salloc", "ckptbench-agent"])
def test_a_held_pool_whose_leader_is_killed_ends_with_its_runs(shared, victim):
    name = f"dead-{victim[:4]}"
    pool = shared.start_pool(name, "mode=hold", "nodes=3", "for=10m")
    shared.slow_run_in(name, f"{name}-run")
    shared.submit_to(name, f"{name}-waits", *QUICK, f"store={shared.folder}/shared/{name}", "ranks=1")
    os.kill(shared.process(victim, "warm", f"/pools/{pool['id']}"), signal.SIGKILL)
    assert shared.until_ended(f"{name}-run")["outcome"] in ("cancelled", "infrastructure", "lost")
    line = shared.until_ended(f"{name}-waits")
    assert line["outcome"] == "cancelled" and "ended before this run was started" in line["note"], line
    shared.until(lambda: shared.pool(name)["state"] == "ended")
    shared.until_nothing_is_left()


@IN_TURN
@pytest.mark.parametrize("then", ["its agent goes on", "collect", "clean"])
def test_nodes_of_a_held_pool_whose_salloc_dies_while_slurm_is_silent_are_given_back(shared, then):
    """By the pool's agent, as soon as Slurm answers; or, if that was killed, too, by who looks after pools later."""
    name, end = f"silent-{then[:4].strip()}", None
    pool = shared.start_pool(name, "mode=hold", "nodes=2", "for=10h")
    shared.until(lambda: shared.pool(name)["state"] == "up")
    folder = shared.there / "pools" / pool["id"]
    agent = shared.process("ckptbench-agent", "warm", f"/pools/{pool['id']}")
    slurm.stop_controller(shared.service)
    try:
        os.kill(shared.process("salloc", "warm", f"/pools/{pool['id']}"), signal.SIGKILL)
        until(lambda: "cannot be cancelled yet" in (folder / "job.log").read_text())
        if then != "its agent goes on":
            os.kill(agent, signal.SIGKILL)
            end = json.loads((folder / "end.json").read_text())
    finally:
        slurm.restart_controller(shared.service)
    if end:
        (folder / "end.json").write_text(json.dumps(end | {"at_wall_ns": time.time_ns()}))  # the restart may have taken a minute
        assert pool["job"] in shared.queue().split() and shared.pool(name)["state"] == "ending"
        (folder / "end.json").write_text(json.dumps(end | {"at_wall_ns": time.time_ns() - 61 * 10**9}))
        assert pool["job"] in shared.queue().split()
        shared.login(*then.split())
    shared.until_nothing_is_left()
    assert shared.pool(name)["state"] == "ended"
    assert ("was cancelled in attempt" in (folder / "job.log").read_text()) == (end is None)


def test_nodes_of_a_run_whose_salloc_dies_while_slurm_is_silent_are_given_back(apart):
    apart.start("unheard", *SLOW, "slurm.time=10h")
    apart.until_it_saves("unheard")
    log = apart.there / "runs/unheard/attempts/1/logs/agent.log"
    slurm.stop_controller(apart.service)
    try:
        os.kill(apart.process("salloc", "/runs/unheard"), signal.SIGKILL)
        until(lambda: log.exists() and "cannot be cancelled yet" in log.read_text())
    finally:
        slurm.restart_controller(apart.service)
    until(lambda: "was cancelled in attempt" in log.read_text())
    assert apart.until_ended("unheard")["outcome"] in ("cancelled", "infrastructure")
    apart.until(lambda: " R " not in apart.queue())  # Slurm may take a minute to complete it


def test_a_job_that_has_the_number_of_one_that_slurm_has_forgotten_is_left_alone(apart):
    apart.start("forgotten", *SLOW, "slurm.time=10h")
    apart.until_it_saves("forgotten")
    log = apart.there / "runs/forgotten/attempts/1/logs/agent.log"
    job = json.loads((apart.there / "runs/forgotten/job.json").read_text())["job"]
    agent = apart.process("ckptbench-agent", "/runs/forgotten")
    slurm.stop_controller(apart.service)
    os.kill(apart.process("salloc", "/runs/forgotten"), signal.SIGKILL)
    until(lambda: log.exists() and "cannot be cancelled yet" in log.read_text())
    os.kill(agent, signal.SIGSTOP)  # until there is the other job
    try:
        slurm.forget_jobs(apart.service)
        words = ("sbatch", "--parsable", "--hold", "--wrap=true")
        others = [slurm.call(*words, env=slurm.clean_environment(apart.service)).stdout.strip() for _ in range(int(job))]  # from 1 on
    finally:
        os.kill(agent, signal.SIGCONT)
    assert others[-1] == job
    until(lambda: "was cancelled in attempt" in log.read_text())
    assert job in apart.queue().split()


@IN_TURN
def test_a_held_pool_ends_with_its_budget_whoever_looks(shared):
    pool = shared.start_pool("short", "mode=hold", "nodes=3", "for=10m", f"budget={3 * 20 / 3600}")
    shared.submit_to("short", "cut", *WORDS, *SLOW, f"store=fault:delay=200ms:{shared.folder}/shared/short")
    shared.submit_to("short", "late", *QUICK, f"store={shared.folder}/shared/short", "ranks=1")
    shared.until(lambda: pool["job"] not in shared.queue().split())  # nobody has asked ckptbench for anything since
    assert shared.on_nodes() == []
    line = shared.pool("short")
    assert line["state"] == "ended" and "budget" in line["note"] and line["node_hours"] <= line["budget_node_hours"] + 3 / 60
    assert shared.until_ended("cut")["outcome"] == "timeout"
    assert shared.until_ended("late")["outcome"] == "cancelled"
    shared.until_nothing_is_left()


@IN_TURN
def test_runs_of_a_pool_need_the_folder_that_it_was_started_with(shared):
    shared.login("warm", "start", "plain", "mode=hold", "nodes=1", "for=10m", "slurm.extra=--hold")
    shared.login("submit", "--warm", "plain", *WORDS[:3], "nodes=1", f"store={shared.folder}/shared/x", f"slurm.sbcast={shared.local}", code=2)
    shared.login("warm", "stop", "plain")
    shared.start_pool("sent", "mode=hold", "nodes=1", "for=10m", "slurm.extra=--hold")
    shared.login("submit", "--warm", "sent", *WORDS[:3], "nodes=1", f"store={shared.folder}/shared/x", code=2)
    shared.login("warm", "stop", "sent")
    shared.until_nothing_is_left()


@IN_TURN
def test_nodes_are_touched_from_the_login_node_until_time_is_over(shared):
    """The partition's SuspendTime is 4 s."""
    pool = shared.start_pool("t", "nodes=2", "for=40s", "slurm.partition=sleepy")
    shared.until(lambda: shared.pool("t")["jobs"] >= 4)
    shared.submit_to("t", "touched", *QUICK, "nodes=2", "ranks_per_node=1", f"store={shared.folder}/shared/t", "slurm.partition=sleepy")
    assert "'--nodelist=n" in (shared.there / "runs/touched/job.salloc").read_text()
    assert shared.until_ended("touched")["outcome"] == "pass"
    shared.until(lambda: not shared.queue())  # nobody has asked ckptbench for anything since
    line = shared.pool("t")
    assert line["state"] == "ended" and "time is over" in line["note"] and line["runs"] == 1 and line["mode"] == "touch"
    assert line["node_hours"] < line["budget_node_hours"] + 2 / 60 and line["id"] == pool["id"]
    shared.until_nothing_is_left()


@IN_TURN
@pytest.mark.parametrize("end", ["stop", "kill"])
def test_touches_end_when_they_are_stopped_or_who_leads_them_is_killed(shared, end):
    pool = shared.start_pool(f"t-{end}", "nodes=1", "for=1h", "slurm.partition=sleepy")
    shared.until(lambda: shared.pool(f"t-{end}")["jobs"] >= 2)
    if end == "stop":
        shared.login("warm", "stop", f"t-{end}")
    else:
        while pid := shared.process("salloc", f"/pools/{pool['id']}"):
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        shared.login("warm", "stop", f"t-{end}")
    assert shared.pool(f"t-{end}")["state"] == "ended"
    assert shared.process("salloc", f"/pools/{pool['id']}") is None
    shared.until_nothing_is_left()


@IN_TURN
def test_a_pool_of_a_site_that_sends_programs_takes_runs_from_a_laptop(shared):
    site = shared.write_site("far", sbcast=str(shared.local))
    shared.call("warm", "--site", site, "start", "p", "mode=hold", "nodes=2", "for=10m")
    sent = shared.document("submit", "--site", site, *WORDS[:3], *QUICK, "nodes=2", "ranks_per_node=1", f"store={shared.folder}/shared/site",
                           "--warm", "p")
    (line,) = shared.wait_final(sent["runs"][0]["run"], seconds=240).values()
    assert line["outcome"] == "pass", line
    shared.call("warm", "--site", site, "stop", "p")
    shared.until_nothing_is_left()


# ---- arrays: their tasks hold the nodes, and one process on the login node leads their runs ----

@IN_TURN
def test_a_sweep_is_an_array_whose_runs_are_led_by_one_process(shared):
    given = ("model=gpt2-tiny", "baseline=false", "warmup=0", "nodes=2", "ranks_per_node=1", f"slurm.sbcast={shared.local}")
    store = f"{shared.folder}/shared/swept"
    shared.login("submit", "--id", "swept", "--array", *given, "repeat=3", "iterations=5", "ops=save", f"store=fault:delay=200ms:{store}")
    shared.login("submit", "--id", "after", *given, "--after", "swept.03", "iterations=1", "ops=load", f"store={store}")
    assert shared.process("ckptbench-agent", "array", "/runs/swept.01/array")
    lines = [shared.until_ended(run) for run in ("swept.01", "swept.02", "swept.03", "after")]
    assert [line["outcome"] for line in lines] == ["pass"] * 4, lines
    assert [line["job"].partition("_")[2] for line in lines] == ["0", "1", "2", ""] and lines[0]["job"].split("_")[0] == lines[2]["job"].split("_")[0]
    shared.login("logs", "swept.02")
    shared.until_nothing_is_left()
    assert shared.process("ckptbench-agent", "array") is None


@IN_TURN
def test_members_of_an_array_end_alone(shared):
    shared.start("some", *SLOW, "--array", "repeat=3", store="shared/some")
    shared.until_it_saves("some.01")
    shared.login("cancel", "some.01", "some.03")
    assert [shared.until_ended(run)["outcome"] for run in ("some.01", "some.03")] == ["cancelled", "cancelled"]
    shared.until_it_saves("some.02")
    os.kill(shared.process("ckptbench-agent", "run", "/runs/some.01/array/1"), signal.SIGKILL)
    line = shared.until_ended("some.02")
    assert line["outcome"] == "infrastructure" and "exit status 1" in line["note"], line
    shared.until_nothing_is_left()
    shared.until(lambda: shared.process("ckptbench-agent", "array") is None)


@IN_TURN
def test_the_last_member_of_an_array_that_ends_first_leaves_the_others_alone(shared):
    given = ("model=gpt2-tiny", "baseline=false", "warmup=0", "nodes=1", "ranks_per_node=1", f"slurm.sbcast={shared.local}")
    shared.login("submit", "--id", "beside", "--array", *given, "repeat=2", "iterations=60", "ops=save", "verify=none",
                 f"store=fault:delay=200ms:{shared.folder}/shared/beside")
    shared.until_it_saves("beside.02")
    os.kill(shared.process("ckptbench-agent", "run", "/runs/beside.01/array/1"), signal.SIGKILL)
    assert shared.until_ended("beside.02")["outcome"] == "infrastructure"
    assert shared.until_ended("beside.01")["outcome"] == "pass"
    shared.until_nothing_is_left()


@IN_TURN
def test_an_array_whose_leader_is_killed_gives_its_nodes_back(shared):
    shared.start("lone", *SLOW, "--array", "repeat=3", store="shared/lone")
    shared.until_it_saves("lone.01")
    os.kill(shared.process("ckptbench-agent", "array", "/runs/lone.01/array"), signal.SIGKILL)
    shared.until_nothing_is_left()
    assert [shared.until_ended(f"lone.0{number}")["outcome"] for number in (1, 2, 3)] == ["cancelled"] * 3


def sleeps_of_task(apart, script, steps):
    """How many seconds a task's script waits until it gives its nodes back, and what happens in one of them ("3) COMMAND;;")."""
    place = apart.folder / "task"
    place.mkdir()
    (place / "sleep").write_text(f'#!/bin/sh\necho >> {place}/slept\ncase $(wc -l < {place}/slept) in {steps} esac\n')
    (place / "sleep").chmod(0o755)
    task = script.split("<<'TASK'\n")[1].split("TASK\n")[0]
    ended = subprocess.run(["sh", "-c", task], env=dict(os.environ, PATH=f"{place}:{os.environ['PATH']}", SLURM_JOB_ID="7"), check=False, timeout=120)
    assert ended.returncode == 1
    count = len((place / "slept").read_text())
    shutil.rmtree(place)
    return count


@IN_TURN
def test_tasks_that_start_without_a_leader_give_their_nodes_back(shared):
    """Their time limit is hours away, and five times rendezvous.timeout is what they wait for a leader."""
    shared.start("orphan", *SLOW, "--array", "repeat=2", "slurm.extra=--hold", "rendezvous.timeout=1s", "slurm.time=10h", store="shared/orphan")
    script = (shared.there / "runs/orphan.01/job.salloc").read_text()
    assert sleeps_of_task(shared, script, "") == 5
    assert sleeps_of_task(shared, script, f"3) mkdir {shared.local}/ckptbench-programs-x.7;; 7) rmdir {shared.local}/ckptbench-programs-x.7;;") == 17
    job = shared.line("orphan.01")["job"].split("_")[0]
    os.kill(shared.process("ckptbench-agent", "array", "/runs/orphan.01/array"), signal.SIGKILL)
    slurm.call("scontrol", "release", job, env=slurm.clean_environment(shared.service))
    shared.until(lambda: not shared.queue())
    lines = [shared.until_ended(f"orphan.0{number}") for number in (1, 2)]
    assert [line["outcome"] for line in lines] == ["infrastructure"] * 2, lines
    shared.until_nothing_is_left()
