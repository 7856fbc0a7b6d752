"""FSDP checkpoints that torchtitan, Lightning and HF Trainer (accelerate) made themselves: our verbs read them, and the frameworks
load what `ckptbench convert` makes of them. framework_ranks.py trains, saves, converts and loads; each test looks at one thing."""
import json
import sys
from pathlib import Path

import pytest
import safetensors.torch
import torch

from conftest import BUILD, call
from harness import ckptbench

pytestmark = pytest.mark.timeout(900)  # imports and trainings on a machine that is busy with other tests

# framework -> version -> its checkpoints, and how the names of their tensors begin
CHECKPOINTS = {
    "torchtitan": {"fsdp2": {"step-2": ""}},
    "lightning": {"fsdp1": {"last.ckpt": ""}, "fsdp2": {"last.ckpt": ""}},
    "hf_trainer": {"fsdp2": {"checkpoint-2/pytorch_model_fsdp_0": "model.", "checkpoint-2/optimizer_0": "optimizer."}}}
EVERY = [pytest.param(framework, version, name, prefix, id=f"{framework}-{version}-{Path(name).name}",
                      marks=pytest.mark.xdist_group(f"framework_{framework}"))
         for framework, versions in CHECKPOINTS.items() for version, names in versions.items() for name, prefix in names.items()]


@pytest.fixture(scope="module")
def made(tmp_path_factory):
    """framework -> its folder; a framework that fails does so once."""
    def of(framework, known={}):
        if framework not in known:
            known[framework] = None
            folder = tmp_path_factory.mktemp(framework)
            result = call(sys.executable, "-W", "ignore", Path(__file__).with_name("framework_ranks.py"), framework, folder, BUILD / "ckptbench",
                          timeout=880, HF_HUB_OFFLINE="1")
            assert result.returncode == 0, result.stdout + result.stderr
            known[framework] = folder
        assert known[framework], f"{framework} failed in an earlier test"
        return known[framework]
    return of


@pytest.fixture
def stored(made, framework, version, name, prefix):
    """The folder of a checkpoint, and what the framework held of it."""
    folder = made(framework) / version
    held = torch.load(folder / "held.pt")
    return folder / "saved" / name, {tensor: value for tensor, value in held.items() if tensor.startswith(prefix)}


@pytest.mark.parametrize("framework, version, name, prefix", EVERY)
class TestCheckpoint:
    def test_it_is_inspected_and_whole(self, tmp_path, stored):
        folder, held = stored
        listed = json.loads(ckptbench(tmp_path, "inspect", folder, "--json", "--tensors").stdout)
        tensors = {tensor["name"]: tensor["shape"] for tensor in listed["all_tensors"] if tensor["dtype"]}
        assert tensors == {tensor: list(value.shape) for tensor, value in held.items()} and len(listed["ranks"]) == 2
        assert "every element of every tensor is there once" in ckptbench(tmp_path, "verify", folder).stdout

    def test_it_converts_to_safetensors_bit_for_bit(self, tmp_path, stored):
        folder, held = stored
        ckptbench(tmp_path, "convert", folder, "converted", "format=safetensors")
        (file,) = (tmp_path / "converted").glob("*.safetensors")
        found = safetensors.torch.load_file(file)
        assert found.keys() == held.keys()
        assert all(torch.equal(value, held[tensor]) and value.dtype == held[tensor].dtype for tensor, value in found.items())

    def test_a_run_saves_and_loads_its_model(self, tmp_path, stored):
        """The model alone: moments, counters and what else the framework keeps are not its parameters."""
        folder, held = stored
        parameters = sum(value.numel() for tensor, value in held.items() if not tensor.startswith(("optimizer", "train_state.")))
        (tmp_path / "store").mkdir()
        words = ["run", f"model={folder}", "ranks=2", "store=store", "iterations=1", "warmup=0", "baseline=false", "--json"]
        if parameters == 0:
            assert "has no tensors of a model" in ckptbench(tmp_path, *words, code=2).stderr
            return
        assert json.loads(ckptbench(tmp_path, "plan", f"model={folder}", "ranks=2", "--json").stdout)["params"] == parameters
        done = json.loads(ckptbench(tmp_path, *words).stdout)
        assert done["outcome"] == "pass" and done["verified"] == {"iterations": 1, "of": 1}

    def test_the_framework_loads_what_it_was_converted_to(self, stored, name):
        """framework_ranks.py fails if the framework does not, or then holds other values."""
        assert (stored[0].parents[name.count("/") + 1] / "converted" / name / ".metadata").exists()
