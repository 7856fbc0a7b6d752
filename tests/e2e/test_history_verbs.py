"""The verbs that read the history, over run folders with made-up figures."""
import csv
import io
import json
import math
import os
import random
import re
import shutil
import sqlite3
import subprocess
from pathlib import Path

import pytest

from harness import BUILD


class Home:
    def __init__(self, folder):
        self.folder = folder
        self.count = 0

    def make(self, run, *words, sweep=None, block=0, combination=0):
        folder = self.folder / "runs" / run
        self.count += 1
        subprocess.run([BUILD / "tests/make_run", folder, f"started={1700000000 + 60 * self.count}", *words],
                       check=True, timeout=120)
        if sweep:
            (folder / "planned.json").write_text(json.dumps(
                {"version": 1, "run": run, "sweep": sweep, "block": block, "combination": combination,
                 "planned_ns": 1700000000 * 10**9 + self.count}))
        return folder

    def call(self, *arguments, code=0):
        environment = {**os.environ, "CKPTBENCH_HOME": str(self.folder)}
        result = subprocess.run([BUILD / "ckptbench", *arguments], env=environment, capture_output=True, text=True,
                                timeout=120)
        assert result.returncode == code, result.stdout + result.stderr
        return result

    def json(self, *arguments, code=0):
        return json.loads(self.call(*arguments, "--json", code=code).stdout)


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path / "home")


def make_ab(home, count=6, base=9.0, other=7.6, **more):
    for i in range(count):
        home.make(f"a{i}", f"save={base + 0.01 * i}", f"load={15 + 0.01 * i}", "label.side=a", "io.engine=psync")
        home.make(f"b{i}", f"save={other + 0.01 * i}", f"load={15 + 0.01 * ((i + 3) % count)}", "label.side=b",
                  *more.get("words", []))
    home.call("collect")


def test_list_on_a_fresh_machine_is_empty_and_makes_nothing(home):
    assert home.json("list") == []
    assert "no runs yet" in home.call("list").stderr
    assert not (home.folder / "history.db").exists()


def test_list_names_runs_newest_first_with_experiment_and_labels(home):
    home.make("20261121-aaaa", "model=gpt2", "label.kind=nightly")
    home.make("20261121-bbbb", "model=gpt2-xl", "outcome=benchmark_failed", "records=false")
    home.make("20261121-cccc", "outcome=none")
    home.call("collect", "--silence", "1h")
    runs = home.json("list")
    assert [run["run"] for run in runs] == ["20261121-cccc", "20261121-bbbb", "20261121-aaaa"]
    assert set(runs[0]) == {"run", "sweep", "state", "outcome", "site", "block", "combination", "planned_ns", "started", "experiment", "labels"}
    assert runs[2]["experiment"]["model"] == "gpt2" and runs[2]["experiment"]["tp"] == 1
    assert runs[2]["labels"] == {"kind": "nightly"}
    assert runs[2]["started"] == "2023-11-14T22:14:20Z"
    assert (runs[1]["state"], runs[1]["outcome"]) == ("failed", "benchmark_failed")
    assert (runs[0]["state"], runs[0]["outcome"]) == ("planned", None)
    assert [run["run"] for run in home.json("list", "label.kind=nightly")] == ["20261121-aaaa"]
    table = home.call("list", "model=gpt2*").stdout
    assert "20261121-aaaa" in table and "20261121-cccc" not in table and "\033" not in table
    assert "did you mean 'model'" in home.call("list", "modle=x", code=2).stderr


def test_show_has_the_run_document(home):
    home.make("20261121-aaaa", "save=0.8", "load=1.3", "model=gpt2")
    home.call("collect")
    document = home.json("show", "LATEST")
    assert document["run"] == "20261121-aaaa" and document["outcome"] == "pass"
    save = document["metrics"]["save_s"]
    assert save["unit"] == "s" and save["n"] == 3 and abs(save["median"] - 0.8008) < 1e-3
    assert set(save) >= {"unit", "n", "median", "p95", "min", "max", "mean"}
    assert abs(sum(document["states"]["save"].values()) - 1) < 1e-6
    ranks = home.json("show", "2026", "--ranks")["ranks"]
    assert [rank["rank"] for rank in ranks["save"]] == [0, 1]
    assert ranks["save"][1]["own_s"] < ranks["save"][0]["own_s"]
    text = home.call("show", "LATEST", "--ranks", "--phases").stdout
    assert "write" in text and "own_s" in text
    assert "did you mean 20261121-aaaa" in home.call("show", "20261121-aaab", code=2).stderr


def make_on_nodes(home, ranks, nodes):
    """A run whose node 0 is the slowest, and each other faster than the one before."""
    folder = home.make("20261121-aaaa", "save=1", "load=2", f"made_ranks={ranks}", f"ranks={ranks}")
    each = ranks // nodes
    listed = [{"node": f"n{node}", "state": "joined", "first_rank": node * each, "ranks": each} for node in range(nodes)]
    (folder / "attempts/1/rendezvous.json").write_text(json.dumps({"nodes": listed}))
    home.call("collect")


def test_of_many_ranks_the_slowest_have_a_line_each_and_the_others_one(home):
    home.make("20261121-aaaa", "save=1", "load=2", "made_ranks=65", "ranks=65")
    home.call("collect")
    lines = home.call("show", "LATEST", "--ranks").stdout.split("\nsave  ")[-1].split("\nload  ")[0].splitlines()
    assert [line.split()[0] for line in lines[1:17]] == [str(rank) for rank in range(16)]  # rank 0 is the slowest
    assert lines[17].split()[:2] == ["49", "others"] and lines[18].startswith("the 16 slowest ranks, and medians")
    assert len(home.json("show", "LATEST", "--ranks")["ranks"]["save"]) == 65


def test_64_ranks_have_a_line_each(home):
    home.make("20261121-aaaa", "save=1", "load=2", "made_ranks=64", "ranks=64")
    home.call("collect")
    text = home.call("show", "LATEST", "--ranks").stdout
    assert "others" not in text and re.search(r"^ +63 ", text, re.M)


def test_bytes_time_and_rate_of_nodes_start_with_the_slowest(home):
    make_on_nodes(home, ranks=8, nodes=4)
    save = home.json("show", "LATEST", "--nodes")["node_rates"]["save"]
    assert [(node["node"], node["first_rank"], node["ranks"]) for node in save] == [(f"n{i}", 2 * i, 2) for i in range(4)]
    assert all(node["bytes_moved"] == 2 << 20 for node in save)
    assert all(node["bytes_per_s"] == pytest.approx(node["bytes_moved"] / node["own_s"]) for node in save)
    text = home.call("show", "LATEST", "--nodes").stdout
    assert re.search(r"^save +n0 +2 +2 MiB .* \+3\.1 %\n +n1 ", text, re.M) and re.search(r"^load +n0 ", text, re.M)


