"""What doctor says of a bucket that cannot be used, failure by failure, each with what to do; and that `s3 clean` asks
before it aborts."""
import json
import os
import pty
import subprocess

import pytest
from harness import PROGRAM
from s3_harness import Client, call, clean_environment
from s3_faults import FaultServer  # its folder is put in the path by the harness

STORE = "store=s3://bucket/p"


@pytest.fixture(scope="module")
def shared():
    with FaultServer(tls="stranger") as faults:
        Client(faults.endpoint, faults.access_key, faults.secret_key).make_bucket("bucket")
        yield faults


@pytest.fixture
def faults(shared):
    shared.tell(rules=[], clock_offset_s=0, region=None)
    shared.clear()
    return shared


def environment(faults, home):
    return {"HOME": str(home), "CKPTBENCH_HOME": str(home / "home"), "AWS_ENDPOINT_URL": faults.endpoint,
            "AWS_ACCESS_KEY_ID": faults.access_key, "AWS_SECRET_ACCESS_KEY": faults.secret_key}


def doctor(faults, home, *words, **changed):
    """What it says of S3: {name: row}."""
    said = call(PROGRAM, "doctor", "--json", *(words or [STORE]), code=None, timeout=120, **(environment(faults, home) | changed))
    rows = {row["name"].removeprefix("s3 "): row for row in json.loads(said.stdout)["checks"] if row["name"].startswith("s3")}
    assert said.returncode == 4 or all(row["status"] == "ok" for row in rows.values()), said.stdout
    return rows


def is_missing(row, found, advice):
    assert row["status"] == "missing" and found in row["found"] and advice in row["do"], row


def test_a_bucket_that_can_be_used_has_nothing_to_do(faults, tmp_path):
    rows = doctor(faults, tmp_path)
    assert {row["status"] for row in rows.values()} == {"ok"}
    assert rows["addresses"]["found"] == faults.endpoint.removeprefix("http://")
    assert list(rows) == ["credentials", "endpoint", "addresses", "bucket", "clock", "list", "write", "read", "remove", "uploads", "abort"]


# What is wrong, the row that says so, a word of what it found and one of what to do.
SETTINGS = [
    ({"AWS_ACCESS_KEY_ID": ""}, "credentials", "AWS_ACCESS_KEY_ID", "s3.profile"),
    ({"AWS_ENDPOINT_URL": f"http://{'x' * 70}.test"}, "endpoint", "cannot be resolved", "getent hosts"),
    ({"AWS_ENDPOINT_URL": "http://127.0.0.1:1", "AWS_MAX_ATTEMPTS": "2"}, "bucket", "does the server run", "start the server"),
    ({"AWS_MAX_ATTEMPTS": "many"}, "endpoint", "must be a number from 1", "AWS_MAX_ATTEMPTS"),
    ({"AWS_SECRET_ACCESS_KEY": "another"}, "bucket", "SignatureDoesNotMatch", "give other credentials"),
    ({"AWS_ACCESS_KEY_ID": "nobody"}, "bucket", "InvalidAccessKeyId", "give other credentials"),
    ({"AWS_CA_BUNDLE": "authority", "AWS_ENDPOINT_URL": "tls", "AWS_MAX_ATTEMPTS": "2"}, "bucket", "certificate", "s3.tls.ca"),
]


@pytest.mark.parametrize("changed, name, found, advice", SETTINGS, ids=lambda value: "-".join(value) if isinstance(value, dict) else "")
def test_settings_that_do_not_work_are_named(faults, tmp_path, changed, name, found, advice):
    known = {"authority": faults.authority, "tls": faults.tls_endpoint}
    rows = doctor(faults, tmp_path, **{key: known.get(value, value) for key, value in changed.items()})
    is_missing(rows[name], found, advice)
    assert "write" not in rows


def test_a_bucket_that_is_not_there_is_to_be_made(faults, tmp_path):
    is_missing(doctor(faults, tmp_path, "store=s3://nowhere/p")["bucket"], "there is no bucket nowhere", "make the bucket")


def test_a_bucket_of_another_region_names_it(faults, tmp_path):
    faults.tell(region="eu-west-3")
    is_missing(doctor(faults, tmp_path)["bucket"], "eu-west-3", "s3.region")


@pytest.mark.parametrize("offset_s", [600, -3600])
def test_a_clock_that_is_wrong_is_to_be_set(faults, tmp_path, offset_s):
    faults.tell(clock_offset_s=offset_s)
    is_missing(doctor(faults, tmp_path)["clock"], "ahead" if offset_s > 0 else "behind", "chronyc")


PERMISSIONS = {"ListObjectsV2": ("list", "s3:ListBucket"), "PutObject": ("write", "s3:PutObject"), "GetObject": ("read", "s3:GetObject"),
               "DeleteObject": ("remove", "s3:DeleteObject"), "ListMultipartUploads": ("uploads", "s3:ListBucketMultipartUploads"),
               "AbortMultipartUpload": ("abort", "s3:AbortMultipartUpload")}


@pytest.mark.parametrize("operation", PERMISSIONS)
def test_what_the_user_may_not_do_is_named_with_the_permission(faults, tmp_path, operation):
    name, permission = PERMISSIONS[operation]
    faults.fail({"operation": operation, "fault": "error", "status": 403, "code": "AccessDenied", "message": "Access Denied", "times": 0})
    rows = doctor(faults, tmp_path)
    is_missing(rows[name], "AccessDenied", permission)
    wrong = {name for name, row in rows.items() if row["status"] != "ok"}
    assert wrong == {name}


def test_who_may_not_look_at_the_bucket_may_still_write(faults, tmp_path):
    denied = {"fault": "error", "status": 403, "code": "AccessDenied", "message": "Access Denied", "times": 0}
    faults.fail({"operation": ["HeadBucket", "ListObjectsV2"]} | denied)
    rows = doctor(faults, tmp_path)
    is_missing(rows["bucket"], "AccessDenied", "s3:ListBucket")
    assert rows["write"]["status"] == rows["abort"]["status"] == "ok" and rows["list"]["status"] == "missing"


@pytest.mark.parametrize("answer, left", [("n", 1), ("", 1), ("y", 0)])
def test_clean_asks_where_there_is_somebody_to_ask(faults, tmp_path, answer, left):
    client = Client(faults.endpoint, faults.access_key, faults.secret_key)
    for key, upload in client.uploads("bucket"):
        client.must("DELETE", "bucket", key, query={"uploadId": upload})
    client.begin_upload("bucket", "p/dead")
    mine, its = pty.openpty()
    process = subprocess.Popen([str(PROGRAM), "s3", "clean", "s3://bucket/p", "--older-than", "0s"], stdin=its, stderr=its, stdout=subprocess.PIPE,
                               env=clean_environment() | environment(faults, tmp_path))
    os.close(its)
    said = b""
    try:
        while b"[y/N]" not in said:
            said += os.read(mine, 1000)
        os.write(mine, answer.encode() + b"\n")
        out, _ = process.communicate(timeout=120)
    finally:
        process.kill()
        os.close(mine)
    assert process.returncode == 0 and b"p/dead" in out, out
    assert b"lost" in said and len(faults.uploads()) == left
