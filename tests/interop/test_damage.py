"""Damage below the reader is caught: by `ckptbench run ops=load`, by `ckptbench verify`, with file, tensor and offset."""
import io
import json
import os
import pickle
import re
import shutil
import struct
import zipfile

import pytest

from harness import BUILD
from conftest import call

LAYOUTS = {
    "ranks=2 tp=2 checksum=crc32": "crc",
    "ranks=2 tp=2 checksum=none": "plain",
    "ranks=3 sharding=full io.files=shared io.direct=false": "shared",
    "ranks=3 zero=1 io.files=item": "item",
}
WITH_CRC = re.compile(r"(?P<tensor>\S+) in (?P<file>\S+) at offset (?P<offset>\d+), (?P<length>\d+) bytes: its bytes have")
WITH_VALUES = re.compile(
    r"tensor (?P<tensor>[^ ,]+), element \d+: not what was saved \(file (?P<file>[^ ,]+), offset (?P<offset>\d+)\)"
)


@pytest.fixture(scope="module", params=LAYOUTS)
def saved(request, place):
    """Layout, suffix, and what the metadata says of each stored tensor chunk."""
    suffix = LAYOUTS[request.param]
    folder = place.save(request.param, suffix)
    metadata = pickle.loads((folder / ".metadata").read_bytes())
    chunks = [(index.fqn, there) for index, there in metadata.storage_data.items() if index.offset is not None]
    return request.param, suffix, chunks


def named(place, document, file=None, tensor=None, at=None):
    """Tensor, file and offset that the message of a failed load names; they must be those given."""
    assert document["outcome"] == "benchmark_failed"
    found = WITH_CRC.search(document["message"]) or WITH_VALUES.search(document["message"])
    assert found, document["message"]
    assert (place.store / found["file"]).is_file()
    offset = int(found["offset"])
    if at is not None:
        assert (found["file"].split("/")[-1], found["tensor"]) == (file, tensor)
        length = int(found["length"]) if "length" in found.groupdict() else 4
        assert offset <= at < offset + length
    return found["tensor"], found["file"].split("/")[-1], offset


