"""ckptbench watch: checkpoints of real PyTorch programs, whose code knows nothing of it."""
import importlib.util
import json
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from harness import BUILD, PROGRAM, ckptbench, environment

TRAINING = str(Path(__file__).with_name("watched_training.py"))
TORCHRUN = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2"]
TORCH = Path(importlib.util.find_spec("torch").origin).parent
IN_PROCESS = "process" if (TORCH / "distributed/checkpoint/_async_process_executor.py").exists() else "thread"  # before PyTorch 2.7
STATES = ["other_s", "plan_s", "stage_s", "serialize_s", "io_s", "fsync_s", "exchange_s", "commit_s", "wait_s"]


class Watched:
    """A watched run that has ended."""

    def __init__(self, place, *command, code=0, words=(), **variables):
        self.place = place
        self.result = subprocess.run([PROGRAM, "watch", *words, "--", *map(str, command)], cwd=place,
                                     env=environment(place, OMP_NUM_THREADS="1", **variables), capture_output=True, text=True,
                                     stdin=subprocess.DEVNULL, timeout=300)
        assert self.result.returncode == code, f"{self.result.returncode}\n{self.result.stdout}\n{self.result.stderr}"
        self.run = next(line.split()[1] for line in self.result.stderr.splitlines() if line.startswith("run 20"))
        self.folder = place / "home/runs" / self.run
        self.shown = json.loads(ckptbench(place, "show", self.run, "--json").stdout)

    def values(self, op, metric):
        """{iteration: [of each rank]}"""
        rows = json.loads(ckptbench(self.place, "sql", "--json", "select iteration, rank, value from sample_value "
                                    f"where run='{self.run}' and op='{op}' and metric='{metric}' order by iteration, rank").stdout)
        rows = rows["rows"] if isinstance(rows, dict) else rows
        found = {}
        for row in rows:
            iteration, _, value = row.values() if isinstance(row, dict) else row
            found.setdefault(iteration, []).append(value)
        return found

    def check_sums(self, op):
        """Times in states add up to the whole, on every rank of every iteration."""
        whole = self.values(op, "op_s")
        parts = [self.values(op, state) for state in STATES]
        assert whole
        for iteration, ranks in whole.items():
            for rank, seconds in enumerate(ranks):
                assert sum(part[iteration][rank] for part in parts) == pytest.approx(seconds, abs=1e-6)

    def report(self):
        return ckptbench(self.place, "show", self.run).stdout


IN_TURN = pytest.mark.xdist_group("trained")  # one process of tests makes these saves


@pytest.fixture(scope="module")
def trained(tmp_path_factory):
    """Saves and loads of every kind, by two ranks."""
    place = tmp_path_factory.mktemp("trained")
    return Watched(place, *TORCHRUN, TRAINING, place, "steps:5", "save:a", "save:b", "load:b", "thread:c", f"{IN_PROCESS}:d", f"{IN_PROCESS}:e",
                   "differ:f", "whole:g.pt", "say:token-in-output", words=["label.job=nightly"])


@IN_TURN
def test_saves_and_loads_are_the_iterations_of_a_run(trained):
    assert trained.shown["outcome"] == "pass"
    assert trained.shown["experiment"]["workload"] == "watch"
    assert len(trained.values("save", "op_s")) == 6 and len(trained.values("load", "op_s")) == 1
    assert "2 ranks of torch" in trained.report() and "6 saves (3 asynchronous), 1 load" in trained.report()
    assert trained.shown["metrics"]["save_s"]["n"] == 6


@IN_TURN
def test_times_in_states_add_up_for_every_kind_of_save(trained):
    trained.check_sums("save")
    trained.check_sums("load")


@IN_TURN
def test_bytes_and_files_are_those_on_disk(trained):
    moved = trained.values("save", "bytes_moved")
    for iteration, name in enumerate("abcdef", 1):
        written = sum(path.stat().st_size for path in (trained.place / name).iterdir())
        assert sum(moved[iteration]) == written
    needed = trained.values("save", "bytes_needed")
    assert sum(needed[1]) == 2 * 256 * 1024 * 4 + 1000 * 4
    assert trained.shown["metrics"]["checkpoint_files"]["median"] == 3


@IN_TURN
def test_an_asynchronous_save_has_a_stall_and_a_rest(trained):
    stall, whole, persist = (trained.values("save", metric) for metric in ("stall_s", "op_s", "persist_s"))
    assert stall[1] == whole[1] and 1 not in persist  # a synchronous one is all stall
    for rank in range(2):
        assert 0 < stall[3][rank] < whole[3][rank]
        assert stall[3][rank] + persist[3][rank] == pytest.approx(whole[3][rank])


