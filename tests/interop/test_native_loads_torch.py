"""The native engine loads what PyTorch saved: other headers, alignments, strides and layouts."""
import json
import os
import subprocess

import pytest

from harness import PROGRAM

torch = pytest.importorskip("torch", reason="missing: PyTorch (make test installs it)")
dcp = pytest.importorskip("torch.distributed.checkpoint")


def run(where, **keys):
    words = [f"{key.replace('__', '.')}={value}" for key, value in keys.items()]
    command = [PROGRAM, "run", "model=gpt2-tiny", f"store={where / 'store'}", "iterations=1", "warmup=0", "baseline=false"]
    environment = dict(os.environ, CKPTBENCH_HOME=str(where / "home"))
    return subprocess.run([*command, *words, "--json"], env=environment, capture_output=True, text=True, timeout=120)


@pytest.fixture(scope="module")
def saved(tmp_path_factory):
    """Where the store is, and the state that our engine saved, as PyTorch read it."""
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    where = tmp_path_factory.mktemp("torch")
    result = run(where, ranks=2, tp=2, ops="save")
    assert result.returncode == 0, result.stderr
    [metadata] = (where / "store").rglob(".metadata")
    dcp_to_torch_save(metadata.parent, where / "state.pt")
    return where, torch.load(where / "state.pt", weights_only=False)


def map_tensors(state, change):
    if isinstance(state, dict):
        return {key: map_tensors(value, change) for key, value in state.items()}
    return change(state) if torch.is_tensor(state) else state


def save(where, name, state):
    dcp.save(state, checkpoint_id=where / "store" / name, no_dist=True)


def transposed(tensor):
    return tensor.t().contiguous().t() if tensor.dim() == 2 else tensor


@pytest.mark.parametrize("keys", [{"ranks": 1}, {"ranks": 2, "tp": 2}, {"ranks": 3, "zero": 1, "io__direct": "false"}])
@pytest.mark.parametrize("change", [lambda tensor: tensor, transposed], ids=["contiguous", "transposed"])
def test_what_torch_saved_is_loaded_and_verified(saved, keys, change, request):
    where, state = saved
    name = "torch-" + request.node.callspec.id.replace("_", "-")
    save(where, name, map_tensors(state, change))
    result = run(where, ops="load", suffix=name, verify="full", **keys)
    assert result.returncode == 0, result.stderr
    assert json.loads(result.stdout)["outcome"] == "pass"


def test_one_wrong_value_is_found(saved):
    where, state = saved

    def damaged(tensor):
        copy = tensor.clone()
        copy.view(-1)[-1] += 1
        return copy

    save(where, "torch-wrong", map_tensors(state, damaged))
    result = run(where, ranks=1, ops="load", suffix="torch-wrong", verify="full")
    assert result.returncode == 3, result.stderr


def test_missing_tensors_are_named(saved):
    where, state = saved
    rest = {key: value for key, value in state.items() if key != "model.transformer.wte.weight"}
    if "model" in rest:  # nested, as its planner data says
        rest["model"] = {key: value for key, value in state["model"].items() if "wte" not in key}
    save(where, "torch-missing", rest)
    result = run(where, ranks=1, ops="load", suffix="torch-missing")
    assert result.returncode == 3
    assert "model.transformer.wte.weight" in result.stderr + result.stdout


LARGE = "".join(f"- {{name: large.{i}, shape: [4096, 2048], dtype: fp32}}\n" for i in range(3))


def test_memory_is_bounded_however_it_is_stored(tmp_path):
    """96 MiB in three tensors: as PyTorch writes it, transposed in memory, and compressed."""
    from torch.distributed.checkpoint import FileSystemWriter
    from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

    zstandard = pytest.importorskip("torch.distributed.checkpoint._extension").ZStandard
    pytest.importorskip("zstandard", reason="missing: zstandard (make test installs it)")
    (tmp_path / "model.yaml").write_text(LARGE)
    keys = {"model": tmp_path / "model.yaml", "state": "weights", "layers": 0, "ranks": 1, "io__block": "1MiB", "io__depth": 4, "load__cold": "false"}
    result = run(tmp_path, ops="save", suffix="ours", verify="none", **keys)
    assert result.returncode == 0, result.stderr
    [metadata] = (tmp_path / "store").rglob(".metadata")
    dcp_to_torch_save(metadata.parent, tmp_path / "state.pt")
    state = torch.load(tmp_path / "state.pt", weights_only=False)
    save(tmp_path, "plain", state)
    save(tmp_path, "transposed", map_tensors(state, transposed))
    dcp.save(state, storage_writer=FileSystemWriter(tmp_path / "store/zstd", _extensions=[zstandard()]), no_dist=True)
    found = {}
    for name in ("plain", "transposed", "zstd"):
        result = run(tmp_path, ops="load", suffix=name, verify="full", **keys)
        assert result.returncode == 0, result.stderr
        found[name] = json.loads(result.stdout)["metrics"]
    assert found["plain"]["read_amplification"]["median"] < 1.01 and found["transposed"]["read_amplification"]["median"] < 1.01
    if "ASAN_OPTIONS" in os.environ or "TSAN_OPTIONS" in os.environ:  # they keep what is freed: memory says nothing
        return
    rss = {name: metrics["load.rss_bytes"]["median"] for name, metrics in found.items()}
    assert rss["transposed"] < rss["plain"] + (12 << 20), rss
    assert rss["zstd"] < rss["plain"] + (56 << 20), rss  # the window, and zstd's own
