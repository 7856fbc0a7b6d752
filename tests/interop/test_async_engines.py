"""The engines in PyTorch save behind training: what they stall and what goes on stand beside ours."""
import os
import sys

import pytest

sys.path.insert(0, os.path.join(os.path.dirname(__file__), "../e2e"))
from worker_harness import FLAG_FAILED, Run, passed  # noqa: E402


@pytest.mark.parametrize("engine,how", [("torch-dcp", "stager"), ("torch-dcp", "default"), ("torch-native", "stager")])
def test_pytorch_saves_behind_and_what_it_saved_verifies(tmp_path, engine, how):
    run = passed(Run(tmp_path, engine=engine, ops="save", iterations=3, tp=2, save__async="true", torch__async=how, compute_gap="50ms").run(120))
    for rank in range(2):
        samples = run.samples("save", rank)
        assert [sample["iteration"] for sample in samples] == [0, 1, 2]
        for sample in samples:
            parts = ("other", "plan", "stage", "serialize", "io", "fsync", "exchange", "commit", "wait")
            assert sum(sample[f"{part}_s"] for part in parts) == pytest.approx(sample["op_s"], rel=1e-6)
            assert sample["stall_s"] + sample["persist_s"] == pytest.approx(sample["op_s"], rel=1e-6)
            assert sample["durable_s"] == sample["op_s"] and sample["bytes_moved"] > 0
        assert run.samples("verify", rank)[0]["verified_bytes"] > 0
    assert [path.parent.name for path in run.store.glob("**/.metadata")] == ["iteration-2"]


@pytest.mark.parametrize("engine", ["torch-dcp", "torch-native"])
def test_a_failure_behind_pytorchs_back_is_told(tmp_path, engine):
    run = Run(tmp_path, engine=engine, ops="save", iterations=60, save__async="true", compute_gap="200ms").start()
    run.wait_until(lambda page: len(page[0]["samples"]) > 1, 90)
    folder = run.store / "run"
    with open(folder / "blocked", "w", encoding="ascii"):
        for number in range(2, 60):  # a file is where a checkpoint's data file should go
            target = folder / f"iteration-{number}"
            if not target.exists():
                target.mkdir()
                (target / "__1_0.distcp").mkdir()
    run.wait(120)
    assert run.code != 0 and "behind, rank" in run.failures(), run.failures()
    assert run.samples("save", 1)[-1]["flags"] & FLAG_FAILED


@pytest.mark.parametrize("engine", ["torch-dcp", "torch-native"])
def test_what_pytorch_cannot_do_behind_is_refused(tmp_path, engine):
    run = Run(tmp_path, engine=engine, ops="save", save__async="true", save__inflight=2).run(60)
    assert run.code != 0 and "save.inflight" in run.failures()