@IN_TURN
def test_the_daemon_of_a_save_in_a_process_is_seen(trained):
    for state in ("plan_s", "io_s", "fsync_s", "wait_s"):
        assert all(seconds > 0 for seconds in trained.values("save", state)[5])
    assert trained.values("save", "commit_s")[5][0] > 0
    calls = "".join(file.read_text() for file in (trained.folder / "attempts/1/watch").glob("*.jsonl"))
    assert ('"api": "async_save in a process"' in calls) == (IN_PROCESS == "process")


@IN_TURN
def test_steps_alone_and_beside_a_save_are_told_apart(trained):
    assert trained.shown["metrics"]["step_alone_s"]["median"] > 0
    assert trained.shown["metrics"]["step_behind_s"]["median"] > 0


@IN_TURN
def test_values_that_differ_by_rank_under_one_name_are_reported(trained):
    warning = next(line for line in trained.report().splitlines() if "has different values" in line)
    assert "has different values on ranks 0 and 1" in warning and "and 1 more name" in warning
    assert "seed" in warning or "counter" in warning


@IN_TURN
def test_a_save_through_the_group_that_the_training_uses_is_reported(trained):
    assert "async_save uses the default process group in a thread" in trained.report()


@IN_TURN
def test_files_in_one_piece_are_told_but_are_no_iterations_beside_checkpoints(trained):
    assert "2 files saved or loaded in one piece" in trained.report()
    assert f"saved in      {trained.place}\n" in trained.report()


@IN_TURN
def test_output_passes_and_the_report_is_on_stderr(trained):
    assert trained.result.stdout.count("token-in-output") == 2
    assert trained.run not in trained.result.stdout


@IN_TURN
def test_history_list_and_compare_take_a_watched_run(trained):
    assert trained.run in ckptbench(trained.place, "list", "label.job=nightly").stdout
    assert "save_s" in ckptbench(trained.place, "compare", trained.run, trained.run).stdout
    assert ckptbench(trained.place, "history", "save_s", "workload=watch").stdout
    ckptbench(trained.place, "collect", "--rebuild")
    assert json.loads(ckptbench(trained.place, "show", trained.run, "--json").stdout)["metrics"] == trained.shown["metrics"]


@IN_TURN
def test_advice_follows_from_the_figures(trained):
    advice = json.loads(ckptbench(trained.place, "show", trained.run, "--advise", "--json").stdout)["advice"]
    assert 1 <= len(advice) <= 3
    assert [one["seconds"] for one in advice] == sorted((one["seconds"] for one in advice), reverse=True)
    text = ckptbench(trained.place, "show", trained.run, "--advise").stdout
    assert all(one["text"] in text and one["command"] in text for one in advice)


def test_our_package_is_proposed_if_the_figures_of_the_run_carry_it(tmp_path):
    """Most of these saves is a value that takes its time to become bytes, far from what the storage can do."""
    def proposals(watched):
        advice = json.loads(ckptbench(tmp_path, "show", watched.run, "--advise", "--json").stdout)["advice"]
        assert len(advice) <= 3
        return [one for one in advice if "ckptbench.checkpoint" in one["text"]]

    watched = Watched(tmp_path, sys.executable, TRAINING, tmp_path, "slow_value:a", words=["--advise"])
    (proposal,) = proposals(watched)
    assert re.search(r"is turning tensors into bytes, and the whole save has 0\.[0-6]", proposal["text"])
    assert "storage_writer=checkpoint.Writer(path) of ckptbench.checkpoint" in proposal["text"]
    assert proposal["command"] == f"ckptbench watch -- … && ckptbench compare {watched.run} LATEST"
    assert proposal["text"] in watched.result.stderr and proposal["command"] in watched.result.stderr
    unmeasured = Watched(tmp_path, sys.executable, TRAINING, tmp_path, "slow_value:b", words=["baseline=false"])
    assert not proposals(unmeasured)  # what the storage can do is not known


@pytest.fixture(scope="module")
def slow_calls(tmp_path_factory):
    library = tmp_path_factory.mktemp("slow") / "slow_calls.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-o", library, Path(__file__).with_name("slow_calls.c"), "-ldl"], check=True)
    return str(library)


