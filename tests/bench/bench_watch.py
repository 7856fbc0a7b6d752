"""What `ckptbench watch` costs a training: wall time and CPU of a save, and steps alone and beside a save, with it and
without, as ratios with intervals.

usage: tests/bench/bench_watch.py [--build DIR] [--pairs N] [--ranks N] [--mib N] [--saves N] [--folder DIR]
Each pair is one training with watch and one without, in turn; A against A first. A ratio above 1 is what watch costs. Targets:
wall time and steps within A against A, CPU of a save at most 1.05.
"""
import argparse
import json
import os
import shutil
import subprocess
import sys
import tempfile
from pathlib import Path

from ratio import Table, alternate

ROOT = Path(__file__).resolve().parents[2]
PEER = ROOT / "tests/bench/watch_peer.py"
FIGURES = {"save_s": ("wall time of a save", 1.0), "cpu_s": ("CPU of a save, all ranks", 1.05), "step_s": ("a step", 1.0),
           "step_behind_s": ("a step beside a save", 1.0)}


class Bench:
    def __init__(self, arguments):
        self.program = (ROOT / arguments.build / "ckptbench").resolve()
        self.arguments = arguments
        self.folder = Path(tempfile.mkdtemp(prefix="ckptbench-bench-", dir=arguments.folder))
        self.home = Path(tempfile.mkdtemp(prefix="ckptbench-home-"))

    def clean(self):
        shutil.rmtree(self.folder, ignore_errors=True)
        shutil.rmtree(self.home, ignore_errors=True)

    def train(self, watched):
        """The figures of one training."""
        command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", str(self.arguments.ranks), str(PEER),
                   str(self.folder / "saved"), str(self.arguments.mib), str(self.arguments.saves)]
        if watched:
            command = [str(self.program), "watch", "-q", "baseline=false", "--", *command]
        result = subprocess.run(command, env=dict(os.environ, CKPTBENCH_HOME=str(self.home), OMP_NUM_THREADS="1"), capture_output=True, text=True)
        if result.returncode:
            sys.exit(f"{' '.join(command)}\n{result.stdout}\n{result.stderr}")
        return json.loads(next(line for line in result.stdout.splitlines() if line.startswith("{")))

    def pairs(self, first, second):
        """Pairs of whole trainings, of which each gives all figures."""
        return alternate(lambda: self.train(first), lambda: self.train(second), self.arguments.pairs)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--ranks", type=int, default=2)
    parser.add_argument("--mib", type=int, default=256, help="of each rank")
    parser.add_argument("--saves", type=int, default=5, help="in each training, beside one that warms up")
    parser.add_argument("--folder", default=None)
    arguments = parser.parse_args()
    bench, table = Bench(arguments), Table()
    try:
        for name, first in (("A against A", False), ("watched", True)):
            pairs = bench.pairs(first, False)
            for figure, (words, target) in FIGURES.items():
                table.add(f"{words}, {name}", [(one[figure], other[figure]) for one, other in pairs], 1.0 if name == "A against A" else target, "s")
    finally:
        bench.clean()


if __name__ == "__main__":
    main()