def test_of_many_nodes_the_slowest_are_printed(home):
    make_on_nodes(home, ranks=34, nodes=17)
    text = home.call("show", "LATEST", "--nodes").stdout
    assert "the 16 slowest of 17 nodes" in text
    assert [node["node"] for node in home.json("show", "LATEST", "--nodes")["node_rates"]["save"]] == [f"n{i}" for i in range(17)]


def test_a_run_on_one_machine_has_its_figures_too(home):
    home.make("20261121-aaaa", "save=1", "load=2", "ranks=2")
    home.call("collect")
    save, = home.json("show", "LATEST", "--nodes")["node_rates"]["save"]
    assert save["ranks"] == 2 and save["bytes_moved"] == 2 << 20
    assert "alone" not in home.call("show", "LATEST", "--nodes").stdout


def test_compare_finds_a_better_side_and_a_regression(home):
    make_ab(home)
    document = home.json("compare", "label.side=a", "label.side=b")
    assert document["base"]["name"] == "label.side=a" and document["base"]["n"] == 6
    other = document["others"][0]
    assert other["n"] == 6 and other["method"] == "runs"
    save = other["metrics"]["save_s"]
    assert save["verdict"] == "better" and -0.17 < save["change"] < -0.14 and save["p"] < 0.05
    assert save["ci"][0] <= save["change"] <= save["ci"][1] < 0
    assert other["metrics"]["load_s"]["verdict"] == "same"
    assert other["metrics"]["save.io_s"]["verdict"] == "exploratory"
    assert other["differs"]["io.engine"] == {"base": "psync", "other": "io_uring"}
    assert other["confounded"] == {}
    assert home.json("compare", "label.side=b", "label.side=a", code=5)["others"][0]["metrics"]["save_s"]["verdict"] == "worse"
    text = home.call("compare", "label.side=a", "label.side=b").stdout
    assert "better" in text and "same (within 3 %)" in text and "differs: io.engine psync -> io_uring" in text
    assert "same: cpu, kernel" in text


def test_compare_a_against_a_is_the_same(home):
    make_ab(home, count=8, base=9.0, other=9.0)
    verdicts = home.json("compare", "label.side=a", "label.side=b")["others"][0]["metrics"]
    assert verdicts["save_s"]["verdict"] == verdicts["load_s"]["verdict"] == "same"


def test_compare_one_run_with_one_gives_no_verdict(home):
    make_ab(home, count=1)
    other = home.json("compare", "a0", "b0")["others"][0]
    assert other["method"] == "within-run" and other["metrics"]["save_s"]["verdict"] == "inconclusive"
    assert "within-run" in home.call("compare", "a0", "b0").stdout


def test_compare_fails_for_a_worse_side_and_if_asked_for_an_inconclusive_one(home):
    make_ab(home, count=6)
    home.call("compare", "a0", "b0")
    home.call("compare", "a0", "b0", "--fail-on", "worse")
    home.call("compare", "a0", "b0", "--fail-on", "inconclusive", code=6)
    home.call("compare", "label.side=b", "label.side=a", "--fail-on", "inconclusive", code=5)
    assert "--fail-on takes worse or inconclusive, not better" in home.call("compare", "a0", "b0", "--fail-on", "better", code=2).stderr


def test_compare_refuses_another_kernel_unless_asked(home):
    make_ab(home, words=['fingerprint={"kernel": "6.12", "cpu": {"count": 8}}'])
    other = home.json("compare", "label.side=a", "label.side=b")["others"][0]
    assert other["confounded"] == {"kernel": {"base": "6.1", "other": "6.12"}}
    assert other["metrics"]["save_s"]["verdict"] == "inconclusive"
    across = home.json("compare", "label.side=a", "label.side=b", "--across")["others"][0]
    assert across["metrics"]["save_s"]["verdict"] == "better"


def test_compare_says_how_many_more_runs_would_tell(home):
    for i, (a, b) in enumerate([(9.0, 8.3), (9.6, 9.2), (8.6, 8.8), (9.2, 8.0)]):
        home.make(f"a{i}", f"save={a}", "label.side=a")
        home.make(f"b{i}", f"save={b}", "label.side=b")
    home.call("collect")
    result = home.call("compare", "label.side=a", "label.side=b")
    assert "more runs a side would tell" in result.stdout


def test_compare_names_no_number_of_runs_that_nobody_makes(home):
    for i in range(6):
        home.make(f"a{i}", f"save={(1, 50, 2, 40, 3, 60)[i]}", "label.side=a")
        home.make(f"b{i}", f"save={(60, 3, 40, 2, 50, 1)[i]}", "label.side=b")
    home.call("collect")
    text = home.call("compare", "label.side=a", "label.side=b").stdout
    assert "inconclusive: more than 100 more runs a side would be needed to tell" in text
    assert "more runs a side would tell" not in text
    assert home.json("compare", "label.side=a", "label.side=b")["others"][0]["metrics"]["save_s"]["more_runs"] is None


def test_compare_within_one_run_proposes_no_number_of_runs(home):
    """The spread of iterations says nothing of that between runs."""
    make_ab(home, count=1, base=9.0, other=8.0)
    save = home.json("compare", "a0", "b0")["others"][0]["metrics"]["save_s"]
    assert save["verdict"] == "inconclusive" and save["more_runs"] is None


def test_compare_by_a_key_tests_within_the_blocks_of_a_sweep(home):
    number = 0
    for block in range(1, 9):
        evening = 1.15 ** block
        for combination, (engine, factor) in enumerate((("psync", 1.0), ("io_uring", 0.9))):
            number += 1
            save = 5 * evening * factor * (1 + 0.002 * (block % 3))
            home.make(f"s1.{number:02}", f"save={save}", f"io.engine={engine}", sweep="s1", block=block,
                      combination=combination)
    home.call("collect")
    document = home.json("compare", "s1", "--by", "io.engine")
    assert document["base"]["name"] == "io.engine=psync"
    other = document["others"][0]
    assert other["name"] == "io.engine=io_uring" and other["method"] == "blocks" and other["blocks"] == 8
    assert other["metrics"]["save_s"]["verdict"] == "better"
    assert abs(other["metrics"]["save_s"]["change"] + 0.1) < 0.01
    assert home.json("compare", "LATEST", "--by", "io.engine") == document
    assert home.json("compare", "s1.03", "--by", "io.engine") == document
    assert "one value of" in home.call("compare", "s1", "--by", "model", code=2).stderr


