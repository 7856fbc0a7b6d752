"""Fuzzes every parser of foreign bytes for a bounded time; prints the seed of each so that a run can be repeated.

usage: scripts/fuzz.py FOLDER SECONDS_EACH [SEED]     FOLDER holds the fuzz_* programs
"""
import os
import random
import re
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def fuzz(program, seconds, seed):
    """Whether it found nothing, and what it said. What it learns stays in the corpus folder for the next time."""
    folder = program.parent
    corpus = folder / "corpus" / program.name
    corpus.mkdir(parents=True, exist_ok=True)
    seeds = ROOT / "tests/fuzz/seeds" / program.name.removeprefix("fuzz_")
    command = [str(program), f"-max_total_time={seconds}", f"-seed={seed}", "-rss_limit_mb=1024", "-timeout=20",
               "-print_final_stats=1", "-verbosity=0", f"-artifact_prefix={folder}/crash-{program.name}-", str(corpus)]
    if seeds.exists():
        command.append(str(seeds))
    result = subprocess.run(command, capture_output=True, text=True, timeout=10 * seconds + 120)
    return result.returncode == 0, result.stderr


def main():
    folder, seconds = Path(sys.argv[1]), int(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.SystemRandom().randrange(1, 2**31)
    programs = sorted(folder / path.stem for path in (ROOT / "tests/fuzz").glob("fuzz_*.c"))
    passed = failed = 0
    with ThreadPoolExecutor(os.cpu_count() or 1) as pool:
        results = pool.map(lambda program: fuzz(program, seconds, seed), programs)
        for program, (good, said) in zip(programs, results):
            passed, failed = passed + good, failed + (not good)
            inputs = re.search(r"number_of_executed_units:\s*(\d+)", said)
            print(f"{program.name}: seed {seed}, {seconds} s, {inputs.group(1) if inputs else 0} inputs: "
                  f"{'passed' if good else 'FAILED'}", flush=True)
            if not good:
                print(said[-4000:])
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
