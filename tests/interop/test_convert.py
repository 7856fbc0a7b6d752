"""`ckptbench convert`: PyTorch's checkpoints of every version into every format and back, values compared by stock readers."""
import importlib.util
import json
import os
import pickle
import resource
import signal
import subprocess
import time

import pytest
import torch
import torch.distributed.checkpoint as dcp
from safetensors.torch import load_file
from torch.distributed.checkpoint import HuggingFaceStorageReader
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save

from harness import BUILD
from conftest import call
from harness import ROOT

DATA = ROOT / "tests/data"
spec = importlib.util.spec_from_file_location("write_dcp", DATA / "write_dcp.py")
write_dcp = importlib.util.module_from_spec(spec)
spec.loader.exec_module(write_dcp)
VERSIONS = sorted((path.name[4:] for path in DATA.glob("dcp-2.*")), key=lambda text: [int(part) for part in text.split(".")])


def convert(*words, code=0, **options):
    result = call(BUILD / "ckptbench", "convert", "--json", *words, **options)
    assert result.returncode == code, f"{words}: {result.returncode}\n{result.stdout}\n{result.stderr}"
    return json.loads(result.stdout) if code == 0 else result.stderr


def flat(state, prefix=""):
    """fqn -> leaf, as DCP flattens nested dicts and lists."""
    if isinstance(state, dict) or (isinstance(state, list) and any(isinstance(part, (dict, list, torch.Tensor)) for part in state)):
        items = state.items() if isinstance(state, dict) else enumerate(state)
        return {name: leaf for key, part in items for name, leaf in flat(part, f"{prefix}{key}.").items()}
    return {prefix[:-1]: state}


def equal(a, b):
    if torch.is_tensor(a):
        return torch.is_tensor(b) and a.dtype == b.dtype and a.shape == b.shape and torch.equal(
            a.contiguous().reshape(-1).view(torch.uint8), b.contiguous().reshape(-1).view(torch.uint8))
    return a == b


def stock_tensors(folder):
    """The tensors of a folder of safetensors, or of DCP over them, by stock readers."""
    metadata = HuggingFaceStorageReader(folder).read_metadata().state_dict_metadata
    state = {fqn: torch.zeros(stored.size, dtype=stored.properties.dtype) for fqn, stored in metadata.items()}
    dcp.load(state, storage_reader=HuggingFaceStorageReader(folder), no_dist=True)
    return state


@pytest.mark.parametrize("version", VERSIONS)
def test_what_older_versions_wrote_has_its_values(version, tmp_path):
    """Through our reader into safetensors, and from there stock code says what the values are."""
    answer = convert(DATA / f"dcp-{version}/nested", tmp_path / "out", "format=safetensors")
    expected = flat(write_dcp.nested())
    found = stock_tensors(tmp_path / "out")
    tensors = {fqn: leaf for fqn, leaf in expected.items() if torch.is_tensor(leaf)}
    assert not found.keys() - tensors.keys() and len(found) >= len(tensors) - 5  # types that the version lacked
    assert all(fqn.startswith("model.types.") for fqn in tensors.keys() - found.keys())
    for fqn, tensor in found.items():
        assert equal(tensor, tensors[fqn]), fqn
    assert answer["left_out"] == [] and answer["checksums"] == len(found) - 1  # the empty one has none
    convert(DATA / f"dcp-{version}/sharded", tmp_path / "joined", "format=safetensors")
    whole = torch.arange(35.0).reshape(7, 5)
    found = load_file(next((tmp_path / "joined").glob("*.safetensors")))
    assert torch.equal(found["rows"], whole) and torch.equal(found["columns"], whole.to(torch.bfloat16))
    assert torch.equal(found["replicated"], whole.to(torch.int64))


@pytest.mark.parametrize("layout", ["ranks=1", "ranks=2 tp=2", "ranks=3 zero=1", "ranks=3 sharding=full io.files=2"])
def test_nested_state_survives_as_dcp(layout, tmp_path):
    """Strides, empty tensors, lists, tuples, None: torch.save of both must be the same."""
    state = write_dcp.nested()
    dcp.save(state, checkpoint_id=tmp_path / "torch", no_dist=True)
    convert(tmp_path / "torch", tmp_path / "ours", "format=dcp", *layout.split())
    for name in ("torch", "ours"):
        dcp_to_torch_save(tmp_path / name, tmp_path / f"{name}.pt")
    ours, theirs = (flat(torch.load(tmp_path / f"{name}.pt", weights_only=False)) for name in ("ours", "torch"))
    assert ours.keys() == theirs.keys() and all(equal(ours[fqn], theirs[fqn]) for fqn in theirs)
    planner = [pickle.loads((tmp_path / name / ".metadata").read_bytes()).planner_data for name in ("ours", "torch")]
    assert planner[0] == planner[1]