def test_runs_that_did_not_pass_are_left_out_and_counted(home):
    make_ab(home)
    home.make("a9", "save=99", "label.side=a", "outcome=timeout")
    home.call("collect")
    assert home.json("compare", "label.side=a", "label.side=b")["base"] == {"name": "label.side=a", "n": 6, "left_out": 1}
    assert "no run that passed" in home.call("compare", "a9", "b0", code=2).stderr


def test_a_run_that_has_not_ended_did_not_fail(home):
    make_ab(home)
    home.make("a8", "label.side=a", "outcome=none")
    home.make("a9", "label.side=a", "outcome=lost")
    home.call("collect")
    with sqlite3.connect(home.folder / "history.db") as database:
        database.execute("UPDATE run SET state='running', outcome=NULL WHERE run='a8'")
    text = home.call("compare", "label.side=a", "label.side=b").stdout
    assert "not in yet: 1 run of label.side=a still running" in text
    assert "left out: 1 run of label.side=a did not pass" in text


def test_sides_of_a_sweep_come_in_the_order_of_its_values_whichever_ended_first(home):
    for combination, depth in ((1, 8), (2, 2), (0, 32)):  # in the order in which they were started
        home.make(f"s1.0{combination + 1}", f"io.depth={depth}", sweep="s1", block=1, combination=combination)
    home.call("collect")
    document = home.json("compare", "s1", "--by", "io.depth")
    assert [side["name"] for side in (document["base"], *document["others"])] == ["io.depth=32", "io.depth=8", "io.depth=2"]


def test_the_medians_may_say_otherwise_than_the_typical_change_and_the_line_says_so(home):
    for i, (a, b) in enumerate(((1, 5), (2, 6), (3, 7), (30, 29), (31, 31.2), (32, 32.5), (33, 33.5))):
        home.make(f"a{i}", f"save={a}", "label.side=a")
        home.make(f"b{i}", f"save={b}", "label.side=b")
    home.call("collect")
    save = home.json("compare", "label.side=a", "label.side=b")["others"][0]["metrics"]["save_s"]
    text = home.call("compare", "label.side=a", "label.side=b").stdout
    assert save["other"] < save["base"] and save["change"] > 0
    assert f"save_s: the medians say {100 * (save['other'] / save['base'] - 1):+.1f} %" in text
    assert "median of" in text and "typical change" in text


def test_a_baseline_without_older_runs_is_inconclusive_and_says_what_to_do(home):
    home.make("n0", "label.kind=nightly")
    home.call("collect")
    home.call("baseline", "set", "nightly", "window=10", "label.kind=nightly")
    result = home.call("compare", "nightly", "LATEST", "--fail-on", "inconclusive", code=6)
    assert "the baseline nightly has no older runs on this store yet: run again, then compare" in result.stderr
    assert home.json("compare", "nightly", "LATEST")["others"] == []


def test_a_baseline_gates_the_latest_repeats(home):
    for i in range(10):
        home.make(f"n{i}", f"save={9 + 0.01 * i}", "label.kind=nightly")
    for i in range(5):
        home.make(f"z.{i}", f"save={11 + 0.01 * i}", "label.kind=nightly", sweep="z", block=i + 1)
    home.call("collect")
    home.call("baseline", "set", "nightly", "window=10", "label.kind=nightly")
    assert home.json("baseline", "list") == [
        {"baseline": "nightly", "window": 10, "n": 10, "filters": ["label.kind=nightly"]}]
    document = home.json("compare", "nightly", "LATEST", code=5)
    assert document["base"]["n"] == 10 and document["others"][0]["n"] == 5
    assert document["others"][0]["metrics"]["save_s"]["verdict"] == "worse"
    home.call("baseline", "set", "fixed", "n0", "n1", "n2")
    assert len(home.json("baseline")) == 2
    assert (home.folder / "baselines/fixed.json").exists()
    home.call("baseline", "remove", "fixed")
    assert "fixed" not in home.call("baseline", "list").stdout
    assert "no baseline fixed" in home.call("baseline", "remove", "fixed", code=2).stderr


NIGHTLY = Path(__file__).resolve().parents[2] / "experiments/nightly.yaml"


def night_after_night(home, saves, *more):
    """Runs of experiments/nightly.yaml with these save times, each compared as the head of that file says; the exit codes."""
    text = NIGHTLY.read_text()
    keys = [line.replace(": ", "=") for line in text.splitlines() if not line.startswith("#")]
    baseline, compare = (re.search(rf"#   ckptbench ({verb} [^#\n]*)", text)[1].split() for verb in ("baseline", "compare"))
    environment = {**os.environ, "CKPTBENCH_HOME": str(home.folder)}
    codes = []
    for night, save in enumerate(saves, 1):
        home.make(f"night-{night:02}", f"save={save}", "load=2", "made_ranks=4", "made_iterations=5", *keys)
        home.call("collect")
        home.call(*baseline)
        codes.append(subprocess.run([BUILD / "ckptbench", *compare, *more], env=environment, capture_output=True, timeout=120).returncode)
    return codes


def nights(count, step=1.0, since=99):
    noise = random.Random(14)
    return [9 * math.exp(noise.gauss(0, 0.03)) * (step if night >= since else 1) for night in range(1, count + 1)]


def test_30_nights_without_a_step_raise_no_alarm(home):
    assert night_after_night(home, nights(30)) == [0] * 30
    document = home.json("compare", "nightly", "LATEST")
    assert document["base"]["n"] == 10 and document["others"][0]["method"] == "prediction"


def test_a_step_is_an_alarm_in_the_night_in_which_it_comes(home):
    codes = night_after_night(home, nights(30, 1.25, since=21))
    assert codes[:21] == [0] * 20 + [5]
    home.call("baseline", "set", "before", *(f"night-{night}" for night in range(11, 21)))
    for night in range(21, 31):  # the window has taken slow nights in, fixed runs have not
        home.call("compare", "before", f"night-{night}", code=5)


def test_a_night_13_times_slower_than_ten_before_is_worse_in_the_table_and_in_json(home):
    assert night_after_night(home, [*nights(10), 9 * 13])[-1] == 5
    other = home.json("compare", "nightly", "LATEST", code=5)["others"][0]
    save = other["metrics"]["save_s"]
    assert other["method"] == "prediction" and save["verdict"] == "worse" and save["ci"][0] > 5
    text = home.call("compare", "nightly", "LATEST", code=5).stdout
    assert re.search(r"save_s .* worse +p = ", text) and "one run, tested against the spread of 10: repeat it" in text


