"""The controller from outside: verbs, their documents, exit codes, sweeps, and being interrupted."""
import fcntl
import json
import os
import pty
import re
import select
import shutil
import signal
import struct
import subprocess
import tempfile
import termios
import time
from pathlib import Path

import pytest

from harness import BUILD, ckptbench, environment, PROGRAM

TINY = ("model=gpt2-tiny", "ranks=2", "baseline=false")


@pytest.fixture
def place(tmp_path):
    """A home and a store of this test alone."""
    (tmp_path / "store").mkdir()
    return tmp_path


def document(place, *words, code=0):
    return json.loads(ckptbench(place, *words, "--json", code=code).stdout)


def start(place, *words):
    return subprocess.Popen([PROGRAM, "run", *words], cwd=place, env=environment(place), stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True)


def wait_until_running(place, seconds=200, **more):
    """Until the agent says that ranks are at work, and what else is asked for (op="save")."""
    wanted = dict(more, state="running")
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for path in (place / "home/runs").glob("*/attempts/*/progress.json"):
            try:
                if wanted.items() <= json.loads(path.read_text()).items():
                    return path.parents[2].name
            except (OSError, ValueError):
                pass
        time.sleep(0.02)
    raise AssertionError("no run came to work in time")


# ---- looking ----

def test_version_names_every_optional_library(place):
    out = ckptbench(place, "--version").stdout
    for library in ("liburing", "hwloc", "zstd", "isa-l", "libcurl", "libssh2", "zlib", "pmix", "cuda"):
        assert re.search(rf"^  {library} +(present|absent) +\S", out, re.M)


def test_help_lists_every_verb_and_each_explains_itself(place):
    out = ckptbench(place, "--help").stdout
    verbs = re.findall(r"^  ([a-z]+) {2,}", out.split("flags of every verb")[0], re.M)
    assert {"run", "plan", "models", "options", "doctor", "man", "completion"} <= set(verbs)
    for verb in verbs:
        text = ckptbench(place, verb, "--help").stdout
        assert text.startswith(f"usage: ckptbench {verb}")
        assert all(len(line) <= 100 for line in text.split("\nexample")[0].split("\nflags")[0].splitlines()[1:])


def test_models_shows_those_that_have_a_word(place):
    assert {row["name"] for row in document(place, "models", "gpt2-t")} == {"gpt2-tiny"}
    ckptbench(place, "models", "nosuch", code=2)


def test_a_store_that_cannot_work_is_a_usage_error_and_plans_no_run(place):
    for store in ("gs://bucket/prefix", "/absent/below", "fault:dealy=5ms:./x", "null:"):
        ckptbench(place, "run", "model=gpt2-tiny", f"store={store}", code=2)
    assert document(place, "list") == []


def test_options_are_one_row_a_key(place):
    rows = {row["name"]: row for row in document(place, "options")}
    assert rows["io.block"]["default"] == "4MiB" and rows["io.block"]["type"] == "size"
    assert rows["engine"]["values"] == "native|torch-dcp|torch-native|command"
    assert {"label.NAME", "zip"} <= set(rows)
    found = {row["name"] for row in document(place, "options", "fsync")}
    assert "io.fsync" in found and "model" not in found
    assert "did you mean 'io.depth'?" in ckptbench(place, "options", "io.dpth", code=2).stderr


def test_models_give_parameters_and_bytes(place):
    models = {row["name"]: row for row in document(place, "models")}
    assert models["gpt2"]["params"] == 124439808
    assert models["gpt2"]["bytes"] == 124439808 * 14


def test_man_page_is_clean_roff_with_every_key_verb_and_metric(place):
    page = ckptbench(place, "man").stdout
    for word in ("io.depth", "completion", "save_bytes_per_s", "EXIT STATUS"):
        assert word in page
    (place / "page.1").write_text(page)
    check = subprocess.run(["groff", "-man", "-Tutf8", "-ww", "-z", "page.1"], cwd=place, capture_output=True, text=True,
                           timeout=120)
    assert check.returncode == 0 and not check.stderr, check.stderr


