"""ckptbench watch --join: tasks that share one watched run, started by hand here, and in tests/slurm by srun."""
import json
import os
import subprocess
import sys

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


def test_names_and_numbers_of_tasks_are_checked(tmp_path):
    for words in (["--join", "../x"], ["--join", "UPPER"], ["--tasks", "2"], ["--join", "a", "--tasks", "x"]):
        ckptbench(tmp_path, "watch", *words, "--", "true", code=2)
    assert not (tmp_path / "home/runs").exists()
