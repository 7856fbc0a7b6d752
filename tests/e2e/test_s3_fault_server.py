"""The server that misbehaves is S3 when it is told nothing, and does what it is told else."""
import base64
import hashlib
import http.client
import ssl
import time
import urllib.error
import urllib.request
from datetime import datetime, timedelta, timezone

import boto3
import pytest
from botocore.config import Config
from s3_harness import Client
from s3_faults import FaultServer

MIB = 1 << 20


@pytest.fixture(scope="module")
def shared():
    with FaultServer() as faults:
        yield faults


@pytest.fixture
def faults(shared):
    """Without rules and settings of the test before."""
    shared.tell(rules=[], bandwidth_bytes_per_s=0, latency_s=0, clock_offset_s=0, region=None)
    shared.clear()
    return shared


def client_of(faults, **named):
    return Client(faults.endpoint, faults.access_key, faults.secret_key, **named)


@pytest.fixture
def client(faults):
    client = client_of(faults)
    client.request("PUT", "bucket")
    faults.clear()
    return client


def boto(faults):
    return boto3.client("s3", endpoint_url=faults.endpoint, aws_access_key_id=faults.access_key, region_name="us-east-1",
                        aws_secret_access_key=faults.secret_key,
                        config=Config(s3={"addressing_style": "path"}, retries={"total_max_attempts": 1}))


def upload(client, key, sizes):
    """A multipart upload up to its completion: its id and the body that completes it."""
    upload_id, rows = client.begin_upload("bucket", key), ""
    for number, size in enumerate(sizes, 1):
        answer = client.must("PUT", "bucket", key, query={"partNumber": str(number), "uploadId": upload_id}, body=bytes([number]) * size)
        rows += f"<Part><PartNumber>{number}</PartNumber><ETag>{answer.headers['etag']}</ETag></Part>"
    return upload_id, f"<CompleteMultipartUpload>{rows}</CompleteMultipartUpload>".encode()


def complete(client, key, upload_id, body):
    return client.request("POST", "bucket", key, query={"uploadId": upload_id}, body=body)


# ---- as S3 ----

