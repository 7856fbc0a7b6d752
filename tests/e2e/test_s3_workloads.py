"""Trainings that keep their checkpoints in S3, on a real server and on one that refuses; a suite of a bucket that lies."""
import json
import math

import pytest
from harness import PROGRAM
from s3_harness import Client, call, server  # noqa: F401
from s3_faults import FaultServer  # its folder is put in the path by the harness
from train_harness import SMALL, batch

TRAIN = (*SMALL, "s3.part_size=5MiB", "train.checkpoint_every=2", "suffix=a")
SUITE = ("workload=suite", "suite.only=storage", "suite.file_bytes=6MiB", "s3.part_size=5MiB", "iterations=1", "warmup=0")


class Bed:
    def __init__(self, folder, client, store, environment):
        self.client, self.store = client, store
        self.environment = environment | {"CKPTBENCH_HOME": str(folder / "home")}

    def call(self, *words, code=0):
        return call(PROGRAM, *words, code=code, **self.environment)

    def run(self, *words, code=0):
        return json.loads(self.call("run", "--json", f"store={self.store}", *words, code=code).stdout)

    def losses(self):
        rows = json.loads(self.call("sql", "--json", "SELECT iteration, value FROM sample_value WHERE metric='loss' AND rank=0 AND run="
                                    "(SELECT run FROM run ORDER BY coalesce(started_ns, planned_ns) DESC LIMIT 1)").stdout)
        return {row["iteration"]: row["value"] for row in rows}

    def steps(self):
        bucket, prefix = self.store.removeprefix("s3://").split("/", 1)
        keys = self.client.keys(bucket, f"{prefix}/a/")
        return sorted(int(key.split("/iteration-")[1].split("/")[0]) for key in keys if key.endswith("/.metadata"))


@pytest.fixture
def bucket(server, tmp_path):  # noqa: F811
    environment = server.environment() | {"AWS_ENDPOINT_URL": server.endpoint}
    return Bed(tmp_path, server.client, f"s3://{server.bucket}/{tmp_path.name}", environment)


@pytest.mark.parametrize("words", [(), ("save.async=true",)], ids=["sync", "async"])
def test_a_training_goes_on_from_a_bucket_as_if_nothing_had_been(bucket, words):
    alone = bucket.run(*SMALL, *batch(2), "train.steps=6")
    straight = bucket.losses()
    assert alone["outcome"] == "pass" and len(straight) == 6
    bucket.run(*TRAIN, *words, *batch(2), "train.steps=4", "keep.last=1")
    assert bucket.steps() == [4]  # the older one is removed
    document = bucket.run(*TRAIN, *words, *batch(2), "train.steps=6", "train.resume=latest")
    assert bucket.losses() == {step: straight[step] for step in (4, 5)}
    assert document["metrics"]["recovery_s"]["median"] > 0 and document["metrics"]["lost_steps"]["median"] == 0
    assert bucket.steps() == [6]
    bucket.run(*TRAIN, *words, "ranks=3", "train.batch_size=4", "train.steps=8", "train.resume=latest")
    assert all(math.isfinite(loss) for loss in bucket.losses().values()) and sorted(bucket.losses()) == [6, 7]
    assert "every element of every tensor is there once" in bucket.call("verify", f"{bucket.store}/a").stdout


@pytest.fixture(scope="module")
def faults():
    with FaultServer() as made:
        Client(made.endpoint, made.access_key, made.secret_key).make_bucket("bucket")
        yield made


@pytest.fixture
def refusing(faults, tmp_path):
    faults.tell(rules=[])
    environment = {"AWS_ACCESS_KEY_ID": faults.access_key, "AWS_SECRET_ACCESS_KEY": faults.secret_key, "AWS_ENDPOINT_URL": faults.endpoint}
    yield Bed(tmp_path, Client(faults.endpoint, faults.access_key, faults.secret_key), f"s3://bucket/{tmp_path.name}", environment)
    faults.tell(rules=[])


@pytest.mark.parametrize("words", [(), ("save.async=true",)], ids=["sync", "async"])
def test_a_bucket_that_refuses_a_checkpoint_fails_it_and_not_the_training(refusing, faults, words):
    faults.fail({"operation": ["PutObject", "UploadPart", "CreateMultipartUpload"], "key": "iteration-4/__", "fault": "error", "status": 403,
                 "code": "AccessDenied", "message": "Access Denied", "times": 0})
    document = refusing.run(*TRAIN, *words, "ranks=2", "train.batch_size=1", "layers=1", "train.steps=8", "s3.deadline=4s", code=3)
    assert "training went on to step 8" in document["message"] and "AccessDenied" in document["message"]
    assert document["metrics"]["checkpoints_failed"]["median"] >= 1 and refusing.steps() == [8]


def test_a_bucket_that_returns_wrong_bytes_is_found_out(refusing, faults):
    faults.fail({"operation": "GetObject", "key": "sequence", "fault": "corrupt", "at": 3, "times": 1})
    document = refusing.run(*SUITE, "ranks=1", code=3)
    assert "not what was written there" in document["message"]