def test_a_slow_call_of_one_rank_is_found_by_phase_and_rank(tmp_path, slow_calls):
    cases = [("fsync", 1), ("write", 0), ("fsync", 0), ("write", 1)]
    delay_ms = {"fsync": 1500, "write": 600}  # a save has several writes
    steps = ["save:first"]
    for number, (call, rank) in enumerate(cases):
        steps += [f"delay:{call}:{rank}:{delay_ms[call]}", f"save:{number}", f"delay:{call}:{rank}:0"]
    watched = Watched(tmp_path, "env", f"LD_PRELOAD={slow_calls}", *TORCHRUN, TRAINING, tmp_path, *steps, words=["baseline=false"])
    watched.check_sums("save")
    for number, (call, rank) in enumerate(cases, 1):
        of_call = watched.values("save", "fsync_s" if call == "fsync" else "io_s")[number + 1]
        own = watched.values("save", "own_s")[number + 1]
        assert of_call[rank] >= delay_ms[call] / 1000 and of_call[rank] > of_call[1 - rank]  # every call waits for at least as long
        assert own[rank] > own[1 - rank]
        assert watched.values("save", "wait_s")[number + 1][1 - rank] > 0  # the other one waited for it
    advice = ckptbench(tmp_path, "show", watched.run, "--advise").stdout
    assert "the training stands still for all of a save" in advice
    assert "is writing and fsync" in advice and "is waiting for other ranks" in advice


def test_a_save_that_nobody_waits_for_is_reported(tmp_path):
    watched = Watched(tmp_path, *TORCHRUN, TRAINING, tmp_path, "forget:a")
    assert "had not ended when destroy_process_group was called" in watched.report()


def alone(place, *steps, **more):
    return Watched(place, sys.executable, TRAINING, place, *steps, **more)


def test_a_program_that_closes_all_files_is_still_observed_and_its_own_files_are_left_alone(tmp_path):
    watched = alone(tmp_path, "save:a", "close_files:own", "save:b", words=["baseline=false"])
    assert sorted(watched.values("save", "op_s")) == [1, 2]
    assert [(tmp_path / f"own-{number}").read_text() for number in range(8)] == [""] * 8


OWN = {"PYTHONPATH": str(Path(__file__).parents[2] / "python"), "CKPTBENCH_LIBRARY": str(BUILD / "libckptbench.so")}


def check_ends(watched, *saves):
    """The saves lasted as long as the library says, beside what the caller did before it; saves: (iteration, name)."""
    totals = {tuple(line.split()[1:3]): float(line.split()[3]) for line in watched.result.stdout.splitlines() if line.startswith("total ")}
    whole, stall = watched.values("save", "op_s"), watched.values("save", "stall_s")
    for iteration, name in saves:
        for rank, seconds in enumerate(whole[iteration]):
            total = totals[name, str(rank)]
            assert total - 0.001 <= seconds <= total + stall[iteration][rank], (name, rank, stall)


@pytest.mark.without_sanitizers  # Python would have to be built with one, too
def test_saves_by_our_own_package_are_seen_with_the_librarys_times(tmp_path):
    watched = Watched(tmp_path, *TORCHRUN, TRAINING, tmp_path, "own:a", "own:b:behind", "own_load:a", "save:c", "own_unasked:d:e", "own_waited:f", **OWN)
    watched.check_sums("save")
    watched.check_sums("load")
    moved = watched.values("save", "bytes_moved")
    assert len(moved) == 6 and all(sum(ranks) >= 2 * 256 * 1024 * 4 for ranks in moved.values())
    assert all(seconds > 0 for state in ("io_s", "plan_s") for seconds in watched.values("save", state)[1])
    assert list(watched.values("save", "persist_s")) == [2, 4, 5, 6]
    check_ends(watched, (4, "d"), (5, "e"))
    assert all(seconds >= 1 for seconds in watched.values("save", "stall_s")[6])  # of which the caller waited one for the result
    assert "no time-out" not in watched.result.stdout
    assert "6 saves (4 asynchronous), 1 load" in watched.report() and "hook had failed" not in watched.report()
    assert "had not ended" not in watched.report()  # close() waits, and they do not use the process group
    assert "ckptbench.checkpoint" not in ckptbench(tmp_path, "show", watched.run, "--advise").stdout  # it is used already