def test_one_run_against_fewer_than_five_says_how_many_are_missing(home):
    assert night_after_night(home, [9, 9, 9, 9 * 13], "--fail-on", "inconclusive") == [6] * 4
    assert "inconclusive: 2 more runs of the base are needed to judge one run" in home.call("compare", "nightly", "LATEST").stdout
    assert home.json("compare", "nightly", "LATEST")["others"][0]["metrics"]["save_s"]["more_runs"] == 2


def test_a_plan_takes_its_rates_from_a_run_on_its_own_store(home):
    """Neither from a newer run elsewhere, nor from one that trained, nor from one that failed."""
    small = ["model=gpt2-tiny", "ranks=2", "made_ranks=2"]
    home.make("disk", *small, "store=/no/such/disk", "save=4")
    home.make("memory", *small, "store=/no/such/memory", "save=2")
    home.make("trained", "workload=train", "model=gpt2-tiny", "train.steps=4", "ranks=2", "store=/no/such/disk", "save=9")
    home.make("failed", *small, "store=/no/such/disk", "save=9", "outcome=benchmark_failed")
    home.call("collect")
    for store, run in (("disk", "disk"), ("memory", "memory")):
        predicted = home.json("plan", "model=gpt2-tiny", "ranks=2", f"store=/no/such/{store}")["predicted"]
        assert predicted["rate_from"].startswith(f"run {run} (gpt2-tiny on 2 ranks, ")
        assert f", /no/such/{store}, 2023-11-14)" in predicted["rate_from"]
    assert home.json("plan", "model=gpt2-tiny", "ranks=2", "store=/no/such/third")["predicted"]["rate_from"] == \
        "assumed: no run on this store yet"


def make_sweep(home, *words, name="s1"):
    """Two keys, four combinations, twice; tp decides how fast."""
    number = 0
    for block in (1, 2):
        for combination, (depth, tp) in enumerate(((2, 1), (2, 2), (4, 1), (4, 2))):
            number += 1
            home.make(f"{name}.{number:02}", f"save={10 - 4 * tp + 0.1 * depth + 0.01 * block}", "ranks=4", f"tp={tp}", f"dp={4 // tp}",
                      f"io.depth={depth}", *words, sweep=name, block=block, combination=combination)
    home.call("collect")


def test_show_of_a_sweep_has_its_combinations_best_first(home):
    make_sweep(home)
    document = home.json("show", "s1")
    assert document["sweep"] == "s1" and document["varied"] == ["tp", "io.depth"] and document["best_first_by"] == "save_s"
    rows = document["combinations"]
    assert [row["combination"] for row in rows] == [1, 3, 0, 2]
    assert rows[0]["values"] == {"tp": "2", "io.depth": "2"} and rows[0]["n"] == 2
    assert rows[0]["metrics"]["save_s"]["n"] == 2 and "stall_s" not in rows[0]["metrics"]
    assert rows[0]["metrics"]["save_s"]["min"] < rows[0]["metrics"]["save_s"]["median"] < rows[0]["metrics"]["save_s"]["max"]
    assert [run["run"] for run in rows[0]["runs"]] == ["s1.02", "s1.06"]
    text = home.call("show", "s1").stdout
    assert "sweep s1: 8 runs over tp, io.depth, 8 passed" in text and "best first by save_s" in text
    lines = [line.split()[:3] for line in text.splitlines()]
    assert lines[lines.index(["tp", "io.depth", "runs"]) + 1] == ["2", "2", "2"]
    for command in re.findall(r"ckptbench (compare s1 --by \S+)", text):
        home.call(*command.split())
    assert "of one run" in home.call("show", "s1", "--ranks", code=2).stderr


def test_show_of_a_sweep_names_what_did_not_pass_and_what_is_not_in_yet(home):
    for number, outcome in enumerate(("pass", "timeout", "none"), 1):
        home.make(f"s1.0{number}", f"io.depth={number}", f"outcome={outcome}", sweep="s1", block=1, combination=number - 1)
    home.call("collect", "--silence", "1h")
    document = home.json("show", "s1")
    assert [(row["n"], row["runs"][0]["outcome"]) for row in document["combinations"]] == [(1, "pass"), (0, "timeout"), (0, None)]
    text = home.call("show", "s1").stdout
    assert "3 runs over io.depth, 1 passed" in text
    assert "did not pass: s1.02 (timeout)" in text and "not in yet: s1.03 (planned)" in text
    assert "next: ckptbench show s1.02 --failures" in text


def test_list_of_a_sweep_names_what_varied_and_says_once_what_is_the_same(home):
    make_sweep(home, "model=gpt2", "store=/no/such/disk")
    text = home.call("list", "s1").stdout
    assert text.splitlines()[0] == "sweep s1  model=gpt2  ranks=4  store=/no/such/disk"
    assert "tp=2 io.depth=4" in text and text.count("gpt2") == 1 and text.count("/no/such/disk") == 1
    home.make("20261121-aaaa", "model=gpt2-xl")
    home.call("collect")
    text = home.call("list", "-n", "2").stdout
    assert "gpt2-xl" in text and "tp=2 io.depth=4" in text  # of all members, not of those that are listed


def test_a_damaged_row_is_named_with_what_to_do_and_the_others_are_listed(home):
    for name in ("20261121-aaaa", "20261121-bbbb", "20261121-cccc"):
        home.make(name, "model=gpt2", "label.kind=x")
    home.call("collect")
    with sqlite3.connect(home.folder / "history.db") as database:
        database.execute("UPDATE run SET experiment='{\"model\": ' WHERE run='20261121-bbbb'")
    result = home.call("list")
    assert "run 20261121-bbbb: its row of the history is damaged" in result.stderr and "collect --rebuild" in result.stderr
    assert [line.split()[0] for line in result.stdout.splitlines()[1:]] == ["20261121-cccc", "20261121-bbbb", "20261121-aaaa"]
    runs = home.json("list")
    assert [run["experiment"] is None for run in runs] == [False, True, False] and runs[1]["labels"] == {"kind": "x"}
    home.call("collect", "--rebuild")
    assert home.json("list")[1]["experiment"]["model"] == "gpt2" and not home.call("list").stderr


