"""One run that saves in one layout and loads in another: the keys load.*, ranks without a part, what is refused."""
import json
import os
import subprocess
import sys

import pytest

from harness import PROGRAM


def call(where, *words):
    given = ["model=gpt2-tiny", "layers=4", "iterations=1", "warmup=0", "baseline=false", f"store={where / 'store'}"]
    return subprocess.run([PROGRAM, "run", "--json", *given, *words], capture_output=True, text=True, timeout=120,
                          env=dict(os.environ, CKPTBENCH_HOME=str(where / "home"), CKPTBENCH_PYTHON=sys.executable))


def run(where, *words):
    result = call(where, *words)
    assert result.returncode == 0, f"{words}\n{result.stdout}\n{result.stderr}"
    return json.loads(result.stdout)


def show(where, document):
    return subprocess.run([PROGRAM, "show", document["run"]], capture_output=True, text=True, timeout=120, check=True,
                          env=dict(os.environ, CKPTBENCH_HOME=str(where / "home"))).stdout


# Words, ranks of the run, and the bytes that all ranks need in copies of the state.
RESHARDS = [
    (["tp=2", "load.tp=4"], 4, None),
    (["tp=4", "load.tp=1"], 4, 1),
    (["dp=4", "load.dp=1"], 4, 1),
    (["pp=2", "load.pp=4", "load.pp.split=1+1+1+1"], 4, 1),
    (["dp=3", "zero=3", "load.zero=1", "load.dp=2"], 3, None),
    (["dp=3", "zero=3", "load.sharding=full", "load.dp=4"], 4, None),
    (["mesh=pp=2+tp=2", "load.tp=1"], 4, 1),
    (["mesh=dp=2", "load.mesh=fsdp=3"], 3, None),
    (["dp=2", "tp=2", "load.state=weights", "load.dp=1", "load.tp=1"], 4, None),
]


@pytest.mark.parametrize("words, ranks, copies", RESHARDS, ids=lambda value: "-".join(value) if isinstance(value, list) else None)
def test_what_one_layout_saves_another_loads(tmp_path, words, ranks, copies):
    document = run(tmp_path, "load.gap=0", "io.direct=false", *words)
    assert document["experiment"]["ranks"] == ranks
    assert document["verified"] == {"iterations": 1, "of": 1}
    metrics = document["metrics"]
    if copies:
        assert metrics["load.bytes_needed"]["median"] == copies * metrics["checkpoint_bytes"]["median"]
    moved, needed = metrics["load.bytes_moved"]["median"], metrics["load.bytes_needed"]["median"]
    assert metrics["read_amplification"]["median"] == pytest.approx(moved / needed)


def test_an_existing_checkpoint_loads_in_any_layout(tmp_path):
    run(tmp_path, "ops=save", "suffix=a", "dp=2", "tp=2", "zero=1")
    for words in (["ranks=3", "zero=3"], ["tp=2", "load.tp=4", "load.dp=1"], ["dp=5"], ["state=weights", "pp=3", "pp.split=1+1+2"]):
        document = run(tmp_path, "ops=load", "suffix=a", *words)
        assert document["verified"] == {"iterations": 1, "of": 1}


def test_what_is_left_out_is_said(tmp_path):
    document = run(tmp_path, "dp=2", "load.state=weights")
    text = show(tmp_path, document)
    assert "keys of the checkpoint are not loaded: optimizer.param_groups.betas, " in text


def test_auto_says_what_it_measured_and_chose(tmp_path):
    document = run(tmp_path, "dp=2", "load.exchange=auto", "iterations=2")
    assert document["verified"] == {"iterations": 2, "of": 2}
    assert "the first load read" in show(tmp_path, document)


def test_pytorch_loads_in_another_layout(tmp_path):
    pytest.importorskip("torch", reason="missing: PyTorch (make test installs it)")
    document = run(tmp_path, "engine=torch-dcp", "tp=2", "load.tp=1")
    assert document["verified"] == {"iterations": 1, "of": 1}


@pytest.mark.parametrize("words, said", [
    (["tp=2", "load.tp=3"], "tp=3 does not divide the 4 attention heads"),
    (["dp=4", "load.sharding=hybrid(3)"], "groups of 3 do not divide dp=4"),
    (["dp=2", "load.mesh=dp=4", "load.tp=2"], "load.mesh=dp=4 and load.tp=2 are both given"),
    (["mesh=dp=2", "load.sharding=full"], "load.mesh"),
    (["dp=2", "load.pp=9"], "more stages than the 4 layers"),
    (["dp=2", "load.sharding=some"], "must be saved, none, full, or hybrid(n)"),
    (["model=mlperf-8b", "load.tp=4"], "state=mlperf"),
])
def test_a_layout_that_cannot_be_is_refused(tmp_path, words, said):
    result = call(tmp_path, *words)
    assert result.returncode == 2 and said in result.stderr, result.stderr
    assert not (tmp_path / "store").exists()


def test_raw_bytes_have_no_layout_to_load_in(tmp_path):
    result = call(tmp_path, "workload=raw", "dp=2", "load.dp=1")
    assert result.returncode == 2 and "load.dp=1 needs tensors" in result.stderr


@pytest.mark.parametrize("words", [["dp=4"], ["dp=2", "tp=2", "zero=1"], ["tp=2", "load.tp=4"], ["dp=4", "sharding=hybrid(2)"]], ids="-".join)
def test_ranks_that_need_the_same_bytes_read_them_once(tmp_path, words):
    for exchange in ("broadcast", "split"):
        document = run(tmp_path, f"load.exchange={exchange}", "load.gap=0", "io.direct=false", "state=weights", *words)
        metrics = document["metrics"]
        assert document["verified"] == {"iterations": 1, "of": 1}
        # Of a model this small headers are a tenth.
        assert metrics["load.bytes_moved"]["median"] < 1.2 * metrics["checkpoint_bytes"]["median"]
        assert metrics["load.exchange_s"]["median"] > 0