@pytest.mark.parametrize("line, wanted", [
    ("ckptbench mod", "models"), ("ckptbench run io.dep", "io.depth="), ("ckptbench run io.engine=ps", "psync"),
    ("ckptbench run model=gpt2-ti", "gpt2-tiny"), ("ckptbench run --res", "--resume")])
def test_completion_completes(place, line, wanted):
    assert wanted in completions(place, line)


def test_completion_of_watch_has_the_keys_that_its_help_has(place):
    helped = ckptbench(place, "watch", "--help").stdout.partition("\nkeys (")[2]
    assert set(completions(place, "ckptbench watch ")) == {f"{name}=" for name in re.findall(r"^  ([a-z_.]+) ", helped, re.M)} > {"ranks=", "timeout.run="}


def completions(place, line):
    (place / "completion").write_text(ckptbench(place, "completion").stdout)
    script = """source ./completion; COMP_LINE=$1; COMP_POINT=${#1}; COMP_WORDS=($1); [[ $1 == *' ' ]] && COMP_WORDS+=('')
                COMP_CWORD=$((${#COMP_WORDS[@]} - 1)); _ckptbench; printf '%s\\n' "${COMPREPLY[@]}" """
    return subprocess.run(["bash", "-c", script, "bash", line], cwd=place, capture_output=True, text=True, timeout=120).stdout.split()


PLAN_MEMBERS = {"params", "bytes", "tensors", "items", "files", "rank_bytes", "imbalance", "imbalance_vs_bound", "plan_s",
                "rss_bytes", "metadata_bytes", "metadata_s", "requests", "host_memory_bytes", "metadata_memory_bytes", "predicted"}


def test_plan_has_exactly_the_promised_members(place):
    plan = document(place, "plan", "model=gpt2", "ranks=4", "tp=2", "dp=2")
    assert set(plan) == PLAN_MEMBERS
    assert set(plan["rank_bytes"]) == {"min", "median", "max"}
    assert plan["params"] == 124439808 and plan["bytes"]["total"] == 124439808 * 14
    assert plan["files"] == 5 and plan["imbalance"] < 1.02


def test_plan_of_a_large_cluster_is_balanced_and_predicts_which_limit_binds(place):
    words = ("plan", "model=llama3-405b", "ranks=16384", "tp=8", "pp=16", "dp=128", "zero=1", "rate.rank=1.5GiB/s", "mtbf=24h")
    plan = document(place, *words, "rate.store=300GiB/s")
    assert plan["imbalance_vs_bound"] <= 1.02 and plan["rss_bytes"] < 2**30
    assert plan["predicted"]["save_limit"] == "store"
    assert plan["predicted"]["save_s"] == pytest.approx(plan["bytes"]["total"] / (300 * 2**30), rel=0.01)
    assert 0.9 < plan["predicted"]["goodput"] < 1
    assert document(place, *words)["predicted"]["save_limit"] == "rank"


def test_plan_of_fsdp_at_scale_takes_little_memory_and_warns_of_long_metadata(place):
    words = ("plan", "model=llama3-405b", "ranks=16384", "sharding=full")
    plan = document(place, *words)
    assert plan["items"] > 50_000_000 and plan["metadata_bytes"] > 5 * 2**30 and plan["rss_bytes"] < 256 * 2**20
    assert 0.9 * plan["predicted"]["save_s"] < plan["metadata_s"] < plan["predicted"]["save_s"]
    assert plan["metadata_memory_bytes"] < 256 * 2**20
    lines = ckptbench(place, *words).stdout
    assert "warning: rank 0 alone writes .metadata, " in lines and "rank 0 needs at most 96 MiB more while it reads" in lines
    assert "warning" not in ckptbench(place, "plan", "model=gpt2", "ranks=4", "sharding=full").stdout


