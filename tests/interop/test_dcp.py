"""DCP both ways: stock PyTorch loads what we write; we read and verify what stock PyTorch writes."""
import io
import json
import pickle
import zipfile

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from payload import weights

LAYOUTS = [
    "ranks=1",
    "ranks=2 tp=2",
    "ranks=2 pp=2",
    "ranks=3 dp=3",
    "ranks=3 zero=1",
    "ranks=3 zero=3",
    "ranks=3 sharding=full",
    "ranks=4 tp=2 dp=2 zero=1",
    "ranks=4 tp=4 pp=1 save.dedup=lowest_rank",
    "ranks=3 save.dedup=none",
    "ranks=2 tp=2 io.files=item",
    "ranks=2 tp=2 io.files=shared",
    "ranks=2 tp=2 io.files=3",
]


RESHARDED = ["ranks=2 tp=2", "ranks=2 pp=2", "ranks=3 dp=3", "ranks=3 zero=1", "ranks=3 zero=3", "ranks=3 sharding=full"]


@pytest.mark.parametrize("ranks", [1, 2, 3])
def test_stock_load_at_other_ranks_gives_our_values(make, load_with_torch, ranks):
    folders = [make(f"model=gpt2-tiny seed=5 {layout}", name=layout.replace(" ", "_")) for layout in RESHARDED]
    load_with_torch(folders, ranks, seed=5)


@pytest.mark.parametrize("layout", LAYOUTS)
def test_stock_load_of_every_layout_gives_our_values(make, verify, tmp_path, layout):
    folder = make(f"model=gpt2-tiny {layout}", 4096 if "tp" in layout else 64)
    dcp_to_torch_save(folder, tmp_path / "one.pt")
    state = torch.load(tmp_path / "one.pt", weights_only=True)
    assert state["train"] == {"step": 0, "seed": 0}
    assert state["optimizer"]["param_groups"]["lr"] == 0.0003
    seen = 0
    for fqn, tensor in state["model"].items():
        assert torch.equal(tensor, weights(f"model.{fqn}", tensor.dtype, tensor.shape)), fqn
        seen += 1
    for fqn, kinds in state["optimizer"]["state"].items():
        assert kinds.keys() == {"master", "exp_avg", "exp_avg_sq"}
        for kind, tensor in kinds.items():
            assert torch.equal(tensor, weights(f"optimizer.state.{fqn}.{kind}", tensor.dtype, tensor.shape)), fqn
            seen += 1
    assert seen == 208
    result = verify(folder)
    assert result.returncode == 0, result.stdout


def test_items_are_zips_that_other_tools_check(make):
    folder = make("model=gpt2-tiny ranks=2 tp=2")
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    assert metadata.version == "1.0.0" and metadata.storage_meta.checkpoint_id == str(folder)
    files = {}
    for index, place in metadata.storage_data.items():
        data = files.setdefault(place.relative_path, (folder / place.relative_path).read_bytes())
        item = data[place.offset : place.offset + place.length]
        with zipfile.ZipFile(io.BytesIO(item)) as archive:
            assert archive.testzip() is None
            if index.offset is not None:
                info = archive.getinfo("archive/data/0")
                assert (place.offset + item.index(archive.read(info))) % 4096 == 0 or info.file_size < 64
        assert torch.load(io.BytesIO(item), weights_only=True) is not None


def test_direct_record_access_finds_the_payload(make):
    """PyTorch's mmap and offset paths must not assume an alignment that is not ours."""
    folder = make("model=gpt2-tiny ranks=1 state=weights")
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    fqn, place = next((i.fqn, p) for i, p in metadata.storage_data.items())
    item = (folder / place.relative_path).read_bytes()[place.offset : place.offset + place.length]
    path = folder.parent / "item.pt"
    path.write_bytes(item)
    from torch.utils.serialization import config

    with config.patch({"load.calculate_storage_offsets": True}):
        mapped = torch.load(path, weights_only=True, mmap=True)
    size = metadata.state_dict_metadata[fqn].size
    assert torch.equal(mapped, weights(fqn, mapped.dtype, size))


def check_flip(folder, file, at, verify):
    data = bytearray((folder / file).read_bytes())
    data[at] ^= 4
    (folder / file).write_bytes(data)
    result = verify(folder, "--json")
    assert result.returncode == 3
    (problem,) = json.loads(result.stdout)["problems"]
    assert problem["kind"] == "corrupt" and problem["file"] == file and problem["tensor"]
    assert problem["offset"] <= at < problem["offset"] + 4
    return problem["tensor"]


