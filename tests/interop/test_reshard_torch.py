"""Resharding both ways, for every kind of element: ours in one layout, stock PyTorch loads it into FSDP and TP
meshes of 1, 2 and 3 ranks and saves it from there, and we load that in yet other layouts and check every value."""
import sys
from pathlib import Path

import pytest

from conftest import Place, call

MODEL = """
- {name: first.bf16, shape: [37, 12], dtype: bf16, tp_dim: 1, layer: 0}
- {name: second.fp32, shape: [7, 5, 8], dtype: fp32, tp_dim: 2, layer: 0}
- {name: third.fp8, shape: [29, 16], dtype: fp8_e4m3fn, tp_dim: 1, layer: 0}
- {name: fourth.i64, shape: [11, 6], dtype: i64, tp_dim: 0, layer: 1}
- {name: fifth.bool, shape: [13, 10], dtype: bool, tp_dim: 1, layer: 1}
- {name: sixth.bf16, shape: [101], dtype: bf16, layer: 1}
- {name: seventh.fp32, shape: [3, 2, 5, 4], dtype: fp32, layer: 1}
- {name: eighth.fp8, shape: [2, 9], dtype: fp8_e5m2, layer: 1}
"""
SAVED = {"tp2": "ranks=2 tp=2", "fsdp3": "ranks=3 sharding=full"}
MESHES = [(ranks, kind) for ranks in (1, 2, 3) for kind in ("fsdp", "tp")]
LOADED = ["ranks=1", "ranks=4 tp=2 dp=2 load.exchange=split", "ranks=3 zero=3", "ranks=2 pp=2 load.gap=0"]


# PyTorch starts once for all of them.
pytestmark = pytest.mark.xdist_group("reshard_torch")


@pytest.fixture(scope="module")
def resharded(tmp_path_factory):
    """The place, with what PyTorch made of each of ours."""
    place = Place(tmp_path_factory.mktemp("reshard"))
    model = place.folder / "model.yaml"
    model.write_text(MODEL)
    for name, words in SAVED.items():
        place.run(f"ops=save suffix={name} model={model} layers=0 state=weights seed=7 {words}")
        script = Path(__file__).with_name("reshard_ranks.py")
        result = call(sys.executable, script, place.checkpoint(name), place.store / f"torch-{name}", "1,2,3", timeout=200)
        assert result.returncode == 0, result.stderr[-3000:]
    return place, model


@pytest.mark.parametrize("saved", SAVED)
@pytest.mark.parametrize("number, mesh", enumerate(MESHES), ids=[f"{ranks}-{kind}" for ranks, kind in MESHES])
def test_what_pytorch_resharded_loads_in_yet_another_layout(resharded, saved, number, mesh):
    place, model = resharded
    words = LOADED[number % len(LOADED)]
    document = place.run(f"ops=load suffix=torch-{saved}-{mesh[0]}-{mesh[1]} model={model} layers=0 state=weights seed=7 verify=full {words}")
    assert document["verified"] == {"iterations": 1, "of": 1}
