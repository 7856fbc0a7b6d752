"""io.gds: saves and loads of a state or a training between files and a GPU's memory by cuFile, over the CUDA plugin's own source and a libcufile that are built for the processor
(tests/cuda_on_cpu). There the host cannot touch the device's memory, so what works does not take that way unnoticed."""
import json
import os
import shutil
import tempfile

import pytest

from harness import ckptbench, without_save_id
from train_harness import PLUGIN, SMALL, facts, linear, train, values

pytestmark = pytest.mark.skipif(PLUGIN is None, reason="the plugin's source is not built for the processor in this build")
BLOCK = 64 << 10
WORDS = ("device=cuda", "state=weights", "checksum=none", f"io.block={BLOCK}", "io.depth=3", "iterations=1", "warmup=0", "baseline=false", "verify=full")


@pytest.fixture
def cufile(tmp_path, monkeypatch):
    """A machine with cuFile; the lines of its calls."""
    monkeypatch.setenv("CKPTBENCH_CUDA_PLUGIN", str(PLUGIN))
    monkeypatch.setenv("LD_LIBRARY_PATH", f"{PLUGIN.parent}:{os.environ.get('LD_LIBRARY_PATH', '')}")
    monkeypatch.setenv("CUDA_ON_CPU_DEVICES", "4")
    log = tmp_path / "calls"
    monkeypatch.setenv("CUFILE_ON_CPU_LOG", str(log))
    for variable in ("CUFILE_FORCE_COMPAT_MODE", "CUFILE_ON_CPU"):
        monkeypatch.delenv(variable, raising=False)
    return lambda: log.read_text().splitlines() if log.exists() else []


def model(place, *shapes):
    path = place / "model.yaml"
    path.write_text("".join(f"- {{name: layers.{i}.weight, shape: {shape}, dtype: fp32, layer: {i}}}\n" for i, shape in enumerate(shapes)))
    return f"model={path}"


def run(place, *words, code=0, store=None):
    store = store or place / "store"
    store.mkdir(exist_ok=True)
    told = json.loads(ckptbench(place, "run", "--json", f"store={store}", *WORDS, *words, code=code).stdout)
    assert not list(store.glob(".ckptbench-probe*"))
    return told


def total(place, metric, op, run="LATEST"):
    return sum(sum(ranks.values()) for ranks in values(place, metric, run, op).values())


def moved(lines, what):
    return [int(line.split()[1]) for line in lines if line.startswith(what)]


def test_whole_blocks_go_between_files_and_the_gpu_without_a_copy_in_this_machine(tmp_path, cufile):
    shapes = ("256x256", "64x1024", "1024")  # whole blocks of 4 KiB, as long as several requests and as one short one
    size = 4 * (256 * 256 + 64 * 1024 + 1024)
    run(tmp_path, model(tmp_path, *shapes), "io.gds=on", "ranks=1")
    lines = cufile()
    assert sum(moved(lines, "write")) == size and sum(moved(lines, "read")) == size
    assert max(moved(lines, "write")) == max(moved(lines, "read")) == BLOCK
    assert all(line.endswith(" registered") for line in lines[:-1])
    assert lines[-1] == "end, 0 files and 0 regions are left"
    assert total(tmp_path, "bytes_needed", "save") == total(tmp_path, "bytes_needed", "load") == size
    assert total(tmp_path, "bytes_copied", "save") == total(tmp_path, "bytes_copied", "load") == 0
    told = facts(tmp_path)
    assert told["io.used"].startswith("psync 3 threads O_DIRECT cuFile")
    assert told["io.gds"] == "between files and the GPU: nvidia-fs 2.20, registered memory, no compatibility mode"
    assert told["adapter"].startswith("MPI ") and "NCCL" in told["adapter"]  # what there is to choose depends on this machine
    assert f"cuFile        {told['io.gds']}" in ckptbench(tmp_path, "show", "LATEST").stdout


def test_the_files_are_those_of_the_ordinary_way(tmp_path, cufile):
    """With ends that are no whole blocks, ranks that hold columns of a tensor, and several files a rank; each way loads what the other saved."""
    words = (model(tmp_path, "256x260", "100", "128x1030", "3x5"), "ranks=2", "tp=2", "io.files=2", "suffix=same", "keep=true", "load.shift=1")
    kept, needed = {}, {}
    for way in ("on", "off"):
        store = tmp_path / way
        run(tmp_path, *words, f"io.gds={way}", store=store)
        needed[way] = total(tmp_path, "bytes_needed", "save")
        kept[way] = {path.relative_to(store): path.read_bytes() for path in store.rglob("*.distcp")}
        marker, = store.rglob(".metadata")
        ckptbench(tmp_path, "verify", marker.parent)
        calls = len(cufile())
    assert needed["on"] == needed["off"] and calls == len(cufile())
    assert kept["on"].keys() == kept["off"].keys() and len(kept["on"]) >= 2
    for name, ours in kept["on"].items():
        theirs = kept["off"][name]
        assert len(ours) == len(theirs)
        differ = [at for at in range(0, len(ours), 512) if ours[at:at + 512] != theirs[at:at + 512]]
        assert len(differ) <= 4 * 16, (name, len(differ))  # save ids in the items' headers
    for saved, loads in (("on", "off"), ("off", "on")):
        run(tmp_path, *words, f"io.gds={loads}", "ops=load", store=tmp_path / saved)


