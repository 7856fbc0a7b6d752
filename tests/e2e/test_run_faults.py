"""Faults through the whole program: whatever goes wrong, `ckptbench run` ends in time with the right outcome
and reason, leaves no process, and no half checkpoint counts as one."""
import json
import os
import re
import shutil
import signal
import sqlite3
import subprocess
import time
from pathlib import Path

import pytest

from harness import BUILD, PROGRAM, has_stopped

TINY = ("model=gpt2-tiny", "ranks=2", "tp=2", "warmup=0", "baseline=false")


class Home:
    """A home and a store of one test."""

    def __init__(self, folder):
        self.folder, self.home, self.store = folder, folder / "home", folder / "store"
        self.store.mkdir()
        self.environment = dict(os.environ, CKPTBENCH_HOME=str(self.home))

    def start(self, *words, wrapper=()):
        return subprocess.Popen([*wrapper, PROGRAM, "run", *words, "--json"], cwd=self.folder, env=self.environment,
                                stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)

    def finish(self, process, code, timeout=120):
        out, err = process.communicate(timeout=timeout)
        assert process.returncode == code, out + err
        self.assert_nothing_left()
        return json.loads(out)

    def run(self, *words, code=0, **more):
        return self.finish(self.start(*words, **more), code)

    def call(self, *words, code=0):
        result = subprocess.run([PROGRAM, *words], cwd=self.folder, env=self.environment, capture_output=True, text=True,
                                timeout=120)
        assert result.returncode == code, result.stdout + result.stderr
        return result.stdout

    def processes(self, program=None):
        """Living processes that were started for this home."""
        found = []
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                ours = f"CKPTBENCH_HOME={self.home}".encode() in (entry / "environ").read_bytes().split(b"\0")
                name = (entry / "cmdline").read_bytes().split(b"\0")[0].decode()
                dead = (entry / "stat").read_text().rsplit(")", 1)[1].split()[0] in "ZX"
            except OSError:
                continue
            if ours and not dead and (program is None or os.path.basename(name) == program):
                found.append(int(entry.name))
        return found

    def assert_nothing_left(self, seconds=60):
        deadline = time.monotonic() + seconds
        while self.processes() and time.monotonic() < deadline:
            time.sleep(0.05)
        assert self.processes() == []

    def pages(self, ranks=2):
        """The status pages of the run under way; [] while there are none."""
        for run in (self.home / "runs").glob("*"):
            for folder in Path("/dev/shm").glob(f"ckptbench-{run.name}-*"):
                shown = subprocess.run([BUILD / "tests/worker_pages", "show", folder, str(ranks)], capture_output=True, timeout=120)
                if shown.returncode == 0:
                    return json.loads(shown.stdout)
        return []

    def await_(self, condition, process, seconds=200):
        deadline = time.monotonic() + seconds
        while not condition():
            assert process.poll() is None, process.communicate()
            assert time.monotonic() < deadline, "it did not happen in time"
            time.sleep(0.01)

    def await_running(self, process):
        def running():
            paths = list((self.home / "runs").glob("*/attempts/1/progress.json"))
            return paths and json.loads(paths[0].read_text())["op"] in ("save", "load", "verify")

        self.await_(running, process)

    def kill_rank_when(self, condition, process, rank=1):
        """Stops the rank first, so that it dies where it was seen, however short that is."""
        def hit():
            pages = self.pages()
            if not pages or not pages[rank]["pid"] or not condition(pages[rank]):
                return False
            pid = pages[rank]["pid"]
            os.kill(pid, signal.SIGSTOP)
            self.await_(lambda: has_stopped(pid), process)
            if condition(self.pages()[rank]):
                os.kill(pid, signal.SIGKILL)
                return True
            os.kill(pid, signal.SIGCONT)
            return False

        self.await_(hit, process)

    def assert_no_half_checkpoint(self):
        for marker in self.store.rglob(".metadata"):
            self.call("verify", str(marker.parent))


