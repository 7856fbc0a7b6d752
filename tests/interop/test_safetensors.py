"""safetensors and DCP over safetensors, both ways: stock readers load ours, ours loads and verifies theirs."""
import json
import shutil
import struct

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors import safe_open
from safetensors.torch import load_file, save_file
from torch.distributed.checkpoint import HuggingFaceStorageReader, HuggingFaceStorageWriter

from harness import BUILD
from conftest import call
from payload import weights

INDEX = "model.safetensors.index.json"
OURS = ["format=safetensors ranks=1", "format=safetensors ranks=1 io.files=3", "format=safetensors ranks=2 dp=2 io.direct=false",
        "format=safetensors ranks=2 pp=2", "format=dcp+safetensors ranks=2 tp=2", "format=dcp+safetensors ranks=3 zero=3",
        "format=dcp+safetensors ranks=3 zero=1 io.direct=false", "format=dcp+safetensors ranks=2 sharding=full io.files=2"]


def name_of(words):
    return words.replace("format=", "").translate(str.maketrans(" =+", "_--"))


@pytest.fixture(scope="module", params=OURS, ids=name_of)
def ours(request, place):
    """A run that saved, loaded and verified what it wrote, and kept it."""
    suffix = name_of(request.param)
    place.run(f"suffix={suffix} keep=true verify=full {request.param}")
    (folder,) = (path for path in (place.store / suffix).iterdir() if path.is_dir())
    return request.param, folder


def stock_state(folder):
    """All tensors as torch's reader of safetensors gives them."""
    metadata = HuggingFaceStorageReader(folder).read_metadata().state_dict_metadata
    state = {fqn: torch.zeros(stored.size, dtype=stored.properties.dtype) for fqn, stored in metadata.items()}
    dcp.load(state, storage_reader=HuggingFaceStorageReader(folder), no_dist=True)
    return state


def test_torch_reads_ours(ours):
    state = stock_state(ours[1])
    assert len(state) == 112
    for fqn, tensor in state.items():
        assert torch.equal(tensor, weights(fqn, tensor.dtype, tensor.shape)), fqn


def test_safetensors_and_index_readers_read_ours(ours):
    words, folder = ours
    files = sorted(folder.glob("*.safetensors"))
    assert all(load_file(path) is not None for path in files)
    if "dcp+" in words:
        assert not (folder / INDEX).exists() and (folder / ".metadata").exists()
        return
    index = json.loads((folder / INDEX).read_text())
    assert {path.name for path in files} == set(index["weight_map"].values())
    found = {}
    for path in files:
        with safe_open(path, "pt") as opened:
            assert opened.metadata()["format"] == "pt"
            for fqn in opened.keys():
                assert index["weight_map"][fqn] == path.name
                found[fqn] = opened.get_tensor(fqn)
    assert found.keys() == index["weight_map"].keys()
    assert index["metadata"]["total_size"] == sum(tensor.nbytes for tensor in found.values())


def test_ours_is_verified_with_its_values(ours, verify):
    result = verify(ours[1], "--json")
    answer = json.loads(result.stdout)
    assert result.returncode == 0, result.stdout
    assert answer["values"] == "weights" and answer["format"] == ours[0].split()[0].split("=")[1]


def test_without_its_marker_ours_is_no_checkpoint_however_whole_its_files_are(ours, verify, tmp_path):
    folder = tmp_path / "copy"
    shutil.copytree(ours[1], folder)
    for name in (INDEX, ".metadata"):
        (folder / name).unlink(missing_ok=True)
    result = verify(folder)
    assert result.returncode == 3
    assert "never committed" in result.stdout


STATE = {
    "matrix": torch.arange(12, dtype=torch.bfloat16).reshape(3, 4),
    "transposed": torch.arange(6.0).reshape(2, 3).t().contiguous(),
    "scalar": torch.tensor(1.5),
    "empty": torch.empty(0, 3),
    "half": torch.ones(5, dtype=torch.float16),
    "double": torch.ones(5, dtype=torch.float64),
    "fp8": torch.ones(7).to(torch.float8_e4m3fn),
    "fp8_e5m2": torch.ones(7).to(torch.float8_e5m2),
    "u16": torch.arange(9).to(torch.uint16),
    "u32": torch.arange(9).to(torch.uint32),
    "u64": torch.arange(9).to(torch.uint64),
    "long": torch.arange(1000),
    "bool": torch.tensor([True, False]),
    "byte": torch.arange(3, dtype=torch.uint8),
}


def test_one_file_of_every_type_is_verified(tmp_path, verify):
    path = tmp_path / "one.safetensors"
    save_file(STATE, path, metadata={"format": "pt", "other": "text"})
    for place in (path, tmp_path):
        answer = json.loads(verify(place, "--json").stdout)
        assert answer["verified"] and answer["format"] == "safetensors" and answer["tensors"] == len(STATE)
        assert answer["payload_bytes"] == sum(tensor.nbytes for tensor in STATE.values())


def test_torch_writers_files_are_verified(tmp_path, verify):
    state = {fqn: tensor for fqn, tensor in STATE.items() if tensor.dtype not in (torch.uint32, torch.uint64, torch.uint16)}
    order = {fqn: 1 + number % 3 for number, fqn in enumerate(state)}
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(str(tmp_path / "index"), fqn_to_index_mapping=order), no_dist=True)
    dcp.save(state, storage_writer=HuggingFaceStorageWriter(str(tmp_path / "parts"), save_distributed=True), no_dist=True)
    for name, format in (("index", "safetensors"), ("parts", "dcp+safetensors")):
        result = verify(tmp_path / name, "--json")
        answer = json.loads(result.stdout)
        assert result.returncode == 0, result.stdout
        assert answer["format"] == format and answer["tensors"] == len(state)


