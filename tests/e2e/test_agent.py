"""The agent with a worker that behaves badly: always a sealed manifest with the right outcome, never a
hang, never a process or a folder left behind."""
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from pathlib import Path

import pytest

from harness import BUILD, is_mpich

SHM = Path("/dev/shm")


class Agent:
    """One attempt of a run folder, with our worker in the place of the real one."""

    def __init__(self, folder, **settings):
        self.programs = folder / "programs"
        self.programs.mkdir()
        shutil.copy(BUILD / "ckptbench-agent", self.programs / "ckptbench-agent")
        shutil.copy(BUILD / "tests/fake_worker", self.programs / "ckptbench-worker")
        self.run = folder / f"run-{os.getpid()}-{folder.name}"
        (self.run / "attempts").mkdir(parents=True)
        settings = {"ranks": 3, "iterations": 3, "warmup": 1, "store": str(folder), **settings}
        lines = ["version: 1"] + [f"{key.replace('_', '.')}: {value}" for key, value in settings.items()]
        (self.run / "experiment.yaml").write_text("\n".join(lines) + "\n")
        self.process = None

    def start(self, fake="", **more):
        environment = dict(os.environ, CKPTBENCH_FAKE=fake, **more)
        self.process = subprocess.Popen([self.programs / "ckptbench-agent", "run", self.run], env=environment,
                                        start_new_session=True, stdin=subprocess.DEVNULL)
        return self

    def finish(self, timeout=120):
        self.code = self.process.wait(timeout=timeout)
        return self

    def manifest(self, attempt=1):
        return json.loads((self.run / f"attempts/{attempt}/manifest.json").read_text())

    def progress(self):
        return json.loads((self.run / "attempts/1/progress.json").read_text())

    def processes(self):
        """Everything whose command line names this run."""
        found = []
        for path in Path("/proc").glob("[0-9]*/cmdline"):
            try:
                if str(self.run).encode() in path.read_bytes():
                    found.append(int(path.parent.name))
            except OSError:
                pass
        return found

    def await_(self, condition, seconds=200):
        deadline = time.monotonic() + seconds
        while not condition():
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(0.02)

    def assert_nothing_left(self, seconds=0):
        deadline = time.monotonic() + seconds
        while True:
            left = self.processes(), [path.name for path in SHM.glob(f"ckptbench-{self.run.name}-*")]
            if not any(left) or time.monotonic() >= deadline:
                break
            time.sleep(0.05)
        assert left == ([], [])


@pytest.fixture
def agent(tmp_path):
    made = []

    def make(**settings):
        folder = tmp_path / str(len(made))
        folder.mkdir()
        made.append(Agent(folder, **settings))
        return made[-1]

    yield make
    for one in made:
        for pid in one.processes():
            os.kill(pid, signal.SIGKILL)
        if one.process and one.process.poll() is None:
            one.process.kill()
            one.process.wait()


def test_folders_of_others_in_shared_memory_are_left_alone(agent):
    theirs = Path(tempfile.mkdtemp(prefix="ckptbench-", dir="/dev/shm"))
    try:
        (theirs / "data").write_text("not ours")
        os.utime(theirs, (0, 0))  # older than anything that is still being made
        agent().start().finish()
        assert (theirs / "data").exists()
    finally:
        shutil.rmtree(theirs)


def test_good_run_passes_and_is_complete(agent):
    run = agent().start().finish()
    manifest = run.manifest()
    assert (run.code, manifest["outcome"], manifest["message"]) == (0, "pass", "")
    assert (manifest["ranks"], manifest["samples"], manifest["sealed_by"]) == (3, 3 * 4 * 3, "agent")
    assert len(manifest["records_sha256"]) == 64 and manifest["run"] == run.run.name
    attempt = run.run / "attempts/1"
    host = json.loads((attempt / "host.json").read_text())
    assert 0 <= host["cpu_fraction"] <= 1 and host["memory_peak_bytes"] > 0
    fingerprint = json.loads((attempt / "fingerprint.json").read_text())
    assert fingerprint["system"]["kernel"] == os.uname().release
    assert fingerprint["ckptbench"]["version"] and fingerprint["mpi"] and fingerprint["memory"]["bytes"] > 0
    assert fingerprint["store"]["file_system"] and fingerprint["store"]["mount_options"]
    run.assert_nothing_left()


