"""Options do what their help says, seen from outside: in files, bytes and figures."""
import json
import os
import re
import shutil
import subprocess
import zlib

import pytest

from harness import BUILD, without_save_id

TINY_BYTES = 11796736  # gpt2-tiny, weights+adam


class Home:
    def __init__(self, folder):
        self.folder, self.store = folder, folder / "store"
        self.environment = dict(os.environ, CKPTBENCH_HOME=str(folder / "home"))

    def call(self, *words, code=0):
        result = subprocess.run([BUILD / "ckptbench", *words], cwd=self.folder, env=self.environment, capture_output=True,
                                text=True, timeout=120)
        assert result.returncode == code, result.stdout + result.stderr
        return result

    def json(self, *words, code=0):
        return json.loads(self.call(*words, "--json", code=code).stdout)

    def run(self, *words, code=0):
        """The last word on a key wins, so that a test can say it otherwise."""
        return self.json("run", "model=gpt2-tiny", "ranks=2", "store=./store", "baseline=false", "iterations=1", "warmup=0",
                         *words, code=code)

    def checkpoint(self, run):
        """Data files of what a run kept, by name, with their bytes."""
        folder = self.store / run["run"] / "iteration-0"
        return {str(path.relative_to(folder)): path.read_bytes()
                for path in sorted(folder.rglob("*")) if path.is_file() and path.name != ".metadata"}

    def samples(self, run, op, metric):
        """A metric of each rank in the one iteration."""
        document = self.json("export", run["run"])
        return next(sample["ranks"] for sample in document["samples"] if (sample["op"], sample["metric"]) == (op, metric))


@pytest.fixture
def home(tmp_path):
    return Home(tmp_path)


def test_names_of_other_tools_are_keys_and_what_they_mean_is_said_once(home):
    result = home.call("run", "--json", "model=gpt2-tiny", "baseline=false", "warmup=0", "+world_size=2", "--uri", "./store", "--backend", "gloo",
                       "epochs=1")
    experiment = json.loads(result.stdout)["experiment"]
    assert (experiment["ranks"], experiment["device"], experiment["iterations"]) == (2, "cpu", 1)
    assert experiment["store"] == str(home.store)
    assert result.stderr.count("world_size is ranks") == 1 and "backend is device (gloo: cpu)" in result.stderr


def test_options_finds_a_key_by_its_name_elsewhere(home):
    assert "ranks" in [row["name"] for row in home.json("options", "world_size")]
    assert {"save.async", "load.exchange"} <= {row["name"] for row in home.json("options", "veScale")}
    assert "(also world_size, num_processes)" in home.call("options", "world_size").stdout


def test_a_remark_about_several_runs_of_a_sweep_is_made_once(home):
    text = home.call("submit", "--dry-run", "model=gpt2-tiny", "ranks=2", "store=/absent/below", "io.depth=1,2,3").stderr
    assert text.count("/absent/below does not exist") == 1


def test_layers_that_the_model_does_not_have_are_remarked(home):
    words = "model=gpt2-tiny", "ranks=1", "store=./store"
    assert "layers=99: model=gpt2-tiny has " in home.call("render", *words, "layers=99").stderr
    assert "layers=" not in home.call("render", *words, "layers=1").stderr
    assert home.call("plan", *words, "layers=99", "io.depth=1,2").stderr.count("layers=99: model=gpt2-tiny has ") == 1


def kept_files(home, *words):
    return home.checkpoint(home.run("ops=save", "verify=full", *words))


def test_io_files_and_fanout_decide_where_bytes_lie(home):
    assert sorted(kept_files(home)) == ["__0_0.distcp", "__1_0.distcp"]
    assert len(kept_files(home, "io.files=3")) == 6
    assert len(kept_files(home, "io.files=shared")) == 1
    items = home.json("plan", "model=gpt2-tiny", "ranks=2")["items"]
    assert len(kept_files(home, "io.files=item")) == items


@pytest.mark.parametrize("format", ["dcp", "raw", "safetensors", "dcp+safetensors"])
def test_fanout_spreads_the_files_of_every_format(home, format):
    home.run("ops=save+load", "verify=full", "keep=true", "io.files=4", f"format={format}", "io.fanout=3", "suffix=spread")
    files = [path for path in (home.store / "spread/iteration-0").glob("*/*") if path.is_file()]
    assert {path.parent.name for path in files} == {"d00000", "d00001", "d00002"} and len(files) == 8
    home.call("verify", home.store)  # finds it below
    assert home.json("inspect", home.store / "spread")["files"] == 8
    home.run("ops=load", "suffix=spread", "verify=full")