def test_only_what_is_no_whole_block_passes_through_pinned_memory(tmp_path, cufile):
    run(tmp_path, model(tmp_path, "5000", "100", "4097"), "io.gds=on", "ranks=1", "adapter=none")
    assert facts(tmp_path)["adapter"] == "left alone (adapter=none)"
    ends = 4 * (5000 + 100 + 4097) - 16384 - 16384
    assert total(tmp_path, "bytes_copied", "save") == total(tmp_path, "bytes_copied", "load") == ends
    assert sum(moved(cufile(), "write")) == sum(moved(cufile(), "read")) == 32768


def test_transfers_that_move_less_are_continued(tmp_path, cufile, monkeypatch):
    monkeypatch.setenv("CUFILE_ON_CPU", "short no-memory")
    run(tmp_path, model(tmp_path, "256x256", "64x1024"), "io.gds=on", "ranks=1")
    writes = moved(cufile(), "write")
    assert sum(writes) == 4 * 2 * 65536 and len(writes) > 8
    assert "memory not registered: cuFile, registering memory: an internal error (5030)" in facts(tmp_path)["io.gds"]
    assert all(line.endswith(" unregistered") for line in cufile()[:-1])


@pytest.mark.parametrize("trouble, message", [("fails", "nvidia-fs failed"), ("errno", "Input/output error")])
def test_a_transfer_that_fails_fails_the_save_with_the_reason(tmp_path, cufile, monkeypatch, trouble, message):
    monkeypatch.setenv("CUFILE_ON_CPU", trouble)
    failed = run(tmp_path, model(tmp_path, "256x256"), "io.gds=on", "ranks=1", code=3)
    assert message in failed["message"] and "writing " in failed["message"]
    assert not list((tmp_path / "store").rglob(".metadata"))
    assert cufile()[-1] == "end, 0 files and 0 regions are left"


@pytest.mark.parametrize("trouble, words, reason", [
    ("no-driver", (), "cuFile, opening its driver: the nvidia-fs driver is not initialised (5001)"),
    ("no-filesystem", (), "cuFile, registering a file: the file system does not support it (5008)"),
    ("compatible", (), "cuFile allows its compatibility mode, which copies through host memory"),
    ("forced", (), "CUFILE_FORCE_COMPAT_MODE=true makes cuFile copy through host memory"),
    ("missing", (), "libcufile cannot be loaded: "),
    ("", ("checksum=crc32",), "checksums need the bytes in this machine's memory"),
    ("", ("save.async=true",), "save.async=true copies the state"),
    ("", ("load.exchange=split",), "load.exchange passes on"),
    ("", ("io.direct=false",), "it needs O_DIRECT"),
])
def test_where_it_is_not_possible_on_fails_and_auto_says_why(tmp_path, cufile, monkeypatch, trouble, words, reason):
    monkeypatch.setenv("CUFILE_ON_CPU", trouble)
    if trouble == "forced":
        monkeypatch.setenv("CUFILE_FORCE_COMPAT_MODE", "true")
    if trouble == "missing":
        empty = tmp_path / "libcufile.so.0"
        empty.write_text("no library")
        monkeypatch.setenv("LD_LIBRARY_PATH", str(tmp_path))
    state = model(tmp_path, "256x256")
    if words:  # refused before anything starts
        assert f"io.gds=on: {reason}" in ckptbench(tmp_path, "run", f"store={tmp_path}", *WORDS, state, "io.gds=on", "ranks=1", *words, code=2).stderr
    else:
        assert reason in run(tmp_path, state, "io.gds=on", "ranks=1", code=3)["message"]
    run(tmp_path, state, "io.gds=auto", "ranks=1", *words)
    told = facts(tmp_path)
    assert told["io.gds"].startswith("not used: ") and reason in told["io.gds"]
    assert "cuFile" not in told["io.used"] and not moved(cufile(), "write")
    assert total(tmp_path, "bytes_copied", "load") == 4 * 65536


def files_of(store):
    return sorted(str(path.relative_to(store)) for path in store.rglob("*") if path.is_file())


