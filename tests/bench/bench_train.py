"""`make bench-train`: our training arithmetic against PyTorch eager, the same GPT-2 and the same threads, in turn.

usage: tests/bench/bench_train.py [--build DIR] [--pairs N] [--threads N] [--only NAME…] [--json FILE]
Rates are of the median step of a process (forward, backward, clipping, AdamW, data), after three that do not count. Memory is a process's
peak: PyTorch's with its own libraries, and once more without what it has before there is a model.
"""
import argparse
import json
import os
import subprocess
import sys
from pathlib import Path

from ratio import Table, alternate

ROOT = Path(__file__).resolve().parents[2]
# vocabulary, width, layers, heads, batch, sequence; measured steps
MODELS = {
    "C=128 L=4": ((257, 128, 4, 4, 8, 128), 40),
    "C=512 L=8": ((257, 512, 8, 8, 8, 256), 6),
}


class Bench:
    def __init__(self, arguments):
        self.probe = (ROOT / arguments.build / "tests/train_probe").resolve()
        self.pairs, self.threads = arguments.pairs, arguments.threads
        self.table = Table()
        self.last = {}

    def measure(self, who, command, numbers):
        environment = dict(os.environ, OMP_NUM_THREADS=str(self.threads))
        words = [str(number) for number in numbers]
        result = subprocess.run([*command, *words], capture_output=True, text=True, timeout=900, env=environment)
        if result.returncode:
            sys.exit(f"{command[0]}: {result.stderr}")
        self.last[who] = json.loads(result.stdout)
        return self.last[who]["tokens_per_s"] / 1000

    def run(self, name):
        shape, steps = MODELS[name]
        numbers = [*shape, self.threads, steps]
        ours = lambda: self.measure("ours", [self.probe, "speed"], numbers)
        peer = lambda: self.measure("peer", [sys.executable, ROOT / "tests/bench/train_peer.py"], numbers)
        what = f"V=257 {name}, {shape[4]} x {shape[5]} tokens, {self.threads} threads"
        self.table.add(f"{what}: training", alternate(ours, peer, self.pairs), ">= 1.0", "ktokens/s")
        mib = lambda value: value / 2**20
        ours_bytes, peer_bytes = self.last["ours"]["peak_rss_bytes"], self.last["peer"]["peak_rss_bytes"]
        self.table.add_value(f"{what}: our peak memory", mib(ours_bytes), "MiB", "<= PyTorch's")
        self.table.add_value(f"{what}: PyTorch's", mib(peer_bytes), "MiB", "")
        self.table.add_value(f"{what}: PyTorch's, above its start", mib(peer_bytes - self.last["peer"]["empty_rss_bytes"]), "MiB", "")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--pairs", type=int, default=7)
    parser.add_argument("--threads", type=int, default=2)
    parser.add_argument("--only", choices=MODELS, nargs="*", default=list(MODELS))
    parser.add_argument("--json", default=str(ROOT / "build/bench-train.json"))
    arguments = parser.parse_args()
    bench = Bench(arguments)
    try:
        for name in arguments.only:
            bench.run(name)
    finally:
        Path(arguments.json).write_text(json.dumps(bench.table.rows, indent=1))


if __name__ == "__main__":
    main()