def test_payload_and_seed_decide_the_bytes(home):
    def data(*words):
        return without_save_id(b"".join(kept_files(home, "format=raw", *words).values()))

    def packed(content):
        return len(zlib.compress(content, 1)) / len(content)

    weights, random, zero = data(), data("payload=random"), data("payload=zero")
    assert packed(zero) < 0.02 < packed(weights) < 0.94 < packed(random)
    assert data() == weights and data("seed=1") != weights


def test_dedup_decides_who_writes(home):
    def moved(*words):
        return home.samples(home.run("ops=save", "keep=false", "verify=none", *words), "save", "bytes_needed")

    balanced, lowest, none = moved(), moved("save.dedup=lowest_rank"), moved("save.dedup=none")
    assert sum(balanced) == sum(lowest) == TINY_BYTES and max(balanced) < 0.51 * TINY_BYTES
    assert lowest[0] == TINY_BYTES and lowest[1] == 0
    assert none == [TINY_BYTES, TINY_BYTES]


def test_checksum_none_leaves_the_field_empty(home):
    def checksums(files):
        data = next(iter(files.values()))
        return {data[at.start() + 16:at.start() + 20] for at in re.finditer(b"PK\x01\x02", data)}  # the CRC in a zip's directory

    assert len(checksums(kept_files(home))) > 1
    assert len(checksums(kept_files(home, "checksum=none"))) < len(checksums(kept_files(home)))


def test_fsync_false_does_not_sync(home):
    def synced(*words):
        """Files of the checkpoint made durable; by threads, not io_uring, so that it can be seen."""
        command = ["strace", "-f", "-y", "-o", "trace", "-e", "trace=fsync,fdatasync,syncfs,sync_file_range", BUILD / "ckptbench",
                   "run", "model=gpt2-tiny", "ranks=2", "store=./store", "baseline=false", "ops=save", "keep=false", "iterations=1",
                   "warmup=0", "verify=none", "io.engine=psync", *words]
        leaks = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"  # cannot be looked for under strace
        subprocess.run(command, cwd=home.folder, env=dict(home.environment, ASAN_OPTIONS=leaks), capture_output=True, check=True,
                       timeout=120)
        return sum(".distcp" in line or ".metadata" in line for line in (home.folder / "trace").read_text().splitlines())

    assert shutil.which("strace"), "strace is one of the tests' packages"
    assert synced() == 3
    assert synced("io.fsync=false") == 0


@pytest.mark.parametrize("words, says", [
    (("io.engine=psync", "io.threads=3"), "psync 3 threads"), (("io.direct=false",), "buffered"), (("io.direct=true",), "O_DIRECT")])
def test_what_was_used_is_said(home, words, says):
    assert says in home.call("show", home.run(*words)["run"]).stdout


def test_direct_that_cannot_be_is_refused_with_its_reason(home):
    folder = f"/dev/shm/ckptbench-options-{os.getpid()}"
    try:
        assert "cannot do O_DIRECT" in home.run(f"store={folder}", "io.direct=true", code=3)["message"]
    finally:
        subprocess.run(["rm", "-rf", folder], check=True)


def test_keys_that_another_engine_does_not_look_at_are_named(home):
    words = ("engine=command", "command=echo x > {path}/{rank}", "io.depth=3", "io.block=1MiB", "ops=save", "keep=false")
    result = home.call("run", "model=gpt2-tiny", "store=./store", "baseline=false", "iterations=1", *words)
    assert "engine=command does not look at io.block, io.depth" in result.stderr
    assert "engine=command" in result.stdout and "depth" not in result.stdout


def test_block_decides_the_requests(home):
    def requests(block):
        return home.run("ops=save", "keep=false", "io.files=shared", f"io.block={block}")["metrics"]["save.requests"]["median"]

    assert requests("64KiB") > 4 * requests("1MiB")


