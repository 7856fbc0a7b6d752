"""`make bench-s3`: our S3 client against its peers, as ratios of medians with intervals, clients in turn.

usage: tests/bench/bench_s3.py [--build DIR] [--pairs N] [--only WORD…] [--mib N] [--json FILE]
Server and client share this machine, so the CPU that a client takes a GiB is the figure that travels. First ours
against itself: what two equal things differ by. A part that fails is named, the others go on, and the end is an error.
--mib moves less than 1 GiB a round: to see that every part works, not to measure.
"""
import argparse
import json
import os
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ratio import Table, alternate

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/services"))

import ceph_cluster  # noqa: E402
import rgw  # noqa: E402
from s3_client import Client  # noqa: E402
from s3_faults import FaultServer  # noqa: E402

MIB, GIB = 2**20, 2**30
FILES = 4
PART_BYTES, PARTS_IN_FLIGHT = 8 * MIB, 8  # what s3.part_size and io.depth are by default
LONGEST_S = 180  # of one client's turn: a server that hangs must not hang the benchmark
# One rank, four objects, the bytes alone.
WORDS = ["state=weights", "dtype=bf16", "ranks=1", "launcher=none", "format=raw", "checksum=none", f"io.files={FILES}", "iterations=1", "warmup=0",
         "baseline=false", "keep=false"]
PEERS = ("s5cmd", "boto3", "s3torchconnector")
SIGNED = ("ops=save", "s3.checksum=sha256", "verify=none")


class Failed(Exception):
    pass