def test_boto3_saves_and_loads_in_parts(faults, client, tmp_path):
    data = bytes(range(256)) * (20 * MIB // 256)
    (tmp_path / "in").write_bytes(data)
    s3 = boto(faults)
    s3.upload_file(str(tmp_path / "in"), "bucket", "a b/ü+", Config=boto3.s3.transfer.TransferConfig(multipart_chunksize=8 * MIB))
    assert len(faults.log("UploadPart")) == 3 and faults.uploads() == []
    s3.download_file("bucket", "a b/ü+", str(tmp_path / "out"))
    assert (tmp_path / "out").read_bytes() == data
    ranged = s3.get_object(Bucket="bucket", Key="a b/ü+", Range="bytes=8388600-8388616")
    assert ranged["Body"].read() == data[8388600:8388617] and ranged["ContentRange"].endswith(f"/{len(data)}")
    s3.delete_objects(Bucket="bucket", Delete={"Objects": [{"Key": "a b/ü+"}]})
    assert client.keys("bucket") == {}


def test_lists_continue_and_fold(faults, client):
    for index in range(25):
        client.put("bucket", f"many/{index:03d}/x", b"1")
    pages = list(boto(faults).get_paginator("list_objects_v2").paginate(Bucket="bucket", Prefix="many/", PaginationConfig={"PageSize": 10}))
    assert [page["KeyCount"] for page in pages] == [10, 10, 5]
    folded = boto(faults).list_objects_v2(Bucket="bucket", Prefix="many/", Delimiter="/")
    assert len(folded["CommonPrefixes"]) == 25 and "Contents" not in folded


def test_signatures_hashes_and_clocks_are_checked(faults, client):
    wrong = Client(faults.endpoint, faults.access_key, "wrong").request("GET", "bucket")
    assert (wrong.status, wrong.code) == (403, "SignatureDoesNotMatch")
    unknown = Client(faults.endpoint, "nobody", "wrong").request("GET", "bucket")
    assert (unknown.status, unknown.code) == (403, "InvalidAccessKeyId")
    other = client.request("PUT", "bucket", "x", body=b"abc", payload=hashlib.sha256(b"abd").hexdigest())
    assert (other.status, other.code) == (400, "XAmzContentSHA256Mismatch")
    bad = client.request("PUT", "bucket", "x", body=b"abc", headers={"x-amz-checksum-crc32c": "AAAAAA=="})
    assert (bad.status, bad.code) == (400, "BadDigest")
    client.must("PUT", "bucket", "x", body=b"123456789", headers={"x-amz-checksum-crc32c": base64.b64encode(bytes.fromhex("e3069283")).decode()})
    late = client.request("GET", "bucket", "x", now=datetime.now(timezone.utc) - timedelta(minutes=16))
    assert (late.status, late.code) == (403, "RequestTimeTooSkewed")
    faults.tell(region="eu-west-3")
    assert client.request("GET", "bucket", "x").xml().findtext("Region") == "eu-west-3"


def test_tokens_are_compared_and_expire(faults):
    keys = {"secret": "s", "token": "right"}
    faults.tell(credentials={faults.access_key: {"secret": faults.secret_key}, "temporary": keys, "old": keys | {"expires": 1}})
    assert Client(faults.endpoint, "temporary", "s", token="right").request("GET").status == 200
    assert Client(faults.endpoint, "temporary", "s", token="wrong").request("GET").code == "InvalidToken"
    assert Client(faults.endpoint, "old", "s", token="right").request("GET").code == "ExpiredToken"


def test_parts_have_the_limits_of_s3(faults, client):
    upload_id, body = upload(client, "small", [1000, 1000])
    assert complete(client, "small", upload_id, body).code == "EntityTooSmall"
    assert complete(client, "small", upload_id, body.replace(b"<PartNumber>2", b"<PartNumber>3")).code == "InvalidPart"
    assert complete(client, "small", "nonsense", body).code == "NoSuchUpload"
    assert faults.uploads() == ["small"]
    client.must("DELETE", "bucket", "small", query={"uploadId": upload_id})
    assert faults.uploads() == []


# ---- as told ----

def test_errors_come_as_often_as_told(faults, client):
    client.put("bucket", "x", b"1")
    faults.fail({"operation": "GetObject", "fault": "error", "times": 2})
    assert [client.request("GET", "bucket", "x").status for _ in range(3)] == [503, 503, 200]
    faults.tell(seed=7)
    faults.fail({"fault": "error", "status": 500, "code": "InternalError", "percent": 20})
    failed = sum(client.request("GET", "bucket", "x").status == 500 for _ in range(100))
    assert 8 <= failed <= 35


def test_connections_end_where_told(faults, client):
    data = bytes(300000)
    client.put("bucket", "x", data)
    for rule in ({"operation": "GetObject", "fault": "reset", "response_bytes": 100000}, {"operation": "GetObject", "fault": "close", "response_bytes": 0},
                 {"operation": "GetObject", "fault": "reset"}):
        faults.fail(rule)
        with pytest.raises((ConnectionResetError, http.client.IncompleteRead, http.client.RemoteDisconnected)):
            client.request("GET", "bucket", "x")
    faults.fail({"operation": "PutObject", "fault": "reset", "request_bytes": 65536})
    with pytest.raises((ConnectionResetError, BrokenPipeError)):
        client.request("PUT", "bucket", "y", body=bytes(40 * MIB))
    assert client.keys("bucket", "y") == {}


def test_a_stall_is_a_stall(faults, client):
    client.put("bucket", "x", bytes(1000))
    faults.fail({"operation": "GetObject", "fault": "stall", "response_bytes": 10})
    with pytest.raises(TimeoutError):
        client_of(faults, timeout=1).request("GET", "bucket", "x")


def test_answers_are_wrong_as_told(faults, client):
    client.put("bucket", "x", bytes(1000))
    faults.fail({"operation": "GetObject", "fault": "truncate", "response_bytes": 10})
    assert len(client.get("bucket", "x")) == 10
    faults.fail({"operation": "GetObject", "fault": "corrupt", "at": 999})
    assert client.get("bucket", "x") == bytes(999) + b"\x01"
    faults.fail({"operation": "GetObject", "fault": "ignore_range"})
    assert len(client.must("GET", "bucket", "x", headers={"range": "bytes=0-9"}).body) == 1000
    faults.fail({"operation": "PutObject", "fault": "wrong_etag"})
    assert client.must("PUT", "bucket", "x", body=b"1").headers["etag"].strip('"') == "0" * 32
    faults.fail({"fault": "redirect", "region": "eu-west-3"})
    answer = client.request("GET", "bucket", "x")
    assert (answer.status, answer.code, answer.headers["x-amz-bucket-region"]) == (301, "PermanentRedirect", "eu-west-3")
    faults.fail({"fault": "garbage"})
    assert b"<<" in client.request("GET", "bucket").body
    faults.fail({"operation": "PutObject", "fault": "damage"})
    answer = client.request("PUT", "bucket", "x", body=b"1")
    assert (answer.status, answer.code) == (400, "XAmzContentSHA256Mismatch")
    faults.fail({"operation": "PutObject", "fault": "store_corrupt"})
    client.put("bucket", "x", b"\x00")
    assert client.get("bucket", "x") == b"\x01"


def test_completions_fail_behind_a_200_and_lose_parts(faults, client):
    upload_id, body = upload(client, "big", [5 * MIB, 100])
    faults.fail({"operation": "CompleteMultipartUpload", "fault": "ok_error"})
    answer = complete(client, "big", upload_id, body)
    assert (answer.status, answer.body.strip()[:5]) == (200, b"<?xml") and b"InternalError" in answer.body
    assert faults.uploads() == ["big"]
    faults.fail({"operation": "CompleteMultipartUpload", "fault": "lose_part", "part": 1})
    assert complete(client, "big", upload_id, body).status == 200
    assert client.keys("bucket", "big") == {"big": 100}


def test_bandwidth_and_latency_are_kept(faults, client):
    client.put("bucket", "x", bytes(2 * MIB))
    faults.tell(bandwidth_bytes_per_s=8 * MIB, latency_s=0.05)
    start = time.monotonic()
    client.get("bucket", "x")
    assert time.monotonic() - start >= 0.25  # never faster than told; how much slower is the machine's affair


def test_the_log_has_every_request(faults, client):
    client.put("bucket", "x", b"abc")
    client.get("bucket", "x")
    assert [(row["operation"], row["status"], row["received"], row["sent"]) for row in faults.log()] == [("PutObject", 200, 3, 0), ("GetObject", 200, 0, 3)]


@pytest.mark.parametrize("kind, fine", [("good", True), ("wrong-name", False), ("stranger", False)])
def test_certificates_are_as_told(kind, fine):
    with FaultServer(tls=kind) as faults:
        client = Client(faults.tls_endpoint, faults.access_key, faults.secret_key, authority=faults.authority)
        if fine:
            assert client.request("GET").status == 200
        else:
            with pytest.raises(ssl.SSLCertVerificationError):
                client.request("GET")


def test_metadata_needs_a_session_token(faults):
    faults.tell(metadata={"access_key": "a", "secret_key": "b", "token": "c"})
    role = f"{faults.control}/latest/meta-data/iam/security-credentials/"
    with pytest.raises(urllib.error.HTTPError):
        urllib.request.urlopen(role, timeout=10)
    ask = urllib.request.Request(f"{faults.control}/latest/api/token", method="PUT", headers={"X-aws-ec2-metadata-token-ttl-seconds": "60"})
    token = urllib.request.urlopen(ask, timeout=10).read().decode()
    answer = urllib.request.urlopen(urllib.request.Request(role + "tester", headers={"X-aws-ec2-metadata-token": token}), timeout=10)
    assert b'"SecretAccessKey": "b"' in answer.read()