@pytest.fixture(scope="module")
def with_own(tmp_path_factory):
    """Saves and loads of one process, by our own package and by PyTorch, and then calls that fail."""
    place = tmp_path_factory.mktemp("own")
    return alone(place, "own_unasked:a:b:c", "early:d", "storage:e", "storage:f:behind", "storage_load:e", "own_mistaken:mistake", "own_failing:g",
                 words=["--advise"], **OWN)


def of_own_saves(test):
    """One process of tests makes these saves; Python would have to be built with sanitizers, too."""
    return pytest.mark.xdist_group("own")(pytest.mark.without_sanitizers(test))


@of_own_saves
def test_an_asynchronous_save_of_our_own_package_ends_when_it_ends_whoever_asks(with_own):
    with_own.check_sums("save")
    check_ends(with_own, (1, "a"), (2, "b"), (3, "c"))
    assert "step_alone_s" in with_own.shown["metrics"] and "step_behind_s" not in with_own.shown["metrics"]


@of_own_saves
def test_the_stall_of_an_asynchronous_save_is_the_callers_however_early_its_thread_begins(with_own):
    stall, stage = (with_own.values("save", metric)[4][0] for metric in ("stall_s", "stage_s"))
    assert stall >= stage >= 2
    assert 4 in with_own.values("save", "persist_s")


@of_own_saves
def test_a_mistake_of_the_program_is_its_own_and_what_it_passed_is_recorded_only_as_a_path(with_own):
    assert with_own.result.stdout.count("mistaken") == 5
    assert "hook had failed" not in with_own.report() and f"saved in      {with_own.place}\n" in with_own.report()
    assert "5 of 11 saves failed" in with_own.report() and with_own.shown["metrics"]["save_s"]["n"] == 6
    for path in with_own.folder.rglob("*"):
        assert not path.is_file() or b"tensor(" not in path.read_bytes()


@of_own_saves
def test_the_failure_of_a_save_that_only_the_hooks_have_asked_about_is_told(with_own):
    assert with_own.result.stderr.count("ckptbench: a save that was in progress when the process ended has failed: saving ") == 1


@of_own_saves
def test_our_own_package_as_storage_of_pytorch_is_seen_with_the_librarys_times_and_bytes(with_own):
    moved = {op: with_own.values(op, "bytes_moved") for op in ("save", "load")}
    for iteration, name in (5, "e"), (6, "f"):
        written = sum(path.stat().st_size for path in (with_own.place / name).iterdir() if path.name != ".metadata")
        assert 256 * 1024 * 4 < moved["save"][iteration][0] <= written
    assert moved["load"][1][0] > 256 * 1024 * 4
    with_own.check_sums("load")
    assert all(with_own.values(op, "io_s")[iteration][0] > 0 for op, iteration in (("save", 5), ("save", 6), ("load", 1)))
    assert {5, 6} <= set(with_own.values("save", "durable_s"))
    assert "cannot be seen" not in with_own.report()


def test_a_failed_save_is_no_figure_and_storage_without_hooks_is_named(tmp_path):
    (tmp_path / "file").touch()
    watched = alone(tmp_path, "save:a", "refuse:file", "gone:folder", "elsewhere:b")
    assert watched.values("save", "bytes_moved").keys() == {1, 2, 3} and "cannot be seen" in watched.report()
    assert "refused" in watched.result.stdout and "gone" in watched.result.stdout
    assert watched.shown["metrics"]["save_s"]["n"] == 2
    assert f"warning       2 of 4 saves failed: NotADirectoryError: [Errno 20] Not a directory: '{tmp_path}/file/below'" in watched.report()
    assert "hook had failed" not in watched.report()
    assert watched.shown["watched"]["limit"] == "not measured: what the last save wrote was not seen"
    assert "FileSystemWriter" not in ckptbench(tmp_path, "show", watched.run, "--advise").stdout  # that writer has no such option


def test_a_hook_that_fails_turns_all_off_and_the_program_goes_on(tmp_path):
    watched = alone(tmp_path, "save:a", "sabotage", "save:b", "say:done", "end:0")
    assert "done" in watched.result.stdout
    assert (tmp_path / "b/.metadata").exists()
    assert "not seen      what came after a hook had failed: reduce_scatter: TypeError" in watched.report()


def test_files_in_one_piece_are_the_saves_and_other_programs_get_no_variables_of_ours(tmp_path):
    watched = alone(tmp_path, "show_variables", "whole:below/a.pt", "whole:b.pt", TORCH_DEVICE_BACKEND_AUTOLOAD="0")  # by sitecustomize, too
    assert sum(watched.values("save", "bytes_moved")[1]) == (tmp_path / "below/a.pt").stat().st_size
    assert len(watched.values("save", "op_s")) == 2 and len(watched.values("load", "op_s")) == 2
    variables = watched.result.stdout  # of a program that is not Python
    assert "PATH=" in variables and "CKPTBENCH_WATCH" not in variables and "share/watch" not in variables


