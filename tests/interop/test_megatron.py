"""Checkpoints that Megatron-Core's dist_checkpointing wrote (tests/data/write_megatron.py): torch_dist layout with common.pt."""
import json
import pickle
import sys
import types
from pathlib import Path

import pytest
import safetensors.torch
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.metadata import Metadata

from harness import ckptbench

WRITTEN = Path(__file__).resolve().parents[1] / "data/megatron-0.16.1/iter_0000100"
WEIGHT = torch.arange(8 * 6, dtype=torch.float32).reshape(8, 6)
EMBEDDING = torch.arange(16 * 4, dtype=torch.float32).to(torch.bfloat16).reshape(16, 4)


def test_its_tensors_are_listed_and_whole(tmp_path):
    listed = json.loads(ckptbench(tmp_path, "inspect", WRITTEN, "--json").stdout)
    assert (listed["tensors"], listed["values"], listed["tensor_bytes"], len(listed["ranks"])) == (2, 2, 320, 2)
    assert "every element of every tensor is there once" in ckptbench(tmp_path, "verify", WRITTEN).stdout


def test_it_converts_to_safetensors_value_for_value(tmp_path):
    ckptbench(tmp_path, "convert", WRITTEN, "converted", "format=safetensors")
    (file,) = (tmp_path / "converted").glob("*.safetensors")
    tensors = safetensors.torch.load_file(file)
    assert torch.equal(tensors["model.decoder.weight"], WEIGHT) and torch.equal(tensors["model.embedding"], EMBEDDING)


def test_it_converts_to_dcp_which_pytorch_loads(tmp_path):
    ckptbench(tmp_path, "convert", WRITTEN, "converted", "format=dcp")
    state = {"model.decoder.weight": torch.zeros(8, 6), "model.embedding": torch.zeros(16, 4, dtype=torch.bfloat16)}
    dcp.load(state, checkpoint_id=tmp_path / "converted", no_dist=True)
    assert torch.equal(state["model.decoder.weight"], WEIGHT) and torch.equal(state["model.embedding"], EMBEDDING)


def test_a_run_saves_and_loads_its_model(tmp_path):
    (tmp_path / "store").mkdir()
    done = json.loads(ckptbench(tmp_path, "run", f"model={WRITTEN}", "ranks=2", "store=store", "iterations=1", "warmup=0", "--json").stdout)
    assert done["outcome"] == "pass" and done["verified"] == {"iterations": 1, "of": 1}


@pytest.fixture
def megatron_metadata(monkeypatch):
    """A subclass of PyTorch's metadata in a module of Megatron-Core, as its save planner makes one."""
    name = "megatron.core.dist_checkpointing.strategies.torch"
    module = types.ModuleType(name)
    module.MCoreMetadata = type("MCoreMetadata", (Metadata,), {"__module__": name})
    parts = name.split(".")
    for i in range(1, len(parts)):
        monkeypatch.setitem(sys.modules, ".".join(parts[:i]), types.ModuleType(".".join(parts[:i])))
    monkeypatch.setitem(sys.modules, name, module)
    return module.MCoreMetadata


def test_metadata_of_a_class_of_its_own_is_read_as_pytorchs(tmp_path, megatron_metadata):
    dcp.save({"weight": WEIGHT}, checkpoint_id=tmp_path / "own", no_dist=True)
    metadata = pickle.loads((tmp_path / "own/.metadata").read_bytes())
    own = megatron_metadata(**vars(metadata))
    own.mcore_data = {"weight": {"nd_reformulated_orig_global_shape": (8, 6)}}
    (tmp_path / "own/.metadata").write_bytes(pickle.dumps(own))
    assert "every element of every tensor is there once" in ckptbench(tmp_path, "verify", "own").stdout