def test_fingerprint_is_the_same_in_every_attempt(agent):
    run = agent(iterations=1, warmup=0, ranks=1)
    texts = []
    for attempt in (1, 2):
        assert run.start().finish().code == 0
        texts.append((run.run / f"attempts/{attempt}/fingerprint.json").read_text())
    assert texts[0] == texts[1]


@pytest.mark.parametrize("launcher,ranks", [("auto", 1), ("none", 1), ("mpirun", 1), ("mpirun", 2)])
def test_every_launcher(agent, launcher, ranks):
    run = agent(launcher=launcher, ranks=ranks).start().finish()
    assert (run.code, run.manifest()["ranks"]) == (0, ranks)


def test_launcher_none_cannot_start_two_ranks(agent):
    run = agent(launcher="none", ranks=2).start().finish()
    assert (run.code, run.manifest()["outcome"]) == (2, "benchmark_failed")
    assert "launcher=mpirun" in run.manifest()["message"]
    run.assert_nothing_left()


@pytest.mark.parametrize("axes,ranks", [({"tp": 2, "dp": 2}, 4), ({"mesh": "pp=2+dp=2"}, 4), ({}, 1)])
def test_ranks_are_the_product_of_the_axes(agent, axes, ranks):
    run = agent(ranks=0, iterations=1, **axes).start().finish()
    assert (run.code, run.manifest()["ranks"]) == (0, ranks)


PLACES = {"start": "starting", "ready": "preparing", "plan": "planning", "write": "writing", "fsync": "in fsync",
          "commit": "committing", "wait": "waiting for other ranks", "read": "reading", "verify": "verify"}


@pytest.mark.parametrize("point", PLACES)
@pytest.mark.parametrize("ranks", [1, 3])
def test_killed_rank_is_named_with_its_place(agent, point, ranks):
    rank = ranks - 1
    run = agent(ranks=ranks).start(f"{rank}:{point}:kill").finish()
    manifest = run.manifest()
    assert (run.code, manifest["outcome"]) == (4, "infrastructure")
    if is_mpich() and ranks > 1:  # its mpirun does not say which
        assert "a rank was killed by signal 9 (SIGKILL)" in manifest["message"]
    else:
        assert f"rank {rank} was killed by signal 9 (SIGKILL)" in manifest["message"]
        assert PLACES[point] in manifest["message"]
    run.assert_nothing_left()


@pytest.mark.parametrize("failure,outcome,code", [
    ("no_space", "benchmark_failed", 3), ("corrupt", "benchmark_failed", 3), ("format", "benchmark_failed", 3),
    ("usage", "benchmark_failed", 2), ("system", "benchmark_failed", 3), ("timeout", "timeout", 4),
    ("aborted", "infrastructure", 4)])
def test_failure_of_a_rank_is_the_outcome(agent, failure, outcome, code):
    run = agent(ranks=2).start(f"1:write:fail-{failure}").finish()
    manifest = run.manifest()
    assert (run.code, manifest["outcome"]) == (code, outcome)
    assert "rank 1: fake trouble second line" in manifest["message"]
    run.assert_nothing_left()


def test_rank_that_leaves_without_a_word(agent):
    run = agent(ranks=2).start("1:fsync:exit").finish()
    assert (run.code, run.manifest()["outcome"]) == (4, "infrastructure")
    assert "exit status 7" in run.manifest()["message"]
    run.assert_nothing_left()


@pytest.mark.parametrize("act", ["hang", "stubborn"])
def test_stalled_rank_is_named_and_ended(agent, act):
    run = agent(timeout_stall="2s").start(f"1:write:{act}").finish()
    manifest = run.manifest()
    assert (run.code, manifest["outcome"]) == (4, "timeout")
    assert "rank 1 moves nothing" in manifest["message"] and "writing" in manifest["message"]
    assert "timeout.stall=2s" in manifest["message"]
    run.assert_nothing_left()