def test_a_flipped_bit_is_named(make, verify):
    folder = make("model=gpt2-tiny ranks=2 tp=2")
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    index, place = max(metadata.storage_data.items(), key=lambda entry: entry[1].length)
    assert check_flip(folder, place.relative_path, place.offset + place.length // 2, verify) == index.fqn


def test_a_flipped_bit_is_named_in_raw(make, verify):
    folder = make("model=gpt2-tiny ranks=1 format=raw", alignment=64)
    (file,) = [path for path in folder.iterdir() if path.name != ".metadata"]
    check_flip(folder, file.name, file.stat().st_size // 2, verify)


def test_missing_short_and_incomplete_are_named(make, verify):
    folder = make("model=gpt2-tiny ranks=3 zero=1")
    (folder / "__0_0.distcp").unlink()
    last = folder / "__2_0.distcp"
    last.write_bytes(last.read_bytes()[:-1000])
    result = verify(folder, "--json")
    kinds = {(problem["kind"], problem["file"]) for problem in json.loads(result.stdout)["problems"]}
    assert result.returncode == 3
    assert kinds == {("missing", "__0_0.distcp"), ("short", "__2_0.distcp")}
    (folder / ".metadata").unlink()
    result = verify(folder, "--json")
    assert result.returncode == 3 and not json.loads(result.stdout)["complete"]


@pytest.fixture(scope="module")
def stock(tmp_path_factory):
    folder = tmp_path_factory.mktemp("stock") / "ck"
    state = {
        "model": {
            "matrix": torch.arange(12, dtype=torch.bfloat16).reshape(3, 4),
            "transposed": torch.arange(6.0).reshape(2, 3).t(),
            "view": torch.arange(20.0)[5:15],
            "scalar": torch.tensor(1.5),
            "empty": torch.empty(0, 3),
            "half": torch.ones(5, dtype=torch.float16),
            "fp8": torch.ones(7).to(torch.float8_e4m3fn),
            "u16": torch.arange(9).to(torch.uint16),
            "long": torch.arange(1000),
            "bool": torch.tensor([True, False]),
            "complex": torch.ones(3, dtype=torch.complex64),
        },
        "optimizer": {"param_groups": [{"lr": 0.1, "betas": (0.9, 0.95), "foreach": None}]},
        "train": {"step": 3, "name": "x'y", "big": 1 << 40, "negative": -7},
    }
    dcp.save(state, checkpoint_id=folder)
    return folder, state


def test_what_stock_pytorch_saved_is_read_and_verified(stock, verify):
    folder, state = stock
    result = verify(folder, "--json")
    assert result.returncode == 0, result.stdout
    answer = json.loads(result.stdout)
    assert answer["format"] == "dcp" and answer["values"] is None
    assert answer["tensors"] == answer["items"] == 11 + 3 + 4
    assert answer["payload_bytes"] == sum(t.numel() * t.element_size() for t in state["model"].values())
    assert answer["checksums"] == 10  # all but the empty one


def test_every_flipped_payload_byte_of_pytorch_is_caught(stock, verify, tmp_path):
    folder, _ = stock
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    for index, place in metadata.storage_data.items():
        if not index.fqn.startswith("model.") or index.fqn in ("model.empty",):
            continue
        data = bytearray((folder / place.relative_path).read_bytes())
        with zipfile.ZipFile(io.BytesIO(bytes(data[place.offset : place.offset + place.length]))) as archive:
            payload = archive.read("archive/data/0")
        at = data.index(payload, place.offset)
        data[at] ^= 1
        copy = tmp_path / index.fqn
        copy.mkdir()
        (copy / ".metadata").write_bytes((folder / ".metadata").read_bytes())
        (copy / place.relative_path).write_bytes(data)
        result = verify(copy, "--json")
        problems = json.loads(result.stdout)["problems"]
        assert [problem["tensor"] for problem in problems] == [index.fqn]


class Evil:
    def __reduce__(self):
        return (print, ("run",))


def test_a_pickle_that_calls_something_is_refused_by_name(tmp_path, verify):
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Evil(), protocol=4))
    result = verify(tmp_path)
    assert result.returncode == 3
    assert "builtins.print" in result.stdout and "run\n" not in result.stdout
