"""The long tier: every test again under sanitizers, fuzzers, random kills, power cuts, MPICH, the slow ends of jobs,
S3 with a layer of a real model, packages in a clean root, and watched trainings whose delays must be found; with
`--only torch-versions`, the oldest PyTorch that is supported, which is a download of 0.8 GB. Ends with the names of the
tests that failed and `N passed, N failed, N skipped`.

usage: tests/long.py [--python VENV_PYTHON] [--fuzz-seconds N] [--only asan|tsan|fuzz|kills|random|cuts|mpich|slurm|s3|packages|watch|torch-versions]
A sanitizer's report fails its stage whichever process wrote it: programs that tests start, ranks too, put
their reports in one folder, and what is there in the end is printed and counted.
"""
import argparse
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
# Those of the programs that have threads: ranks and agents.
THREADED = [f"tests/e2e/test_{name}.py" for name in ("agent", "comm", "worker", "worker_faults")]


# What an MPI does: it starts ranks here, through Slurm and through ssh, and carries their messages.
OF_MPI = [f"tests/e2e/test_{name}.py" for name in ("agent", "comm", "worker", "worker_faults", "nodes_slurm", "nodes_hosts")]
MPICH_LAUNCHER = "/usr/bin/mpirun.mpich"

ASKED_FOR = {"torch-versions"}  # stages that run only if they are asked for
CHECKED = {"asan", "tsan", "fuzz", "mpich"}  # stages that need what `make checked` builds
RANDOM_ROUNDS = 1000  # models, layouts and ways to load
CUTS = 1000  # of the power


def sanitizer_options(reports):
    """What each sanitizer is told; %b is the program's name: those that link MPI have a file of their own."""
    common = f"exitcode=86:log_exe_name=1:log_path={reports}/"
    return {
        "ASAN_OPTIONS": f"detect_leaks=1:{common}address:include_if_exists={reports}/%b.options",
        "LSAN_OPTIONS": f"print_suppressions=0:suppressions={reports}/leaks.suppressions",
        "UBSAN_OPTIONS": f"halt_on_error=1:print_stacktrace=1:{common}undefined",
        "TSAN_OPTIONS": f"halt_on_error=1:ignore_noninstrumented_modules=1:{common}thread",
    }


def make_reports():
    """A folder that programs of every user can reach and write to: some tests run them as an ordinary one."""
    reports = Path(tempfile.mkdtemp(prefix="ckptbench-sanitizers-"))
    reports.chmod(0o1777)
    for told in (ROOT / "tests/sanitizers").iterdir():
        shutil.copy(told, reports)
    return reports


def take_reports(reports):
    """Prints what sanitizers wrote, removes it, and returns the names of what processes wrote."""
    written = [path for path in sorted(reports.iterdir()) if path.stat().st_size and path.suffix not in (".options", ".suppressions")]
    for path in written:
        print(f"-- {path.name}\n{path.read_text(errors='replace')[:6000]}", flush=True)
    shutil.rmtree(reports)
    return [path.name for path in written]


def path_with_mpich():
    """PATH with MPICH's launcher as mpirun. A script, since it looks for its other programs beside a link."""
    folder = ROOT / "build/mpich/bin"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "mpirun").write_text(f'#!/bin/sh\nexec {MPICH_LAUNCHER} "$@"\n')
    (folder / "mpirun").chmod(0o755)
    return f"{folder}:{os.environ['PATH']}"


def stage(name, command):
    """Runs it; returns its counts, and what failed as it named it."""
    print(f"== {name}", flush=True)
    start = time.monotonic()
    reports = make_reports()
    options = {} if name == "fuzz" else sanitizer_options(reports)  # fuzz.py shows what fuzzers say
    environment = dict(os.environ, **options)
    environment.setdefault("CKPTBENCH_KILL_SEED", str(random.SystemRandom().randrange(2**31)))  # one for all test processes
    process = subprocess.Popen(command, cwd=ROOT, env=environment, stdout=subprocess.PIPE, text=True)
    last, failures = "", []
    for line in process.stdout:
        print(line, end="", flush=True)
        if re.match(r"\d+ passed, \d+ failed", line):
            last = line
        if re.match(r"FAILED |ERROR |.*: FAILED$", line):  # of pytest, of run.py and of fuzz.py
            failures.append(line.rstrip())
    code = process.wait()
    counts = [int(number) for number in re.findall(r"\d+", last)] or [0, 1]
    counts += [0] * (3 - len(counts))
    reported = take_reports(reports)
    counts[1] += len(reported)
    failures += [f"sanitizer report {report}" for report in reported]
    if code and not counts[1]:
        counts[1] = 1
    print(f"== {name}: exit {code}, {len(reported)} sanitizer reports, {time.monotonic() - start:.0f} s", flush=True)
    return counts, failures


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("--fuzz-seconds", type=int, default=10)
    parser.add_argument("--only", choices=["asan", "tsan", "fuzz", "kills", "random", "cuts", "mpich", "slurm", "s3", "packages", "watch", "torch-versions"])
    arguments = parser.parse_args()
    run = [sys.executable, "tests/run.py", "--python", arguments.python]
    stages = {
        "slurm": run + ["--no-unit", "--folders", "tests/slurm"],  # waits more than it computes: the builds of the others run beside it
        "asan": run + ["--build", "build/asan", "--folders", "tests/e2e"],
        "tsan": run + ["--build", "build/tsan", "--folders", *THREADED],
        "fuzz": [sys.executable, "scripts/fuzz.py", "build/fuzz", str(arguments.fuzz_seconds)],
        "kills": run + ["--no-unit", "--folders", "tests/kills"],
        "random": ["env", f"CKPTBENCH_ROUNDS={RANDOM_ROUNDS}", *run, "--unit", "-k", "native_random"],
        "cuts": ["env", f"CKPTBENCH_CUTS={CUTS}", f"CKPTBENCH_CUT_SEED={random.randrange(2**20)}", *run, "--unit", "-k", "power_cut_saves"],
        "mpich": ["env", f"PATH={path_with_mpich()}", *run, "--no-unit", "--build", "build/mpich", "--folders", *OF_MPI],
        "s3": run + ["--no-unit", "--folders", "tests/s3"],
        "packages": run + ["--no-unit", "--folders", "tests/packages"],
        "watch": run + ["--no-unit", "--folders", "tests/watch"],
        "torch-versions": [sys.executable, "tests/torch_versions.py", "--python", arguments.python],
    }
    chosen = [arguments.only] if arguments.only else [name for name in stages if name not in ASKED_FOR]
    total, failures = [0, 0, 0], []
    builder = subprocess.Popen(["nice", "-n", "19", "make", "-s", "checked"], cwd=ROOT) if set(chosen) & CHECKED else None
    for name in chosen:
        if builder and name != "slurm" and builder.wait():
            total[1] += 1
            failures.append("make checked")
            break
        counts, failed_here = stage(name, stages[name])
        total = [a + b for a, b in zip(total, counts)]
        failures += [f"{name}: {failure}" for failure in failed_here]
    passed, failed, skipped = total
    print(*failures, sep="\n")
    print(f"{passed} passed, {failed} failed, {skipped} skipped")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