@pytest.mark.parametrize("words, ranks", [(("nodes=2", "ranks_per_node=4"), 8), (("ranks_per_node=2",), 2), (("nodes=4",), 4)])
def test_plan_counts_ranks_from_nodes(place, words, ranks):
    assert document(place, "plan", "model=gpt2", *words)["files"] == ranks + 1


def test_plan_refuses_nodes_that_do_not_make_its_ranks(place):
    result = ckptbench(place, "plan", "model=gpt2", "ranks=4", "nodes=2", "ranks_per_node=4", code=2)
    assert "make 8 ranks, not 4" in result.stderr


def test_a_plan_that_takes_long_says_so_and_ends_at_once_on_request(place):
    words = ("plan", "model=llama3-405b", "tp=8", "pp=16", "dp=131072")  # 16 million ranks: minutes, and tens of GiB
    process = subprocess.Popen([PROGRAM, *words], cwd=place, env=environment(place), stdout=subprocess.DEVNULL,
                               stderr=subprocess.PIPE, text=True)
    try:
        line = process.stderr.readline()
        assert re.search(r"planning: \d\S* s so far, \S+ \S+ of memory; Ctrl-C ends it", line), line
        process.send_signal(signal.SIGINT)
        assert process.wait(timeout=120) == -signal.SIGINT
    finally:
        process.kill()
        process.communicate()


@pytest.mark.without_sanitizers
def test_a_plan_too_large_for_the_memory_is_refused_with_the_figure(place):
    result = subprocess.run(["sh", "-c", 'ulimit -v 300000; exec "$@"', "sh", PROGRAM, "plan", "model=gpt2", "zero=3", "dp=1048576"],
                            cwd=place, env=environment(place), capture_output=True, text=True, timeout=100)
    assert result.returncode == 4 and "MiB of memory that it may have here: plan fewer ranks" in result.stderr


def test_plan_of_a_sweep_has_one_for_each_combination(place):
    (place / "sweep.yaml").write_text("model: gpt2-tiny\nranks: 4\ntp: [1, 2]\nrepeat: 3\n")
    plans = document(place, "plan", "sweep.yaml", "io.depth=1,2")
    assert [plan["varied"] for plan in plans] == [{"tp": tp, "io.depth": depth} for tp in "12" for depth in "12"]
    assert all(set(plan["plan"]) == PLAN_MEMBERS for plan in plans)
    assert plans[0]["plan"]["host_memory_bytes"] < plans[1]["plan"]["host_memory_bytes"]
    out = ckptbench(place, "plan", "sweep.yaml").stdout
    assert re.findall(r"^== (.*)$", out, re.M) == ["tp=1", "tp=2"] and out.count("predicted ") == 2


def test_a_command_prints_no_plan_that_it_does_not_follow(place):
    words = ("run", *TINY, "store=./store", "engine=command", "ops=save", "iterations=1", "keep=false")
    out = ckptbench(place, *words, "command=mkdir -p {path} && echo data >{path}/file-{rank}").stdout
    assert not re.search(r"^plan ", out, re.M) and "stored " in out


def test_a_command_is_durable_only_if_it_says_so(place):
    words = ("run", *TINY, "store=./store", "engine=command", "ops=save", "iterations=1", "keep=false")
    save = "mkdir -p {path} && echo data >{path}/file-{rank}"
    assert "durable_s" not in document(place, *words, f"command={save}")["metrics"]
    (place / "report").write_text('{"metrics": {"durable_s": 0.5}}')
    assert document(place, *words, f"command={save} && cat {place}/report")["metrics"]["durable_s"]["median"] == 0.5


def test_doctor_says_what_is_here(place):
    checks = {check["name"]: check for check in document(place, "doctor", "store=./store", "model=gpt2-tiny")["checks"]}
    for name in ("ckptbench-agent", "ckptbench-worker", "mpirun", "munge", "cores", "memory", "memlock", "io_uring", "store", "space",
                 "history", "torch"):
        assert checks[name]["found"]
        assert checks[name]["status"] == "ok" or checks[name]["do"]


