"""`make bench-report`: what trace=full costs, as ratios with intervals, and the time of a site of many runs.

usage: tests/bench/bench_report.py [--build DIR] [--pairs N] [--runs N] [--memory DIR] [--only trace|site] [--json FILE]
A save of 1 GiB a rank by two ranks to memory, where a request costs least and its record shows most.
"""
import argparse
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from bench import MODEL, ROOT
from ratio import Table, alternate

REQUESTS = ("4MiB", "16KiB")
LINES = 40  # experiments of the site: 10,000 runs are 250 nights of each
SECONDS_FIRST, SECONDS_ONE_NEW = 60, 2


class Home:
    """A home of its own in memory, removed at the end."""

    def __init__(self, build, memory):
        self.build, self.folder = build, Path(tempfile.mkdtemp(prefix="bench-of-reports-", dir=memory))
        self.environment = dict(os.environ, CKPTBENCH_HOME=str(self.folder / "home"), CKPTBENCH_INDEX=str(self.folder / "index"))

    def call(self, *words):
        started = time.monotonic()
        result = subprocess.run([self.build / "ckptbench", *map(str, words)], cwd=ROOT, env=self.environment, capture_output=True, text=True)
        if result.returncode:
            sys.exit(f"{words}\n{result.stdout}\n{result.stderr}")
        return result, time.monotonic() - started

    def save_rate(self, block, trace):
        """GiB/s of one save."""
        store = self.folder / "store"
        document, _ = self.call("run", "--json", "-q", MODEL, "state=weights", "ranks=2", "sharding=full", "ops=save", f"store={store}", "keep=false", "baseline=false",
                                "verify=none", "iterations=1", "warmup=1", f"io.block={block}", f"trace={trace}")
        shutil.rmtree(store, ignore_errors=True)
        shutil.rmtree(self.folder / "home", ignore_errors=True)  # a trace of 16 KiB requests is large
        return 2.0 / json.loads(document.stdout)["metrics"]["save_s"]["median"]

    def make_run(self, number):
        line, noise = number % LINES, random.Random(number).gauss(0, 0.03)
        night = number // LINES
        save = (5 + line) * (1 + noise) * (1.1 if night > 150 else 1)
        subprocess.run([self.build / "tests/make_run", self.folder / f"home/runs/n{number:06}", f"started={1700000000 + 86400 * night + line}", f"save={save}",
                        f"load={2 * save}", f"io.depth={1 + line}", "label.kind=nightly"], check=True)


def bench_trace(home, table, pairs):
    for block in REQUESTS:
        plain, traced = (lambda trace=trace: home.save_rate(block, trace) for trace in ("off", "full"))
        table.add(f"save to memory in requests of {block}, A against A", alternate(plain, plain, pairs), 1.00, "GiB/s")
        table.add(f"the same, trace=full against off", alternate(traced, plain, pairs), 0.99, "GiB/s")


def bench_site(home, table, runs):
    for number in range(runs):
        home.make_run(number)
    home.call("collect", "--silence", "1h")
    site = home.folder / "site"
    table.add_value(f"site of {runs} runs, first", home.call("report", "--site", site)[1], "s", SECONDS_FIRST)
    table.add_value("the same, unchanged", home.call("report", "--site", site)[1], "s", SECONDS_ONE_NEW)
    home.make_run(runs)
    table.add_value("the same, one new run", home.call("report", "--site", site)[1], "s", SECONDS_ONE_NEW)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--runs", type=int, default=10000)
    parser.add_argument("--memory", default="/dev/shm")
    parser.add_argument("--only", choices=("trace", "site"))
    parser.add_argument("--json", default="build/bench-report.json")
    arguments = parser.parse_args()
    table, home = Table(), Home((ROOT / arguments.build).resolve(), arguments.memory)
    try:
        if arguments.only != "site":
            bench_trace(home, table, arguments.pairs)
        if arguments.only != "trace":
            bench_site(home, table, arguments.runs)
    finally:
        shutil.rmtree(home.folder, ignore_errors=True)
    Path(arguments.json).write_text(json.dumps(table.rows, indent=1))


if __name__ == "__main__":
    main()