def test_rank_that_never_reports(agent):
    run = agent(timeout_launch="30s").start("2:start:stubborn").finish()  # the others need seconds on a busy machine
    assert (run.code, run.manifest()["outcome"]) == (4, "timeout")
    assert "rank 2 (of 1 missing) has not reported within timeout.launch=30s" in run.manifest()["message"]
    run.assert_nothing_left()


DEAF_MPIRUN = """#!/bin/sh
while [ $# -gt 0 ] && [ "$1" != -n ]; do shift; done
shift 2
for rank in 0 1 2; do SLURM_PROCID=$rank setsid "$@" & done
while :; do sleep 1; done
"""


def start_with_deaf_mpirun(run, fake, script=DEAF_MPIRUN):
    """A launcher that starts three ranks and never notices that one died."""
    (run.programs / "mpirun").write_text(script)
    (run.programs / "mpirun").chmod(0o755)
    return run.start(fake, PATH=f"{run.programs}:{os.environ['PATH']}")


def rank_process(run, rank):
    for pid in run.processes():
        try:
            if f"SLURM_PROCID={rank}".encode() in Path(f"/proc/{pid}/environ").read_bytes().split(b"\0"):
                return pid
        except OSError:
            pass
    return None


def test_rank_that_dies_while_it_starts_is_found_where_its_launcher_is_deaf(agent):
    run = start_with_deaf_mpirun(agent(), "0:birth:hang 1:birth:hang 2:birth:hang")
    run.await_(lambda: rank_process(run, 1))
    time.sleep(0.5)  # seen alive
    os.kill(rank_process(run, 1), signal.SIGKILL)
    run.finish(timeout=120)
    assert (run.code, run.manifest()["outcome"]) == (4, "infrastructure")
    assert "rank 1 died while it started" in run.manifest()["message"]
    run.assert_nothing_left()


def test_rank_that_dies_before_anyone_saw_it_is_found_too(agent):
    run = start_with_deaf_mpirun(agent(), "0:birth:hang 1:birth:hang 2:birth:kill").finish(timeout=40)
    assert (run.code, run.manifest()["outcome"]) == (4, "infrastructure")
    assert "rank 2 died while it started" in run.manifest()["message"]
    run.assert_nothing_left()


def test_ranks_that_all_die_before_anyone_saw_them_are_found_too(agent):
    alone = DEAF_MPIRUN.replace("while :; do sleep 1; done", "exec sleep 1000")  # no process but itself
    run = start_with_deaf_mpirun(agent(), "0:birth:kill 1:birth:kill 2:birth:kill", alone).finish(timeout=40)
    assert (run.code, run.manifest()["outcome"]) == (4, "infrastructure")
    assert "died while it started" in run.manifest()["message"]  # whichever: a scan may have seen one for a moment
    run.assert_nothing_left()


def test_agent_that_comes_back_after_its_seal_changes_nothing(agent):
    """Taken for dead while it was stopped: sealed by another, before and after its records were there."""
    run = agent(iterations=100000).start()
    run.await_(lambda: (run.run / "attempts/1/progress.json").exists() and run.progress()["iteration"] > 1)
    run.process.send_signal(signal.SIGSTOP)
    environment = dict(os.environ, CKPTBENCH_HOME=str(run.run.parent / "home"))
    collected = subprocess.run([BUILD / "ckptbench", "collect", "--silence", "0s", f"{run.run}/"], env=environment,
                               capture_output=True, text=True, timeout=120)
    assert "the agent vanished" in collected.stderr, collected
    sealed = (run.run / "attempts/1/manifest.json").read_text()
    run.process.send_signal(signal.SIGCONT)
    run.process.send_signal(signal.SIGINT)
    run.finish()
    assert run.code == 4 and (run.run / "attempts/1/records").exists()
    assert (run.run / "attempts/1/manifest.json").read_text() == sealed and json.loads(sealed)["records_sha256"] == ""
    again = subprocess.run([BUILD / "ckptbench", "collect", str(run.run)], env=environment, capture_output=True, text=True,
                           timeout=120)
    assert again.returncode == 0 and "0 ingested, 1 known" in again.stdout, again
    run.assert_nothing_left()


