"""Fuzzes every parser of foreign bytes for a bounded time; prints the seed of each so that a run can be repeated.

usage: scripts/fuzz.py FOLDER SECONDS_EACH [SEED]     FOLDER holds the fuzz_* programs
"""
import os
import random
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent


def main():
    folder, seconds = Path(sys.argv[1]), int(sys.argv[2])
    seed = int(sys.argv[3]) if len(sys.argv) > 3 else random.SystemRandom().randrange(1, 2**31)
    passed = failed = 0
    for program in sorted(path for path in folder.glob("fuzz_*") if os.access(path, os.X_OK) and path.is_file()):
        corpus = folder / "corpus" / program.name
        corpus.mkdir(parents=True, exist_ok=True)
        seeds = ROOT / "tests/fuzz/seeds" / program.name.removeprefix("fuzz_")
        command = [str(program), f"-max_total_time={seconds}", f"-seed={seed}", "-rss_limit_mb=1024", "-timeout=10",
                   "-print_final_stats=0", "-verbosity=0", f"-artifact_prefix={folder}/crash-{program.name}-", str(corpus)]
        if seeds.exists():
            command.append(str(seeds))
        result = subprocess.run(command, capture_output=True, text=True)
        good = result.returncode == 0
        passed, failed = passed + good, failed + (not good)
        print(f"{program.name}: seed {seed}, {seconds} s: {'passed' if good else 'FAILED'}", flush=True)
        if not good:
            print(result.stderr[-4000:])
    print(f"{passed} passed, {failed} failed")
    sys.exit(1 if failed or not passed else 0)


if __name__ == "__main__":
    main()