def test_doctor_exits_4_when_something_required_is_missing(place):
    empty = place / "bin"
    empty.mkdir()
    (empty / "ckptbench").write_bytes(Path(PROGRAM).read_bytes())
    (empty / "ckptbench").chmod(0o755)
    result = subprocess.run([str(empty / "ckptbench"), "doctor", "--json"], cwd=place, capture_output=True, text=True,
                            env=dict(environment(place), PATH="/nonexistent"), timeout=120)
    assert result.returncode == 4
    missing = {check["name"] for check in json.loads(result.stdout)["checks"] if check["status"] == "missing"}
    assert {"ckptbench-agent", "ckptbench-worker", "mpirun"} <= missing


# ---- what is refused, before anything starts ----

@pytest.mark.parametrize("words, sentence", [
    (("rnu",), "unknown verb"),
    (("run", "io.dept=3"), "did you mean 'io.depth'?"),
    (("run", "io.block=4Mbit"), "not a size such as 4MiB"),
    (("run", *TINY, "dp=2", "tp=2"), "ranks"),
    (("run", "model=gpt2-tiny", "ranks=5", "tp=5"), "tp"),
    (("run", "model=no-such-model"), "no-such-model"),
    (("run", *TINY, "ops=load"), "suffix="),
    (("run", *TINY, "store=fault:delay=1s"), "fault:SPEC:STORE"),
    (("run", "gpt2"), "model=gpt2"),
    (("run", *TINY, "engine=torch-dcp", "io.files=shared"), "one file a rank"),
    (("run", *TINY, "engine=torch-dcp", "format=raw"), "format=dcp only"),
    (("run", *TINY, "engine=native,torch-dcp", "save.dedup=none"), "always deduplicates"),
    (("run", *TINY, "engine=torch-native", "format=raw"), "format=dcp only"),
    (("run", *TINY, "engine=command"), "needs command="),
])
def test_usage_mistakes_exit_2_and_leave_nothing_behind(place, words, sentence):
    result = ckptbench(place, *words, code=2)
    assert sentence in result.stderr
    assert not list((place / "home").glob("runs/*"))


def test_yaml_mistakes_have_line_and_column(place):
    (place / "nightly.yaml").write_text("model: gpt2-tiny\nio:\n    dept: 3\n")
    assert "nightly.yaml:3:5: unknown key 'io.dept': did you mean 'io.depth'?" in ckptbench(
        place, "run", "nightly.yaml", code=2).stderr


@pytest.mark.parametrize("verb", [("list",), ("show", "LATEST"), ("history", "save_s"), ("sql", "select 1"), ("compare", "LATEST", "LATEST"),
                                  ("collect",), ("export", "LATEST", "--csv"), ("baseline",), ("doctor",)])
def test_a_damaged_history_is_made_again_by_any_verb(place, verb):
    subprocess.run([BUILD / "tests/make_run", place / "home/runs/20261121-aaaa"], check=True, timeout=120)
    (place / "home/history.db").write_text("no database " * 100)
    result = ckptbench(place, *verb)
    assert result.stderr.count("is damaged") == 1 and "made again from the run folders" in result.stderr
    assert [run["run"] for run in document(place, "list")] == ["20261121-aaaa"]
    assert "damaged" not in ckptbench(place, *verb).stderr


@pytest.mark.parametrize("words", [("models",), ("list", "--json"), ("plan", "model=gpt2-tiny")])
def test_a_full_stdout_is_infrastructure(place, words):
    with open("/dev/full", "w") as full:
        result = subprocess.run([PROGRAM, *words], env=environment(place), stdout=full, stderr=subprocess.PIPE, text=True, timeout=120)
    assert result.returncode == 4 and "writing to stdout: No space left on device" in result.stderr


