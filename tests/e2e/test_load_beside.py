"""load.dataset: each rank reads files of its own at a given rate beside its loads, as the data loaders of a training that restarts do."""
import json
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import BUILD, PROGRAM, ckptbench, environment

TINY = ("model=gpt2-tiny", "ranks=2", "store=./store", "baseline=false", "iterations=1", "warmup=0", "verify=none")
RATE, BLOCK = 1 << 20, 16384  # load.dataset=1MiB/s, and its 64 reads a second
SLOW = "store=fault:delay=20ms+ops=read:./store"  # a load takes some reads one after another


@pytest.fixture
def place(tmp_path):
    (tmp_path / "store").mkdir()
    return tmp_path


def document(place, *words, code=0):
    return json.loads(ckptbench(place, *words, "--json", code=code).stdout)


def loaded(place, *words):
    """A run, and the metrics of its load by rank."""
    run = document(place, "run", *TINY, *words)
    samples = document(place, "export", run["run"])["samples"]
    return run, {sample["metric"]: sample["ranks"] for sample in samples if sample["op"] == "load"}


def names_in(store):
    return sorted(path.name for path in store.iterdir())


def test_ranks_read_a_dataset_beside_each_load_and_no_faster_than_it_is_due(place):
    """Seen from outside: each rank writes its file once and reads another's during both loads. What was read is in no figure of the load."""
    leaks = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"  # cannot be looked for under strace
    words = [*TINY, SLOW, "warmup=1", "io.engine=psync", "io.depth=2", "io.block=256KiB", "load.dataset=1MiB/s"]
    done = subprocess.run(["strace", "-ff", "-y", "-o", "trace", "-e", "trace=preadv,preadv2,pread64,pwritev,pwritev2,pwrite64", PROGRAM,
                           "run", *words, "--json"], cwd=place, env=environment(place, ASAN_OPTIONS=leaks), capture_output=True, text=True,
                          check=True, timeout=240)
    run = json.loads(done.stdout)["run"]
    calls = re.findall(r"(pread|pwrite)\w*\(\d+<[^>]*/dataset/rank-(\d)>.* = (\d+)", "".join(path.read_text() for path in place.glob("trace.*")))
    written = {rank: sum(int(bytes_) for call, file, bytes_ in calls if (call, file) == ("pwrite", rank)) for rank in "01"}
    assert written == {"0": 10 * RATE, "1": 10 * RATE}  # ten seconds of each rank
    read = [int(bytes_) for call, _, bytes_ in calls if call == "pread"]
    assert set(read) == {BLOCK} and {file for call, file, _ in calls if call == "pread"} == {"0", "1"}
    samples = document(place, "export", run)["samples"]
    load = {sample["metric"]: sample["ranks"] for sample in samples if (sample["op"], sample["iteration"]) == ("load", 1)}
    for count, rate in zip(load["dataset_bytes"], load["dataset_bytes_per_s"]):
        assert count >= BLOCK and count % BLOCK == 0
        assert count <= RATE * (count / rate) + BLOCK  # block n was asked for when n blocks were due
    assert sum(load["dataset_bytes"]) <= sum(read)
    _, alone = loaded(place, "io.engine=psync", "io.depth=2", "io.block=256KiB")
    assert [load[metric] for metric in ("bytes_moved", "bytes_needed", "requests")] == \
        [alone[metric] for metric in ("bytes_moved", "bytes_needed", "requests")]
    assert "dataset_bytes" not in alone
    assert re.search(r"(?m)^beside loads  .* read of a dataset, at .*/s of the 2 MiB/s asked for, all ranks$", ckptbench(place, "show", run).stdout)
    assert names_in(place / "store") == [".ckptbench-store"]


@pytest.mark.parametrize("words", [
    ("workload=raw", SLOW, "io.depth=1", "io.block=256KiB"),
    ("engine=torch-dcp",),
    ("engine=command", "command=case {op} in save) mkdir -p {path} && echo bytes | tee {path}/{rank} > {path}/.metadata;; *) sleep 1;; esac"),
], ids=["raw", "torch-dcp", "command"])
def test_every_engine_loads_beside_it(place, words, monkeypatch):
    monkeypatch.setenv("CKPTBENCH_PYTHON", sys.executable)  # which has PyTorch
    run, load = loaded(place, *words, "load.dataset=1MiB/s")
    assert all(count is not None and count % BLOCK == 0 for count in load["dataset_bytes"])
    if "torch" not in words[0]:  # whose load may be over before the first read is
        assert min(load["dataset_bytes"]) > 0
    assert "each rank reads 1 MiB/s beside its loads, from a file of 10 MiB" in ckptbench(place, "show", run["run"]).stdout
    assert names_in(place / "store") == [".ckptbench-store"]


def test_a_run_that_fails_removes_what_it_read(place):
    run = document(place, "run", *TINY, "store=fault:error_at=2+ops=read+rank=1:./store", "load.dataset=64KiB/s", code=3)
    assert run["outcome"] != "pass"
    assert list((place / "store").rglob("rank-*")) == []


def test_clean_removes_what_a_killed_load_left(place):
    document(place, "run", *TINY, "ops=save", "suffix=s")
    until = place / "until"
    with subprocess.Popen([PROGRAM, "run", *TINY, "ops=load", "suffix=s", f"store=fault:until={until}+ops=read:{place}/store",
                           "load.dataset=64KiB/s", "--json"], cwd=place, env=environment(place), stdout=subprocess.PIPE, text=True) as process:
        home, deadline = f"CKPTBENCH_HOME={place}/home".encode(), time.monotonic() + 200
        while [path.stat().st_size for path in (place / "store").glob("baseline-*/dataset/rank-?")] != [640 << 10] * 2:
            assert process.poll() is None and time.monotonic() < deadline
            time.sleep(0.02)
        assert "not ended" in ckptbench(place, "clean", "--yes").stdout
        for entry in Path("/proc").glob("[0-9]*"):
            try:
                if home in (entry / "environ").read_bytes().split(b"\0") and b"ckptbench-worker" in (entry / "cmdline").read_bytes().split(b"\0")[0]:
                    os.kill(int(entry.name), signal.SIGKILL)
            except OSError:
                continue
        run = json.loads(process.communicate(timeout=120)[0])["run"]
    assert names_in(place / "store") == [".ckptbench-store", f"baseline-{run}", "s"]
    (place / "store" / f"baseline-{run}" / "notes.txt").write_text("mine")
    line = next(line for line in document(place, "clean", "--yes") if line["run"] == run)
    assert (line["checkpoint"], line["files"], line["removed"]) == (f"baseline-{run}", 2, True)
    assert [str(path.relative_to(place / "store")) for path in (place / "store").rglob("baseline-*/*")] == [f"baseline-{run}/notes.txt"]
    assert list((place / "store/s").rglob(".metadata"))
    assert run not in [line["run"] for line in document(place, "clean")]


def test_it_is_refused_where_it_cannot_work(place):
    assert "load.dataset=1MiB/s is for loads, and there are none" in ckptbench(place, "run", *TINY, "ops=save", "load.dataset=1MiB/s", code=2).stderr
    assert "is for loads" in ckptbench(place, "run", "workload=train", "model=gpt2-tiny", "store=./store", "load.dataset=1MiB/s", code=2).stderr
    document(place, "run", *TINY, "ops=save", "suffix=s")
    (place / "store/.ckptbench-store").unlink()
    refused = document(place, "run", *TINY, "ops=load", "suffix=s", "load.dataset=1MiB/s", code=3)
    assert "load.dataset writes files, and the store's folder is not ours to write to" in refused["message"]