def test_keep_and_folder_decide_what_stays(home):
    def stays(*words):
        run = home.run("iterations=3", *words)
        return sorted(path.parent.name for path in (home.store / run["run"]).glob("*/.metadata"))

    assert stays() == [] and stays("ops=save", "keep=false") == []
    assert stays("ops=save") == ["iteration-2"] and stays("keep=true") == ["iteration-2"]
    assert stays("keep=true", "folder=overwrite") == ["checkpoint"]
    assert "checkpoint-0" in stays("keep=true", "folder=rotate")


def test_layers_dtype_and_state_decide_the_bytes(home):
    def total(*words):
        return home.json("plan", "model=gpt2-tiny", "ranks=2", *words)["bytes"]["total"]

    params = 842624
    assert total() == 14 * params and total("state=weights") == 2 * params and total("state=weights", "dtype=fp32") == 4 * params
    assert total("layers=1") < total()


def test_mesh_split_and_rates_are_what_plan_shows(home):
    assert home.run("ranks=4", "mesh=pp=2+dp=2", "pp.split=1+3")["outcome"] == "pass"
    split = home.json("plan", "model=gpt2-tiny", "pp=2", "pp.split=1+3")
    assert split["rank_bytes"] != home.json("plan", "model=gpt2-tiny", "pp=2", "pp.split=even")["rank_bytes"]
    assert home.json("plan", "model=gpt2", "rate.rank=1MiB/s")["predicted"]["save_s"] > 1000
    goodput = [home.json("plan", "model=gpt2", f"mtbf={mtbf}")["predicted"]["goodput"] for mtbf in ("1h", "24h")]
    assert goodput[0] < goodput[1]


def test_a_run_that_takes_too_long_is_ended(home):
    run = home.run("iterations=100000", "timeout.run=2s", code=4)
    assert run["outcome"] == "timeout" and "timeout.run=2s" in run["message"]


def test_an_operation_that_takes_too_long_is_ended(home):
    run = home.run("store=fault:bandwidth=1MiB/s:./store", "timeout.op=1s", code=4)
    assert run["outcome"] == "timeout"


def test_a_sweep_from_yaml_with_zip_range_repeat_and_labels(home):
    (home.folder / "sweep.yaml").write_text("""
model: gpt2-tiny
ops: save
keep: false
verify: none
iterations: 1
warmup: 0
baseline: false
store: ./store
ranks: [1, 2]
tp: [1, 2]
zip: [ranks, tp]
io:
  depth: 2..8*2
repeat: 2
label:
  kind: nightly
""")
    sweep = home.json("run", "sweep.yaml")
    combinations = [tuple(run["experiment"][key] for key in ("ranks", "tp", "io.depth")) for run in sweep["runs"]]
    one_block = {(ranks, ranks, depth) for ranks in (1, 2) for depth in (2, 4, 8)}
    assert len(combinations) == 12 and set(combinations[:6]) == set(combinations[6:]) == one_block
    assert len(home.json("list", "label.kind=nightly")) == 12 and home.json("list", "label.kind=other") == []
    assert len(home.json("list", "label.kind=nightly", "io.depth=4")) == 4


def prepared(home, run, attempt=1, file="store-prepare.txt"):
    return (home.folder / "home/runs" / run["run"] / f"attempts/{attempt}/{file}").read_text()


def test_store_prepare_runs_once_in_the_new_folder_before_anything_is_written(home):
    run = home.run("ops=save", "suffix=it's $HOME", "store.prepare=ls {path}; cd {path} && pwd && touch striped && echo done # {x}")
    folder = home.store / "it's $HOME"
    assert prepared(home, run) == f"$ ls {{path}}; cd {{path}} && pwd && touch striped && echo done # {{x}}\n{folder}\ndone\n"
    assert (folder / "striped").exists() and (folder / "iteration-0/.metadata").exists()


def test_store_prepare_that_fails_ends_the_run_with_its_last_line(home):
    run = home.run("ops=save", "store.prepare=echo first >&2; echo no such pool >&2; exit 7", code=3)
    assert "store.prepare for" in run["message"] and "exit status 7: no such pool" in run["message"], run["message"]


def test_store_prepare_requires_a_file_system(home):
    refused = home.call("run", "model=gpt2-tiny", "store=null:", "ops=save", "store.prepare=true", code=2)
    assert "store.prepare requires a store in a file system" in refused.stderr