def test_a_value_that_no_key_takes_names_its_run_and_what_to_do(home):
    home.make("20261121-aaaa", "ranks=2")
    home.call("collect")
    with sqlite3.connect(home.folder / "history.db") as database:
        database.execute("UPDATE param SET value='many' WHERE run='20261121-aaaa' AND key='ranks'")
    error = home.call("show", "20261121-aaaa", code=4).stderr
    assert "the rows of run 20261121-aaaa in the history are damaged: ranks: 'many'" in error and "collect --rebuild" in error


def test_compare_names_every_side_that_is_none(home):
    make_ab(home, count=1)
    home.make("20261121-k3f9")
    home.call("collect")
    error = home.call("compare", "a8", "k3f9", code=2).stderr
    assert "no run, sweep or baseline a8: did you mean a0?" in error
    assert "no run, sweep or baseline k3f9: did you mean 20261121-k3f9?" in error


def test_the_latest_is_not_a_run_that_was_only_planned(home):
    home.make("20261121-aaaa")
    home.make("20261121-bbbb", "outcome=none", "records=false")
    home.call("collect", "--silence", "1h")
    assert home.json("show", "LATEST")["run"] == home.json("show")["run"] == "20261121-aaaa"
    text = home.call("show", "20261121-bbbb").stdout
    assert "it has not been started: nothing is measured yet" in text
    home.call("collect", "--silence", "0s")
    assert home.json("show", "LATEST")["run"] == "20261121-bbbb"  # it failed, so it was more than planned


def test_history_draws_a_line_for_each_experiment(home):
    for i in range(5):
        home.make(f"a{i}", f"save={1 + i}")
    home.make("b0", "save=7", "model=gpt2")
    home.call("collect")
    points = home.json("history", "save_s")["points"]
    assert len(points) == 6 and len({point["experiment_hash"] for point in points}) == 2
    text = home.call("history", "save_s", "model=llama3-8b").stdout
    assert "▁▃▅▆█" in text and "+100.0 %" in text
    text = home.call("history", "save_s").stdout
    assert "save_s of model=llama3-8b, 5 runs, " in text and "save_s of model=gpt2, 1 run, " in text
    assert text.index("llama3-8b") < text.index("model=gpt2")  # the line that began first
    assert home.json("history", "load.io_s")["unit"] == "s"
    assert "did you mean save_s" in home.call("history", "sve_s", code=2).stderr


def test_history_names_a_line_by_keys_that_its_runs_have(home):
    home.make("bench", "model=gpt2")
    home.make("moved", "model=gpt2", "engine=command", "command=dd {path}")
    for name in ("train.py", "other.py"):
        home.make(name[:5], "workload=watch", f"command={name}")
    home.make("linked", "workload=watch", "facts=watch.library=1")
    for name, checksum in (("there", "crc32c"), ("apart", "sha256")):
        home.make(name, "model=gpt2", "store=s3://bucket/x", f"s3.checksum={checksum}")
    home.call("collect")

    def names(*runs):
        return [line.split(",")[0] for line in home.call("history", "save_s", *runs).stdout.splitlines() if line.startswith("save_s of ")]
    assert names("bench", "moved") == ["save_s of engine=native", "save_s of engine=command command=dd {path}"]
    bench, train = names("bench", "train")
    assert bench.startswith("save_s of workload=checkpoint on ") and train == "save_s of workload=watch command=train.py"
    train, linked = names("train", "linked")
    assert train == "save_s of command=train.py" and linked.startswith("save_s of workload=watch ranks=")
    assert not [name for name in names() if "command= " in name or name.endswith("command=")]
    bench = names("bench", "there", "apart")[0]
    assert "s3." not in bench and "(" in bench


def test_history_draws_a_line_for_each_store_and_site(home):
    for i in range(3):
        home.make(f"a{i}", f"save={1 + i}", "store=/scratch/a")
        home.make(f"b{i}", f"save={10 + i}", "store=/scratch/b")
    (home.folder / "runs/b2/planned.json").write_text(json.dumps(
        {"version": 1, "run": "b2", "site": "tor", "block": 0, "combination": 0, "planned_ns": 1700000000 * 10**9}))
    home.call("collect")
    text = home.call("history", "save_s").stdout
    assert [line[line.index(" on /"):line.index(" run")] for line in text.splitlines() if " on /" in line] == [
        " on /scratch/a at local, 3", " on /scratch/b at local, 2", " on /scratch/b at tor, 1"]
    assert {(point["store"], point["site"]) for point in home.json("history", "save_s")["points"]} == {
        ("/scratch/a", "local"), ("/scratch/b", "local"), ("/scratch/b", "tor")}


def make_levels(home, *more, before=20, after=12, factor=1.15):
    """Nights whose save takes longer from the one on that has another kernel and another node."""
    for night, save in enumerate(nights(before + after, factor, since=before + 1), 1):
        kernel, node = ("6.1", "n1") if night <= before else ("6.12", "n2")
        folder = home.make(f"night-{night:02}", f"save={save}", f'fingerprint={{"kernel": {{"release": "{kernel}"}}, "cpu": {{"count": 8}}}}', *more)
        (folder / "attempts/1/rendezvous.json").write_text(json.dumps({"nodes": [{"node": node, "state": "joined", "first_rank": 0, "ranks": 2}]}))
    home.call("collect")


def test_history_marks_where_the_level_changed_and_what_differs(home):
    make_levels(home)
    change, = home.json("history", "save_s")["change_points"]
    assert change["run"] in ("night-20", "night-21", "night-22") and change["direction"] == "worse"
    assert change["ci"][0] <= change["change"] <= change["ci"][1] and 0.1 < change["change"] < 0.2
    assert change["before"]["first"] == "night-01" and change["after"]["last"] == "night-32"
    assert change["before"]["n"] + change["after"]["n"] == 32 and 1.1 < change["after"]["median"] / change["before"]["median"] < 1.2
    assert "6.12" in change["differs"]["kernel.release"]["after"] and change["differs"]["nodes"] == {"before": "n1", "after": "n2"}
    assert set(change["differs"]) == {"kernel.release", "nodes"}
    text = home.call("history", "save_s").stdout
    assert re.search(rf"worse at {change['run']}, 2023-.*: \+1\d\.\d % \[", text) and "nodes n1 -> n2" in text
    assert re.search(rf"{change['run']} .* \+1\d\.\d % from here", text)
    bars, marks = text.splitlines()[1:3]
    assert len(bars) == 32 and marks.strip() == "^" and marks.index("^") == int(change["run"][-2:]) - 1


