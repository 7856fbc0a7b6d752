"""Without a GPU: what device=cuda, the suite and doctor say. The plugin is hidden, so that this is the same everywhere."""
import json
import os
import subprocess
import sys
from pathlib import Path

from harness import BUILD

SMALL = ("model=gpt2-tiny", "layers=1", "ranks=1", "iterations=1", "warmup=0", "baseline=false")


def ckptbench(place, *words, code=0):
    (place / "store").mkdir(exist_ok=True)
    environment = dict(os.environ, CKPTBENCH_HOME=str(place / "home"), CKPTBENCH_CUDA_PLUGIN=str(place / "no-plugin.so"))
    result = subprocess.run([BUILD / "ckptbench", *words], cwd=place, env=environment, capture_output=True, text=True, timeout=120)
    assert result.returncode == code, result.stdout + result.stderr
    return result


def test_a_run_that_asks_for_a_device_says_what_is_missing(tmp_path):
    result = ckptbench(tmp_path, "run", f"store={tmp_path}/store", *SMALL, "device=cuda", code=3)
    assert "device=cuda" in result.stderr and "no-plugin.so is not there" in result.stderr and "make cuda" in result.stderr
    assert not [path for path in (tmp_path / "store").rglob("*") if path.is_file()]


def test_what_cannot_be_on_a_device_is_refused_at_once(tmp_path):
    for words, why in ((("workload=raw",), "workload=raw"), (("engine=torch-dcp",), "needs engine=native")):
        assert why in ckptbench(tmp_path, "run", f"store={tmp_path}/store", *SMALL, "device=cuda", *words, code=2).stderr


def test_a_training_that_asks_for_a_device_says_what_is_missing(tmp_path):
    words = ("workload=train", "model=gpt2-tiny", "layers=1", "ranks=1", "train.steps=2", "device=cuda")
    said = ckptbench(tmp_path, "run", f"store={tmp_path}/store", *words, code=3).stderr
    assert "device=cuda" in said and "no-plugin.so is not there" in said and "make cuda" in said


def test_the_suite_leaves_gpus_out_and_says_why(tmp_path):
    words = ("workload=suite", "suite.only=gpu", "ranks=1", "iterations=1", "warmup=0")
    out = ckptbench(tmp_path, "run", f"store={tmp_path}/store", *words).stdout
    assert "not measured  gpu=" in out and "no-plugin.so is not there" in out


def test_doctor_and_version_name_the_plugin(tmp_path):
    assert "cuda      absent" in ckptbench(tmp_path, "--version").stdout
    rows = json.loads(ckptbench(tmp_path, "doctor", "--json", f"store={tmp_path}/store").stdout)
    rows = rows["checks"] if isinstance(rows, dict) else rows
    row = next(row for row in rows if row["name"] == "gpu")
    assert row["status"] == "lacking" and "make cuda" in row["do"]


def test_what_needs_a_gpu_ends_without_one_and_says_so(tmp_path):
    root = Path(__file__).resolve().parents[2]
    environment = dict(os.environ, CUDA_VISIBLE_DEVICES="")
    for command in (("tests/gpu/prove.py", BUILD), ("tests/bench/bench_gpu.py", "--build", BUILD, "--json", tmp_path / "rows.json")):
        result = subprocess.run([sys.executable, *map(str, command)], cwd=root, env=environment, capture_output=True, text=True, timeout=120)
        assert result.returncode == 1 and "none: " in result.stderr, result.stdout + result.stderr
    assert not (tmp_path / "rows.json").exists()