@pytest.mark.parametrize("verb", [("list",), ("list", "--json"), ("show", "LATEST"), ("collect",), ("run", "model=gpt2-tiny"),
                                  ("doctor",)])
def test_a_home_that_cannot_be_a_folder_says_so(place, verb):
    (place / "home").write_text("in the way")
    result = ckptbench(place, *verb, code=4)
    assert "is not a folder: CKPTBENCH_HOME must name a folder that you may use" in result.stderr + result.stdout


def test_a_home_that_cannot_be_entered_says_so(place):
    (place / "home").mkdir(mode=0o700)
    if os.geteuid() == 0:  # whom nothing keeps out: as somebody else, from a place that all can reach
        with tempfile.TemporaryDirectory() as shared:
            os.chmod(shared, 0o755)
            shutil.copy(PROGRAM, shared)
            os.mkdir(f"{shared}/home", 0o700)
            result = subprocess.run(["setpriv", "--reuid=65534", "--regid=65534", "--clear-groups", f"{shared}/ckptbench", "list"],
                                    env=dict(os.environ, CKPTBENCH_HOME=f"{shared}/home"), capture_output=True, text=True, timeout=120)
    else:
        (place / "home").chmod(0)
        result = subprocess.run([PROGRAM, "list"], env=environment(place), capture_output=True, text=True, timeout=120)
        (place / "home").chmod(0o700)
    assert result.returncode == 4 and "entering the folder" in result.stderr and "no runs" not in result.stderr


def test_a_malformed_config_of_a_model_is_a_usage_mistake(place):
    (place / "config.json").write_text('{"model_type":')
    assert "not JSON" in ckptbench(place, "plan", "model=./config.json", code=2).stderr


# ---- running ----

def test_a_run_is_one_document_and_its_store_is_absolute(place):
    run = document(place, "run", *TINY, "store=./store", "iterations=2", "label.kind=a: \"b\" #c\n")
    assert run["outcome"] == "pass" and run["state"] == "done"
    assert run["experiment"]["store"] == str(place / "store")
    assert run["labels"] == {"kind": 'a: "b" #c\n'}
    assert run["metrics"]["save_s"]["n"] == 2 and run["metrics"]["load_s"]["median"] > 0
    assert set(run["metrics"]["save_s"]) == {"unit", "n", "median", "p95", "min", "max", "mean"}
    assert sum(run["states"]["save"].values()) == pytest.approx(1, abs=0.01)
    assert run["verified"] == {"iterations": 2, "of": 2}
    assert run["limits"]["baseline_write_bytes_per_s"] is None


@pytest.mark.parametrize("words, ranks", [(("tp=2", "dp=2"), 4), (("mesh=pp=2+dp=1",), 2), ((), 1)])
def test_ranks_are_what_the_axes_make(place, words, ranks):
    run = document(place, "run", "model=gpt2-tiny", *words, "store=./store", "iterations=1", "warmup=0", "baseline=false")
    assert run["outcome"] == "pass" and run["experiment"]["ranks"] == ranks


def test_experts_alone_make_as_many_ranks(place):
    plan = document(place, "plan", "model=mixtral-8x7b", "layers=1", "ep=4", "state=weights")
    assert plan["files"] == 5


def test_the_table_comes_from_the_history(place):
    out = ckptbench(place, "run", *TINY, "store=./store", "iterations=1").stdout
    assert re.search(r"^run \d{8}-\w{4}  gpt2-tiny, 0.84 M parameters", out)
    assert re.search(r"^save +\S", out, re.M) and re.search(r"^load \(\w+\??\) ", out, re.M)
    assert "verified      every byte of every tensor, 1 of 1 iteration\n" in out
    assert (place / "home/history.db").exists()


def test_a_sweep_runs_its_members_in_order_and_is_one_document(place):
    sweep = document(place, "run", *TINY, "store=./store", "iterations=1", "ops=save", "io.depth=1,2", "repeat=2")
    assert [run["run"] for run in sweep["runs"]] == [f"{sweep['sweep']}.0{n}" for n in (1, 2, 3, 4)]
    assert [run["experiment"]["io.depth"] for run in sweep["runs"]][:2] == [1, 2]
    assert all(run["outcome"] == "pass" for run in sweep["runs"])