def test_all_formats_in_turn_end_where_they_began(tmp_path):
    state = {key: part for key, part in write_dcp.nested().items()}
    dcp.save(state, checkpoint_id=tmp_path / "0", no_dist=True)
    ways = ["format=dcp+safetensors ranks=2 tp=2 io.fanout=2", "format=raw ranks=3 zero=3 io.fanout=2",
            "format=safetensors dp=2 io.files=3 io.fanout=4", "format=dcp ranks=2 io.files=item",
            "format=dcp+safetensors ranks=3 sharding=full", "format=dcp ranks=2 io.files=shared",
            "format=dcp ranks=3 sharding=full io.fanout=2"]
    for number, words in enumerate(ways):
        convert(tmp_path / str(number), tmp_path / str(number + 1), *words.split())
        result = call(BUILD / "ckptbench", "verify", "--json", tmp_path / str(number + 1))
        assert result.returncode == 0, result.stdout
    dcp_to_torch_save(tmp_path / str(len(ways)), tmp_path / "end.pt")
    end = flat(torch.load(tmp_path / "end.pt", weights_only=False))  # of nested keys only names are left
    expected = flat(state)
    assert end.keys() == expected.keys()
    assert all(equal(end[fqn], leaf) for fqn, leaf in expected.items())


def test_parts_are_read_by_torch(tmp_path):
    dcp.save(write_dcp.nested(), checkpoint_id=tmp_path / "torch", no_dist=True)
    convert(tmp_path / "torch", tmp_path / "parts", "format=dcp+safetensors", "ranks=3", "sharding=full")
    expected = flat(write_dcp.nested())
    found = stock_tensors(tmp_path / "parts")
    assert found.keys() == {fqn for fqn, leaf in expected.items() if torch.is_tensor(leaf)}
    assert all(equal(tensor, expected[fqn]) for fqn, tensor in found.items())


class Odd:
    """A value that only Python can make."""


def test_what_a_format_cannot_hold_is_named(tmp_path):
    state = {"w": torch.arange(6.0), "odd": Odd(), "dict": {"a": 1}, "wide": torch.ones(3, dtype=torch.complex128)}
    dcp.save({key: state[key] for key in ("w", "odd", "dict")}, checkpoint_id=tmp_path / "torch", no_dist=True)
    answer = convert(tmp_path / "torch", tmp_path / "raw", "format=raw")
    assert answer["left_out"] == ["odd"]
    assert convert(tmp_path / "torch", tmp_path / "dcp", "ranks=2")["left_out"] == []
    dcp_to_torch_save(tmp_path / "dcp", tmp_path / "state.pt")
    assert type(torch.load(tmp_path / "state.pt", weights_only=False)["odd"]).__name__ == "Odd"
    dcp.save({"wide": state["wide"]}, checkpoint_id=tmp_path / "wide", no_dist=True)
    assert "c128" in convert(tmp_path / "wide", tmp_path / "none", "format=safetensors", code=2)
    assert not (tmp_path / "none").exists()


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """150 MiB in four tensors, one of them transposed."""
    folder = tmp_path_factory.mktemp("large") / "ck"
    generator = torch.Generator().manual_seed(1)
    state = {name: torch.randint(0, 2**31, (2500, 4000), generator=generator, dtype=torch.int32) for name in "abc"}
    state["d"] = torch.randint(0, 2**31, (2000, 3000), generator=generator, dtype=torch.int32).t()
    dcp.save(state, checkpoint_id=folder, no_dist=True)
    return folder, state


def test_memory_is_bounded(large, tmp_path):
    folder, state = large
    command = [str(BUILD / "ckptbench"), "convert", str(folder), str(tmp_path / "out"), "format=dcp+safetensors", "ranks=2", "tp=2",
               "--memory", "16MiB"]
    limit = 132 << 20  # the program, its libraries and threads' stacks; the state alone is 137 MiB
    arenas = dict(os.environ, MALLOC_ARENA_MAX="1")  # more of them reserve addresses that nothing uses, when threads meet
    result = subprocess.run(command, capture_output=True, text=True, timeout=120, env=arenas,
                            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))
    assert result.returncode == 0, result.stderr
    found = stock_tensors(tmp_path / "out")
    assert all(equal(found[name], tensor) for name, tensor in state.items())


