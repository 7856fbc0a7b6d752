"""The S3 connector's benchmarks as experiments: planned as they are published, run scaled, against disk and bucket,
side by side in the history; and other clients as runs beside ours."""
import itertools
import json
import os
import sys
from pathlib import Path

import pytest
from harness import PROGRAM
from s3_harness import ROOT, Client, call, server  # noqa: F401
from s3_faults import FaultServer  # its folder is put in the path by the harness

# What is published, cut to a model of one small layer: the rest of each file stays as it is.
SCALED = ("model=gpt2-tiny", "layers=1", "nodes=1", "ranks_per_node=2", "ranks=2", "iterations=1", "warmup=0", "baseline=false", "verify=full")
MODELS = {"L7b": (6889410560, 291), "L13b": (13204608000, 363), "L30b": (32774310400, 543), "L65b": (65587650560, 723), "L70b": (69278638080, 723)}


def experiment(name):
    return ROOT / f"experiments/{name}.yaml"


class Home:
    def __init__(self, server, folder):  # noqa: F811
        self.disk, self.bucket = folder / "disk", f"s3://{server.bucket}/{folder.name}"
        self.environment = server.environment() | {"AWS_ENDPOINT_URL": server.endpoint, "CKPTBENCH_HOME": str(folder / "home")}

    def call(self, *words, code=0, **more):
        return call(PROGRAM, *words, code=code, timeout=200, **(self.environment | more))

    def document(self, *words, **named):
        return json.loads(self.call(*words, "--json", **named).stdout)


@pytest.fixture
def home(server, tmp_path):  # noqa: F811
    return Home(server, tmp_path)


@pytest.mark.parametrize("model", MODELS)
def test_the_published_sizes_are_planned_and_rendered_as_jobs(home, model):
    for sharding, ranks in itertools.product(("full", "hybrid(4)"), (8, 16)):
        words = [experiment("s3-dcp-fsdp"), f"model={model}", f"sharding={sharding}", f"ranks={ranks}", "store=s3://bucket/bench"]
        plan = home.document("plan", *words)
        assert (plan["params"], plan["tensors"]) == MODELS[model]
        assert plan["bytes"] == {"weights": 4 * plan["params"], "optimizer": 0, "total": 4 * plan["params"]}
        script = home.call("render", *words, "ranks_per_node=8").stdout
        assert script.startswith("#!/bin/sh") and f"--nodes={ranks // 8}" in script and "ckptbench-agent" in script
        assert home.environment["AWS_SECRET_ACCESS_KEY"] not in script


# Every file as it is published, and what a job of it asks for.
PUBLISHED = [("s3-vs-disk", ()), ("save", ("--nodes=50", "--cpus-per-task=16")), ("load", ("--nodes=200", "--cpus-per-task=8")),
             ("save-and-load", ("--nodes=60", "--cpus-per-task=16"))]


@pytest.mark.parametrize("name, asked", PUBLISHED, ids=[row[0] for row in PUBLISHED])
def test_every_published_experiment_is_planned_and_rendered(home, name, asked):
    words = [experiment(name), "repeat=1", "store=s3://bucket/bench", "suffix=x"]
    plan = home.document("plan", *words)
    assert (plan["params"], plan["tensors"], plan["bytes"]["weights"]) == (*MODELS["L7b"], 4 * MODELS["L7b"][0])
    script = home.call("render", *words).stdout
    assert script.startswith("#!/bin/sh") and home.environment["AWS_SECRET_ACCESS_KEY"] not in script
    assert all(f"#SBATCH {option}\n" in script for option in asked), script


def test_one_sweep_saves_to_disk_and_bucket_in_every_sharding(home):
    home.call("run", experiment("s3-dcp-fsdp"), *SCALED, "sharding=full,hybrid(1)", f"store={home.disk},{home.bucket}")
    rows = home.document("list", "label.kind=s3-dcp-fsdp")
    assert len(rows) == 4 and {row["outcome"] for row in rows} == {"pass"}
    found = set()
    for row in rows:
        shown = home.document("show", row["run"])
        found.add((shown["experiment"]["sharding"], shown["experiment"]["store"].startswith("s3://")))
        assert shown["verified"] == {"iterations": 1, "of": 1}
    assert found == set(itertools.product(("full", "hybrid(1)"), (False, True)))


# What of each file is compared, and the words that make it one small run a store.
COMPARED = {"s3-dcp-fsdp": ("save_s load_s", ["sharding=full"]), "s3-vs-disk": ("save_s load_s", ["repeat=2"]), "save": ("save_s", ["suffix=kept", "copies=2"]),
            "load": ("load_s", ["suffix=kept"]), "save-and-load": ("save_s load_s", ["copies=2"])}