def test_run_that_takes_too_long(agent):
    run = agent(timeout_run="1s", iterations=100000).start().finish()
    assert (run.code, run.manifest()["outcome"]) == (4, "timeout")
    assert "timeout.run=1s" in run.manifest()["message"]
    run.assert_nothing_left()


@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM])
def test_one_signal_ends_after_the_iteration(agent, number):
    run = agent(iterations=100000).start()
    run.await_(lambda: (run.run / "attempts/1/progress.json").exists() and run.progress()["iteration"] > 1)
    assert run.progress()["state"] == "running" and run.progress()["op"] in ("save", "load", "verify", "")
    run.process.send_signal(number)
    run.finish()
    manifest = run.manifest()
    assert (run.code, manifest["outcome"]) == (4, "cancelled")
    assert "stopped on request after" in manifest["message"] and manifest["samples"] % 3 == 0
    run.assert_nothing_left()


def is_pending(pid, number):
    """Whether a signal was sent and not taken yet: another one of its kind would be lost in it."""
    status = Path(f"/proc/{pid}/status").read_text()
    return any(int(line.split()[1], 16) >> (number - 1) & 1 for line in status.splitlines() if line.startswith(("SigPnd:", "ShdPnd:")))


def test_two_signals_end_at_once(agent):
    run = agent(iterations=100000).start("1:write:stubborn")
    run.await_(lambda: (run.run / "attempts/1/progress.json").exists() and run.progress()["op"] == "save")
    run.process.send_signal(signal.SIGINT)
    run.await_(lambda: not is_pending(run.process.pid, signal.SIGINT))
    run.process.send_signal(signal.SIGINT)
    run.finish()
    assert (run.code, run.manifest()["outcome"]) == (4, "cancelled")
    assert "second signal" in run.manifest()["message"]
    run.assert_nothing_left()


def test_dead_controller_cancels_the_run(agent):
    run = agent(iterations=100000)
    script = f"import subprocess, time; subprocess.Popen(['{run.programs}/ckptbench-agent', 'run', '{run.run}']); time.sleep(600)"
    controller = subprocess.Popen(["python3", "-c", script], start_new_session=True)
    run.await_(lambda: (run.run / "attempts/1/progress.json").exists())
    controller.kill()
    controller.wait()
    run.await_(lambda: (run.run / "attempts/1/manifest.json").exists())
    assert run.manifest()["outcome"] == "cancelled" and "controller" in run.manifest()["message"]
    run.assert_nothing_left(seconds=5)


def test_killed_agent_leaves_no_process_and_the_next_start_removes_its_folder(agent):
    run = agent(iterations=100000).start("1:write:hang")
    run.await_(lambda: len(run.processes()) >= 5)
    run.process.kill()
    run.process.wait()
    run.await_(lambda: not run.processes())
    assert not (run.run / "attempts/1/manifest.json").exists()
    other = agent(iterations=1).start().finish()
    assert other.code == 0
    run.assert_nothing_left()


def test_process_that_a_rank_leaves_behind_is_ended(agent):
    run = agent().start("0:read:orphan").finish()
    assert run.code == 0
    run.assert_nothing_left()


def test_spoiled_page_is_never_a_result(agent):
    run = agent(ranks=2).start("1:done:spoil").finish()
    manifest = run.manifest()
    assert (run.code, manifest["outcome"], manifest["ranks"]) == (4, "infrastructure", 1)
    assert "rank 1" in manifest["message"]


