"""ckptbench watch --join: tasks that share one watched run, started by hand here, and in tests/slurm by srun."""
import ctypes
import json
import os
import re
import select
import signal
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from harness import PROGRAM, ckptbench, environment
from test_watch import TRAINING


def start(place, name, rank, *command, words=("--tasks", "2"), **more):
    variables = environment(place, **{"RANK": str(rank), "WORLD_SIZE": "2", "MEETING": str(place / "meeting"), "OMP_NUM_THREADS": "1", **more})
    return subprocess.Popen([PROGRAM, "watch", "--join", name, *words, "--", *map(str, command)], cwd=place, env=variables,
                            stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def end(*tasks):
    """(exit code, stdout, stderr) of each."""
    ended = [(*task.communicate(timeout=300), task.returncode) for task in tasks]
    return [(code, out, err) for out, err, code in ended]


def shown(place, name):
    return json.loads(ckptbench(place, "show", name, "--json").stdout)


def test_ranks_that_join_are_one_run_which_the_last_one_reports(tmp_path):
    command = [sys.executable, TRAINING, tmp_path, "save:a", "thread:b", "load:b", "say:hello"]
    ended = end(*(start(tmp_path, "job-7", rank, *command) for rank in range(2)))
    assert [code for code, _, _ in ended] == [0, 0], ended
    assert all(out == "hello\n" for _, out, _ in ended)
    assert sum("run job-7  watched" in err for _, _, err in ended) == 1, ended
    run = shown(tmp_path, "job-7")
    assert run["outcome"] == "pass"
    assert run["metrics"]["save_s"]["n"] == 2 and run["metrics"]["load_s"]["n"] == 1
    assert (tmp_path / "home/runs/job-7/attempts/1/fingerprint.json").stat().st_size > 2
    assert os.listdir(tmp_path / "home/runs/job-7/attempts") == ["1"]
    report = ckptbench(tmp_path, "show", "job-7").stdout
    assert "2 ranks of torch" in report and "several processes" not in report
    ckptbench(tmp_path, "collect", "--rebuild")
    assert shown(tmp_path, "job-7")["metrics"] == run["metrics"]


def test_the_run_ends_with_its_last_task_and_fails_with_any(tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    late = start(tmp_path, "uneven", 0, "sh", "-c", f"echo joined; cat {gate}; exit 0")
    assert late.stdout.readline() == "joined\n"
    (first,) = end(start(tmp_path, "uneven", 1, "sh", "-c", "exit 7"))
    assert first[0] == 7 and "run uneven" not in first[2]
    assert "0 ingested" in ckptbench(tmp_path, "collect", "--silence", "0s").stdout  # nobody is taken for dead
    gate.write_text("")
    (last,) = end(late)
    assert last[0] == 0 and "run uneven  watched" in last[2]
    run = shown(tmp_path, "uneven")
    assert run["outcome"] == "benchmark_failed" and run["message"].startswith("sh ended with exit status 7 on ")


def test_a_task_that_comes_too_late_runs_without_being_watched(tmp_path):
    (only,) = end(start(tmp_path, "over", 0, "true", words=()))
    assert only[0] == 0 and "run over  watched" in only[2]
    (late,) = end(start(tmp_path, "over", 1, "sh", "-c", "echo ran; exit 5", words=()))
    assert late[0] == 5 and late[1] == "ran\n"
    assert "has ended already" in late[2] and "runs without being watched" in late[2]
    assert shown(tmp_path, "over")["outcome"] == "pass"


def lines_of(place, name):
    """Those of all tasks."""
    files = (place / f"home/runs/{name}/attempts/1/watch").glob("*.task")
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


def test_nodes_measure_the_limit_at_the_same_time_and_their_rates_add_up(tmp_path):
    command = [sys.executable, TRAINING, tmp_path, "save:a", "load:a"]
    ended = end(*(start(tmp_path, "nodes", rank, *command, SLURMD_NODENAME=f"n{rank}") for rank in range(2)))
    assert [code for code, _, _ in ended] == [0, 0], ended
    results = [line for line in lines_of(tmp_path, "nodes") if line["op"] == "limit"]
    assert len(results) == 2 and all(line["nodes"] == 2 and line["files"] == 1 for line in results), ended
    metrics = shown(tmp_path, "nodes")["metrics"]
    for key, metric in (("write_s", "baseline_write_bytes_per_s"), ("read_s", "baseline_read_bytes_per_s")):
        assert len(results[0][key]) == len(results[1][key]) >= 1
        rates = [sum(line["bytes"] for line in results) / max(seconds) for seconds in zip(*(line[key] for line in results))]
        assert metrics[metric]["median"] == pytest.approx(statistics.median(rates))
    assert "save_limit_fraction" in metrics
    report = ckptbench(tmp_path, "show", "nodes").stdout
    assert "limit         measured after the command by 2 nodes at the same time, with " in report and "in 2 files" in report
    assert not scratch_of(tmp_path)


@pytest.mark.parametrize("code", [7, 0])
def test_a_limit_that_the_nodes_cannot_measure_has_a_reason(tmp_path, code):
    """A command failed, or the locks of one node are not seen by the other, as if it had a file of its own."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    command = [sys.executable, TRAINING, tmp_path, "save:a", "say:saved", f"read:{gate}"]
    leader = start(tmp_path, "uneven", 0, *command, WORLD_SIZE="1", SLURMD_NODENAME="n0")
    assert leader.stdout.readline() == "saved\n"
    if code == 0:
        file = tmp_path / "home/runs/uneven/attempts/1/limit"
        file.rename(f"{file}.n0")
        file.touch()
    (other,) = end(start(tmp_path, "uneven", 1, "sh", "-c", f"exit {code}", SLURMD_NODENAME="n1"))
    assert other[0] == code
    gate.write_text("")
    (last,) = end(leader)
    why = "sh ended with exit status 7 on n1" if code else "n1[^ ]*: the first task has ended, or locks are not shared by the nodes"
    assert last[0] == 0 and re.search(f"limit         not measured: {why}", last[2])
    assert shown(tmp_path, "uneven")["metrics"]["save_s"]["n"] == 1


def test_nobody_waits_for_a_task_that_would_lead_the_measurement_and_was_killed(tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    leader = start(tmp_path, "led", 0, "sh", "-c", f"echo joined; cat {gate}", SLURMD_NODENAME="n0")
    assert leader.stdout.readline() == "joined\n"
    follower = start(tmp_path, "led", 1, "sh", "-c", "echo ended", SLURMD_NODENAME="n1")
    assert follower.stdout.readline() == "ended\n"
    children = Path(f"/proc/{leader.pid}/task/{leader.pid}/children").read_text()
    os.kill(int(children.split()[0]), signal.SIGKILL)
    (ended,) = end(follower)
    assert ended[0] == 0
    (line,) = [line for line in lines_of(tmp_path, "led") if line["op"] == "limit_failed"]
    assert ": the first task has ended" in line["why"]  # not that other commands ran for a minute
    gate.write_text("")
    end(leader)


def test_a_killed_task_leaves_its_lines_to_collect(tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    killed = start(tmp_path, "killed", 0, sys.executable, TRAINING, tmp_path, "whole:a.pt", "say:saved", f"read:{gate}", words=("--tasks", "1"),
                   WORLD_SIZE="1")
    assert killed.stdout.readline() == "saved\n"
    children = f"/proc/{killed.pid}/task/{killed.pid}/children"
    with open(children, encoding="utf-8") as file:
        os.kill(int(file.read().split()[0]), 9)
    gate.write_text("")
    assert end(killed)[0][0] == 137
    ckptbench(tmp_path, "collect", "--silence", "0s")
    run = shown(tmp_path, "killed")
    assert run["outcome"] == "lost" and run["metrics"]["save_s"]["n"] == 1


class Sealing:
    """A task that has saved, whose run is being sealed: the measurement of the device's limit has begun, and waits."""

    def __init__(self, place, name, words=None):
        library, hold = place / "hold_open.so", place / "hold"
        subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, Path(__file__).with_name("hold_open.c"), "-ldl"], check=True)
        for ending in ("begun", "go"):
            os.mkfifo(f"{hold}.{ending}")
        self.go = Path(f"{hold}.go")
        variables = environment(place, OMP_NUM_THREADS="1", LD_PRELOAD=str(library), HOLD=str(hold))
        words = words or ["watch", "--join", name, "--tasks", "1", "--", sys.executable, TRAINING, place, "save:a"]
        self.task = subprocess.Popen([PROGRAM, *map(str, words)], cwd=place, env=variables, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE,
                                     stderr=subprocess.STDOUT, text=True, start_new_session=True)
        begun, waiting = os.open(f"{hold}.begun", os.O_RDONLY | os.O_NONBLOCK), select.poll()
        waiting.register(begun, select.POLLIN | select.POLLHUP)
        assert waiting.poll(200_000), "nothing is measured"  # until it was opened by somebody who writes
        os.close(begun)

    def end(self):
        """Returns what was printed, after all processes have ended."""
        self.go.write_text("go on")
        return self.task.communicate(timeout=300)[0]