def test_a_killed_conversion_is_none_and_goes_on(large, tmp_path, verify):
    folder, state = large
    out = tmp_path / "out"
    words = [str(BUILD / "ckptbench"), "convert", str(folder), str(out), "format=safetensors", "io.files=4", "--json"]
    kept = complete = 0
    for delay in (0.02, 0.1, 0.2, 0.3, 0.45):
        process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        time.sleep(delay)
        process.send_signal(signal.SIGKILL)
        process.communicate()
        marked = (out / "model.safetensors.index.json").exists()
        if out.exists() and not marked and any(out.iterdir()):
            assert verify(out).returncode == 3  # its files are not whole, or not all there
        complete += marked
        if marked and not (out / ".ckptbench-convert").exists():
            break  # it was quicker than the kill: nothing is left to go on with
    else:
        answer = convert(folder, out, "format=safetensors", "io.files=4")
        kept = answer["files_kept"]
        assert kept <= 4 and (complete == 0 or answer["was_complete"])
    assert not (out / ".ckptbench-convert").exists()
    found = {name: tensor for path in out.glob("*.safetensors") for name, tensor in load_file(path).items()}
    assert found.keys() == state.keys() and all(equal(found[name], tensor) for name, tensor in state.items())


def test_finished_files_are_kept_and_changed_ones_are_not(large, tmp_path):
    folder, state = large
    out = tmp_path / "out"
    convert(folder, out, "format=safetensors", "io.files=2")
    index, claim = out / "model.safetensors.index.json", out / ".ckptbench-convert"
    marker = index.read_bytes()
    # As it was before the commit, with one file damaged afterwards: the claim says what was done.
    broken = tmp_path / "again"
    process = subprocess.Popen([str(BUILD / "ckptbench"), "convert", str(folder), str(broken), "format=safetensors", "io.files=2"])
    deadline = time.monotonic() + 200
    while time.monotonic() < deadline and not (broken / ".ckptbench-convert").exists():
        time.sleep(0.001)
    process.kill()
    process.wait()
    if not (broken / ".ckptbench-convert").exists():  # it was faster than we are
        return
    document = json.loads((broken / ".ckptbench-convert").read_text())
    index.unlink()
    names = sorted(path.name for path in out.glob("*.safetensors"))
    document["done"] = {name: crc32c_of(out / name) for name in names}
    document["save"] = json.loads(marker)["metadata"]["ckptbench.save"]
    claim.write_text(json.dumps(document))
    with open(out / names[0], "r+b") as file:
        file.seek(5000)
        file.write(b"damage")
    answer = convert(folder, out, "format=safetensors", "io.files=2")
    assert answer["files_kept"] == 1 and index.read_bytes() == marker and not claim.exists()
    found = {name: tensor for path in out.glob("*.safetensors") for name, tensor in load_file(path).items()}
    assert all(equal(found[name], tensor) for name, tensor in state.items())


