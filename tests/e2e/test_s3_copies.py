"""Shadow copies: every file is there several times, and ranks share the copies among them."""
import json

import pytest
from harness import PROGRAM
from s3_harness import Client, call
from s3_faults import FaultServer  # its folder is put in the path by the harness

TINY = ("model=gpt2-tiny", "ranks=2", "tp=2", "iterations=1", "warmup=0", "baseline=false", "verify=full")


def run(home, *words, code=0, **environment):
    result = call(PROGRAM, "run", "--json", *TINY, *words, code=code, timeout=120, CKPTBENCH_HOME=str(home), **environment)
    return json.loads(result.stdout) if code == 0 else result.stdout + result.stderr


def test_every_rank_loads_from_its_own_copy(tmp_path):
    with FaultServer() as faults:
        keys = {"AWS_ACCESS_KEY_ID": faults.access_key, "AWS_SECRET_ACCESS_KEY": faults.secret_key, "AWS_ENDPOINT_URL": faults.endpoint}
        client = Client(faults.endpoint, faults.access_key, faults.secret_key)
        client.make_bucket("bucket")
        once = run(tmp_path, "ops=save", "store=s3://bucket/p", "suffix=once", **keys)
        saved = run(tmp_path, "ops=save", "store=s3://bucket/p", "suffix=x", "copies=3", **keys)
        assert saved["metrics"]["save.copies"]["median"] == 3 and "save.copies" not in once["metrics"]
        assert saved["metrics"]["save.bytes_moved"]["median"] == 3 * once["metrics"]["save.bytes_moved"]["median"]
        names = sorted(name.removeprefix("p/x/iteration-0/") for name in client.keys("bucket", "p/x/iteration-0/"))
        assert names == [".metadata", "__0_0.distcp", "__1_0.distcp", "copy-1/__0_0.distcp", "copy-1/__1_0.distcp", "copy-2/__0_0.distcp",
                         "copy-2/__1_0.distcp"]
        sizes = client.keys("bucket", "p/x/iteration-0/")
        assert all(sizes[f"p/x/iteration-0/copy-{copy}/__{rank}_0.distcp"] == sizes[f"p/x/iteration-0/__{rank}_0.distcp"]
                   for copy in (1, 2) for rank in (0, 1))
        faults.clear()
        run(tmp_path, "ops=load", "store=s3://bucket/p", "suffix=x", "copies=3", **keys)
        read = {row["key"].removeprefix("p/x/iteration-0/") for row in faults.log("GetObject") if row["key"].endswith("distcp")}
        assert {name.startswith("copy-1/") for name in read} == {True, False}  # rank 1, rank 0
        assert not [name for name in read if name.startswith("copy-2/")]
        call(PROGRAM, "verify", "s3://bucket/p/x", **keys)  # to others it is a checkpoint as any


@pytest.mark.parametrize("folder", ["per_iteration", "overwrite", "rotate"])
def test_copies_on_a_disk_are_replaced_and_removed_with_the_rest(tmp_path, folder):
    store = tmp_path / "store"
    store.mkdir()
    assert run(tmp_path, f"store={store}", "copies=2", f"folder={folder}", "iterations=3")["outcome"] == "pass"
    assert not list(store.rglob("*.distcp"))


@pytest.mark.parametrize("words", [("save.async=true",), ("engine=torch-dcp",), ("io.files=shared", "format=raw"), ("workload=raw",)], ids=" ".join)
def test_what_has_one_copy_says_so(tmp_path, words):
    assert "copies=2" in run(tmp_path, f"store={tmp_path}", "copies=2", *words, code=2)
