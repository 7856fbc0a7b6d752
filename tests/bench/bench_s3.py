"""`make bench-s3`: our S3 client against its peers, as ratios of medians with intervals, clients in turn.

usage: tests/bench/bench_s3.py [--build DIR] [--pairs N] [--only WORD…] [--json FILE]
Server and client share this machine, so the CPU that a client takes a GiB is the figure that travels.
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

import rgw  # noqa: E402
from s3_client import Client  # noqa: E402
from s3_faults import FaultServer  # noqa: E402

GIB = 2**30
FILES, FILE_BYTES = 4, GIB // 4
# One rank, four objects of 256 MiB, the bytes alone.
ONE_GIB = ["state=weights", "dtype=bf16", "ranks=1", "launcher=none", "format=raw", "checksum=none", "io.files=4", "iterations=1", "warmup=0",
           "baseline=false", "verify=none", "keep=false"]


class Bench:
    def __init__(self, arguments):
        self.build = (ROOT / arguments.build).resolve()
        self.pairs = arguments.pairs
        self.table = Table()
        self.home = Path(tempfile.mkdtemp(prefix="ckptbench-bench-s3-"))
        self.memory = Path(tempfile.mkdtemp(prefix="bench-of-ckptbench-", dir="/dev/shm"))
        self.model = self.home / "model.yaml"
        rows = "".join(f"- {{name: t{index}, shape: [64, 1048576], dtype: bf16}}\n" for index in range(8))  # 128 MiB each
        self.model.write_text(rows)
        self.server = {}

    def clean(self):
        if self.server:
            rgw.stop(self.home / "rgw")
        shutil.rmtree(self.home, ignore_errors=True)
        shutil.rmtree(self.memory, ignore_errors=True)

    def real_server(self):
        """Ceph RGW, started when it is first asked for, with the bucket `bench` and the files to send."""
        if not self.server:
            rgw.MEMORY_BYTES = 8 << 30  # what every client keeps there at one time
            self.server = rgw.start(self.home / "rgw")
            Client(self.server[rgw.VARIABLE], rgw.ACCESS_KEY, rgw.SECRET_KEY).make_bucket("bench")
            for index in range(FILES):
                (self.memory / f"f{index}").write_bytes(os.urandom(FILE_BYTES))
        return self.server[rgw.VARIABLE]

    def ours(self, endpoint, keys, *words):
        """The metrics of one `ckptbench run`."""
        environment = dict(os.environ, CKPTBENCH_HOME=str(self.home / "ckptbench"), AWS_ACCESS_KEY_ID=keys[0], AWS_SECRET_ACCESS_KEY=keys[1],
                           AWS_REGION="us-east-1", AWS_ENDPOINT_URL=endpoint)
        command = [str(self.build / "ckptbench"), "run", "--json", "-q", f"model={self.model}", *ONE_GIB, "store=s3://bench/ours", *words]
        result = subprocess.run(command, env=environment, capture_output=True, text=True)
        if result.returncode:
            sys.exit(f"{' '.join(command)}\n{result.stdout}\n{result.stderr}")
        return json.loads(result.stdout)["metrics"]

    def peer(self, name, operation):
        """What one client took; None where it cannot do that on this server."""
        endpoint = self.real_server()
        environment = dict(os.environ, AWS_ACCESS_KEY_ID=rgw.ACCESS_KEY, AWS_SECRET_ACCESS_KEY=rgw.SECRET_KEY, AWS_REGION="us-east-1",
                           AWS_DEFAULT_REGION="us-east-1", PATH=f"{Path(sys.executable).parent}:{os.environ['PATH']}")
        command = [sys.executable, str(ROOT / "tests/bench/s3_peers.py"), name, operation, endpoint, "bench", str(self.memory)]
        result = subprocess.run(command, env=environment, capture_output=True, text=True)
        for path in [*self.memory.glob("g*"), *self.memory.glob("out/*")]:
            path.unlink()
        if result.returncode:
            print(f"{name} cannot {operation} here: {result.stderr.strip().splitlines()[-1]}", flush=True)
            return None
        return json.loads(result.stdout.splitlines()[-1])


PEERS = ("s5cmd", "boto3", "s3torchconnector")


def bench_clients(bench):
    """Each peer in turn with ours: rates, and CPU seconds a GiB."""
    endpoint, keys = bench.real_server(), (rgw.ACCESS_KEY, rgw.SECRET_KEY)
    cpu = {}

    def ours(operation, *words):
        metrics = bench.ours(endpoint, keys, *words)
        cpu.setdefault((operation, words), []).append(metrics[f"{operation}.cpu_s"]["median"])
        return 1.0 / metrics[f"{operation}_s"]["median"]

    def theirs(name, operation):
        row = bench.peer(name, operation)
        cpu.setdefault((name, operation), []).append(row["cpu_s"])
        return 1.0 / row["wall_s"]

    for name in PEERS:
        if bench.peer(name, "put") is None:
            bench.table.add(f"get against {name}", alternate(lambda: ours("load"), lambda: theirs(name, "get"), bench.pairs), 1.1, "GiB/s")
            continue
        for words, target, what in ((("ops=save",), 1.0, "hash of bodies signed"), (("ops=save", "s3.checksum=none"), 1.1, "unsigned bodies")):
            pairs = alternate(lambda: ours("save", *words), lambda: theirs(name, "put"), bench.pairs)
            bench.table.add(f"put, {what}, against {name}", pairs, target, "GiB/s")
        pairs = alternate(lambda: ours("load"), lambda: theirs(name, "get"), bench.pairs)
        bench.table.add(f"get against {name}", pairs, 1.1, "GiB/s")
    names = {("save", ("ops=save",)): ("ours, put, hash signed", "<= 1.1"), ("save", ("ops=save", "s3.checksum=none")): ("ours, put, unsigned", "<= 0.6"),
             ("load", ()): ("ours, get", "<= 0.5")}
    for key, values in cpu.items():
        name, target = names.get(key, (" ".join(key) if isinstance(key[1], str) else str(key), "-"))
        bench.table.add_value(f"client CPU a GiB: {name}", statistics.median(values), "s/GiB", target)


def bench_faults(bench):
    """1 % of the requests refused or reset, against the same server without."""
    with FaultServer() as faults:
        keys = (faults.access_key, faults.secret_key)
        Client(faults.endpoint, *keys).make_bucket("bench")
        rules = [{"fault": "error", "percent": 0.5}, {"fault": "reset", "percent": 0.5}]

        def rate(rules, operation):
            faults.tell(rules=rules)
            return 1.0 / bench.ours(faults.endpoint, keys, "verify=full")[f"{operation}_s"]["median"]

        for operation in ("save", "load"):
            pairs = alternate(lambda: rate(rules, operation), lambda: rate([], operation), bench.pairs)
            bench.table.add(f"{operation} with 1 % of requests failing, against none", pairs, 0.9, "GiB/s")


def bench_cap(bench):
    """A server capped at 100 MB/s with 50 ms before each answer."""
    with FaultServer(bandwidth_bytes_per_s=100_000_000, latency_s=0.05) as faults:
        keys = (faults.access_key, faults.secret_key)
        Client(faults.endpoint, *keys).make_bucket("bench")
        metrics = [bench.ours(faults.endpoint, keys) for _ in range(max(bench.pairs // 3, 1))]
        for operation in ("save", "load"):
            share = statistics.median(GIB / run[f"{operation}_s"]["median"] / 1e8 for run in metrics)
            bench.table.add_value(f"{operation} at a server capped at 100 MB/s, 50 ms", share, "of the cap", ">= 0.9")


def bench_list(bench):
    """100,000 small objects, by a verb that lists all of them."""
    with FaultServer() as faults:
        faults.tell(fill={"bucket": "bench", "prefix": "p/many/", "count": 100000})
        environment = dict(os.environ, AWS_ACCESS_KEY_ID=faults.access_key, AWS_SECRET_ACCESS_KEY=faults.secret_key, AWS_ENDPOINT_URL=faults.endpoint)
        seconds = []
        for _ in range(3):
            start = time.monotonic()
            subprocess.run([str(bench.build / "ckptbench"), "verify", "s3://bench/p"], env=environment, capture_output=True)
            seconds.append(time.monotonic() - start)
        bench.table.add_value("100,000 small objects listed", statistics.median(seconds), "s", "< 5")


BENCHES = {"clients": bench_clients, "faults": bench_faults, "cap": bench_cap, "list": bench_list}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--only", choices=BENCHES, nargs="*", default=list(BENCHES))
    parser.add_argument("--json", default=str(ROOT / "build/bench-s3.json"))
    arguments = parser.parse_args()
    bench = Bench(arguments)
    try:
        for name in arguments.only:
            print(f"-- {name}", flush=True)
            BENCHES[name](bench)
    finally:
        bench.clean()
        Path(arguments.json).write_text(json.dumps(bench.table.rows, indent=1))


if __name__ == "__main__":
    main()
