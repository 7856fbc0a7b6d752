"""Objects that are published piece by piece, as metadata is: as one PUT or as parts, whole or not at all, in little memory."""
import array
import sys

import pytest
from harness import BUILD
from s3_harness import Client, call, server  # noqa: F401
from s3_faults import FaultServer  # its folder is put in the path by the harness

PART = 5 << 20
NAME = "run/.metadata"


def content(count):
    numbers = array.array("I", range((count + 3) // 4))
    if sys.byteorder == "big":
        numbers.byteswap()
    return numbers.tobytes()[:count]


def publish(environment, count, *, piece=1 << 20, store="s3://bucket/p", fail_after=0, code=0):
    result = call(BUILD / "tests/publish_pieces", store, NAME, count, piece, fail_after, code=code, timeout=100, **environment)
    return result.stderr if code else int(result.stdout)


@pytest.mark.parametrize("count", [0, 1, PART - 1, PART, PART + 1, 8 * PART, 8 * PART + 12345])
def test_a_real_server_has_every_byte(server, tmp_path, count):  # noqa: F811
    environment = server.environment() | {"AWS_ENDPOINT_URL": server.endpoint}
    publish(environment, count, store=f"s3://{server.bucket}/{tmp_path.name}", piece=700001)
    assert server.client.get(server.bucket, f"{tmp_path.name}/{NAME}") == content(count)
    assert server.client.uploads(server.bucket, tmp_path.name) == []


@pytest.mark.without_sanitizers
def test_memory_does_not_grow_with_the_object(server, tmp_path):  # noqa: F811
    environment = server.environment() | {"AWS_ENDPOINT_URL": server.endpoint}
    needed = publish(environment, 100 << 20, store=f"s3://{server.bucket}/{tmp_path.name}")
    assert server.client.get(server.bucket, f"{tmp_path.name}/{NAME}") == content(100 << 20)
    assert needed < 4 * PART + (16 << 20)


@pytest.fixture(scope="module")
def shared():
    with FaultServer() as faults:
        Client(faults.endpoint, faults.access_key, faults.secret_key).make_bucket("bucket")
        yield faults


class Bed:
    def __init__(self, faults):
        self.faults = faults
        self.client = Client(faults.endpoint, faults.access_key, faults.secret_key)
        self.environment = {"AWS_ACCESS_KEY_ID": faults.access_key, "AWS_SECRET_ACCESS_KEY": faults.secret_key, "AWS_ENDPOINT_URL": faults.endpoint,
                            "AWS_REGION": "us-east-1", "AWS_MAX_ATTEMPTS": "3"}

    def operations(self):
        return [row["operation"] for row in self.faults.log()]

    def found(self):
        return self.client.get("bucket", f"p/{NAME}")


@pytest.fixture
def bed(shared):
    shared.fail()
    bed = Bed(shared)
    for key in bed.client.keys("bucket"):
        bed.client.remove("bucket", key)
    shared.clear()
    return bed


def test_what_fits_into_a_part_is_one_request(bed):
    publish(bed.environment, PART)
    assert bed.operations() == ["PutObject"]
    assert bed.found() == content(PART)


def test_what_does_not_is_sent_in_parts_and_checked(bed):
    publish(bed.environment, 3 * PART + 1)
    operations = bed.operations()
    assert sorted(operations) == sorted(["CreateMultipartUpload", *4 * ["UploadPart"], "CompleteMultipartUpload", "HeadObject"])
    assert operations[-2:] == ["CompleteMultipartUpload", "HeadObject"]
    assert bed.found() == content(3 * PART + 1)


@pytest.mark.parametrize("rule", [
    {"operation": "UploadPart", "fault": "error", "times": 2}, {"operation": "UploadPart", "part": 2, "fault": "reset", "request_bytes": 1000, "times": 1},
    {"operation": "CreateMultipartUpload", "fault": "error", "times": 2}, {"operation": "CompleteMultipartUpload", "fault": "error", "times": 2}],
    ids=lambda rule: f"{rule['fault']}-{rule['operation']}")
def test_what_passes_by_itself_is_repeated(bed, rule):
    bed.faults.fail(rule)
    publish(bed.environment, 3 * PART + 1)
    assert bed.found() == content(3 * PART + 1)
    assert bed.faults.uploads() == []


@pytest.mark.parametrize("rule", [
    {"operation": operation, "fault": "error", "status": 403, "code": "AccessDenied", "times": 0, **more}
    for operation, more in (("CreateMultipartUpload", {}), ("UploadPart", {"part": 1}), ("UploadPart", {"part": 4}), ("CompleteMultipartUpload", {}))],
    ids=lambda rule: f"{rule['operation']}{rule.get('part', '')}")
def test_what_is_refused_leaves_the_object_before_it_and_no_parts(bed, rule):
    publish(bed.environment, 10)
    bed.faults.fail(rule)
    said = publish(bed.environment, 3 * PART + 1, code=1)
    assert NAME in said and "AccessDenied" in said
    bed.faults.fail()
    assert bed.found() == content(10)
    assert bed.faults.uploads() == []


@pytest.mark.parametrize("after", [1, 2 * PART, 3 * PART + 1])
def test_bytes_that_end_with_a_failure_are_not_published(bed, after):
    publish(bed.environment, 10)
    assert publish(bed.environment, 4 * PART, fail_after=after, code=1) == "there are no more bytes\n"
    assert bed.found() == content(10)
    assert bed.faults.uploads() == []


def test_the_fault_store_fills_a_bucket_between_parts(bed):
    said = publish(bed.environment, 4 * PART, store=f"fault:enospc_after={2 * PART + 5}:s3://bucket/p", code=1)
    assert "No space left" in said
    assert not bed.client.keys("bucket") and not bed.faults.uploads()