@pytest.mark.parametrize("length", [0, 4096])
def test_page_that_somebody_cuts_short_does_not_end_the_agent(agent, length):
    # The rank dies of SIGBUS, which a sanitizer would report.
    run = agent(ranks=2, iterations=100000).start(ASAN_OPTIONS=os.environ.get("ASAN_OPTIONS", "") + ":handle_sigbus=0",
                                                  TSAN_OPTIONS=os.environ.get("TSAN_OPTIONS", "") + ":handle_sigbus=0")
    run.await_(lambda: (run.run / "attempts/1/progress.json").exists() and run.progress()["iteration"] > 1)
    page = next(SHM.glob(f"ckptbench-{run.run.name}-*/rank-1.page"))
    os.truncate(page, length)
    time.sleep(0.3)
    run.process.send_signal(signal.SIGINT)
    run.finish()
    manifest = run.manifest()
    assert run.code == 4 and manifest["outcome"] != "pass" and manifest["ranks"] == 1 and manifest["samples"] > 0
    run.assert_nothing_left()


def test_missing_mpirun_says_what_to_do(agent):
    run = agent(ranks=2).start(PATH="/nonexistent").finish()
    assert (run.code, run.manifest()["outcome"]) == (4, "infrastructure")
    assert f"mpirun is not in PATH: install {'MPICH' if is_mpich() else 'Open MPI'} (" in run.manifest()["message"]
    run.assert_nothing_left()


def test_missing_worker_is_sealed(agent):
    run = agent()
    (run.programs / "ckptbench-worker").unlink()
    run.start().finish()
    assert (run.code, run.manifest()["outcome"]) == (4, "infrastructure")
    assert "ckptbench-worker" in run.manifest()["message"]
    run.assert_nothing_left()


def test_worker_that_cannot_start_is_quoted(agent):
    run = agent()
    (run.programs / "ckptbench-worker").write_text("#!/bin/sh\necho 'libmpi.so: cannot open' >&2\nexit 127\n")
    run.start().finish()
    assert (run.code, run.manifest()["outcome"]) == (4, "infrastructure")
    assert "did not start" in run.manifest()["message"]
    run.assert_nothing_left()


def test_folder_that_is_no_run_is_a_usage_mistake(tmp_path):
    result = subprocess.run([BUILD / "ckptbench-agent", "run", tmp_path / "none"], capture_output=True, text=True, timeout=120)
    assert result.returncode == 2 and "none" in result.stderr
    assert subprocess.run([BUILD / "ckptbench-agent"], capture_output=True, timeout=120).returncode == 2


@pytest.mark.parametrize("name, said", [("swept", ["-Q 7"]), ("another", [])])
def test_an_array_is_cancelled_only_while_its_number_is_its_own(tmp_path, name, said):
    """Slurm has lost its state and given the number again: the first task of the other job runs, the second waits. The leader
    is asked to end before it hears of that."""
    tools, queue, calls = tmp_path / "tools", tmp_path / "queue", tmp_path / "calls"
    tools.mkdir()
    queue.write_text("0|PENDING|8|swept|1|\n1|PENDING|7|swept|1|\n")
    if name != "swept":
        (tmp_path / "next").write_text(f"0|RUNNING|8|{name}|1|n1\n1|PENDING|7|{name}|1|\n")
    look = f"if mkdir {tmp_path}/looked 2> /dev/null; then cat {queue}; exit; fi; mv {tmp_path}/next {queue} 2> /dev/null; kill -TERM $PPID; cat {queue}"
    for tool, text in (("squeue", look), ("scancel", f'echo "$@" >> {calls}; : > {queue}')):
        (tools / tool).write_text(f"#!/bin/sh\n{text}\n")
        (tools / tool).chmod(0o755)
    leader = subprocess.run([BUILD / "ckptbench-agent", "array", tmp_path / "links", "7", "swept"], stdin=subprocess.DEVNULL, timeout=60,
                            env=dict(os.environ, PATH=f"{tools}:{os.environ['PATH']}"), check=False)
    assert leader.returncode == 0
    assert (calls.read_text().splitlines() if calls.exists() else []) == said
    assert not list(tmp_path.glob("job.log.*"))  # no agent was started