def scratch_of(place):
    return [path.name for path in place.iterdir() if path.name.startswith(".ckptbench-limit")]


@pytest.mark.without_sanitizers  # what is preloaded must not come before them
def test_a_request_to_end_ends_the_measurement_and_the_run_is_sealed(tmp_path):
    sealing = Sealing(tmp_path, "asked")
    os.killpg(sealing.task.pid, signal.SIGINT)
    printed = sealing.end()
    assert sealing.task.returncode == 0 and "run asked  watched" in printed
    assert "limit         not measured: stopped on request" in printed
    assert shown(tmp_path, "asked")["outcome"] == "pass" and not scratch_of(tmp_path)


@pytest.mark.without_sanitizers
@pytest.mark.parametrize("asked", [True, False])
def test_an_agent_that_measures_after_a_shell_command_gives_signs_of_life_and_ends_on_request(tmp_path, asked):
    """As in a job, where nobody holds the run's lock: `collect` must not take it for dead."""
    sealing = Sealing(tmp_path, "shell", ["run", "workload=watch", f"command={sys.executable} {TRAINING} {tmp_path} save:a"])
    (attempt,) = (tmp_path / "home/runs").glob("*/attempts/1")
    libc = ctypes.CDLL(None)
    renamed = libc.inotify_init1(os.O_NONBLOCK)
    assert renamed >= 0 and libc.inotify_add_watch(renamed, bytes(attempt), 0x80) >= 0  # IN_MOVED_TO
    if asked:
        (agent,) = Path(f"/proc/{sealing.task.pid}/task/{sealing.task.pid}/children").read_text().split()
        os.kill(int(agent), signal.SIGTERM)
    printed = sealing.end()
    beats = os.read(renamed, 65536).count(b"progress.json")
    os.close(renamed)
    assert beats >= 2 and not scratch_of(tmp_path)  # one while it measured; the last one is the seal's
    assert ("limit         not measured: stopped on request" if asked else "limit         measured after the command") in printed, printed
    assert shown(tmp_path, "LATEST")["outcome"] == "pass"


