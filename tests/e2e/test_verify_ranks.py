"""workload=verify: ranks share out a stored checkpoint, find together what one finds alone, and say all of it."""
import json
import shutil
from pathlib import Path

import pytest
from harness import ckptbench
from s3_harness import server  # noqa: F401

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests/data"
SAVE = ("model=gpt2-tiny", "ops=save", "iterations=1", "warmup=0", "baseline=false", "verify=none", "keep=true")


def save(place, *words):
    """The folder of a new checkpoint."""
    ckptbench(place, "run", "-q", *SAVE, f"store={place}/store", *words)
    (marker,) = [path for pattern in (".metadata", "*.index.json") for path in (place / "store").rglob(pattern)]
    return marker.parent


def look(place, store, *words, code=0, **environment):
    return json.loads(ckptbench(place, "run", "--json", "workload=verify", f"store={store}", *words, code=code, **environment).stdout)


def found_by_ranks(place):
    """{rank: its findings} of the last run; each rank ends with a line of how many they are."""
    shown = json.loads(ckptbench(place, "show", "LATEST", "--failures", "--json").stdout)["failures"]
    return {row["rank"]: row["text"].splitlines()[:-1] for row in shown if row["code"] == "corrupt"}


def found_alone(place, folder, code=3):
    problems = json.loads(ckptbench(place, "verify", folder, "--json", code=code).stdout)["problems"]
    return sorted(f"{problem['kind']}: {problem['text']}" for problem in problems)


def flip(path, at):
    with open(path, "r+b") as file:
        file.seek(at)
        byte = file.read(1)[0]
        file.seek(at)
        file.write(bytes([byte ^ 4]))


def test_a_right_checkpoint_passes_with_figures(tmp_path):
    save(tmp_path, "ranks=4", "tp=2", "dp=2")
    document = look(tmp_path, tmp_path / "store", "ranks=3")
    metrics = document["metrics"]
    assert document["outcome"] == "pass" and document["verified"] == {"iterations": 1, "of": 1}
    assert metrics["problems"]["median"] == 0 and metrics["verify.verified_bytes"]["median"] == 11796736
    assert metrics["verify_bytes_per_s"]["median"] > 0 and metrics["verify_imbalance"]["median"] >= 1
    assert metrics["verify.bytes_moved"]["median"] >= metrics["verify.verified_bytes"]["median"]
    said = ckptbench(tmp_path, "show", "LATEST").stdout
    assert "every element of every tensor is there once" in said and "items recomputed" in said


@pytest.mark.parametrize("words", ["tp=2 dp=2", "tp=2 dp=2 checksum=none", "dp=4 format=safetensors", "tp=2 dp=2 format=dcp+safetensors",
                                   "tp=2 dp=2 format=raw"])