def payload_byte(folder, there, where):
    """The first, middle or last byte of an item's payload in its file, as its zip says."""
    with open(folder / there.relative_path, "rb") as file:
        file.seek(there.offset)
        item = file.read(there.length)
    with zipfile.ZipFile(io.BytesIO(item)) as archive:
        info = archive.getinfo("archive/data/0")
    name, extra = struct.unpack_from("<HH", item, info.header_offset + 26)
    begin = there.offset + info.header_offset + 30 + name + extra
    return begin + {"begin": 0, "middle": info.file_size // 2, "end": info.file_size - 1}[where]


# Later reads are of small items, whose middle may be the padding of a header, where a bit does no harm.
@pytest.mark.parametrize("read", [1, 2])
def test_a_bit_that_flips_in_a_read_is_caught(place, saved, read):
    layout, suffix, chunks = saved
    document = place.run(f"ops=load suffix={suffix} {layout}", code=3, store=f"fault:bit_flip={read}:{place.store}")
    tensor, file, offset = named(place, document)
    assert any(
        fqn == tensor and there.relative_path == file and there.offset <= offset < there.offset + there.length
        for fqn, there in chunks
    )


def copy_damaged(place, suffix, name, damages):
    """A copy of a checkpoint in which a byte is flipped at each (file, offset)."""
    folder = place.store / name
    shutil.copytree(place.checkpoint(suffix), folder)
    for file, at in damages:
        with open(folder / file, "r+b") as opened:
            opened.seek(at)
            byte = opened.read(1)[0]
            opened.seek(at)
            opened.write(bytes([byte ^ 4]))
    return folder


CHOICES = {
    "middle of the largest": lambda chunks: max(chunks, key=lambda chunk: chunk[1].length),
    "end of the smallest": lambda chunks: min(chunks, key=lambda chunk: chunk[1].length),
    "begin of the first": lambda chunks: min(chunks, key=lambda chunk: (chunk[1].relative_path, chunk[1].offset)),
}


@pytest.mark.parametrize("which", CHOICES)
def test_a_flipped_byte_in_a_file_is_caught(place, saved, verify, which):
    layout, suffix, chunks = saved
    fqn, there = CHOICES[which](chunks)
    at = payload_byte(place.checkpoint(suffix), there, which.split()[0])
    name = f"{suffix}-{which.split()[0]}"
    folder = copy_damaged(place, suffix, name, [(there.relative_path, at)])
    result = verify(folder, "--json")
    assert result.returncode == 3
    (problem,) = json.loads(result.stdout)["problems"]
    assert (problem["kind"], problem["file"], problem["tensor"]) == ("corrupt", there.relative_path, fqn)
    assert problem["offset"] <= at < problem["offset"] + 4
    text = verify(folder).stdout
    assert there.relative_path in text and fqn in text and str(problem["offset"]) in text
    document = place.run(f"ops=load suffix={name} {layout}", code=3)
    named(place, document, there.relative_path, fqn, at)


def test_every_damaged_item_is_named(place, saved, verify):
    layout, suffix, chunks = saved
    chunks = chunks[::4]  # what a rank can tell of its failures is bounded
    damages = {(there.relative_path, payload_byte(place.checkpoint(suffix), there, "middle")): fqn for fqn, there in chunks}
    folder = copy_damaged(place, suffix, f"{suffix}-all", damages)
    problems = json.loads(verify(folder, "--json").stdout)["problems"]
    assert len(problems) == len(damages) == len(chunks)
    for problem in problems:
        file, offset = problem["file"], problem["offset"]
        assert any(damages.get((file, offset + byte)) == problem["tensor"] for byte in range(4)), problem
    run = place.run(f"ops=load suffix={suffix}-all {layout}", code=3)["run"]
    answer = call(BUILD / "ckptbench", "sql", "--json", f"select text from failure where run = '{run}'",
                  CKPTBENCH_HOME=str(place.folder / "home"))
    assert answer.returncode == 0, answer.stderr
    if "checksum=none" not in layout:  # a load reads on; of wrong values verification names the first of each rank
        texts = "\n".join(row["text"] for row in json.loads(answer.stdout))
        assert {found["tensor"] for found in WITH_CRC.finditer(texts)} == set(damages.values())


def test_missing_short_and_incomplete_are_named(place, verify):
    folder = place.save("ranks=3 zero=1", "missing")
    (folder / "__0_0.distcp").unlink()
    last = folder / "__2_0.distcp"
    last.write_bytes(last.read_bytes()[:-1000])
    result = verify(folder, "--json")
    kinds = {(problem["kind"], problem["file"]) for problem in json.loads(result.stdout)["problems"]}
    assert result.returncode == 3
    assert kinds == {("missing", "__0_0.distcp"), ("short", "__2_0.distcp")}
    document = place.run("ops=load suffix=missing ranks=3 zero=1", code=3)
    assert "__0_0.distcp" in document["message"] or "__2_0.distcp" in document["message"]
    (folder / ".metadata").unlink()
    result = verify(folder, "--json")
    assert result.returncode == 3 and not json.loads(result.stdout)["complete"]


@pytest.mark.parametrize("name", [".metadata", "__1_0.distcp"])
def test_a_fifo_in_place_of_a_file_is_named_and_not_waited_for(place, verify, name):
    folder = place.save("ranks=2", f"fifo-{name.strip('.')}")
    (folder / name).unlink()
    os.mkfifo(folder / name)
    result = verify(folder)
    assert result.returncode == 3 and "is not a regular file" in result.stdout, result.stdout
    inspected = call(BUILD / "ckptbench", "inspect", folder)
    assert "is not a regular file" in inspected.stderr or (name != ".metadata" and "missing" in inspected.stdout), inspected
    loaded = place.run(f"ops=load ranks=2 suffix=fifo-{name.strip('.')}", code=3)
    assert "is not a regular file" in loaded["message"] or (name == ".metadata" and "no .metadata" in loaded["message"]), loaded["message"]


def test_a_flipped_byte_is_caught_in_raw(place, verify):
    folder = place.save("ranks=1 format=raw", "raw")
    (file,) = [path for path in folder.iterdir() if path.name != ".metadata"]
    at = file.stat().st_size // 2
    damaged = copy_damaged(place, "raw", "raw-damaged", [(file.name, at)])
    (problem,) = json.loads(verify(damaged, "--json").stdout)["problems"]
    assert problem["kind"] == "corrupt" and problem["file"] == file.name
    assert problem["offset"] <= at < problem["offset"] + 4
    document = place.run("ops=load suffix=raw-damaged ranks=1 format=raw", code=3)
    named(place, document, file.name, problem["tensor"], at)


def test_of_a_run_the_last_checkpoint_is_verified(place, verify):
    place.run("ops=save iterations=3 ranks=1 suffix=last folder=rotate")
    folders = sorted((place.store / "last").rglob(".metadata"), key=lambda marker: marker.stat().st_mtime_ns)
    result = verify(place.store / "last", "--json")
    assert result.returncode == 0, result.stdout
    answer = json.loads(result.stdout)
    assert answer["verified"] and answer["path"] == str(folders[-1].parent)
    for marker in folders:
        marker.unlink()
    assert "not complete" in verify(place.store / "last").stdout