def test_the_exit_code_is_the_commands(tmp_path):
    watched = Watched(tmp_path, "sh", "-c", "echo out; echo err >&2; exit 7", code=7)
    assert watched.result.stdout == "out\n" and watched.result.stderr.startswith("err\n")
    assert watched.shown["outcome"] == "benchmark_failed" and watched.shown["message"] == "sh ended with exit status 7"
    assert "no Python process that imported torch" in watched.report()
    Watched(tmp_path, "sh", "-c", "kill -9 $$", code=137)
    Watched(tmp_path, tmp_path / "none", code=127)
    ckptbench(tmp_path, "watch", code=2)
    ckptbench(tmp_path, "watch", "io.depth=1,2", "--", "true", code=2)


def test_arguments_and_environment_are_not_recorded(tmp_path):
    watched = Watched(tmp_path, "sh", "-c", "true", "--token=hunter2", words=["label.a=b"], API_KEY="hunter3")
    for path in watched.folder.rglob("*"):
        assert not path.is_file() or not any(word in path.read_bytes() for word in (b"hunter2", b"hunter3"))
    database = json.dumps(watched.shown)
    assert "hunter2" not in database and "hunter3" not in database


def test_input_and_signals_reach_the_command_once(tmp_path):
    program = ("import signal, sys\ncount = 0\ndef ask(*_):\n    global count\n    count += 1\n    print('asked', count, flush=True)\n"
               "signal.signal(signal.SIGTERM, ask)\nprint('ready', flush=True)\nprint(sys.stdin.readline(), end='', flush=True)\nsys.exit(40 + count)\n")
    with subprocess.Popen([PROGRAM, "watch", "--", sys.executable, "-c", program], cwd=tmp_path, env=environment(tmp_path),
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watched:
        assert watched.stdout.readline() == "ready\n"
        watched.send_signal(signal.SIGTERM)
        assert watched.stdout.readline() == "asked 1\n"
        output, errors = watched.communicate("hello\n", timeout=120)
    assert output == "hello\n" and watched.returncode == 41, errors
    assert json.loads(ckptbench(tmp_path, "show", "LATEST", "--json").stdout)["outcome"] == "cancelled"


def test_the_programs_own_python_path_is_kept(tmp_path):
    (tmp_path / "modules").mkdir()
    (tmp_path / "modules/own_module.py").write_text("print('mine')\n")
    (tmp_path / "modules/sitecustomize.py").write_text("print('also mine')\n")
    watched = Watched(tmp_path, sys.executable, "-c", "import own_module", PYTHONPATH=str(tmp_path / "modules"))
    assert watched.result.stdout == "also mine\nmine\n"
    assert not [name for name in os.listdir(watched.folder / "attempts/1/watch")]


def watch_told(place, *saves, folder="/nowhere/ckpt", words=()):
    """A program that is no Python, and writes lines of saves that took so many seconds, as a library may."""
    lines = [{"op": "process", "program": "told", "rank": 0, "world": 1}]
    for number, seconds in enumerate(saves, 1):
        lines.append({"op": "save", "rank": 0, "world": 1, "path": f"{folder}/step-{number}", "start_ns": number * 10**12, "op_s": seconds,
                      "stall_s": seconds, "wait_s": 0, "own_s": seconds, "bytes_moved": 1000, "bytes_needed": 1000, "files": 1})
    (place / "lines").write_text("".join(json.dumps(line) + "\n" for line in lines))
    (place / "told.sh").write_text('cp "$1" "$CKPTBENCH_WATCH/$(uname -n)-1.jsonl"\n')
    return Watched(place, "sh", place / "told.sh", place / "lines", words=["baseline=false", *words])


def test_compare_says_how_many_watched_runs_a_verdict_needs_and_how_to_make_them(tmp_path):
    first, second = (watch_told(tmp_path, *[seconds] * 3).run for seconds in (1, 0.5))
    said = ckptbench(tmp_path, "compare", first, second).stdout
    assert "save_s: 3 against 3 saves are too few for an interval: it needs 4 on each side\n" in said
    more = re.search(r"for a verdict: at least (\d+) runs a side, .*: ckptbench watch (label.side)=NAME -- …, "
                     r"and then ckptbench compare label.side=NAME label.side=OTHER\n", said)
    assert more, said
    for number in range(int(more[1])):
        for side, seconds in ("before", 1), ("after", 0.5):
            watch_told(tmp_path, seconds + number / 1000, words=[f"{more[2]}={side}"])
        judged = ckptbench(tmp_path, "compare", f"{more[2]}=before", f"{more[2]}=after").stdout
        assert ("for a verdict" in judged) == ("better" not in judged) == (number + 1 < int(more[1])), judged


def test_runs_that_save_to_different_file_systems_are_different_lines_of_the_history(tmp_path):
    """Each saves to a folder of its own, which is no reason to tell them apart."""
    runs = [watch_told(tmp_path, 1, folder=folder).run for folder in ("/proc/a/ckpt", "/proc/b/ckpt", f"{tmp_path}/ckpt")]
    nowhere = watch_told(tmp_path, words=["label.kind=nothing"]).run
    words = ("history", "save_s", "workload=watch")

    def check():
        points = json.loads(ckptbench(tmp_path, *words, "--json").stdout)["points"]
        assert [point["run"] for point in points] == runs
        assert [point["store"] for point in points[:2]] == ["/proc"] * 2
        assert tmp_path.is_relative_to(points[2]["store"]) and not points[2]["store"].startswith("/proc")
        text = ckptbench(tmp_path, *words).stdout
        assert " on /proc, 2 runs" in text and "ckptbench-store" not in text, text
        stores = json.loads(ckptbench(tmp_path, "sql", "--json", f"select store from run join store_target t on t.id=run.store_target where run='{nowhere}'").stdout)
        assert "ckptbench-store" not in json.dumps(stores) and "/" not in json.dumps(stores), stores

    check()
    ckptbench(tmp_path, "collect", "--rebuild")
    check()


def test_runs_of_a_program_are_a_line_of_the_history(tmp_path):
    for name in ("one", "two"):
        (tmp_path / f"{name}.sh").write_text("exit 0\n")
    runs = [Watched(tmp_path, "sh", "-e", tmp_path / f"{name}.sh", "--token=hunter2").shown for name in ("one", "two", "two")]
    assert [run["experiment"]["command"] for run in runs] == ["one.sh", "two.sh", "two.sh"]
    lines = json.loads(ckptbench(tmp_path, "history", "run_s", "workload=watch", "--json").stdout)
    assert len({point["experiment_hash"] for point in lines["points"]}) == 2, lines
    module = Watched(tmp_path, sys.executable, "-m", "json.tool", "--help").shown
    assert module["experiment"]["command"] == "json.tool"


def test_only_keys_that_a_watched_run_has_are_shown(tmp_path):
    """Not the store, the model and the ranks of the defaults."""
    (tmp_path / "sub").mkdir()
    watched = watch_told(tmp_path, 1)
    beside = watch_told(tmp_path, 1, folder="/nowhere/else", words=["slurm.time=3h"])
    assert {"workload", "command", "slurm.time", "mtbf"} <= set(watched.shown["experiment"])
    assert not {"model", "store", "ranks", "io.block", "train.steps", "s3.endpoint", "engine"} & set(watched.shown["experiment"])
    (listed,) = [run for run in json.loads(ckptbench(tmp_path, "list", "--json").stdout) if run["run"] == watched.run]
    assert listed["experiment"] == watched.shown["experiment"]
    # Beside a benchmark, and beside a run from another folder, of which the default store is another.
    (tmp_path / "run").write_text(ckptbench(tmp_path, "run", "model=gpt2-tiny", "iterations=1", "baseline=false", "--json").stdout)
    benchmark = json.loads((tmp_path / "run").read_text())["run"]
    told = subprocess.run([PROGRAM, "watch", "baseline=false", "--", "sh", "../told.sh", "../lines"], cwd=tmp_path / "sub", env=environment(tmp_path),
                          capture_output=True, text=True, timeout=120, check=True).stderr
    elsewhere = next(line.split()[1] for line in told.splitlines() if line.startswith("run 20"))
    for other, keys in ((benchmark, "workload watch -> checkpoint, command told.sh -> "), (beside.run, "slurm.time 0s -> 3h"), (elsewhere, None)):
        compared = ckptbench(tmp_path, "compare", watched.run, other).stdout
        assert [line for line in compared.splitlines() if line.startswith("differs")] == [f"differs: {keys}"] * (keys is not None), compared
    assert ckptbench(tmp_path, "history", "save_s", "workload=watch").stdout.startswith("save_s of command=told.sh, 3 runs")


def test_keys_that_would_do_nothing_are_refused(tmp_path):
    for word in ("model=gpt2", "timeout.stall=1m", "io.depth=16", "iterations=3", "warmup=0", "command=true"):
        error = ckptbench(tmp_path, "watch", word, "--", "true", code=2).stderr
        assert word.split("=")[0] in error
    assert not (tmp_path / "home/runs").exists() or not list((tmp_path / "home/runs").iterdir())


@pytest.mark.parametrize("as_key", [False, True])
def test_a_command_is_ended_at_the_limit_of_the_run(tmp_path, as_key):
    program = tmp_path / "program.py"
    program.write_text("import signal, sys\nsignal.signal(signal.SIGTERM, lambda *_: sys.exit(9))\nwhile True:\n    signal.pause()\n")
    if as_key:
        ckptbench(tmp_path, "run", "workload=watch", "timeout.run=5s", f"command={sys.executable} {program}", code=4)
        shown = json.loads(ckptbench(tmp_path, "show", "LATEST", "--json").stdout)
    else:
        shown = Watched(tmp_path, sys.executable, program, words=["timeout.run=5s"], code=9).shown
    assert shown["outcome"] == "timeout" and "took longer than timeout.run=5s" in shown["message"]


def test_a_signal_to_the_whole_group_reaches_the_command_once(tmp_path):
    program = ("import signal, time\ncount = 0\ndef ask(*_):\n    global count\n    count += 1\n    print('asked', count, flush=True)\n"
               "signal.signal(signal.SIGTERM, ask)\nprint('ready', flush=True)\ninput()\nprint('in all', count, flush=True)\n")
    with subprocess.Popen([PROGRAM, "watch", "--", sys.executable, "-c", program], cwd=tmp_path, env=environment(tmp_path),
                          stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, start_new_session=True) as watched:
        assert watched.stdout.readline() == "ready\n"
        os.killpg(watched.pid, signal.SIGTERM)
        assert watched.stdout.readline() == "asked 1\n"
        # The agent has heard of it twice by the time that it answers another signal of its parent.
        watched.send_signal(signal.SIGUSR2)
        watched.wait(timeout=120)
        assert watched.stdout.read() == ""
    shown = json.loads(ckptbench(tmp_path, "show", "LATEST", "--json").stdout)
    assert shown["message"].endswith("was killed by signal 12 (SIGUSR2)")


def test_the_lines_count_although_the_agent_died(tmp_path):
    """As its controller did: collect seals what it left, with its records."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    command = [sys.executable, TRAINING, tmp_path, "save:a", "save:b", "say:saved", f"read:{gate}"]
    with subprocess.Popen([PROGRAM, "watch", "--", *map(str, command)], cwd=tmp_path, env=environment(tmp_path, OMP_NUM_THREADS="1"),
                          stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as watched:
        assert watched.stdout.readline() == "saved\n"
        (agent,) = Path(f"/proc/{watched.pid}/task/{watched.pid}/children").read_text().split()
        os.kill(int(agent), signal.SIGKILL)
        watched.wait(timeout=120)
        gate.write_text("go on")
        watched.stdout.read()
    shown = json.loads(ckptbench(tmp_path, "show", "LATEST", "--json").stdout)
    assert shown["outcome"] == "lost" and shown["metrics"]["save_s"]["n"] == 2


def test_a_run_is_not_lost_while_its_agent_lives(tmp_path):
    """Its controller was killed; the agent holds the lock of the run until it has sealed it."""
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    command = [sys.executable, TRAINING, tmp_path, "save:a", "say:saved", f"read:{gate}"]
    with subprocess.Popen([PROGRAM, "watch", "--", *map(str, command)], cwd=tmp_path, env=environment(tmp_path, OMP_NUM_THREADS="1"),
                          stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True) as watched:
        assert watched.stdout.readline() == "saved\n"
        watched.kill()
        watched.wait(timeout=120)
        assert "1 not sealed" in ckptbench(tmp_path, "collect", "--silence", "0s").stdout
        gate.write_text("go on")
        watched.stdout.read()  # until agent and training have ended
    ckptbench(tmp_path, "collect")
    shown = json.loads(ckptbench(tmp_path, "show", "LATEST", "--json").stdout)
    assert shown["outcome"] == "pass" and shown["metrics"]["save_s"]["n"] == 1


def test_a_daemon_that_outlives_its_command_is_named(tmp_path):
    gate = tmp_path / "gate"
    os.mkfifo(gate)
    daemon = f"(trap '' HUP; exec setsid {sys.executable} {TRAINING} {tmp_path} read:{gate}) >out 2>&1 &"
    watched = Watched(tmp_path, "sh", "-c", daemon, words=["baseline=false"])
    gate.write_text("go on")  # waits until it reads
    (left,) = [line for line in watched.shown["watched"]["unseen"] if "from now on" in line]
    assert re.match(r"what 1 process of the command saves from now on: still running when it ended \(\w+.*, \d+\)", left), left
    assert f"not seen      {left}" in watched.result.stderr
    watched = Watched(tmp_path, "true", words=["baseline=false"])
    assert "from now on" not in watched.report()


def test_the_limit_of_this_machine_is_not_put_beside_a_training_on_another(tmp_path):
    watched = Watched(tmp_path, "env", "SLURMD_NODENAME=elsewhere", sys.executable, TRAINING, tmp_path, "save:a")
    assert watched.shown["watched"]["limit"].startswith("not measured: the command ran on elsewhere.")
    assert watched.shown["limits"] == dict.fromkeys(watched.shown["limits"]) and "save_s" in watched.shown["metrics"]
    assert "limit         not measured: the command ran on elsewhere." in watched.result.stderr


def test_the_limit_is_measured_in_a_folder_with_a_plus_in_its_name(tmp_path):
    folder = tmp_path / "x+/y+z"
    folder.mkdir(parents=True)
    watched = watch_told(tmp_path, 1, folder=folder, words=["baseline=true"])
    assert "limit         measured after the command with 1 file" in watched.report() and not list(folder.iterdir())


def test_an_allocation_that_starts_no_tasks_to_measure_the_limit_is_the_reason(tmp_path):
    """As if the job ended with the command."""
    (tmp_path / "bin").mkdir()
    srun = tmp_path / "bin/srun"
    srun.write_text("#!/bin/sh\necho srun: error: the job has ended >&2\nexit 1\n")
    srun.chmod(0o755)
    watched = Watched(tmp_path, "env", "SLURMD_NODENAME=n1", sys.executable, TRAINING, tmp_path, "save:a", PATH=f"{srun.parent}:{os.environ['PATH']}",
                      SLURM_JOB_ID="7", SLURM_JOB_NODELIST="n[1-2]")
    assert watched.shown["watched"]["limit"] == "not measured: the tasks that measure have ended: srun: error: the job has ended"


def test_two_processes_that_are_both_rank_0_are_told_and_not_averaged(tmp_path):
    command = f"{sys.executable} {TRAINING} {tmp_path}"
    gates = [tmp_path / "gate-a", tmp_path / "gate-b"]
    for gate in gates:
        os.mkfifo(gate)
    # Each save lasts until the other one has begun.
    script = f"{command} meet:a:{gates[0]}:{gates[1]} & {command} meet:b:{gates[1]}:{gates[0]}; wait"
    watched = Watched(tmp_path, "sh", "-c", script)
    assert "several processes say at the same time that they are rank 0" in watched.report()
    assert watched.shown["metrics"]["save_s"]["n"] == 1


def test_a_shell_command_can_be_watched_as_a_run(tmp_path):
    command = f"{sys.executable} {TRAINING} {tmp_path} save:a"
    ckptbench(tmp_path, "run", "workload=watch", f"command={command}")
    assert json.loads(ckptbench(tmp_path, "show", "LATEST", "--json").stdout)["metrics"]["save_s"]["n"] == 1
    ckptbench(tmp_path, "run", "workload=watch", code=3)


def test_a_command_without_dashes_is_told_where_it_belongs(tmp_path):
    said = ckptbench(tmp_path, "watch", "torchrun", "train.py", code=2).stderr
    assert "ckptbench watch -- torchrun" in said


@pytest.mark.parametrize("home", ["/proc/nowhere", "/dev/null"])
def test_a_command_runs_also_if_nothing_can_be_recorded(tmp_path, home):
    result = ckptbench(tmp_path, "watch", "--", "sh", "-c", "echo trained; exit 7", code=7, CKPTBENCH_HOME=home)
    assert result.stdout == "trained\n"
    assert home in result.stderr and "runs without being watched" in result.stderr