def test_ranks_find_what_one_finds_alone(tmp_path, words):
    folder = save(tmp_path, "ranks=4", *words.split())
    files = sorted(path for path in folder.rglob("*") if path.is_file() and path.suffix in (".distcp", ".raw", ".safetensors"))
    assert len(files) >= 2
    for path in files[1:]:
        flip(path, path.stat().st_size // 2)
        flip(path, path.stat().st_size * 3 // 4)
    with open(files[0], "r+b") as file:
        file.truncate(files[0].stat().st_size - 5000)
    alone = found_alone(tmp_path, folder)
    document = look(tmp_path, folder, "ranks=3", code=3)
    assert document["outcome"] == "benchmark_failed"
    found = found_by_ranks(tmp_path)
    assert len([rank for rank, lines in found.items() if lines]) >= 2
    together = sorted(line for lines in found.values() for line in lines)
    assert together == alone and document["metrics"]["problems"]["median"] == len(alone) >= 3
    assert document["metrics"]["verify_bytes_per_s"]["median"] > 0  # looking was no failure
    assert document["verified"] == {"iterations": 0, "of": 1}


@pytest.mark.parametrize("kind", ["sharded", "nested"])
def test_what_pytorch_wrote_is_looked_at_by_ranks(tmp_path, kind):
    folder = tmp_path / "foreign"
    shutil.copytree(DATA / "dcp-2.12.0" / kind, folder)
    document = look(tmp_path, folder, "ranks=2")
    assert document["outcome"] == "pass" and document["metrics"]["problems"]["median"] == 0
    assert "nothing to compare with" in ckptbench(tmp_path, "show", "LATEST").stdout
    files = sorted(folder.glob("*.distcp"))
    for path in files:
        with open(path, "r+b") as file:
            file.truncate(path.stat().st_size - 100)
    alone = found_alone(tmp_path, folder)
    look(tmp_path, folder, "ranks=2", code=3)
    found = found_by_ranks(tmp_path)
    assert sorted(line for lines in found.values() for line in lines) == alone
    assert len(alone) >= len(files)


def test_a_missing_file_is_told_once(tmp_path):
    folder = save(tmp_path, "ranks=4", "tp=4")
    (folder / "__2_0.distcp").unlink()
    look(tmp_path, folder, "ranks=4", code=3)
    lines = [line for lines in found_by_ranks(tmp_path).values() for line in lines]
    assert len(lines) == 1 and lines[0].startswith("missing: __2_0.distcp")


def test_without_metadata_it_is_incomplete(tmp_path):
    folder = save(tmp_path, "ranks=2", "tp=2")
    (folder / ".metadata").unlink()
    document = look(tmp_path, folder, "ranks=2", code=3)
    assert "incomplete: the checkpoint is not complete" in document["message"]
    assert document["metrics"]["problems"]["median"] == 1


def test_the_last_checkpoint_of_a_run_is_the_one_meant(tmp_path):
    save(tmp_path, "ranks=2", "tp=2", "suffix=mine", "folder=rotate")
    document = look(tmp_path, tmp_path / "store", "suffix=mine", "ranks=2")
    assert document["outcome"] == "pass"
    assert "mine/checkpoint-0" in ckptbench(tmp_path, "show", "LATEST").stdout


def test_values_are_compared_with_the_seed_given_where_none_is_stored(tmp_path):
    save(tmp_path, "ranks=2", "tp=2", "state=weights", "seed=7", "checksum=none")
    look(tmp_path, tmp_path / "store", "ranks=2", "seed=7")
    assert "items recomputed" in ckptbench(tmp_path, "show", "LATEST").stdout
    look(tmp_path, tmp_path / "store", "ranks=2")
    assert "nothing to compare with" in ckptbench(tmp_path, "show", "LATEST").stdout


def test_a_store_that_stalls_ends_at_the_deadline(tmp_path):
    save(tmp_path, "ranks=2", "tp=2")
    document = look(tmp_path, f"fault:stall_at=3+ops=read+rank=1:{tmp_path}/store", "ranks=2", "timeout.op=2s", code=4)
    assert "did not end in time" in document["message"]


@pytest.mark.parametrize("workload", ["verify", "suite"])
def test_a_job_without_a_model_has_a_script_with_a_time_limit(tmp_path, workload):
    script = ckptbench(tmp_path, "render", f"workload={workload}", f"store={tmp_path}", "nodes=2", "ranks_per_node=2").stdout
    assert "#SBATCH --nodes=2" in script and "#SBATCH --time=" in script


def test_a_store_that_keeps_nothing_is_refused(tmp_path):
    assert "nothing that could be looked at" in ckptbench(tmp_path, "run", "workload=verify", "store=null:", "ranks=1", code=2).stderr


def test_objects_are_looked_at_by_ranks(server, tmp_path):  # noqa: F811
    environment = server.environment() | {"AWS_ENDPOINT_URL": server.endpoint}
    store = f"s3://{server.bucket}/{tmp_path.name}"
    ckptbench(tmp_path, "run", "-q", *SAVE, f"store={store}", "ranks=2", "tp=2", "suffix=kept", **environment)
    document = look(tmp_path, store, "suffix=kept", "ranks=2", **environment)
    assert document["outcome"] == "pass" and document["metrics"]["verify.verified_bytes"]["median"] == 11796736
    key = next(key for key in server.client.keys(server.bucket, f"{tmp_path.name}/kept/") if key.endswith("__1_0.distcp"))
    server.client.remove(server.bucket, key)
    document = look(tmp_path, store, "suffix=kept", "ranks=2", code=3, **environment)
    assert "missing: __1_0.distcp" in document["message"]
