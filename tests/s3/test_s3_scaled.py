"""The S3 connector's experiments, scaled as each file says it: one layer of L7b in bf16, 0.87 GiB, to disk and to a
bucket. The server is ours, since the real one keeps less in its memory."""
import json
import os

import pytest
from harness import PROGRAM
from s3_harness import ROOT, Client, call
from s3_faults import FaultServer  # its folder is put in the path by the harness

NEEDED_GIB = 10  # state and what it is compared with on two ranks, the server's copy, files that a disk in memory keeps
SCALED = ("layers=1", "dtype=bf16", "nodes=1", "ranks_per_node=2", "ranks=2", "iterations=1", "baseline=false", "verify=full")
BYTES = 2 * (2 * 32000 * 4096 + 4 * 4096 * 4096 + 3 * 4096 * 11008 + 3 * 4096)  # embedding, head, a layer's matrices and three norms


def available_gib():
    lines = dict(line.split(":", 1) for line in open("/proc/meminfo"))
    return int(lines["MemAvailable"].split()[0]) / 2**20


@pytest.fixture
def home(tmp_path):
    if available_gib() < NEEDED_GIB:
        pytest.skip(f"{NEEDED_GIB} GiB of free memory are missing: {available_gib():.0f} GiB are there")
    with FaultServer() as faults:
        Client(faults.endpoint, faults.access_key, faults.secret_key).make_bucket("bucket")
        yield Home(faults, tmp_path)


class Home:
    def __init__(self, faults, folder):
        self.disk, self.bucket = folder / "disk", "s3://bucket/bench"
        self.environment = {"AWS_ACCESS_KEY_ID": faults.access_key, "AWS_SECRET_ACCESS_KEY": faults.secret_key, "AWS_ENDPOINT_URL": faults.endpoint,
                            "CKPTBENCH_HOME": str(folder / "home"), "PATH": os.environ["PATH"]}

    def document(self, *words):
        return json.loads(call(PROGRAM, *words, "--json", timeout=400, **self.environment).stdout)

    def run(self, name, *words):
        return self.document("run", ROOT / f"experiments/{name}.yaml", *SCALED, *words)

    def runs(self, kind):
        rows = self.document("list", f"label.kind={kind}")
        assert {row["outcome"] for row in rows} == {"pass"}
        return [self.document("show", row["run"]) for row in rows]


def check(runs, count, bytes_moved=BYTES):
    """All passed, each compared byte for byte, with at least the weights of one layer."""
    assert len(runs) == count
    for run in runs:
        assert run["experiment"]["model"] == "L7b" and run["experiment"]["layers"] == 1
        assert run["metrics"]["save.bytes_moved"]["median"] >= bytes_moved
        assert run["verified"]["of"] > 0 and run["verified"]["iterations"] == run["verified"]["of"]
    assert {run["experiment"]["store"].startswith("s3://") for run in runs} == {True, False}


def test_dcp_fsdp_on_disk_and_bucket(home):
    call(PROGRAM, "run", ROOT / "experiments/s3-dcp-fsdp.yaml", *SCALED, "model=L7b", "sharding=full,hybrid(1)", f"store={home.disk},{home.bucket}",
         timeout=500, **home.environment)
    check(home.runs("s3-dcp-fsdp"), 4)


def test_disk_against_bucket(home):
    call(PROGRAM, "run", ROOT / "experiments/s3-vs-disk.yaml", *SCALED, "repeat=1", f"store={home.disk},{home.bucket}", timeout=400, **home.environment)
    check(home.runs("s3-vs-disk"), 2)


def test_save_and_then_load(home):
    for store in (home.bucket, home.disk):
        saved = home.run("save", "copies=2", f"store={store}")
        loaded = home.run("load", f"store={store}", f"suffix={saved['run']}")
        assert (saved["outcome"], loaded["outcome"]) == ("pass", "pass")
        assert loaded["metrics"]["load.bytes_needed"]["median"] >= BYTES


def test_save_and_load(home):
    for store in (home.bucket, home.disk):
        home.run("save-and-load", "copies=2", f"store={store}")
    check(home.runs("save-and-load"), 2)