def test_files_that_others_wrote_are_loaded_by_the_engine(place):
    """What torch's reader got of ours, written again by stock safetensors in two files with an index."""
    place.run("suffix=again keep=true ops=save format=safetensors ranks=1")
    (source,) = (place.store / "again").rglob("*.safetensors")
    with safe_open(source, "pt") as opened:
        metadata = {key: value for key, value in opened.metadata().items() if key != "ckptbench.marker"}
    state = load_file(source)
    names = sorted(state)
    target = place.store / "foreign"
    target.mkdir()
    for number in range(2):
        part = {fqn: state[fqn] for fqn in names[number::2]}
        save_file(part, target / f"model-{number + 1:05}-of-00002.safetensors", metadata=metadata if number == 0 else {"format": "pt"})
    weight_map = {fqn: f"model-{index % 2 + 1:05}-of-00002.safetensors" for index, fqn in enumerate(names)}
    (target / INDEX).write_text(json.dumps({"metadata": {}, "weight_map": weight_map}))
    for layout in ("ranks=1", "ranks=2 tp=2", "ranks=3 zero=1"):
        place.run(f"ops=load suffix=foreign verify=full {layout}")
    (target / INDEX).unlink()
    place.run("ops=load suffix=foreign verify=full ranks=2 pp=2")


# --- what is wrong with files ---


def header_of(tensors, data, metadata=None):
    document = dict(tensors)
    if metadata:
        document["__metadata__"] = metadata
    text = json.dumps(document).encode()
    return struct.pack("<Q", len(text)) + text + data


ENTRY = {"dtype": "F32", "shape": [2], "data_offsets": [0, 8]}
BAD = {
    "longer header than file": (struct.pack("<Q", 1 << 20) + b"{}", "the file has only"),
    "impossible header": (struct.pack("<Q", 1 << 60) + b"{}", "more than any safetensors file"),
    "cut length": (b"\x01\x02", "ends before"),
    "no JSON": (struct.pack("<Q", 4) + b"spam", "header"),
    "lying shape": (header_of({"a": dict(ENTRY, shape=[3])}, bytes(8)), "need 12 bytes"),
    "huge shape": (header_of({"a": dict(ENTRY, shape=[1 << 40, 1 << 40])}, bytes(8)), "impossibly large"),
    "overlap": (header_of({"a": ENTRY, "b": dict(ENTRY, data_offsets=[4, 12])}, bytes(12)), "but the tensor before"),
    "hole": (header_of({"a": ENTRY, "b": dict(ENTRY, data_offsets=[12, 20])}, bytes(20)), "hole"),
    "unknown type": (header_of({"a": dict(ENTRY, dtype="F3")}, bytes(8)), '"F3"'),
    "short data": (header_of({"a": ENTRY}, bytes(7)), "the file has"),
    "longer data": (header_of({"a": ENTRY}, bytes(9)), "last tensor ends"),
    "no sharding of a tensor": (header_of({"a": ENTRY}, bytes(8), {"DCP_SHARDING_INFO": "{}"}), "saved_offsets"),
}


@pytest.mark.parametrize("what", BAD)
def test_a_wrong_file_is_named(tmp_path, verify, what):
    data, said = BAD[what]
    path = tmp_path / "model.safetensors"
    path.write_bytes(data)
    result = verify(path)
    assert result.returncode == 3 and said in result.stdout, result.stdout


def test_missing_files_are_named(tmp_path, verify):
    save_file({"a": torch.ones(2)}, tmp_path / "model-00001-of-00003.safetensors")
    assert "their names count to 3" in verify(tmp_path).stdout
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "model-00001-of-00003.safetensors", "b": "../b.safetensors"}}))
    assert "inside the checkpoint" in verify(tmp_path).stdout
    (tmp_path / INDEX).write_text(json.dumps({"weight_map": {"a": "model-00001-of-00003.safetensors", "b": "model-00002-of-00003.safetensors"}}))
    assert "model-00002-of-00003.safetensors, which is missing" in verify(tmp_path).stdout


def test_a_missing_last_part_of_ours_is_named(place, verify, tmp_path):
    place.run("suffix=last keep=true ops=save format=dcp+safetensors ranks=2 sharding=full")
    (folder,) = (path for path in (place.store / "last").iterdir() if path.is_dir())
    gone = sorted(folder.glob("shard-00002*"))
    for path in gone:
        path.unlink()
    answer = json.loads(verify(folder, "--json").stdout)
    assert {problem["file"] for problem in answer["problems"]} == {path.name for path in gone}
    assert {problem["kind"] for problem in answer["problems"]} == {"missing"}


@pytest.mark.parametrize("words, said", [("format=safetensors ranks=2 tp=2", "holds only part of"),
                                         ("format=safetensors ranks=2 io.files=shared", "io.files=shared needs"),
                                         ("format=dcp+safetensors ranks=2 save.dedup=none", "cannot store a part twice")])
def test_what_safetensors_cannot_have_is_refused(tmp_path, words, said):
    result = call(BUILD / "ckptbench", "run", "model=gpt2-tiny", f"store={tmp_path / 'store'}", *words.split(),
                  CKPTBENCH_HOME=str(tmp_path / "home"))
    assert result.returncode == 2 and said in result.stderr, result.stderr
