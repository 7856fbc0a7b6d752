"""What the engine's features buy is told: goodput for an MTBF from what was measured, and the shipped experiment that
stores each feature on against off as runs."""
import json
import math
import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

from harness import PROGRAM

ROOT = Path(__file__).resolve().parents[2]
SMALL = ["model=gpt2-tiny", "iterations=1", "warmup=0", "baseline=false"]


def ckptbench(where, *words, timeout=120):
    result = subprocess.run([PROGRAM, *words], capture_output=True, text=True, timeout=timeout,
                            env=dict(os.environ, CKPTBENCH_HOME=str(where / "home"), CKPTBENCH_PYTHON=sys.executable))
    assert result.returncode == 0, f"{words}\n{result.stdout}\n{result.stderr}"
    return result.stdout


def goodput(stall_s, restart_s, interval_s, mtbf_s):
    """Daly (2006): the share of the time that training has, of intervals that failures cut short."""
    return interval_s / (mtbf_s * math.exp(restart_s / mtbf_s) * math.expm1((interval_s + stall_s) / mtbf_s))


@pytest.mark.parametrize("words", [[], ["save.async=true", "compute_gap=100ms"]], ids=["synchronous", "behind"])
def test_show_gives_goodput_and_interval_from_what_was_measured(tmp_path, words):
    for hours in (1, 24):
        document = json.loads(ckptbench(tmp_path, "run", "--json", *SMALL, "dp=2", f"mtbf={hours}h", f"store={tmp_path}/store", *words))
        metrics = document["metrics"]
        save = metrics.get("stall_s", metrics["save_s"])["median"]
        behind = metrics["save.persist_s"]["median"] if words else 0
        share, interval = metrics["goodput"]["median"], metrics["best_interval_s"]["median"]
        restart, mtbf = metrics["load_s"]["median"] + behind, hours * 3600
        assert 0 < share < 1 and interval >= behind
        assert share == pytest.approx(goodput(save, restart, interval, mtbf), rel=1e-6)
        for other in (0.5 * interval, 2 * interval):  # no better one
            assert other < behind or goodput(save, restart, other, mtbf) < share
        text = ckptbench(tmp_path, "show", document["run"])
        assert re.search(rf"^goodput +{100 * share:.2f} % at an MTBF of \S+, with a save every ", text, re.MULTILINE), text


def test_the_shipped_experiment_stores_a_run_a_feature(tmp_path):
    """Its combinations of the native engine, small: those of PyTorch take longer, and have tests of their own."""
    file = ROOT / "experiments/engine-features.yaml"
    columns = {key: re.findall(r"[^\s,\"]+", values) for key, values in re.findall(r"^([a-z._]+): \[(.*)\]$", file.read_text(), re.MULTILINE) if key != "zip"}
    native = [number for number, engine in enumerate(columns["engine"]) if engine == "native"]
    assert len(native) == 10
    words = [f"{key}={','.join(values[number] for number in native)}" for key, values in columns.items()]
    ckptbench(tmp_path, "run", file, *SMALL, *words, "repeat=1", "compute_gap=20ms", f"store={tmp_path}/store", timeout=300)
    runs = json.loads(ckptbench(tmp_path, "list", "--json", "label.kind=engine-features"))
    assert len(runs) == 10 and all(run["outcome"] == "pass" for run in runs)