@pytest.mark.parametrize("name", COMPARED)
def test_every_experiment_stands_on_disk_and_in_the_bucket_side_by_side(home, name):
    metrics, words = COMPARED[name]
    both = f"store={home.disk},{home.bucket}"
    if name == "load":  # of what a run of save.yaml keeps
        home.call("run", experiment("save"), *SCALED, *COMPARED["save"][1], both)
    home.call("run", experiment(name), *SCALED, *words, both)
    rows = home.document("list", f"label.kind={name}")
    assert {row["outcome"] for row in rows} == {"pass"} and len(rows) == (4 if name == "s3-vs-disk" else 2)
    stores = [home.document("show", row["run"])["experiment"]["store"].startswith("s3://") for row in rows]
    assert sorted(stores) == [False] * (len(rows) // 2) + [True] * (len(rows) // 2)
    compared = home.call("compare", "LATEST", "--by", "store", code=None)
    assert compared.returncode in (0, 5, 6) and home.bucket in compared.stdout, compared.stdout + compared.stderr
    for metric in metrics.split():
        assert metric in compared.stdout


def test_what_is_to_be_loaded_must_be_named(home):
    assert "suffix" in home.call("run", experiment("load"), *SCALED, f"store={home.bucket}", code=2).stderr


def test_save_and_load_exports_what_the_connector_publishes(home):
    run = home.document("run", experiment("save-and-load"), *SCALED, "iterations=2", "copies=1", "sharding=full", f"store={home.bucket}")
    results = json.loads(home.call("export", run["run"], "--s3benchmark").stdout)
    assert {"s3torchconnector_version", "timestamp_utc", "scenario", "disambiguator", "run_elapsed_time_s", "versions", "ec2_metadata",
            "job_results"} == set(results)
    save, load = results["job_results"]
    assert save["config"]["checkpoint"]["storage"] == "s3" and save["config"]["s3"]["uri"] == home.bucket
    assert save["config"]["checkpoint"]["sharding_strategy"] == "full" and save["config"]["world_size"] == 2
    assert len(save["metrics"]["corrected_save_durations_s"]) == len(load["metrics"]["corrected_load_durations_s"]) == 4  # 2 ranks, 2 iterations
    assert len(save["metrics"]["throughput_mibs"]) == 4


PEERS = [("boto3", True), ("s5cmd", True), ("s3torchconnector", False)]


@pytest.mark.parametrize("peer, real", PEERS)
def test_other_clients_are_runs_beside_ours(home, peer, real):
    """The connector cannot end small objects on the real server, which leaves out a header of its answers: it gets ours."""
    words = ["model=gpt2-tiny", "ranks=2", "iterations=1", "warmup=0", "baseline=false", "engine=command",
             f"command={sys.executable} {ROOT}/share/adapters/s3_peer.py {peer} {{op}} {{path}} {{rank}} {{bytes}}"]
    path = {"PATH": f"{Path(sys.executable).parent}:{os.environ['PATH']}"}  # s5cmd lies beside Python
    if real:
        document = home.document("run", *words, f"store={home.bucket}", **path)
    else:
        with FaultServer() as faults:
            keys = {"AWS_ACCESS_KEY_ID": faults.access_key, "AWS_SECRET_ACCESS_KEY": faults.secret_key, "AWS_ENDPOINT_URL": faults.endpoint}
            Client(faults.endpoint, faults.access_key, faults.secret_key).make_bucket("peers")
            document = home.document("run", *words, "store=s3://peers/x", **(path | keys))
    assert document["outcome"] == "pass"
    assert document["metrics"]["save.bytes_moved"]["median"] > 10e6 and document["metrics"]["load.io_s"]["median"] > 0


def test_many_small_objects_are_listed_in_few_requests(tmp_path):
    """A thousand a request, so 20,000 in 20; they are gone through once for the checkpoint, once for what lies beside it."""
    with FaultServer() as faults:
        faults.tell(fill={"bucket": "bucket", "prefix": "p/many/", "count": 20000})
        faults.clear()
        keys = {"AWS_ACCESS_KEY_ID": faults.access_key, "AWS_SECRET_ACCESS_KEY": faults.secret_key}
        call(PROGRAM, "verify", "s3://bucket/p", code=None, AWS_ENDPOINT_URL=faults.endpoint, **keys)
        assert len(faults.log("ListObjectsV2")) in (20, 40)
        assert len(faults.log()) < 60
