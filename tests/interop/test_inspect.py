"""`ckptbench inspect` and model=PATH on checkpoints of any writer; metadata that lies."""
import json
import os
import pickle
import shutil
import struct
import sys

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint.filesystem import _StorageInfo
from torch.distributed.checkpoint.metadata import ChunkStorageMetadata, Metadata, MetadataIndex, TensorProperties, TensorStorageMetadata

from harness import BUILD
from conftest import call
from harness import ROOT

DATA = ROOT / "tests/data"


def inspect(path, *flags):
    result = call(BUILD / "ckptbench", "inspect", "--json", path, *flags)
    assert result.returncode == 0, result.stderr
    return json.loads(result.stdout)


def test_a_run_of_ours_says_who_wrote_what(place):
    folder = place.save("ranks=2 tp=2", "inspected")
    answer = inspect(place.store / "inspected")
    assert answer["path"] == str(folder) and answer["format"] == "dcp" and answer["marked"]
    assert answer["tensors"] == 112 and answer["values"] == 6 and answer["duplicates"] == 0
    assert [rank["rank"] for rank in answer["ranks"]] == [0, 1] and 1 <= answer["imbalance"] < 1.1
    assert answer["layout"].startswith("tensor parallel over 2")
    assert answer["file_bytes"] == sum(path.stat().st_size for path in folder.glob("__*"))
    assert answer["file_bytes"] == answer["payload_bytes"] + answer["frame_bytes"] + answer["outside_bytes"]
    text = call(BUILD / "ckptbench", "inspect", folder).stdout
    assert "tensor parallel over 2" in text and "__1_0.distcp" in text


def test_what_pytorch_wrote_is_listed():
    answer = inspect(DATA / "dcp-2.12.0/nested", "--tensors")
    named = {tensor["name"]: tensor for tensor in answer["all_tensors"]}
    assert named["model.transposed"]["shape"] == [3, 2] and named["model.types.bool"]["dtype"] == "bool"
    assert named["model.scalar"]["shape"] == [] and named["train.step"]["dtype"] is None
    assert answer["types"]["u16"] == {"tensors": 1, "bytes": 24}


def test_long_metadata_of_pytorch_are_read_in_pieces(tmp_path):
    """As of 2,000 ranks with FSDP. One tensor has texts and sizes that are one object in both dicts, which the pickle's
    memo fetches; another one is referred to again at the end."""
    ranks, tensors, rows = 2000, 60, 4
    properties = TensorProperties(dtype=torch.bfloat16)
    state, places, nested = {}, {}, {}
    offsets = [[torch.Size([rank * rows, 0]) for rank in range(ranks)] for _ in range(tensors)]
    for number in range(tensors):
        chunks = [ChunkStorageMetadata(offset, torch.Size([rows, 8])) for offset in offsets[number]]
        name = f"layers.{tensors - number}.weight"
        state[name] = TensorStorageMetadata(properties, torch.Size([ranks * rows, 8]), chunks)
        nested[name] = ("layers", tensors - number, "weight")
    names = list(state)
    for rank in range(ranks):
        file = f"__{rank}_0.distcp"
        (tmp_path / file).write_bytes(b"x" * 1000 * tensors)
        for number in range(tensors):
            shared = number == 7  # else what another process has sent
            offset = offsets[number][rank] if shared else torch.Size(list(offsets[number][rank]))
            name = names[number] if shared else "".join(names[number])
            places[MetadataIndex(name, offset, rank)] = _StorageInfo(file, number * 1000, 1000 - number)
    metadata = Metadata(state, nested, places)
    metadata.again = state[names[5]]
    with open(tmp_path / ".metadata", "wb") as file:
        pickle.dump(metadata, file, protocol=4)
    assert (tmp_path / ".metadata").stat().st_size > 16 << 20
    answer = inspect(tmp_path, "--tensors")
    assert (answer["tensors"], answer["items"], answer["files"], answer["duplicates"]) == (tensors, ranks * tensors, ranks, 0)
    assert sorted(tensor["name"] for tensor in answer["all_tensors"]) == sorted(names)
    assert {tuple(tensor["shape"]) for tensor in answer["all_tensors"]} == {(ranks * rows, 8)}
    assert answer["payload_bytes"] == ranks * tensors * rows * 8 * 2
    assert answer["payload_bytes"] + answer["frame_bytes"] == ranks * sum(1000 - number for number in range(tensors))


