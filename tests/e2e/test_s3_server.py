"""The real S3 server of the tests is what they take it for: it checks signatures, TLS and names."""
import http.client
import ssl

import pytest
from s3_harness import Client, server, tls_server  # noqa: F401


def test_objects_under_names_that_need_encoding_come_back(server):
    for key in ("plain", "a b+c/ü~*%.x", "d=1&e=2/f?g", "-_.!'()"):
        server.client.put(server.bucket, key, key.encode())
        assert server.client.get(server.bucket, key) == key.encode()
    assert server.client.keys(server.bucket, "a b+") == {"a b+c/ü~*%.x": len("a b+c/ü~*%.x".encode())}


def test_a_wrong_secret_is_refused(server):
    answer = Client(server.endpoint, server.access_key, "wrong").request("GET", server.bucket)
    assert (answer.status, answer.code) == (403, "SignatureDoesNotMatch")


def test_a_wrong_payload_hash_is_refused(server):
    answer = server.client.request("PUT", server.bucket, "x", body=b"abc", headers={"content-length": "3"}, payload="0" * 64)
    assert (answer.status, answer.code) == (400, "XAmzContentSHA256Mismatch")


def test_open_uploads_are_listed_until_they_are_aborted(server):
    upload = server.client.begin_upload(server.bucket, "left behind")
    assert ("left behind", upload) in server.client.uploads(server.bucket, "left")
    server.client.must("DELETE", server.bucket, "left behind", query={"uploadId": upload})
    assert server.client.uploads(server.bucket, "left") == []


def test_the_bucket_may_stand_in_the_host_name(server):
    address = f"{server.bucket}.s3.localhost"
    connection = http.client.HTTPConnection("127.0.0.1", Client(server.endpoint, "", "").endpoint.port, timeout=120)
    connection.request("GET", "/", headers={"Host": address})
    assert connection.getresponse().status == 403  # NoSuchBucket would be 404
    connection.close()


def test_tls_needs_the_authority(tls_server):
    tls_server.client.put(tls_server.bucket, "over tls", b"1")
    assert tls_server.client.get(tls_server.bucket, "over tls") == b"1"
    with pytest.raises(ssl.SSLCertVerificationError):
        Client(tls_server.endpoint, tls_server.access_key, tls_server.secret_key).request("GET", tls_server.bucket)