def test_store_prepare_is_refused_where_no_folder_is_made(home):
    refused = home.call("run", "model=gpt2-tiny", f"store={home.store}", "ops=load", "suffix=x", "store.prepare=true", code=2)
    assert "ops=load makes no folder" in refused.stderr


def test_store_record_keeps_what_a_command_says_of_the_last_checkpoint(home):
    run = home.run("ops=save", "keep=false", "io.fanout=2", "store.record=cd {path}/iteration-* && find . -type f | sort")
    assert prepared(home, run, file="store-record.txt").splitlines()[1:] == ["./.metadata", "./d00000/__0_0.distcp", "./d00001/__1_0.distcp"]
    assert not list(home.store.glob("*/iteration-*"))  # removed afterwards


def test_store_record_also_looks_at_what_a_training_saved(home):
    run = home.json("run", "workload=train", "model=gpt2-tiny", "layers=1", "ranks=2", "store=./store", "train.steps=2",
                    "train.checkpoint_every=2", "train.batch_size=1", "train.seq_length=16", "keep=false",
                    "store.record=cd {path} && ls */.metadata")
    assert prepared(home, run, file="store-record.txt").count("/.metadata\n") >= 1


@pytest.mark.parametrize("words", [("io.files=item",), ("io.files=2",), ("io.files=item", "io.fanout=2")], ids=" ".join)
def test_safetensors_keeps_files_that_only_have_values(home, words):
    """The index names files by their tensors, so a file of values alone was taken for another program's."""
    run = home.run("format=safetensors", "keep=true", "verify=full", *words)
    index = json.loads((home.store / run["run"] / "iteration-0/model.safetensors.index.json").read_text())
    named = {*index["weight_map"].values(), *index["metadata"]["ckptbench.values"]}
    assert named == set(home.checkpoint(run)) - {"model.safetensors.index.json"}
    assert ("item" in words[0]) == (len(index["metadata"]["ckptbench.values"]) > 1)
    home.call("verify", f"./store/{run['run']}/iteration-0")


def test_load_evict_reads_other_files_before_each_load(home):
    """Seen from outside: every rank's file of 4 MiB, one request, is read before each load, and none is left."""
    leaks = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"  # cannot be looked for under strace
    words = ["model=gpt2-tiny", "ranks=2", "store=./store", "baseline=false", "iterations=2", "warmup=1", "verify=none",
             "io.engine=psync", "load.evict=8MiB"]
    subprocess.run(["strace", "-f", "-y", "-o", "trace", "-e", "trace=preadv,preadv2,pread64,pwritev,pwritev2,pwrite64", BUILD / "ckptbench",
                    "run", *words], cwd=home.folder, env=dict(home.environment, ASAN_OPTIONS=leaks), capture_output=True, check=True,
                   timeout=240)
    calls = re.findall(r"(pread|pwrite)\w*\(\d+<[^>]*/evict/rank-\d>", (home.folder / "trace").read_text())
    assert (calls.count("pwrite"), calls.count("pread")) == (2, 2 * 3), calls  # once a rank, and again for each of three loads
    assert [path.name for path in home.store.iterdir()] == [".ckptbench-store"]


def test_load_evict_also_works_for_a_checkpoint_that_is_there(home):
    home.run("ops=save", "suffix=s")
    run = home.run("ops=load", "suffix=s", "load.evict=1MiB")
    assert "read before each load" in home.call("show", run["run"]).stdout
    assert [path.name for path in home.store.iterdir() if path.name.startswith("baseline")] == []
    assert "load.evict=1MiB is for loads" in home.call("run", "model=gpt2-tiny", "ranks=2", "ops=save", "load.evict=1MiB", code=2).stderr


def test_store_record_that_fails_ends_the_run(home):
    run = home.run("ops=save", "store.record=echo no getstripe here >&2; exit 3", code=3)
    assert "store.record for" in run["message"] and "no getstripe here" in run["message"], run["message"]


def test_store_record_is_refused_without_files(home):
    for words, wanted in ((("store=null:", "ops=save"), "store.record requires a store in a file system"),
                          ((f"store={home.store}", "workload=suite"), "this workload saves none")):
        assert wanted in home.call("run", *words, "store.record=true", code=2).stderr


def test_a_path_in_quotes_of_its_own_is_refused(home):
    run = home.run("ops=save", "store.prepare=ls '{path}'", code=3)
    assert "write {path} without quotes" in run["message"]
