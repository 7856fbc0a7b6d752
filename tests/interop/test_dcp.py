"""DCP as a format: our items as other tools see them, and what stock PyTorch wrote as our reader sees it."""
import io
import json
import pickle
import re
import struct
import zipfile

import pytest
import torch
import torch.distributed.checkpoint as dcp
from torch.serialization import set_crc32_options

from harness import BUILD
from conftest import call
from payload import weights


def test_items_are_zips_that_other_tools_check(place):
    folder = place.save("ranks=2 tp=2 io.direct=auto", "zips")
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


def test_direct_record_access_finds_the_payload(place, tmp_path):
    """PyTorch's mmap and offset paths must not assume an alignment that is not ours."""
    folder = place.save("ranks=1 state=weights", "weights")
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    fqn, place = next((i.fqn, p) for i, p in metadata.storage_data.items())
    item = (folder / place.relative_path).read_bytes()[place.offset : place.offset + place.length]
    path = tmp_path / "item.pt"
    path.write_bytes(item)
    from torch.utils.serialization import config

    with config.patch({"load.calculate_storage_offsets": True}):
        mapped = torch.load(path, weights_only=True, mmap=True)
    size = metadata.state_dict_metadata[fqn].size
    assert torch.equal(mapped, weights(fqn, mapped.dtype, size))


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
    assert (answer["tensors"], answer["value_count"], answer["items"]) == (11, 3 + 4, 11 + 3 + 4)
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


@pytest.mark.parametrize("way", ["an item a file", "no checksums", "some checksums"])
def test_other_ways_in_which_pytorch_writes_are_read(stock, verify, tmp_path, way):
    _, state = stock
    folder = tmp_path / "ck"
    set_crc32_options(way == "an item a file")
    try:
        # The option is of one thread alone: the other still computes them.
        threads = 1 if way == "no checksums" else 2
        dcp.save(state, storage_writer=dcp.FileSystemWriter(folder, single_file_per_rank=False, thread_count=threads), no_dist=True)
    finally:
        set_crc32_options(True)
    result = verify(folder)
    assert result.returncode == 0 and ", 7 values, 18 items in 18 files" in result.stdout
    said = {"an item a file": "verified   every element", "no checksums": "contents not checked: no checksums are stored",
            "some checksums": r"complete .* contents not checked of \d items?: no checksums are stored"}
    assert re.search(said[way], result.stdout)
    again = call(BUILD / "ckptbench", "convert", folder, tmp_path / "again", "format=dcp")
    assert again.returncode == 0, again.stderr
    into = {"model": {name: torch.zeros_like(tensor) for name, tensor in state["model"].items()}}
    dcp.load(into, checkpoint_id=tmp_path / "again", no_dist=True)
    for name, tensor in state["model"].items():
        assert torch.equal(*(each.contiguous().reshape(-1).view(torch.uint8) for each in (into["model"][name], tensor))), name


# Where in an item's zip a byte is damaged.
STRUCTURES = {
    "signature": lambda item: 0,
    "method": lambda item: 8,
    "name": lambda item: item.index(b"data.pkl"),
    "pickle": lambda item: 30 + sum(struct.unpack_from("<HH", item, 26)) + 4,
    "directory": lambda item: item.index(b"PK\x01\x02"),
    "end": lambda item: len(item) - 22,
}


@pytest.mark.parametrize("where", STRUCTURES)
def test_damage_around_a_tensor_or_in_a_value_names_file_item_and_what_to_do(stock, verify, tmp_path, where):
    folder, _ = stock
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    for fqn in ("model.matrix", "train.name"):
        (place,) = [place for index, place in metadata.storage_data.items() if index.fqn == fqn]
        data = bytearray((folder / place.relative_path).read_bytes())
        data[place.offset + STRUCTURES[where](bytes(data[place.offset : place.offset + place.length]))] ^= 0x10
        copy = tmp_path / fqn
        copy.mkdir()
        (copy / ".metadata").write_bytes((folder / ".metadata").read_bytes())
        (copy / place.relative_path).write_bytes(data)
        answer = verify(copy)
        (line,) = [line for line in answer.stdout.splitlines() if line.startswith("corrupt")]
        assert f"{place.relative_path}: {fqn} at byte {place.offset}: " in line and "is damaged" in line
        assert "wrong      1 problem: do not go on from it; restore the files named from a copy" in answer.stdout
        said = call(BUILD / "ckptbench", "convert", copy, tmp_path / f"{fqn}.safetensors", "format=safetensors").stderr
        assert f"{fqn} in {place.relative_path} at byte {place.offset} is damaged (restore the file from a copy" in said


class Evil:
    def __reduce__(self):
        return (print, ("run",))


def test_a_pickle_that_calls_something_is_refused_by_name(tmp_path, verify):
    (tmp_path / ".metadata").write_bytes(pickle.dumps(Evil(), protocol=4))
    result = verify(tmp_path)
    assert result.returncode == 3
    assert "builtins.print" in result.stdout and "run\n" not in result.stdout