@pytest.fixture
def home(tmp_path):
    made = Home(tmp_path)
    yield made
    for pid in made.processes():
        try:
            os.kill(pid, signal.SIGKILL)
        except ProcessLookupError:
            pass
    shutil.rmtree(made.store, ignore_errors=True)


# ---- what is refused before a byte is written ----

def test_a_place_that_cannot_work_is_refused_with_its_reason(home):
    run = home.run(*TINY, "store=/sys/kernel/ckptbench", code=3)
    assert run["outcome"] == "benchmark_failed" and "/sys/kernel/ckptbench" in run["message"]


@pytest.mark.parametrize("words, figures", [
    (("model=llama3-405b", "tp=2"), r"the state of 2 ranks needs 5\.\d+ TiB of memory \(up to 2\.\d+ TiB a rank\), and this machine has [\d.]+ GiB free"),
    (("ranks=65000", "tp=1"), r"65000 ranks cannot be started on this machine: .* take about [\d.]+ (processes|TiB of memory)"),
    (("ranks=65000", "tp=1", "engine=command", "command=true", "ops=save"), r"65000 ranks cannot be started"),
])
def test_what_is_too_large_for_the_machine_is_refused_at_once_with_the_figures(home, words, figures):
    result = subprocess.run([PROGRAM, "run", "model=gpt2-tiny", "ranks=2", "store=./store", *words], cwd=home.folder,
                            env=home.environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 2 and re.search(figures, result.stderr), result.stderr
    assert not list(home.home.glob("runs/*")) and list(home.store.iterdir()) == []


def test_ranks_refuse_what_the_controller_could_not_foresee(home):
    """Memory that went between the controller's look and theirs: here the experiment is written by hand."""
    run = home.run(*TINY, "store=./store", "iterations=1", "ops=save", "keep=false")
    folder = home.home / "runs/20261121-hand"
    (folder / "attempts").mkdir(parents=True)
    text = (home.home / f"runs/{run['run']}/experiment.yaml").read_text()
    (folder / "experiment.yaml").write_text(text.replace("model: gpt2-tiny", "model: llama3-405b"))
    result = subprocess.run([BUILD / "ckptbench-agent", "run", folder], env=home.environment, capture_output=True, timeout=120)
    manifest = json.loads((folder / "attempts/1/manifest.json").read_text())
    assert result.returncode == 3 and manifest["outcome"] == "benchmark_failed" and "TiB of memory" in manifest["message"]


def test_a_folder_that_must_not_be_written_to_is_refused_before_a_run_is_planned(home):
    result = subprocess.run([PROGRAM, "run", *TINY, "store=/proc/sys"], cwd=home.folder, env=home.environment,
                            capture_output=True, text=True, timeout=120)
    assert result.returncode == 4 and "/proc/sys cannot be written to" in result.stderr
    assert not list(home.home.glob("runs/*"))


def test_a_missing_path_is_refused_before_a_run_is_planned(home):
    result = subprocess.run([PROGRAM, "run", *TINY, "store=/no/such/folder/at-all"], cwd=home.folder, env=home.environment,
                            capture_output=True, text=True, timeout=120)
    assert result.returncode == 2 and "/no/such/folder/at-all does not exist" in result.stderr
    assert not list(home.home.glob("runs/*"))


def test_other_peoples_files_in_the_store_stay(home):
    (home.store / "thesis.tex").write_text("years of work")
    home.run(*TINY, "store=./store", "keep=false")
    assert (home.store / "thesis.tex").read_text() == "years of work"


# ---- a file system that is really full ----

ON_A_SMALL_FILE_SYSTEM = """
mount -t tmpfs -o size=$1 none store && mkdir store/inner || exit 99
shift
"$@" store="$PWD/store/inner" &
program=$!
while [ -z "$FILL" ] || ! grep -qs '"op": *"save"' home/runs/*/attempts/1/progress.json; do
    kill -0 $program 2>/dev/null || break
    [ -z "$FILL" ] && break
    sleep 0.05
done
while [ -n "$FILL" ] && kill -0 $program 2>/dev/null; do cat /dev/zero >>store/filler; sleep 0.05; done 2>/dev/null
wait $program
code=$?
find store/inner -name .metadata
exit $code
"""


def on_a_small_file_system(home, size, *words, fill, code):
    """In a mount name space of its own, which ordinary users may have, too."""
    command = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "sh", "-c"]
    if subprocess.run([*command, "mount -t tmpfs none store"], cwd=home.folder, capture_output=True, timeout=120).returncode:
        pytest.skip("needs the right to mount a tmpfs in a name space of its own")
    environment = dict(home.environment, FILL="yes" if fill else "")
    result = subprocess.run([*command, ON_A_SMALL_FILE_SYSTEM, "sh", size, PROGRAM, "run", *TINY, "load.cold=false", *words, "--json"],
                            cwd=home.folder, env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == code, result.stdout + result.stderr
    home.assert_nothing_left()
    return result


def test_a_model_too_large_for_the_disk_is_refused_with_the_figures(home):
    result = on_a_small_file_system(home, "8m", fill=False, code=2)
    assert re.search(r"needs about [\d.]+ MiB in store .*, but only 8 MiB is free", result.stderr)
    assert result.stdout == "" and not list(home.home.glob("runs/*"))


def test_a_disk_that_fills_up_ends_the_run_and_leaves_no_checkpoint(home):
    result = on_a_small_file_system(home, "64m", "iterations=100000", fill=True, code=3)
    run = json.loads(result.stdout)  # a marker that was left would stand behind it
    assert run["outcome"] == "benchmark_failed" and "No space left" in run["message"]


@pytest.mark.parametrize("spec, sentence", [("error_at=9/EIO", "Input/output error"), ("short_write=3", "Input/output error"),
                                            ("enospc_after=3MiB", "No space left")])
def test_a_store_that_fails_in_the_middle_ends_the_run(home, spec, sentence):
    run = home.run(*TINY, f"store=fault:{spec}+rank=1:./store", "io.block=256KiB", code=3)
    assert run["outcome"] == "benchmark_failed" and "rank 1" in run["message"] and sentence in run["message"]
    assert not list(home.store.rglob(".metadata"))


@pytest.mark.parametrize("damage, reason", [
    (lambda file: file.write_bytes(file.read_bytes()[:3000000]), "the file is too short"),
    (lambda file: file.write_bytes(bytes(b ^ 16 if i == 5000000 else b for i, b in enumerate(file.read_bytes()))), "CRC-32")])
def test_a_damaged_checkpoint_is_refused_with_every_wrong_item_of_every_rank(home, damage, reason):
    home.run(*TINY, "store=./store", "ops=save", "suffix=nightly", "iterations=1", "verify=none")
    file = home.store / "nightly/iteration-0/__0_0.distcp"
    damage(file)
    run = home.run(*TINY, "store=./store", "ops=load", "suffix=nightly", "iterations=1", code=3)
    assert run["outcome"] == "benchmark_failed"
    assert re.search(r"(model|optimizer)\.\S+ in nightly/iteration-0/__0_0.distcp at offset \d+, \d+ bytes: ", run["message"])
    shown = home.call("show", run["run"], "--failures")
    lines = [line for line in shown.splitlines() if re.match(r"rank \d  ", line)]
    assert lines and all(file.name in line for line in lines) and reason in lines[0]
    failures = json.loads(home.call("show", run["run"], "--failures", "--json"))["failures"]
    assert sum(len(failure["text"].splitlines()) for failure in failures if failure["code"] != "aborted") == len(lines)
    assert "wrong" in home.call("verify", str(file.parent), code=3)


# ---- who dies ----

SLOW = "store=fault:bandwidth=4MiB/s:./store"
PHASES = {  # name: (words, where the rank is when it dies, what the message says of it)
    "setup": (("model=gpt2", "layers=4", *TINY[1:], "store=./store"), lambda page: page["phase"] == "ready", "preparing"),
    "write": ((*TINY, SLOW), lambda page: page["op"] == "save" and page["state"] == "io", "save 1/5, writing"),
    "fsync": ((*TINY, "store=fault:stall_at=1+ops=finish:./store"), lambda page: page["state"] == "fsync", "in fsync"),
    "commit": ((*TINY, "store=fault:stall_at=1+ops=publish:./store"), lambda page: page["state"] == "commit", "committing"),
    "load": ((*TINY, "store=fault:stall_at=1+ops=read:./store"), lambda page: page["op"] == "load" and page["state"] == "io",
             "load 1/5, reading"),
    "verify": (("model=gpt2", "layers=2", *TINY[1:], "iterations=50", "store=./store"), lambda page: page["op"] == "verify", "verify"),
    "baseline": ((*TINY[:3], "store=fault:bandwidth=16MiB/s:./store", "iterations=1", "warmup=0", "ops=save", "verify=none"),
                 lambda page: page["op"].startswith("baseline"), "baseline"),
}


@pytest.mark.parametrize("phase", PHASES)
def test_a_rank_killed_in_any_phase_ends_the_run_with_its_name_and_place(home, phase):
    words, condition, place = PHASES[phase]
    rank = 0 if phase == "commit" else 1
    process = home.start(*words)
    home.kill_rank_when(condition, process, rank)
    run = home.finish(process, 4)
    assert run["outcome"] == "infrastructure"
    assert f"rank {rank} was killed by signal 9 (SIGKILL)" in run["message"] and place in run["message"]
    home.assert_no_half_checkpoint()
    listed = json.loads(home.call("list", "--json"))
    assert [(entry["state"], entry["outcome"]) for entry in listed] == [("failed", "infrastructure")]


def test_a_rank_killed_while_it_starts_ends_the_run(home):
    process = home.start(*TINY, "store=./store", "iterations=100000")
    found = []

    def started():
        found[:] = home.processes("ckptbench-worker")
        return found

    home.await_(started, process)
    os.kill(found[0], signal.SIGKILL)
    run = home.finish(process, 4)
    assert run["outcome"] == "infrastructure"
    # Open MPI reaps a child that dies early enough without a word, or with its exit status alone (128 + 9).
    assert re.search(r"rank \d was killed by signal 9 \(SIGKILL\)|rank \d died while it started|exit status 137", run["message"]), run
    home.assert_no_half_checkpoint()


def test_a_killed_agent_is_noticed_and_the_run_is_lost(home):
    process = home.start(*TINY, "store=./store", "iterations=100000")
    home.await_running(process)
    for pid in home.processes("ckptbench-agent"):
        os.kill(pid, signal.SIGKILL)
    run = home.finish(process, 4)
    assert run["outcome"] == "lost" and "SIGKILL" in run["message"]
    home.assert_no_half_checkpoint()


def test_a_killed_controller_leaves_a_run_that_collect_finds_cancelled(home):
    process = home.start(*TINY, "store=./store", "iterations=100000")
    home.await_running(process)
    process.kill()
    process.communicate(timeout=120)
    home.assert_nothing_left()
    home.call("collect")
    listed = json.loads(home.call("list", "--json"))
    assert [entry["outcome"] for entry in listed] == ["cancelled"]
    home.assert_no_half_checkpoint()


@pytest.mark.parametrize("stall", ["stall_at=3", "block_at=3"])
def test_a_disk_that_stalls_is_sealed_in_time_with_the_stuck_process_named(home, stall):
    process = home.start(*TINY, f"store=fault:{stall}+rank=1:./store", "io.block=256KiB", "timeout.stall=10s")
    pids = []

    def stuck():
        pages = home.pages()
        pids[:] = [pages[1]["pid"]] if pages else []
        return pids and pages[1]["op"] == "save"

    home.await_(stuck, process)
    run = home.finish(process, 4)
    assert run["outcome"] == "timeout"
    assert "rank 1 moves nothing" in run["message"] and f"process {pids[0]}" in run["message"]
    assert not list(home.store.rglob(".metadata"))


# ---- timeout.stall: only where progress could be seen ----

SLOW_WRITES = "for i in 1 2 3 4 5 6 7 8 9 10; do echo $i >> {path}/rank-{rank}; sleep 0.5; done"


def test_a_command_that_writes_slowly_does_not_stall(home):
    home.run(*TINY, "store=./store", "engine=command", f"command={SLOW_WRITES}", "ops=save", "iterations=1", "timeout.stall=4s")


def test_a_command_that_waits_for_another_rank_which_writes_does_not_stall(home):
    command = f"if [ {{rank}} = 0 ]; then while [ ! -e {{path}}/done ]; do sleep 1; done; else {SLOW_WRITES}; touch {{path}}/done; fi"
    home.run(*TINY, "store=./store", "engine=command", f"command={command}", "ops=save", "iterations=1", "timeout.stall=4s")


def test_commands_that_all_wait_stall(home):
    run = home.run(*TINY, "store=./store", "engine=command", "command=sleep 100", "ops=save", "iterations=1", "timeout.stall=3s", code=4)
    assert run["outcome"] == "timeout" and "timeout.stall=3s" in run["message"]


def test_a_long_fsync_does_not_stall(home):
    home.run(*TINY, "store=fault:delay=6s+ops=finish+rank=1:./store", "io.engine=psync", "iterations=1", "timeout.stall=4s")


# ---- what happens to the run folder ----

@pytest.mark.parametrize("content, why", [("not: [an experiment", "not YAML"), ("", ""), (None, "")])
def test_an_experiment_that_is_overwritten_while_it_runs_is_no_pass_and_the_run_ends(home, content, why):
    process = home.start(*TINY, "store=./store", "iterations=100000", "label.kind=x")
    home.await_running(process)
    file = next((home.home / "runs").glob("*/experiment.yaml"))
    old = file.read_text()
    file.write_text(old.replace("model: gpt2-tiny", "model: gpt2") if content is None else content)
    process.send_signal(signal.SIGINT)
    run = home.finish(process, 4)
    assert run["experiment"]["model"] == "gpt2-tiny" and run["labels"] == {"kind": "x"}
    home.call("collect")
    listed = json.loads(home.call("list", "--json"))
    assert [(entry["state"], entry["experiment"]["model"]) for entry in listed] == [("cancelled", "gpt2-tiny")]


def test_an_experiment_that_was_changed_is_no_pass(home):
    process = home.start(*TINY, f"store=fault:until={home.folder}/go:./store", "iterations=3")
    home.await_running(process)
    file = next((home.home / "runs").glob("*/experiment.yaml"))
    file.write_text(file.read_text().replace("model: gpt2-tiny", "model: gpt2"))
    (home.folder / "go").touch()
    run = home.finish(process, 4)
    assert run["outcome"] == "infrastructure" and "experiment.yaml was changed while the run lasted" in run["message"]
    assert run["experiment"]["model"] == "gpt2-tiny"


FULL_HOME = """
mount -t tmpfs -o size=8m none home || exit 99
"$@" &
program=$!
while ! grep -qs '"op": *"save"' home/runs/*/attempts/1/progress.json; do kill -0 $program || exit 98; sleep 0.05; done
cat /dev/zero >home/filler 2>/dev/null
kill -INT $program
wait $program
code=$?
"$1" collect --silence 0s
echo "collected: $?"
"$1" list --json
rm home/filler
"$1" collect
"$1" collect --silence 0s
"$1" list --json
exit $code
"""


def test_a_home_that_is_full_at_the_seal_ends_with_4_and_collect_seals_the_run_later(home):
    home.home.mkdir()
    command = ["unshare", "--mount", *([] if os.geteuid() == 0 else ["--user", "--map-root-user"]), "sh", "-c"]
    if subprocess.run([*command, "mount -t tmpfs none store"], cwd=home.folder, capture_output=True, timeout=120).returncode:
        pytest.skip("needs the right to mount a tmpfs in a name space of its own")
    result = subprocess.run([*command, FULL_HOME, "sh", PROGRAM, "run", *TINY, "store=./store", "iterations=100000", "--json"],
                            cwd=home.folder, env=home.environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == 4 and "No space left on device" in result.stderr, result.stdout + result.stderr
    home.assert_nothing_left()
    before, after = (json.loads(line) for line in result.stdout.splitlines() if line.startswith("["))
    assert [entry["state"] for entry in before] == ["running"] and "collected: 4" in result.stdout
    assert "0 ingested, 0 known, 1 not sealed, 0 failed" in result.stdout  # it may still be alive: silence is 60 s
    assert "the agent vanished" in result.stderr and "1 ingested" in result.stdout
    assert [(entry["state"], entry["outcome"]) for entry in after] == [("failed", "lost")]


# ---- several at once ----

def test_two_controllers_write_one_history(home):
    (home.folder / "other").mkdir()
    processes = [home.start(*TINY, f"store=./{store}", "iterations=1", "io.depth=1,2", "ops=save", "keep=false")
                 for store in ("store", "other")]
    for process in processes:
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0, err
        assert [run["outcome"] for run in json.loads(out)["runs"]] == ["pass", "pass"]
    listed = json.loads(home.call("list", "--json"))
    assert [entry["outcome"] for entry in listed] == ["pass"] * 4
    assert sqlite3.connect(home.home / "history.db").execute("pragma integrity_check").fetchone() == ("ok",)


def test_a_run_is_run_by_one_controller_at_a_time(home):
    process = home.start(*TINY, "store=./store", "ops=save", "iterations=100000", "io.depth=1,2")
    home.await_running(process)
    sweep = next((home.home / "runs").glob("*.01")).name.split(".")[0]
    result = subprocess.run([PROGRAM, "run", "--resume", sweep], env=home.environment, capture_output=True, text=True, timeout=120)
    assert result.returncode != 0 and "is being run by another ckptbench" in result.stderr
    process.send_signal(signal.SIGINT)
    home.finish(process, 4)


def test_a_history_of_a_newer_release_is_refused_before_anything_runs(home):
    home.run(*TINY, "store=./store", "iterations=1", "ops=save", "keep=false")
    with sqlite3.connect(home.home / "history.db") as db:
        db.execute("pragma user_version=99")
    result = subprocess.run([PROGRAM, "run", *TINY, "store=./store"], cwd=home.folder, env=home.environment, capture_output=True,
                            text=True, timeout=120)
    assert result.returncode == 2 and "newer ckptbench" in result.stderr
    assert len(list((home.home / "runs").iterdir())) == 1


def test_an_agent_that_was_stopped_is_told_and_ended_when_nothing_can_come_of_it(home):
    process = home.start(*TINY, "store=./store", "iterations=100000", "folder=overwrite", "baseline=false", "warmup=0")
    home.await_running(process)
    agent = home.processes("ckptbench-agent")[0]
    os.kill(agent, signal.SIGSTOP)
    out, err = process.communicate(timeout=120)
    home.assert_nothing_left()
    run = json.loads(out)
    assert process.returncode == 4 and f"kill -CONT {agent} lets it go on" in err
    assert run["outcome"] == "lost" and "stood still for 15 s" in run["message"]


def test_a_run_that_the_history_cannot_take_leaves_no_folder(home):
    home.run(*TINY, "store=./store", "ops=save", "verify=none")
    kept = sorted(home.home.glob("runs/*"))
    with sqlite3.connect(home.home / "history.db") as db:
        db.execute("CREATE TRIGGER refuse BEFORE INSERT ON run BEGIN SELECT RAISE(ABORT, 'no more'); END")
    process = home.start(*TINY, "store=./store")
    _, err = process.communicate(timeout=120)
    assert process.returncode == 4 and "no more" in err
    assert sorted(home.home.glob("runs/*")) == kept