def test_the_next_step_after_a_zipped_sweep_separates_its_members(place):
    out = ckptbench(place, "run", "model=gpt2-tiny", "baseline=false", "store=./store", "iterations=1", "ops=save", "warmup=0",
                    "ranks=2,2,4", "tp=1,2,4", "zip=ranks,tp", timeout=100).stdout
    assert re.search(r"next: ckptbench compare \S+ --by tp\n", out)


def test_the_next_step_after_a_sweep_of_two_keys_shows_all_members(place):
    out = ckptbench(place, "run", *TINY, "store=./store", "iterations=1", "ops=save", "warmup=0", "verify=none", "io.depth=1,2",
                    "io.block=64KiB,1MiB", timeout=100).stdout
    command = re.search(r"next: ckptbench (show \S+)\n", out)[1].split()
    text = ckptbench(place, *command).stdout
    assert "4 runs over io.block, io.depth, 4 passed" in text and "best first by save_s" in text


def test_plan_takes_no_rate_from_a_store_that_pretends(place):
    ckptbench(place, "run", *TINY, "store=fault:delay=1ms:./store", "iterations=1")
    assert document(place, "plan", "model=gpt2-tiny")["predicted"]["rate_from"].startswith("assumed")


@pytest.mark.parametrize("columns, locale, line", [
    (200, "C.UTF-8", r"save +\d/2  [━╸ ]{20} +\d+ %   [\d.]+ MiB/s   slowest rank \d   eta \d+ s"),
    (80, "C", r"save +\d/2  [# -]{12} +\d+ %   [\d.]+ MiB/s   slowest rank \d   eta \d+ s"),
    (60, "C.UTF-8", r"save +\d/2 +\d+ %   [\d.]+ MiB/s   slowest rank \d   eta \d+ s")])