def test_compare_with_a_baseline_names_the_change_point_that_the_latest_run_belongs_to(home):
    make_levels(home, "label.kind=nightly")
    home.call("baseline", "set", "nightly", "window=10", "label.kind=nightly")
    change, = home.json("history", "save_s")["change_points"]
    assert home.json("compare", "nightly", "LATEST")["others"][0]["change_points"] == {"save_s": change}
    text = home.call("compare", "nightly", "LATEST").stdout
    assert f"level of save_s: worse at {change['run']}, " in text and "level of load_s" not in text
    assert home.json("compare", "nightly", "night-32")["others"][0]["change_points"] == {}
    home.make("another", "save=9", "model=gpt2")
    home.call("collect")
    assert home.json("compare", "night-01", "LATEST")["others"][0]["change_points"] == {}


def test_history_of_noise_and_of_an_outlier_marks_nothing(home):
    for night, save in enumerate(nights(30), 1):
        home.make(f"night-{night:02}", f"save={save * (4 if night == 20 else 1)}")
    home.call("collect")
    assert home.json("history", "save_s")["change_points"] == []
    text = home.call("history", "save_s").stdout
    assert "^" not in text and "LEVEL" not in text


def test_each_line_has_its_own_change_points(home):
    for night, save in enumerate(nights(30, 1.2, since=16), 1):
        home.make(f"a{night:02}", f"save={save}", "store=/scratch/a")
        home.make(f"b{night:02}", "save=9", "store=/scratch/b")
    home.call("collect")
    changes = home.json("history", "save_s")["change_points"]
    assert [change["store"] for change in changes] == ["/scratch/a"]
    assert home.json("history", "save_s", "store=/scratch/b")["change_points"] == []


@pytest.mark.parametrize("locale, bars", [({"LC_ALL": "en_GB.UTF-8"}, "▁▃▅▆█"), ({"LC_ALL": "", "LANG": "C.utf8"}, "▁▃▅▆█"),
                                          ({"LC_ALL": "C", "LANG": "C.UTF-8"}, "13568"), ({"LC_ALL": "", "LC_CTYPE": "", "LANG": ""}, "13568")])
def test_history_draws_bars_in_the_encoding_of_the_terminal(home, locale, bars):
    for i in range(5):
        home.make(f"a{i}", f"save={1 + i}")
    home.call("collect")
    controller, terminal = os.openpty()
    program = subprocess.Popen([BUILD / "ckptbench", "history", "save_s"], stdout=terminal,
                               env={**os.environ, "CKPTBENCH_HOME": str(home.folder), "TERM": "xterm", **locale})
    os.close(terminal)
    shown = b""
    try:
        while more := os.read(controller, 4096):
            shown += more
    except OSError:  # the program has closed its end
        pass
    os.close(controller)
    assert program.wait(timeout=120) == 0
    assert bars in shown.decode().splitlines()[1]


def test_a_window_has_only_runs_on_the_store_of_what_it_is_compared_with(home):
    for i in range(6):
        home.make(f"a{i}", f"save={9 + 0.01 * i}", "label.kind=nightly", "store=/scratch/a")
        home.make(f"b{i}", f"save={1 + 0.01 * i}", "label.kind=nightly", "store=/scratch/b")
    home.make("c0", "save=9.02", "label.kind=nightly", "store=/scratch/a")
    home.call("collect")
    home.call("baseline", "set", "nightly", "window=10", "label.kind=nightly")
    compared = home.json("compare", "nightly", "LATEST")
    assert compared["base"]["n"] == 6 and 9 < compared["others"][0]["metrics"]["save_s"]["base"] < 9.1
    home.make("d0", "save=9", "label.kind=nightly", "store=/scratch/d")
    home.call("collect")
    assert "the baseline nightly has no older runs on this store yet" in home.call("compare", "nightly", "LATEST").stderr


def test_the_name_of_a_line_has_no_keys_that_its_workload_does_not_use(home):
    home.make("c0", "save=1")
    home.make("t0", "save=2", "workload=train", "train.steps=30")
    home.make("t1", "save=3", "workload=train", "train.steps=40")
    home.call("collect")
    text = home.call("history", "save_s").stdout
    assert "save_s of workload=checkpoint, 1 run" in text
    assert "save_s of workload=train train.steps=30, 1 run" in text


def test_sql_reads_and_only_reads(home):
    home.make("20261121-aaaa", "save=0.8")
    home.call("collect")
    assert home.json("sql", "select run, outcome from run") == [{"run": "20261121-aaaa", "outcome": "pass"}]
    rows = list(csv.reader(io.StringIO(home.call("sql", "select 1 as a, 'x,\"y' as b, null", "--csv").stdout)))
    assert rows == [["a", "b", "null"], ["1", 'x,"y', ""]]
    assert "RUN" not in home.call("sql", "select run from run").stdout
    assert "only SELECT" in home.call("sql", "delete from run", code=2).stderr
    assert len(home.json("list")) == 1
    with sqlite3.connect(home.folder / "history.db") as db:
        values = db.execute("select rank, value from sample_value where op='save' and metric='own_s' and iteration=3"
                            " order by rank").fetchall()
    assert values == [(0, pytest.approx(0.8)), (1, pytest.approx(0.8 * 0.99))]


def test_export_csv_and_json_hold_every_sample(home):
    home.make("20261121-aaaa", "save=0.8", "made_ranks=3")
    home.call("collect")
    rows = list(csv.DictReader(io.StringIO(home.call("export", "LATEST", "--csv").stdout)))
    own = [row for row in rows if row["op"] == "save" and row["metric"] == "own_s"]
    assert len(own) == 3 * 4 and sum(row["warmup"] == "1" for row in own) == 3
    document = home.json("export", "LATEST")
    assert document["document"]["metrics"]["save_s"]["n"] == 3
    assert document["iterations"]["save.save_s"][0] == pytest.approx(0.8008)
    assert any(sample["metric"] == "own_s" and len(sample["ranks"]) == 3 for sample in document["samples"])
    assert "takes one of" in home.call("export", "LATEST", code=2).stderr