@pytest.mark.without_sanitizers
def test_the_agent_seals_and_keeps_the_lock_although_its_task_was_killed(tmp_path):
    sealing = Sealing(tmp_path, "orphan")
    sealing.task.kill()
    sealing.task.wait()
    assert "1 not sealed" in ckptbench(tmp_path, "collect", "--silence", "0s").stdout
    sealing.end()
    assert not scratch_of(tmp_path)
    ckptbench(tmp_path, "collect")
    assert shown(tmp_path, "orphan")["outcome"] == "pass" and "measured after the command" in ckptbench(tmp_path, "show", "orphan").stdout


@pytest.mark.without_sanitizers
def test_what_a_killed_measurement_left_goes_with_the_next_seal(tmp_path):
    sealing = Sealing(tmp_path, "both")
    (tmp_path / "kept").mkdir()
    (tmp_path / "kept/0").write_text("of another program")
    os.killpg(sealing.task.pid, signal.SIGKILL)
    sealing.task.communicate(timeout=300)
    left = tmp_path / ".ckptbench-limit-both"
    left.mkdir(exist_ok=True)  # it was killed about here
    (left / "0").write_text("left")
    told = "run both has not ended, or was not seen to: `ckptbench collect` seals it"
    assert told in ckptbench(tmp_path, "clean").stderr
    ckptbench(tmp_path, "collect")
    assert not scratch_of(tmp_path) and (tmp_path / "kept/0").exists()
    assert told not in ckptbench(tmp_path, "clean").stderr
    assert shown(tmp_path, "both")["outcome"] == "pass"


def test_no_link_is_followed_when_leftovers_are_removed(tmp_path):
    (only,) = end(start(tmp_path, "first", 0, sys.executable, TRAINING, tmp_path, "save:a", words=("--tasks", "1", "baseline=false"), WORLD_SIZE="1"))
    assert only[0] == 0
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/0").write_text("not ours")
    (tmp_path / ".ckptbench-limit-second").symlink_to(tmp_path / "theirs")
    (only,) = end(start(tmp_path, "second", 0, sys.executable, TRAINING, tmp_path, "save:b", words=("--tasks", "1", "baseline=false"), WORLD_SIZE="1"))
    assert only[0] == 0 and (tmp_path / "theirs/0").exists()


def test_the_file_of_a_task_that_cannot_be_read_is_named_and_the_run_is_sealed(tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    waiting = start(tmp_path, "torn", 0, "sh", "-c", f"echo joined; cat {gate}")
    assert waiting.stdout.readline() == "joined\n"
    (tmp_path / "home/runs/torn/attempts/1/watch/other-7.task").mkdir()  # what is there cannot be read
    gate.write_text("")
    (last,) = end(waiting)
    assert last[0] == 0 and "run torn  watched" in last[2]
    run = shown(tmp_path, "torn")
    assert run["outcome"] == "infrastructure" and "other-7.task" in run["message"]
    assert "not seen      what is in 1 file that cannot be read: other-7.task" in last[2]


def test_names_and_numbers_of_tasks_are_checked(tmp_path):
    for words in (["--join", "../x"], ["--join", "UPPER"], ["--tasks", "2"], ["--join", "a", "--tasks", "x"]):
        ckptbench(tmp_path, "watch", *words, "--", "true", code=2)
    assert not (tmp_path / "home/runs").exists()