def test_progress_has_the_rate_of_what_moves_in_one_line_of_the_terminal(place, columns, locale, line):
    """Slowed down, so that there is something to look at; on a terminal, which shows it."""
    terminal, program_side = pty.openpty()
    fcntl.ioctl(program_side, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    words = (*TINY, "store=fault:bandwidth=8MiB:./store", "iterations=2", "ops=save", "verify=none", "io.block=256KiB")
    process = subprocess.Popen([PROGRAM, "run", *words], cwd=place, env=environment(place, LC_ALL=locale), stdout=subprocess.DEVNULL,
                               stderr=program_side)
    os.close(program_side)
    seen, shown = [], b""
    while process.poll() is None:
        for path in (place / "home/runs").glob("*/attempts/1/progress.json"):
            progress = json.loads(path.read_text())
            if progress["op"] == "save" and 0 < progress["bytes_done"] < progress["bytes_total"]:
                seen.append(progress["bytes_per_s"])
        try:
            if select.select([terminal], [], [], 0.1)[0]:
                shown += os.read(terminal, 65536)
        except OSError:  # the program has closed its end
            break
    os.close(terminal)
    assert process.wait(timeout=120) == 0, shown
    assert seen and 1e6 < max(seen) < 100e6
    text = shown.decode()
    assert re.search(line, text), text
    lines = re.findall(r"\r\033\[K([^\r\n]*)", text)
    assert all(len(each) < columns for each in lines), lines
    assert "\033" not in text.replace("\033[K", "") and (locale != "C" or all(each.isascii() for each in lines)), text


@pytest.mark.parametrize("columns, line", [
    (200, "save   2/5    40 %   rank 3 has not moved for 12 s, which is longer than all others   1 GiB/s   slowest rank 3   eta 2 s   n1 600 MiB/s, n2 424 MiB/s"),
    (60, "save   2/5    40 %   rank 3 has not moved for 12 s, which i")])
def test_a_note_of_the_agent_takes_the_place_of_the_bar(place, columns, line):
    """An agent that writes its progress and waits until it has been seen."""
    programs, seen = place / "bin", place / "seen"
    programs.mkdir()
    shutil.copy(PROGRAM, programs / "ckptbench")
    progress = {"state": "running", "op": "save", "iteration": 2, "iterations": 5, "bytes_done": 4 << 28, "bytes_total": 10 << 28, "bytes_per_s": 1 << 30, "slowest_rank": 3,
                "nodes": "n1 600 MiB/s, n2 424 MiB/s", "note": "rank 3 has not moved for 12 s, which is longer than all others"}
    (place / "progress").write_text(json.dumps(progress))
    agent = programs / "ckptbench-agent"
    agent.write_text(f"""#!/bin/sh
[ "$1" = run ] || exit 1
mkdir -p "$2/attempts/1" && cp {place}/progress "$2/attempts/1/progress.json.new" && mv "$2/attempts/1/progress.json.new" "$2/attempts/1/progress.json"
for i in $(seq 1200); do [ -e {seen} ] && break; sleep 0.05; done
""")
    agent.chmod(0o755)
    terminal, program_side = pty.openpty()
    fcntl.ioctl(program_side, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    process = subprocess.Popen([programs / "ckptbench", "run", *TINY, "store=./store"], cwd=place, env=environment(place, LC_ALL="C.UTF-8"), stdout=subprocess.DEVNULL, stderr=program_side)
    os.close(program_side)
    shown = b""
    try:
        while block := os.read(terminal, 65536):
            shown += block
            if b"has not moved" in shown:
                seen.touch()
    except OSError:  # the program has closed its end
        pass
    os.close(terminal)
    assert process.wait(timeout=120) == 4  # the attempt was left unsealed
    lines = re.findall(r"\r\033\[K([^\r\n]*)", shown.decode())
    assert set(filter(lambda each: each.startswith("save"), lines)) == {line}, lines


def test_a_failed_store_fails_the_benchmark(place):
    run = document(place, "run", *TINY, "store=fault:error_at=3/EIO:./store", "iterations=1", code=3)
    assert run["outcome"] == "benchmark_failed" and run["message"]


def test_interrupted_once_a_run_ends_in_order_and_is_recorded(place):
    process = start(place, *TINY, "store=./store", "iterations=100000", "--json")
    wait_until_running(place, op="save")
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 4, err
    assert "once more stops it now" in err
    assert json.loads(out)["outcome"] == "cancelled"


def test_interrupted_twice_a_run_stops_now_and_is_sealed(place):
    process = start(place, *TINY, "store=fault:delay=2s:./store", "iterations=1000", "--json")
    wait_until_running(place, op="save")  # which lasts seconds: before it, the first signal would be enough
    process.send_signal(signal.SIGINT)
    for line in process.stderr:  # two signals sent at once may be one
        if "once more stops it now" in line:
            break
    process.send_signal(signal.SIGINT)
    out, err = process.communicate(timeout=120)
    assert process.returncode == 4, err
    assert json.loads(out)["outcome"] == "cancelled"
    assert "now" in err


def test_a_sweep_that_was_killed_resumes_without_running_what_is_done(place):
    process = start(place, *TINY, "store=./store", "iterations=1", "ops=save", "io.depth=1,2,3,4")
    deadline = time.monotonic() + 200
    done = []
    while not done and time.monotonic() < deadline:
        done = list((place / "home/runs").glob("*.01/attempts/1/manifest.json"))
        time.sleep(0.01)
    sweep = done[0].parents[2].name.split(".")[0]
    process.kill()
    process.communicate(timeout=120)
    deadline = time.monotonic() + 200
    while any(not (path / "manifest.json").exists() for path in (place / "home/runs").glob("*/attempts/*")):
        assert time.monotonic() < deadline
        time.sleep(0.05)  # the agent notices, and seals
    resumed = document(place, "run", "--resume", sweep)
    assert [run["outcome"] for run in resumed["runs"]] == ["pass"] * 4
    attempts = [len(list((place / f"home/runs/{sweep}.0{n}/attempts").iterdir())) for n in (1, 2, 3, 4)]
    assert attempts[0] == 1
    before = sum(attempts)
    document(place, "run", "--resume", sweep)
    assert before == sum(len(list((place / f"home/runs/{sweep}.0{n}/attempts").iterdir())) for n in (1, 2, 3, 4))


def with_agent(place, script):
    """The controller beside another agent."""
    programs = place / "programs"
    programs.mkdir()
    (programs / "ckptbench").write_bytes(Path(PROGRAM).read_bytes())
    (programs / "ckptbench-agent").write_text(script)
    for name in ("ckptbench", "ckptbench-agent"):
        (programs / name).chmod(0o755)
    return str(programs / "ckptbench")


def test_records_of_an_agent_killed_before_its_manifest_are_sealed_by_the_controller(place):
    """Killed in the one place where records are there and the manifest is not."""
    run = document(place, "run", *TINY, "store=./store", "iterations=2", "keep=false")
    records = place / f"home/runs/{run['run']}/attempts/1/records"
    program = with_agent(place, f"#!/bin/sh\n[ $1 = run ] || exit 0\nmkdir -p $2/attempts/1/logs\ncp {records} $2/attempts/1\nkill -9 $$\n")
    result = subprocess.run([program, "run", *TINY, "store=./store", "iterations=2", "--json"], cwd=place, env=environment(place),
                            capture_output=True, text=True, timeout=120)
    assert result.returncode == 4, result.stderr
    lost = json.loads(result.stdout)
    assert (lost["state"], lost["outcome"]) == ("failed", "lost") and "SIGKILL" in lost["message"]
    manifest = json.loads((place / f"home/runs/{lost['run']}/attempts/1/manifest.json").read_text())
    assert manifest["sealed_by"] == "collect" and len(manifest["records_sha256"]) == 64
    whole = json.loads((records.parent / "manifest.json").read_text())
    assert all(manifest[key] == whole[key] for key in ("records_sha256", "ranks", "samples")) and whole["samples"] > 0
    assert lost["metrics"]["save_s"]["n"] == 2  # known, but the outcome is not a pass
    assert "0 ingested, 2 known, 0 not sealed, 0 failed" in ckptbench(place, "collect").stdout


def test_resume_of_nothing_is_refused(place):
    ckptbench(place, "run", "--resume", "20200101-none", code=2)


def test_the_slowest_rank_says_why_in_the_report_in_json_and_when_compared(place):
    shape = ["model=gpt2-tiny", "ranks=2", "ops=save", "iterations=2", "warmup=0", "baseline=false", "keep=false", "verify=none"]
    slow = json.loads(ckptbench(place, "run", "--json", f"store=fault:delay=500ms+rank=1:{place}/store", *shape).stdout)["run"]
    other = json.loads(ckptbench(place, "run", "--json", f"store=fault:delay=500ms+rank=0:{place}/store", *shape).stdout)["run"]
    why = json.loads(ckptbench(place, "show", slow, "--json").stdout)["slowest_rank"]["save"]
    assert why["rank"] == 1 and why["state"] in ("io", "fsync"), why
    name = {"io": "write", "fsync": "fsync"}[why["state"]]
    assert re.search(rf"rank 1, \+[\d.]+ %: {name}\b", ckptbench(place, "show", slow).stdout)
    every_state = ckptbench(place, "show", slow, "--ranks", "--phases").stdout
    assert all(f"{state}_s" in every_state for state in ("io", "fsync", "wait", "other", "plan", "stage", "serialize", "exchange", "commit"))
    compared = json.loads(ckptbench(place, "compare", slow, other, "--json").stdout)["others"][0]
    assert compared["slowest_rank_state"]["save"]["base"] == why["state"]