def test_export_speaks_the_formats_of_other_benchmarks(home):
    home.make("20261121-aaaa", "save=0.5", "load=0.25", "made_ranks=4", "model=gpt2", "store=/mnt/ckpt", "io.fsync=false")
    home.call("collect")
    mlperf = json.loads(home.call("export", "LATEST", "--mlperf").stdout)
    assert mlperf["num_accelerators"] == 4
    assert mlperf["metric"]["checkpoint_size_GB"] == pytest.approx(4 / 1024)
    assert mlperf["metric"]["save_checkpoint_duration_mean_seconds"] == pytest.approx(0.5, rel=0.01)
    assert mlperf["metric"]["load_checkpoint_io_mean_GB_per_second"] == pytest.approx(4 / 1024 / 0.25, rel=0.01)
    s3 = json.loads(home.call("export", "LATEST", "--s3benchmark").stdout)
    save, load = s3["job_results"]
    assert len(save["metrics"]["corrected_save_durations_s"]) == 4 * 3
    assert load["metrics"]["throughput_mibs"][0] == pytest.approx(16, rel=0.01)
    assert save["config"]["checkpoint"] == {"storage": "disk", "sharding_strategy": "none", "sync_files": False}
    assert save["metrics"]["processing_durations_s"] == pytest.approx([0.5] * 3, rel=0.01)
    assert set(save["metrics"]["utilization"]) == {"cpu_util", "cpu_mem"}
    assert save["config"]["backend"] == "gloo"


def test_mlperfs_summary_has_the_number_of_nodes(home):
    home.make("20261121-aaaa", "save=0.5", "made_ranks=4", "nodes=2")
    home.call("collect")
    assert json.loads(home.call("export", "LATEST", "--mlperf").stdout)["num_hosts"] == 2


def test_export_of_a_sweep_has_all_of_its_runs(home):
    home.make("s.01", "save=0.5", "load=0.25", "io.depth=1", sweep="s")
    home.make("s.02", "save=0.4", "load=0.2", "io.depth=8", sweep="s")
    home.make("other", "save=0.3")
    home.call("collect")
    rows = list(csv.DictReader(io.StringIO(home.call("export", "s", "--csv").stdout)))
    assert {row["run"] for row in rows} == {"s.01", "s.02"}
    document = home.json("export", "s")
    assert document["sweep"] == "s" and [run["document"]["run"] for run in document["runs"]] == ["s.01", "s.02"]
    assert all(run["format"] == "ckptbench-run-1" and run["samples"] for run in document["runs"])
    s3 = json.loads(home.call("export", "s", "--s3benchmark").stdout)
    assert s3["disambiguator"] == "s" and len(s3["job_results"]) == 4
    assert "one run" in home.call("export", "s", "--mlperf", code=2).stderr


def test_export_gives_prometheus_the_newest_figures_of_each_experiment(home):
    home.make("old", "save=0.5", "load=0.25", "label.kind=nightly")
    home.make("new", "save=0.4", "load=0.25", "label.kind=nightly")
    home.make("other", "save=0.3", 'name=say "hi"', "model=gpt2")
    home.call("collect")
    text = home.call("export", "--prometheus").stdout
    lines = [line for line in text.splitlines() if line.startswith("ckptbench_save_s{")]
    assert len(lines) == 2 and [float(line.rsplit(" ", 1)[1]) for line in lines] == pytest.approx([0.3, 0.4], rel=0.01)
    assert r'name="say \"hi\""' in text
    for name in re.findall(r"^(ckptbench_\w+)\{", text, re.M):
        assert text.count(f"# TYPE {name} gauge\n") == text.count(f"# HELP {name} ") == 1
    assert text.count("ckptbench_run_ended_seconds{") == 2
    assert home.call("export", "--prometheus", "label.kind=nightly").stdout.count("ckptbench_save_s{") == 1


@pytest.mark.parametrize("store", ["s3://bucket/bench", "fault:delay=5ms:s3://bucket/bench"])
def test_export_knows_a_bucket_also_behind_faults(home, store):
    home.make("20261121-aaaa", "save=0.5", "load=0.25", f"store={store}")
    home.call("collect")
    config = json.loads(home.call("export", "LATEST", "--s3benchmark").stdout)["job_results"][0]["config"]
    assert config["checkpoint"]["storage"] == "s3" and config["s3"] == {"uri": store} and "path" not in config


def test_collect_twice_is_once_and_names_what_is_broken(home):
    home.make("a", "save=1")
    folder = home.make("b", "save=1")
    records = folder / "attempts/1/records"
    records.write_bytes(records.read_bytes()[:-10])
    result = home.call("collect", code=4)
    assert "1 ingested, 0 known, 0 not sealed, 1 failed" in result.stdout
    assert "b/attempts/1" in result.stderr
    assert "0 ingested, 1 known" in home.call("collect", code=4).stdout
    assert [run["run"] for run in home.json("list", "outcome=pass")] == ["a"]


def test_collect_seals_the_attempt_of_a_dead_agent_as_lost(home):
    folder = home.make("a", "outcome=none", "records=false")
    (folder / "attempts/1/progress.json").unlink(missing_ok=True)
    assert "not sealed" in home.call("collect").stdout
    assert home.json("list")[0]["outcome"] is None
    result = home.call("collect", "--silence", "0s")
    assert "the agent vanished" in result.stderr and "1 ingested" in result.stdout
    run = home.json("list")[0]
    assert (run["state"], run["outcome"]) == ("failed", "lost")
    manifest = json.loads((folder / "attempts/1/manifest.json").read_text())
    assert manifest["sealed_by"] == "collect"
    home.call("collect", "--silence", "0s")
    assert json.loads((folder / "attempts/1/manifest.json").read_text()) == manifest


@pytest.mark.parametrize("made", [[], ["attempts/"], ["attempts/", "labels.yaml"], ["attempts/", "labels.yaml", "experiment.yaml"],
                                  ["attempts/", "labels.yaml", "experiment.yaml", "planned.json.tmp"]])
def test_a_plan_that_was_cut_short_is_told_once_and_removed(home, made):
    folder = home.folder / "runs/20261121-half"
    folder.mkdir(parents=True)
    for name in made:
        (folder / name).mkdir() if name.endswith("/") else (folder / name).write_text("version: 1\n")
    assert "0 ingested, 0 known, 1 not sealed, 0 failed" in home.call("collect").stdout  # it may still be planned
    first = home.call("collect", "--silence", "0s")
    assert "20261121-half: its planning was cut short and nothing has run" in first.stderr
    assert not folder.exists() and home.json("list") == []
    second = home.call("collect", "--silence", "0s")
    assert "20261121-half" not in second.stderr


def test_a_folder_with_anything_else_in_it_is_never_removed(home):
    folder = home.folder / "runs/20261121-half"
    (folder / "attempts").mkdir(parents=True)
    (folder / "notes.txt").write_text("mine")
    home.call("collect", "--silence", "0s")
    assert (folder / "notes.txt").exists() and (folder / "attempts").exists()


