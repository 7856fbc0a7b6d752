"""What ckptbench 9e37080 wrote and printed, kept so that later versions are held against it (tests/e2e/test_artefacts.py).

usage: make_artefacts.py BUILD
BUILD has the programs of that version. Writes beside itself: world.tar.gz, a home and a store as its runs left them,
and printed.json.gz, what its verbs printed of them.
"""
import gzip
import json
import os
import shutil
import subprocess
import sys
import tarfile
from pathlib import Path

HERE = Path(__file__).resolve().parent
WORLD = Path("/tmp/ckptbench-artefacts")  # runs keep absolute paths: a test must put the world here, too
MODEL = """- {name: embed.weight, shape: [12, 8], dtype: bf16}
- {name: layers.0.up.weight, shape: [16, 8], dtype: bf16, layer: 0, tp_dim: 0}
- {name: layers.0.down.weight, shape: [8, 16], dtype: bf16, layer: 0, tp_dim: 1}
- {name: norm.weight, shape: [8], dtype: fp32}
"""
SMALL = ["model=model.yaml", "baseline=false", "warmup=1", "iterations=3", "keep=true"]
RUNS = [
    ["ranks=2", "tp=2", "store=store", "suffix=dcp", "label.story=first", *SMALL],
    ["ranks=2", "dp=2", "sharding=full", "store=store", "suffix=full", *SMALL],
    ["ranks=1", "format=raw", "store=store", "suffix=raw", *SMALL],
    ["ranks=2", "format=safetensors", "store=store", "suffix=safetensors", *SMALL],
    ["ranks=2", "format=dcp+safetensors", "store=store", "suffix=parts", *SMALL],
    ["ranks=2", "dp=2", "save.async=true", "store=store", "suffix=async", *SMALL],
    ["ranks=1", "store=null:", "ops=save", "io.depth=1,4", "repeat=2", *SMALL[:-1], "verify=none"],
    ["ranks=1", "store=fault:delay=1ms:store", "suffix=slow", *SMALL],
    ["ranks=1", "store=fault:enospc_after=1KiB:store", "suffix=full-disk", *SMALL],
    ["workload=suite", "ranks=2", "suite.only=cpu", "store=store", "iterations=2"],
    ["workload=train", "model=gpt2-tiny", "layers=1", "ranks=1", "train.steps=4", "train.batch_size=1", "train.seq_length=16",
     "store=store", "suffix=train", "baseline=false"],
]
VERBS = ["run", "submit", "status", "logs", "cancel", "warm", "render", "site", "plan", "verify", "inspect", "convert", "doctor",
         "list", "show", "compare", "history", "baseline", "sql", "export", "collect", "clean", "models", "options", "s3", "man",
         "completion"]


def run(build, *words, cwd=WORLD):
    environment = {"PATH": os.environ["PATH"], "HOME": str(WORLD), "CKPTBENCH_HOME": str(WORLD / "home"), "LC_ALL": "C.UTF-8",
                   "TZ": "UTC", "COLUMNS": "300"}
    for name in ("ASAN_OPTIONS", "UBSAN_OPTIONS", "TSAN_OPTIONS", "LSAN_OPTIONS"):
        if name in os.environ:
            environment[name] = os.environ[name]
    return subprocess.run([str(Path(build) / "ckptbench"), *words], cwd=cwd, env=environment, capture_output=True, text=True, timeout=120)


def questions(runs):
    """Everything that is asked of the world, in order; all of it only reads."""
    yield from ([verb, "--help"] for verb in VERBS)
    yield from (["--help"], ["man"], ["completion"], ["options"], ["options", "--json"], ["models"], ["models", "--json"])
    yield from (["list"], ["list", "--json"], ["list", "outcome=pass"], ["list", "label.story=first"], ["history", "save_s"], ["history", "save_s", "--json"],
                ["history", "load_bytes_per_s"], ["status"], ["status", "--json"], ["baseline"], ["clean"])
    for name in runs:
        yield from (["show", name], ["show", name, "--json"], ["show", name, "--ranks"], ["logs", name])
        yield from ([["export", name, how] for how in ("--csv", "--json", "--mlperf", "--s3benchmark")])
    first, second = runs[0], runs[1]
    yield from (["compare", first, second], ["compare", first, second, "--json"], ["compare", "first", second])
    yield from (["sql", "SELECT run, outcome FROM run ORDER BY run"], ["sql", "SELECT metric, op, n, median, p95, mad, unit FROM metric JOIN catalogue USING (metric) ORDER BY run, op, metric"])
    for suffix in ("dcp", "full", "raw", "safetensors", "parts", "async"):
        for verb in ("inspect", "verify"):
            yield from ([verb, f"store/{suffix}"], [verb, f"store/{suffix}", "--json"])


def main():
    build = Path(sys.argv[1]).resolve()
    shutil.rmtree(WORLD, ignore_errors=True)
    (WORLD / "store").mkdir(parents=True)
    (WORLD / "model.yaml").write_text(MODEL)
    for number, words in enumerate(RUNS):
        result = run(build, "run", *words, "--json")
        print(number, result.returncode, result.stderr[-300:])
    listed = json.loads(run(build, "list", "--json").stdout)
    names = [entry["run"] for entry in listed][::-1]
    print(run(build, "baseline", "set", "first", names[0]).stderr)
    printed = []
    for words in questions(names):
        result = run(build, *words)
        printed.append({"words": words, "exit": result.returncode, "stdout": result.stdout, "stderr": result.stderr})
    with gzip.GzipFile(HERE / "printed.json.gz", "wb", mtime=0) as file:
        file.write(json.dumps({"runs": names, "printed": printed}, indent=1).encode())
    with tarfile.open(HERE / "world.tar.gz", "w:gz") as archive:
        archive.add(WORLD, arcname="ckptbench-artefacts")


if __name__ == "__main__":
    main()