def test_bytes_that_no_item_covers_and_twice_stored_parts_are_counted(tmp_path):
    for number in (1, 2):
        save_file({"w": torch.ones(4)}, tmp_path / f"part-{number}.safetensors")
    answer = inspect(tmp_path)
    assert answer["duplicates"] == 1 and answer["outside_bytes"] > 16 and not answer["marked"]


def test_parts_with_the_same_bytes_are_found_where_asked_for(tmp_path):
    """Tied weights under two names, zeros of two states, and one that differs in its last byte alone."""
    tied, other = torch.randn(64, 48), torch.randn(64, 48)
    almost = other.clone()
    almost.view(torch.uint8)[-1, -1] ^= 1
    state = {"embed": tied, "head": tied.clone(), "a": other, "b": almost, "zero.1": torch.zeros(32, 64), "zero.2": torch.zeros(32, 64),
             "zero.3": torch.zeros(64, 32), "small.1": torch.ones(4), "small.2": torch.ones(4), "transposed": other.t()}
    dcp.save(state, checkpoint_id=tmp_path / "it", no_dist=True)
    save_file({name: tensor.contiguous() for name, tensor in state.items()}, tmp_path / "it.safetensors")
    for path in (tmp_path / "it", tmp_path / "it.safetensors"):
        assert "same_contents" not in inspect(path)
        found = inspect(path, "--contents")["same_contents"]
        groups = sorted(sorted(part["tensor"] for part in group) for group in found["groups"])
        assert groups == [["embed", "head"], ["zero.1", "zero.2"]]
        assert found["parts"] == 4 and found["extra_bytes"] == 64 * 48 * 4 + 32 * 64 * 4
    text = call(BUILD / "ckptbench", "inspect", "--contents", tmp_path / "it").stdout
    assert "4 parts with the bytes of another" in text and ("embed = head" in text or "head = embed" in text)


RANKS_ALONE = """
import sys, torch, torch.distributed as dist, torch.distributed.checkpoint as dcp
dist.init_process_group("gloo")
rank = dist.get_rank()
state = {"shared": torch.arange(4096.0), f"own.{rank}": torch.full((8, 8), float(rank)), f"step.{rank}": rank}
dcp.save(state, storage_writer=dcp.FileSystemWriter(sys.argv[1]), use_collectives=False)
dist.destroy_process_group()
"""


def test_ranks_that_wrote_without_talking_are_read_together(tmp_path):
    """PyTorch's use_collectives=False: each rank has metadata of its own, and what all hold is stored by each."""
    (tmp_path / "alone.py").write_text(RANKS_ALONE)
    folder = tmp_path / "it"
    torchrun = os.path.join(os.path.dirname(sys.executable), "torchrun")
    result = call(torchrun, "--standalone", "--nproc-per-node", "2", tmp_path / "alone.py", folder)
    assert result.returncode == 0, result.stderr
    assert not (folder / ".metadata").exists() and (folder / "__1.metadata").exists()
    answer = inspect(folder, "--tensors")
    assert answer["format"] == "dcp" and not answer["marked"] and answer["duplicates"] == 1
    assert {tensor["name"] for tensor in answer["all_tensors"]} == {"shared", "own.0", "own.1", "step.0", "step.1"}
    assert [rank["rank"] for rank in answer["ranks"]] == [0, 1]
    assert call(BUILD / "ckptbench", "verify", folder).returncode == 0
    converted = tmp_path / "converted"
    assert call(BUILD / "ckptbench", "convert", folder, converted, "format=safetensors").returncode == 0
    assert torch.equal(load_file(converted / "model-00001-of-00001.safetensors")["own.1"], torch.ones(8, 8))
    (folder / "__1_0.distcp").unlink()
    damaged = call(BUILD / "ckptbench", "verify", folder)
    assert damaged.returncode == 3 and "__1_0.distcp" in damaged.stdout