def test_a_run_whose_controller_died_before_its_agent_is_planned_again(home):
    folder = home.make("a", "outcome=none", "records=false", sweep="s", block=1)
    shutil.rmtree(folder / "attempts/1")
    home.call("collect")
    with sqlite3.connect(home.folder / "history.db") as db:
        db.execute("update run set state='running'")
    assert "planned again" in home.call("collect").stderr
    assert [run["state"] for run in home.json("list")] == ["planned"]
    assert "a" not in home.call("collect").stderr.split()


def test_a_sealed_run_that_cannot_be_read_does_not_go_on_running(home):
    folder = home.make("a", "save=1")
    home.call("collect")
    with sqlite3.connect(home.folder / "history.db") as db:
        db.execute("update run set state='running'")
        db.execute("delete from attempt")
    (folder / "attempts/1/records").write_bytes(b"spoiled")
    home.call("collect", code=4)
    assert [run["state"] for run in home.json("list")] == ["failed"]


def test_rebuild_gives_the_same_history(home):
    home.make("s.01", "save=1", "label.kind=x", sweep="s", block=1)
    home.make("s.02", "save=2", "model=gpt2", sweep="s", block=2)
    home.call("collect")
    home.call("baseline", "set", "good", "s.01", "s.02")
    before = home.json("list"), home.json("show", "s.02"), home.json("baseline")
    for name in ("history.db", "history.db-wal", "history.db-shm"):
        (home.folder / name).unlink(missing_ok=True)
    home.call("collect", "--rebuild")
    assert (home.json("list"), home.json("show", "s.02"), home.json("baseline")) == before
    home.call("collect", "--rebuild")
    assert (home.json("list"), home.json("show", "s.02"), home.json("baseline")) == before
    assert home.json("sql", "select block from run order by run") == [{"block": 1}, {"block": 2}]


def test_labels_edited_in_the_folder_count_after_a_rebuild(home):
    folder = home.make("a", "save=1", "label.kind=x")
    home.call("collect")
    (folder / "labels.yaml").write_text("kind: nightly\nhost: n1\n")
    home.call("collect", "--rebuild")
    assert home.json("list")[0]["labels"] == {"kind": "nightly", "host": "n1"}


def test_a_newer_history_is_refused_by_every_verb(home):
    home.make("a", "save=1")
    home.call("collect")
    with sqlite3.connect(home.folder / "history.db") as db:
        db.execute("pragma user_version=99")
    for verb in (["list"], ["show", "a"], ["compare", "a", "a"], ["sql", "select 1"], ["collect"]):
        result = home.call(*verb, code=2)
        assert "newer ckptbench" in result.stderr


def test_the_documented_queries_run(home):
    home.make("20261121-k3f9", "save=1", "model=gpt2", "label.kind=nightly")
    home.call("collect")
    text = (Path(__file__).resolve().parents[2] / "docs/history.md").read_text()
    queries = [query for query in re.search(r"```sql\n(.*?)```", text, re.S)[1].split(";") if query.strip()]
    assert len(queries) == 4
    for query in queries:
        assert home.json("sql", re.sub(r"^--.*", "", query.strip())), query


def make_sizes(home, sizes, repeats=3):
    """Saves of 2 MiB: 0.1 s, 512 KiB/s a node until 4 nodes, and no more together; loads that scale perfectly."""
    for n in sizes:
        for repeat in range(repeats):
            seconds = (0.1 + max(4 / n, 1)) * (1 + 0.002 * repeat)
            home.make(f"s1.{n:02}{repeat}", f"save={seconds}", f"load={8 / n * (1 + 0.002 * repeat)}", "ranks=8", f"nodes={n}", sweep="s1")
    home.call("collect")


def test_compare_by_nodes_has_efficiency_and_a_scaling_model(home):
    make_sizes(home, (1, 2, 3, 4, 6, 8))
    text = home.call("compare", "s1", "--by", "nodes").stdout
    save = text[text.index("efficiency"):].splitlines()
    assert save[1].split()[:2] == ["1", "3"] and save[1].endswith("100 %") and save[6].split()[0] == "8"
    assert "model of the save (95 % intervals): fixed" in text and "; one node 51" in text and "; shared limit 1.99" in text
    scaling = home.json("compare", "s1", "--by", "nodes")["scaling"]
    model = scaling["save"]["model"]
    assert scaling["key"] == "nodes" and [size["n"] for size in scaling["save"]["sizes"]] == [1, 2, 3, 4, 6, 8]
    for name, truth in (("fixed_s", 0.1), ("unit_bytes_per_s", 2**19), ("shared_bytes_per_s", 2**21)):
        assert 0.7 * truth < model[name]["ci"][0] < model[name]["ci"][1] < 1.1 * truth, (name, model)
    assert model["log_s"]["ci"][0] == 0 and model["log_s"]["ci"][1] < 0.02
    assert abs(scaling["save"]["sizes"][5]["efficiency"] - 4.1 / 1.1 / 8) < 0.01
    load = scaling["load"]
    assert all(abs(size["efficiency"] - 1) < 0.01 for size in load["sizes"])
    assert load["model"]["shared_bytes_per_s"]["ci"][1] is None  # not reached


def test_compare_by_nodes_refuses_a_model_that_the_runs_do_not_carry(home):
    make_sizes(home, (1, 2, 4))
    text = home.call("compare", "s1", "--by", "nodes").stdout
    assert "model of the save: none, it needs 4 sizes and 7 runs, and there are 3 and 9" in text and "efficiency" in text
    scaling = home.json("compare", "s1", "--by", "nodes")["scaling"]
    assert scaling["save"]["model"] is None and "4 sizes" in scaling["save"]["no_model"]
    assert "scaling" not in home.json("compare", "s1.010", "s1.020")


def test_a_line_is_named_although_its_first_run_is_damaged(home):
    make_ab(home, 2)
    with sqlite3.connect(home.folder / "history.db") as db:
        db.execute("UPDATE param SET value='nonsense' WHERE run='a0' AND key='io.engine'")
    assert "a0" in home.call("history", "save_s", "label.side=a").stdout
    assert [point["run"] for point in home.json("history", "save_s", "label.side=a")["points"]] == ["a0", "a1"]


def test_latencies_of_a_run_without_records_say_why_there_are_none(home):
    home.make("20261121-bbbb", "outcome=benchmark_failed", "records=false")
    home.make("20261121-cccc", "outcome=none")
    home.call("collect", "--silence", "1h")
    for run, why in (("20261121-bbbb", "it ended before any rank did an operation, or they were removed"), ("20261121-cccc", "it has not")):
        assert f"no latencies: run {run} has no records, since {why}" in home.call("show", run, "--latency").stdout
        assert home.json("show", run, "--latency")["latency"] is None