class Bench:
    def __init__(self, arguments):
        self.build = (ROOT / arguments.build).resolve()
        self.pairs = arguments.pairs
        self.bytes = arguments.mib * MIB
        self.table = Table()
        self.home = Path(tempfile.mkdtemp(prefix="ckptbench-bench-s3-"))
        self.memory = Path(tempfile.mkdtemp(prefix="bench-of-ckptbench-", dir="/dev/shm"))
        self.model = self.home / "model.yaml"
        rows = "".join(f"- {{name: t{index}, shape: [16, {self.bytes // 8 // 2 // 16}], dtype: bf16}}\n" for index in range(8))
        self.model.write_text(rows)
        self.server = {}
        self.cannot = set()  # (peer, operation)

    def clean(self):
        if (self.home / "rgw").exists():
            rgw.stop(self.home / "rgw")
        shutil.rmtree(self.home, ignore_errors=True)
        shutil.rmtree(self.memory, ignore_errors=True)

    def real_server(self):
        """Ceph RGW, started when it is first asked for, with the bucket `bench` and the files to send."""
        if not self.server:
            ceph_cluster.MEMORY_BYTES = 8 << 30  # what every client keeps there at one time
            self.server = rgw.start(self.home / "rgw")
            Client(self.server[rgw.VARIABLE], rgw.ACCESS_KEY, rgw.SECRET_KEY).make_bucket("bench")
            for index in range(FILES):
                (self.memory / f"f{index}").write_bytes(os.urandom(self.bytes // FILES))
        return self.server[rgw.VARIABLE]

    def forget_uploads(self):
        """What a client that failed left behind: the server's memory would fill with it."""
        client = Client(self.real_server(), rgw.ACCESS_KEY, rgw.SECRET_KEY)
        for key, upload in client.uploads("bench"):
            client.must("DELETE", "bench", key, query={"uploadId": upload})

    def ours(self, endpoint, keys, *words):
        """The metrics of one `ckptbench run`, its medians alone."""
        environment = dict(os.environ, CKPTBENCH_HOME=str(self.home / "ckptbench"), AWS_ACCESS_KEY_ID=keys[0], AWS_SECRET_ACCESS_KEY=keys[1],
                           AWS_REGION="us-east-1", AWS_ENDPOINT_URL=endpoint)
        command = [str(self.build / "ckptbench"), "run", "--json", "-q", f"model={self.model}", *WORDS, "store=s3://bench/ours", *words]
        result = call(command, environment)
        if result.returncode:
            raise Failed(f"{' '.join(command)}\n{result.stdout}\n{result.stderr}")
        return {name: row["median"] for name, row in json.loads(result.stdout)["metrics"].items()}

    def ours_real(self, *words):
        return self.ours(self.real_server(), (rgw.ACCESS_KEY, rgw.SECRET_KEY), *words)

    def peer(self, name, operation):
        """What one client took: {wall_s, cpu_s}."""
        endpoint = self.real_server()
        environment = dict(os.environ, AWS_ACCESS_KEY_ID=rgw.ACCESS_KEY, AWS_SECRET_ACCESS_KEY=rgw.SECRET_KEY, AWS_REGION="us-east-1",
                           AWS_DEFAULT_REGION="us-east-1", PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        result = call([sys.executable, str(ROOT / "tests/bench/s3_peers.py"), name, operation, endpoint, "bench", str(self.memory)], environment)
        for path in [*self.memory.glob("g*"), *self.memory.glob("out/*")]:
            path.unlink()
        if result.returncode:
            raise Failed(f"{name} cannot {operation}: {(result.stderr.strip() or 'it said nothing').splitlines()[-1]}")
        return json.loads(result.stdout.splitlines()[-1])

    def rate(self, seconds):
        return self.bytes / GIB / seconds


def call(command, environment):
    try:
        return subprocess.run(command, env=environment, stdin=subprocess.DEVNULL, capture_output=True, text=True, timeout=LONGEST_S)
    except subprocess.TimeoutExpired as late:
        raise Failed(f"{' '.join(command)} did not end in {LONGEST_S} s") from late


def bench_clients(bench):
    """Rounds in which every client has its turn, each round in another order: rates and CPU seconds a GiB of all, and
    ratios against the one that was the fastest."""
    rounds = [play_round(bench, index) for index in range(bench.pairs + 1)][1:]  # the first warms up
    for what, mine, operation, target in (("put", "put", "put", 1.5), ("put, hash of bodies signed", "signed", "put", 1.0),
                                          ("get", "get", "get", 1.2)):
        peers = [name for name in PEERS if all((name, operation) in row for row in rounds)]
        rates = {name: [bench.rate(row[name, operation]["wall_s"]) for row in rounds] for name in peers}
        best = max(peers, key=lambda name: statistics.median(rates[name]), default=None)
        for name in peers:
            pairs = [(bench.rate(row[mine]["wall_s"]), rate) for row, rate in zip(rounds, rates[name])]
            bench.table.add(f"{what}, against {name}{', the best peer' if name == best else ''}", pairs, target if name == best else "-", "GiB/s")
    for mine, what, target in (("put", "ours, put", "<= 0.75"), ("signed", "ours, put, hash signed", "<= 1.1"), ("get", "ours, get", "<= 0.5")):
        add_cpu(bench, what, [row[mine] for row in rounds], target)
    for name, operation in sorted({key for row in rounds for key in row if isinstance(key, tuple)}):
        add_cpu(bench, f"{name}, {operation}", [row[name, operation] for row in rounds if (name, operation) in row], "-")
    for mine in ("put", "get"):
        over = statistics.median(row[mine]["over_bytes"] for row in rounds)
        limit = (PART_BYTES * PARTS_IN_FLIGHT + 32 * MIB) // MIB
        bench.table.add_value(f"ours, {mine}: memory beyond the state", over / MIB, "MiB", f"<= {limit}")


def add_cpu(bench, what, rows, target):
    values = sorted(row["cpu_s"] * GIB / bench.bytes for row in rows)
    bench.table.add_value(f"client CPU a GiB: {what} [{values[0]:.2f}, {values[-1]:.2f}]", statistics.median(values), "s/GiB", target)


def play_round(bench, index):
    """{"put", "get", "signed", (peer, "put" or "get"): what it took}; a peer that fails once is named and left out."""
    row = {}

    def put_and_get():
        metrics = bench.ours_real("verify=none")
        row["put"], row["get"] = taken(bench, metrics, "save"), taken(bench, metrics, "load")

    def signed():
        row["signed"] = taken(bench, bench.ours_real(*SIGNED), "save")

    def theirs(name):
        for operation in ("put", "get"):
            if (name, operation) in bench.cannot:
                continue
            try:
                row[name, operation] = bench.peer(name, operation)
            except Failed as failed:
                bench.cannot.add((name, operation))
                print(failed, flush=True)
                bench.forget_uploads()

    turns = [put_and_get, signed, *(lambda name=name: theirs(name) for name in PEERS)]
    if index == 0:  # the connector gets what boto3 put
        order = turns
    else:
        order = turns[index % len(turns) :] + turns[: index % len(turns)]
    for turn in order:
        turn()
    return row


def taken(bench, metrics, operation):
    return {"wall_s": metrics[f"{operation}_s"], "cpu_s": metrics[f"{operation}.cpu_s"], "over_bytes": metrics[f"{operation}.rss_bytes"] - bench.bytes}


def bench_same(bench):
    """Ours against ours."""
    found = []

    def once():
        metrics = bench.ours_real("verify=none")
        found.append(bench.rate(metrics["load_s"]))
        return bench.rate(metrics["save_s"])

    puts = alternate(once, once, bench.pairs)
    gets = [(found[2 + 2 * index], found[3 + 2 * index]) for index in range(bench.pairs)]
    bench.table.add("A/A: put", puts, "-", "GiB/s")
    bench.table.add("A/A: get", gets, "-", "GiB/s")


def bench_faults(bench):
    """1 % of the requests refused or reset, against the same server without; every byte is compared."""
    with FaultServer() as faults:
        keys = (faults.access_key, faults.secret_key)
        Client(faults.endpoint, *keys).make_bucket("bench")
        disturbed = [{"fault": "error", "percent": 0.5}, {"fault": "reset", "percent": 0.5}]
        loads, counted, seed = {True: [], False: []}, [], iter(range(1, 1000))

        def once(rules):
            faults.tell(rules=rules, seed=next(seed))
            metrics = bench.ours(faults.endpoint, keys, "verify=full")
            loads[bool(rules)].append(bench.rate(metrics["load_s"]))
            if rules:
                counted.append({name: sum(metrics.get(f"{operation}.{name}", 0) for operation in ("save", "load"))
                                for name in ("requests", "retries", "backoff_s", "repeated_bytes")})
            return bench.rate(metrics["save_s"])

        saves = alternate(lambda: once(disturbed), lambda: once([]), bench.pairs)
        bench.table.add("save with 1 % of requests failing, against none", saves, 0.9, "GiB/s")
        bench.table.add("load with 1 % of requests failing, against none", list(zip(loads[True][1:], loads[False][1:])), 0.9, "GiB/s")
        for name, unit, scale in (("requests", "", 1), ("retries", "", 1), ("backoff_s", "s", 1), ("repeated_bytes", "MiB", MIB)):
            bench.table.add_value(f"of all disturbed runs together: {name}", sum(row[name] for row in counted) / scale, unit, "-")


def bench_cap(bench):
    """A server capped at 100 MB/s with 50 ms before each answer."""
    with FaultServer(bandwidth_bytes_per_s=100_000_000, latency_s=0.05) as faults:
        keys = (faults.access_key, faults.secret_key)
        Client(faults.endpoint, *keys).make_bucket("bench")
        metrics = [bench.ours(faults.endpoint, keys, "verify=none") for _ in range(3)]
        for operation in ("save", "load"):
            shares = sorted(bench.bytes / run[f"{operation}_s"] / 1e8 for run in metrics)
            bench.table.add_value(f"{operation} at a server capped at 100 MB/s, 50 ms [{shares[0]:.3f}, {shares[-1]:.3f}]", statistics.median(shares),
                                  "of the cap", ">= 0.9")


def bench_list(bench):
    """100,000 small objects, by a verb that lists all of them (twice)."""
    with FaultServer() as faults:
        faults.tell(fill={"bucket": "bench", "prefix": "p/many/", "count": 100000})
        environment = dict(os.environ, AWS_ACCESS_KEY_ID=faults.access_key, AWS_SECRET_ACCESS_KEY=faults.secret_key, AWS_ENDPOINT_URL=faults.endpoint)
        seconds = []
        for _ in range(3):
            start = time.monotonic()
            call([str(bench.build / "ckptbench"), "verify", "s3://bench/p"], environment)
            seconds.append(time.monotonic() - start)
        if len(faults.log("ListObjectsV2")) < 300:
            raise Failed(f"it was not listed: {len(faults.log())} requests")
        bench.table.add_value("100,000 small objects listed", statistics.median(seconds), "s", "< 5")


BENCHES = {"same": bench_same, "clients": bench_clients, "faults": bench_faults, "cap": bench_cap, "list": bench_list}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--pairs", type=int, default=5)
    parser.add_argument("--mib", type=int, default=1024)
    parser.add_argument("--only", choices=BENCHES, nargs="*", default=list(BENCHES))
    parser.add_argument("--json", default=str(ROOT / "build/bench-s3.json"))
    arguments = parser.parse_args()
    bench, failures, start = Bench(arguments), [], time.monotonic()
    try:
        for name in arguments.only:
            print(f"-- {name} ({time.monotonic() - start:.0f} s)", flush=True)
            try:
                BENCHES[name](bench)
            except (Failed, rgw.Missing, RuntimeError, OSError, KeyError, subprocess.SubprocessError) as failure:
                failures.append(name)
                print(f"{name} failed: {type(failure).__name__}: {failure}", flush=True)
    finally:
        bench.clean()
        Path(arguments.json).write_text(json.dumps(bench.table.rows, indent=1))
    print(f"-- {time.monotonic() - start:.0f} s", flush=True)
    if failures:
        sys.exit(f"these parts failed: {', '.join(failures)}")


if __name__ == "__main__":
    main()
