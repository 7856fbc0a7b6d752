"""The long tier: every test again under sanitizers, fuzzers, and random kills. Ends with `N passed, N failed, N skipped`.

usage: tests/long.py [--python VENV_PYTHON] [--fuzz-seconds N] [--only asan|tsan|fuzz|kills]
"""
import argparse
import os
import re
import subprocess
import sys
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
SANITIZERS = {
    "ASAN_OPTIONS": "detect_leaks=1:exitcode=86",
    "UBSAN_OPTIONS": "halt_on_error=1:print_stacktrace=1",
    "TSAN_OPTIONS": f"halt_on_error=1:exitcode=86:suppressions={ROOT}/tests/sanitizers/tsan.supp",
}


def stage(name, command, environment):
    print(f"== {name}", flush=True)
    start = time.monotonic()
    process = subprocess.Popen(command, cwd=ROOT, env=dict(os.environ, **environment), stdout=subprocess.PIPE, text=True)
    last = ""
    for line in process.stdout:
        print(line, end="", flush=True)
        if re.match(r"\d+ passed, \d+ failed", line):
            last = line
    code = process.wait()
    print(f"== {name}: exit {code}, {time.monotonic() - start:.0f} s", flush=True)
    counts = [int(number) for number in re.findall(r"\d+", last)] or [0, 1]
    counts += [0] * (3 - len(counts))
    if code and not counts[1]:
        counts[1] = 1
    return counts


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--fuzz-seconds", type=int, default=10)
    parser.add_argument("--only", choices=["asan", "tsan", "fuzz", "kills"])
    arguments = parser.parse_args()
    run = [sys.executable, "tests/run.py", "--python", arguments.python]
    stages = {
        "asan": run + ["--build", "build/asan", "--folders", "tests/e2e"],
        "tsan": run + ["--build", "build/tsan", "--unit"],
        "fuzz": [sys.executable, "scripts/fuzz.py", "build/fuzz", str(arguments.fuzz_seconds)],
        "kills": run + ["--no-unit", "--folders", "tests/kills"],
    }
    total = [0, 0, 0]
    for name, command in stages.items():
        if arguments.only in (None, name):
            total = [a + b for a, b in zip(total, stage(name, command, SANITIZERS))]
    passed, failed, skipped = total
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
