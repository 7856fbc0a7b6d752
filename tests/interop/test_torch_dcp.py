"""Checkpoints of ours in PyTorch, and PyTorch's in ours: every byte, in several layouts."""
import json
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

pytest.importorskip("torch", reason="needs PyTorch")
sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "e2e"))

from worker_harness import Run, passed  # noqa: E402

# gpt2-tiny has an odd vocabulary (257): splitting it is uneven.
LAYOUTS = [
    {"ranks": 1},
    {"ranks": 2, "tp": 2},
    {"ranks": 2, "pp": 2},
    {"ranks": 2, "dp": 2},
    {"ranks": 3, "dp": 3, "zero": 1},
    {"ranks": 3, "dp": 3, "zero": 3},
    {"ranks": 2, "dp": 2, "sharding": "full"},
]


def name_of(layout):
    return "-".join(f"{key}{value}" for key, value in layout.items())


@pytest.mark.parametrize("layout", LAYOUTS, ids=name_of)
def test_pytorch_loads_what_we_saved(tmp_path, layout):
    passed(Run(tmp_path, ops="save", verify="none", **layout).run())
    run = passed(Run(tmp_path, name="load", ops="load", suffix="run", engine="torch-dcp", **layout).run(180))
    assert all(run.samples("verify", rank)[0]["verified_bytes"] > 0 for rank in range(run.ranks))


@pytest.mark.parametrize("layout", LAYOUTS, ids=name_of)
def test_we_load_what_pytorch_saved(tmp_path, layout):
    passed(Run(tmp_path, ops="save", verify="none", engine="torch-dcp", **layout).run(180))
    run = passed(Run(tmp_path, name="load", ops="load", suffix="run", **layout).run())
    assert all(run.samples("verify", rank)[0]["verified_bytes"] > 0 for rank in range(run.ranks))


def test_we_load_in_another_layout_what_pytorch_saved(tmp_path):
    passed(Run(tmp_path, ops="save", verify="none", engine="torch-dcp", ranks=2, tp=2).run(180))
    passed(Run(tmp_path, name="load", ops="load", suffix="run", ranks=3, dp=3, zero=3).run())


def test_pytorch_saves_and_loads_in_one_run(tmp_path):
    run = passed(Run(tmp_path, engine="torch-dcp", ranks=2, tp=2, iterations=2).run(180))
    save = run.samples("save")[0]
    assert save["io_s"] > 0 and save["plan_s"] > 0 and save["cpu_s"] > 0
    parts = ("other", "plan", "stage", "serialize", "io", "fsync", "exchange", "commit", "wait")
    assert sum(save[f"{part}_s"] for part in parts) == pytest.approx(save["op_s"], rel=1e-6)
    assert "PyTorch" in run.facts()["io.used"]


def test_pytorch_finds_our_checkpoint_corrupt_or_absent_and_its_reason_is_told(tmp_path):
    saved = passed(Run(tmp_path, ops="save", verify="none", ranks=2, tp=2).run())
    next(saved.checkpoint().glob("__1*")).unlink()
    run = Run(tmp_path, name="load", ops="load", suffix="run", engine="torch-dcp", ranks=2, tp=2).run(180)
    assert run.code != 0 and "__1" in run.failures()


def free_port():
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return probe.getsockname()[1]


def stock_digests(checkpoint, ranks):
    port = free_port()
    command = [sys.executable, Path(__file__).with_name("stock_load.py"), checkpoint]
    processes = []
    for rank in range(ranks):
        environment = dict(os.environ, RANK=str(rank), WORLD_SIZE=str(ranks), MASTER_ADDR="127.0.0.1")
        environment["MASTER_PORT"] = str(port)
        processes.append(subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, env=environment))
    outputs = [process.communicate(timeout=180) for process in processes]
    assert all(process.returncode == 0 for process in processes), outputs[0][1].decode()[-2000:]
    return json.loads(outputs[0][0])


@pytest.fixture(scope="module")
def reference(tmp_path_factory):
    """What stock PyTorch reads, alone, of what stock PyTorch wrote from the same state."""
    folder = tmp_path_factory.mktemp("reference")
    run = passed(Run(folder, ops="save", verify="none", engine="torch-dcp", ranks=1).run(180))
    return stock_digests(run.checkpoint(), 1)


@pytest.mark.parametrize("layout", [{"ranks": 2, "tp": 2}, {"ranks": 2, "pp": 2}, {"ranks": 3, "dp": 3, "zero": 1},
                                    {"ranks": 3, "dp": 3, "zero": 3}], ids=name_of)
@pytest.mark.parametrize("readers", [1, 2, 3])
def test_stock_pytorch_reads_the_same_values_at_any_number_of_ranks(tmp_path, reference, layout, readers):
    saved = passed(Run(tmp_path, ops="save", verify="none", **layout).run())
    assert stock_digests(saved.checkpoint(), readers) == reference