@pytest.mark.parametrize("kind", ["dcp", "parts", "file", "index", "folder"])
def test_a_checkpoint_is_a_model(kind, tmp_path):
    state = {"model.embed_tokens.weight": torch.zeros(16, 8), "model.layers.0.mlp.up_proj.weight": torch.zeros(8, 8, dtype=torch.bfloat16),
             "model.layers.1.mlp.down_proj.weight": torch.zeros(8, 8, dtype=torch.bfloat16), "lm_head.weight": torch.zeros(16, 8)}
    path = tmp_path / "model"
    if kind == "dcp":
        dcp.save({"model": {name: tensor for name, tensor in state.items()}, "step": 3}, checkpoint_id=path, no_dist=True)
    elif kind == "parts":  # DCP over safetensors
        dcp.save(state, storage_writer=dcp.HuggingFaceStorageWriter(str(path), save_distributed=True), no_dist=True)
    else:
        path.mkdir()
        save_file(state, path / "model-00001-of-00001.safetensors")
        (path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": {name: "model-00001-of-00001.safetensors" for name in state}}))
        path = {"file": path / "model-00001-of-00001.safetensors", "index": path / "model.safetensors.index.json", "folder": path}[kind]
    store = tmp_path / "store"
    result = call(BUILD / "ckptbench", "run", "--json", f"model={path}", "ranks=2", "tp=2", "ops=save", f"store={store}", "iterations=1",
                  "warmup=0", "baseline=false", "suffix=it", CKPTBENCH_HOME=str(tmp_path / "home"))
    assert result.returncode == 0, result.stderr
    (marker,) = (store / "it").rglob(".metadata")
    stored = pickle.loads(marker.read_bytes()).state_dict_metadata
    assert {fqn: tuple(entry.size) for fqn, entry in stored.items()} == {f"model.{fqn}": tuple(tensor.shape) for fqn, tensor in state.items()}
    assert [len(entry.chunks) for _, entry in sorted(stored.items())] == [2, 2, 2, 2]


def test_an_empty_checkpoint_is_no_verified_one(tmp_path, verify):
    dcp.save({}, checkpoint_id=tmp_path / "dcp", no_dist=True)
    (tmp_path / "plain").mkdir()
    save_file({}, tmp_path / "plain/model.safetensors")
    for path in (tmp_path / "dcp", tmp_path / "plain", tmp_path / "plain/model.safetensors"):
        result = verify(path)
        assert result.returncode == 3 and "there is nothing in it: no tensor and no value" in result.stdout
        assert "verified" not in result.stdout and "nothing can be loaded from it" in result.stdout
        (problem,) = json.loads(verify(path, "--json").stdout)["problems"]
        assert problem["kind"] == "empty"
        assert inspect(path)["layout"] == "there are no tensors"


def test_verify_and_inspect_count_with_one_voice(tmp_path, verify):
    dcp.save({"a": torch.ones(4, 4), "b": torch.ones(2), "step": 3}, checkpoint_id=tmp_path, no_dist=True)
    first = [call(BUILD / "ckptbench", verb, tmp_path).stdout.splitlines()[0] for verb in ("verify", "inspect")]
    assert first == [f"{tmp_path}: dcp, 2 tensors (72 B), 1 value, 3 items in 1 file"] * 2
    seen, verified = inspect(tmp_path), json.loads(verify(tmp_path, "--json").stdout)
    for name in ("tensors", "items", "files", "tensor_bytes"):
        assert seen[name] == verified[name]
    assert seen["values"] == verified["value_count"] == 1


# --- metadata that lies ---


def big_tuples():
    """A tuple of two of the same, 40 deep: 2^40 elements for who unfolds it."""
    return b"\x80\x02" + b")" + b"\x86".join([b"q\x00h\x00"] * 41) + b"\x86."


LIES = {
    "a pickle that names os.system": (b"\x80\x04\x8c\x02os\x8c\x06system\x93\x8c\x04true\x85R.", "os.system"),
    "posix.system by the old opcode": (b"\x80\x02cposix\nsystem\nX\x04\x00\x00\x00true\x85R.", "posix.system"),
    "2^40 elements": (big_tuples(), ""),
    "10^6 nested tuples": (b"\x80\x04" + b")" + b"\x85" * 1000000 + b".", "not the metadata"),
    "10^6 nested lists": (b"\x80\x04" + b"](" * 1000000 + b"e" * 1000000 + b".", "not the metadata"),
    "a text longer than the file": (b"\x80\x04\x8d" + struct.pack("<Q", 1 << 60) + b"x.", "ends in the middle"),
    "a frame longer than the file": (b"\x80\x04\x95" + struct.pack("<Q", 1 << 60) + b"N.", "frame"),
    "a memo of 2^32": (b"\x80\x02)r\xff\xff\xff\xff.", "memo"),
}


@pytest.mark.parametrize("what", LIES)
def test_metadata_that_lies_is_refused_in_bounded_memory(what, tmp_path, verify):
    data, said = LIES[what]
    (tmp_path / ".metadata").write_bytes(data)
    import resource
    import subprocess

    limit = 600 << 20
    result = subprocess.run([str(BUILD / "ckptbench"), "verify", str(tmp_path)], capture_output=True, text=True, timeout=120,
                            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
    assert result.returncode == 3 and said in result.stdout, result.stdout + result.stderr


@pytest.fixture
def damaged(tmp_path):
    """A checkpoint of PyTorch whose metadata a function changes."""
    def make(change):
        folder = tmp_path / "ck"
        dcp.save({"a": torch.arange(8.0), "b": torch.arange(6.0).reshape(2, 3)}, checkpoint_id=folder, no_dist=True)
        metadata = pickle.loads((folder / ".metadata").read_bytes())
        change(metadata)
        (folder / ".metadata").write_bytes(pickle.dumps(metadata, protocol=4))
        return folder
    return make


def place_of(metadata, fqn):
    return next(place for index, place in metadata.storage_data.items() if index.fqn == fqn)


def leave(metadata):
    place_of(metadata, "a").relative_path = "../../etc/passwd"


def overlap(metadata):
    place_of(metadata, "a").offset = place_of(metadata, "b").offset


def lengthen(metadata):
    place_of(metadata, "a").length = 1 << 50


def outside(metadata):
    metadata.state_dict_metadata["a"].chunks[0].offsets = torch.Size([4])


def missing(metadata):
    metadata.state_dict_metadata["a"].size = torch.Size([16])


def other_type(metadata):
    metadata.state_dict_metadata["a"].properties.dtype = torch.int64


@pytest.mark.parametrize("change, said", [(leave, "inside the checkpoint"), (overlap, "share bytes of the file"), (lengthen, "lies in it from byte"),
                                         (outside, "outside of the tensor's shape"), (missing, "8 of 16 elements"), (other_type, "the metadata says i64")])
def test_metadata_that_does_not_fit_is_named(damaged, verify, change, said):
    result = verify(damaged(change))
    assert result.returncode == 3 and said in result.stdout, result.stdout


def test_zip_records_that_overlap_are_refused(tmp_path, verify):
    folder = tmp_path / "ck"
    dcp.save({"a": torch.arange(64.0)}, checkpoint_id=folder, no_dist=True)
    file = folder / "__0_0.distcp"
    data = bytearray(file.read_bytes())
    at = data.index(b"archive/data/0") - 30  # the local header of the payload: an extra field as long as the rest
    struct.pack_into("<H", data, at + 28, 0xFFFF)
    file.write_bytes(data)
    result = verify(folder)
    assert result.returncode == 3 and "corrupt" in result.stdout