def test_a_process_that_is_killed_while_it_tries_cufile_leaves_nothing_in_the_store(tmp_path, cufile, monkeypatch):
    store, state = tmp_path / "store", (model(tmp_path, "256x256"), "ranks=1", "io.gds=on")
    run(tmp_path, *state, "ops=save", "suffix=kept")
    kept = files_of(store)
    monkeypatch.setenv("CUFILE_ON_CPU", "killed")
    told = run(tmp_path, *state, "ops=load", "suffix=kept", code=4)
    assert "signal 9" in told["message"] and files_of(store) == kept
    told = run(tmp_path, *state, code=4)
    ckptbench(tmp_path, "clean", told["run"], "--yes")
    assert files_of(store) == kept and not (store / told["run"]).exists()


def test_a_load_finds_out_from_the_checkpoint_whether_cufile_can(tmp_path, cufile, monkeypatch):
    state, elsewhere = (model(tmp_path, "256x256"), "ranks=1"), tmp_path / "elsewhere"
    run(tmp_path, *state, "io.gds=off", "ops=save", "suffix=a")
    shutil.copytree(tmp_path / "store/a", elsewhere / "a", ignore=shutil.ignore_patterns(".ckptbench*"))  # no store of ours
    before = files_of(elsewhere)
    run(tmp_path, *state, "io.gds=on", "ops=load", "suffix=a", store=elsewhere)
    assert sum(moved(cufile(), "read")) == 4 * 65536 and files_of(elsewhere) == before
    monkeypatch.setenv("CUFILE_ON_CPU", "no-filesystem")
    run(tmp_path, *state, "io.gds=auto", "ops=load", "suffix=a", store=elsewhere)
    assert "registering a file: the file system does not support it" in facts(tmp_path)["io.gds"]
    monkeypatch.setenv("CUFILE_ON_CPU", "")
    assert "there is no checkpoint b" in run(tmp_path, *state, "io.gds=on", "ops=load", "suffix=b", store=elsewhere, code=3)["message"]


TRAINING = ("device=cuda", "checksum=none", f"io.block={BLOCK}", "train.batch_size=2", "train.checkpoint_every=2", "train.resume=latest", "keep.last=2",
            "suffix=a")


@pytest.fixture
def nccl(cufile, monkeypatch):
    folder = tempfile.mkdtemp(prefix="nccl-", dir="/tmp")  # NCCL's ids have room for a short name
    monkeypatch.setenv("CUDA_ON_CPU_FOLDER", folder)
    monkeypatch.setenv("CUDA_ON_CPU_BYTES", str(96 << 20))  # too little for the large products that mfu compares with
    yield cufile
    shutil.rmtree(folder)


def payloads(store, step):
    return [without_save_id(path.read_bytes()) for path in sorted((store / f"a/iteration-{step}").glob("*.distcp"))]


def test_checkpoints_of_a_training_go_between_files_and_the_gpus(tmp_path, nccl):
    """Two ranks with a GPU each save and resume; they have the bytes of a training that does neither by cuFile."""
    words = (*TRAINING, "ranks=2", f"model={linear(tmp_path, width=64, layers=2)}", "layers=0", "train.seq_length=1")
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    ours.mkdir()
    theirs.mkdir()
    train(theirs, *words, "train.steps=4", "io.gds=off", store=theirs / "store")
    assert not nccl() and "io.gds" not in facts(theirs)
    for steps in (2, 4):
        train(ours, *words, f"train.steps={steps}", "io.gds=on", store=ours / "store")
        assert payloads(ours / "store", steps) == payloads(theirs / "store", steps) != []
        directly = total(ours, "bytes_needed", "save") - total(ours, "bytes_copied", "save")
        # Rank 0's half of the first layer begins at a page: of the weights and of both moments two pages each.
        assert sum(moved(nccl(), "write")) == steps // 2 * directly >= 3 * 8192
    assert sum(moved(nccl(), "read")) == total(ours, "bytes_needed", "load") - total(ours, "bytes_copied", "load") >= 3 * 8192
    assert facts(ours)["io.gds"].startswith("between files and the GPU: ")
    assert [line for line in nccl() if line.startswith("end")] == 4 * ["end, 0 files and 0 regions are left"]


def test_it_is_refused_where_it_would_do_nothing(tmp_path, cufile):
    for words, reason in ((("device=cpu",), "it needs device=cuda"), (("workload=train", "model=gpt2-tiny", "device=cuda"), "this training has none")):
        for value in ("on", "auto"):
            assert reason in ckptbench(tmp_path, "run", f"store={tmp_path}", f"io.gds={value}", *words, code=2).stderr
    words = (*SMALL, *TRAINING, "train.cpu_offload=true", "io.gds=on", "train.steps=2")
    assert "train.cpu_offload=true keeps what is saved" in ckptbench(tmp_path, "run", f"store={tmp_path}", *words, code=2).stderr