def crc32c_of(path):
    table = []
    for byte in range(256):
        for _ in range(8):
            byte = byte >> 1 ^ (0x82F63B78 if byte & 1 else 0)
        table.append(byte)
    import numpy as np

    data = np.frombuffer(path.read_bytes(), np.uint8)
    # Rows of equal length side by side, then their ends one after the other: a loop over bytes alone would take minutes.
    rows = 4096
    tail = len(data) % rows
    table = np.array(table, np.uint32)
    crcs = np.zeros(rows, np.uint32)
    for column in data[: len(data) - tail].reshape(rows, -1).T:
        crcs = crcs >> np.uint32(8) ^ table[(crcs ^ column) & 0xFF]
    return combine_all(crcs, len(data) // rows, data[len(data) - tail :], table)


def combine_all(crcs, row_bytes, rest, table):
    """CRC-32C of rows that were each begun with 0, in order, and of what is left."""
    def zeros(count):  # the matrix that appends `count` zero bytes, as 32 columns
        matrix = [int(table[1 << bit]) if bit < 8 else 1 << bit - 8 for bit in range(32)]  # one zero byte
        result = [1 << bit for bit in range(32)]
        while count:
            if count & 1:
                result = [times(matrix, column) for column in result]
            matrix = [times(matrix, column) for column in matrix]
            count >>= 1
        return result

    def times(matrix, vector):
        out = 0
        for bit in range(32):
            if vector >> bit & 1:
                out ^= matrix[bit]
        return out

    shift = zeros(row_bytes)
    begin = times(zeros(row_bytes * len(crcs)), 0xFFFFFFFF)
    total = 0
    for crc in crcs:
        total = times(shift, total) ^ int(crc)
    total ^= begin
    for byte in rest:
        total = total >> 8 ^ int(table[(total ^ int(byte)) & 0xFF])
    return total ^ 0xFFFFFFFF


def test_a_target_that_holds_something_else_is_refused(tmp_path):
    source = DATA / "dcp-2.6.0/sharded"
    target = tmp_path / "target"
    target.mkdir()
    (target / "thesis.txt").write_text("precious")
    assert "holds 1 file already" in convert(source, target, "format=safetensors", code=2)
    assert [path.name for path in target.iterdir()] == ["thesis.txt"]
    convert(source, tmp_path / "done", "format=safetensors")
    assert "already" in convert(source, tmp_path / "done", "format=raw", code=2)


def test_two_do_not_convert_to_one_place_at_once(tmp_path):
    source, target, gate = DATA / "dcp-2.6.0/sharded", tmp_path / "target", tmp_path / "go"
    command = [BUILD / "ckptbench", "convert", source, f"fault:until={gate}+ops=write:{target}", "format=safetensors"]
    target.mkdir()
    with subprocess.Popen(command, stdin=subprocess.DEVNULL) as first:
        try:
            deadline = time.monotonic() + 60
            while not (target / ".ckptbench-convert").exists() and time.monotonic() < deadline:
                time.sleep(0.01)
            said = convert(source, target, "format=safetensors", code=2)
        finally:
            gate.touch()
    assert f"{target}: process {first.pid} is converting to it" in said
    assert first.returncode == 0 and stock_tensors(target)


def test_a_damaged_source_makes_no_checkpoint(tmp_path):
    source = tmp_path / "source"
    dcp.save({"a": torch.arange(100000.0), "b": torch.arange(1000.0)}, checkpoint_id=source, no_dist=True)
    file = source / "__0_0.distcp"
    data = bytearray(file.read_bytes())
    at = data.index(torch.arange(100000.0).numpy().tobytes()[-64:])
    data[at] ^= 1
    file.write_bytes(data)
    for words in (["format=safetensors"], ["format=dcp", "ranks=3", "sharding=full"]):
        said = convert(source, tmp_path / words[0], *words, code=3)
        assert "CRC-32" in said and "a in __0_0.distcp" in said
        assert not any((tmp_path / words[0] / name).exists() for name in (".metadata", "model.safetensors.index.json"))


def test_wrong_words_are_named(tmp_path):
    source = DATA / "dcp-2.6.0/sharded"
    assert "no key iterations" in convert(source, tmp_path / "a", "iterations=3", code=2)
    assert "two places" in convert(source, code=2)
    assert "memory" in convert(source, tmp_path / "a", "--memory", "1KiB", code=2)


zstandard = pytest.importorskip("zstandard", reason="missing: zstandard (make test installs it)")


def test_compressed_items_are_read(tmp_path, verify, place):
    from torch.distributed.checkpoint import FileSystemWriter
    from torch.distributed.checkpoint._extension import ZStandard

    state = write_dcp.nested()
    state["model"]["large"] = torch.arange(300000)
    dcp.save(state, storage_writer=FileSystemWriter(tmp_path / "zstd", _extensions=[ZStandard()]), no_dist=True)
    assert (tmp_path / "zstd/__0_0.distcp").stat().st_size < 1 << 20
    answer = json.loads(verify(tmp_path / "zstd", "--json").stdout)
    assert answer["verified"], answer["problems"]
    convert(tmp_path / "zstd", tmp_path / "plain", "format=dcp", "ranks=2", "tp=2")
    dcp_to_torch_save(tmp_path / "plain", tmp_path / "plain.pt")
    found, expected = flat(torch.load(tmp_path / "plain.pt", weights_only=False)), flat(state)
    assert found.keys() == expected.keys() and all(equal(found[fqn], leaf) for fqn, leaf in expected.items())


def test_a_compressed_item_is_verified_in_bounded_memory(tmp_path):
    """A tensor of 64 MiB that zstd makes small: none of it is held. Where it is damaged or ends in nothing, it is named."""
    from torch.distributed.checkpoint import FileSystemWriter
    from torch.distributed.checkpoint._extension import ZStandard

    folder, state = tmp_path / "zstd", {"large": torch.arange(1 << 23)}
    dcp.save(state, storage_writer=FileSystemWriter(folder, _extensions=[ZStandard()]), no_dist=True)
    file = folder / "__0_0.distcp"
    whole = file.read_bytes()
    limit = 80 << 20  # the program, its libraries, a block, and zstd's window

    def verify_it():
        return subprocess.run([str(BUILD / "ckptbench"), "verify", "--json", str(folder)], capture_output=True, text=True, timeout=120,
                              env=dict(os.environ, MALLOC_ARENA_MAX="1"), preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_AS, (limit, limit)))

    result = verify_it()
    assert result.returncode == 0, result.stdout + result.stderr
    answer = json.loads(result.stdout)
    assert answer["verified"] and answer["checksums"] == 1 and answer["payload_bytes"] == 1 << 26, answer
    half = len(whole) // 2
    for damaged in (whole[:half] + b"\xff\xff\xff\xff" + whole[half + 4:], whole[:half] + bytes(len(whole) - half)):
        file.write_bytes(damaged)
        result = verify_it()
        assert result.returncode == 3 and "large at byte" in result.stdout, result.stdout
