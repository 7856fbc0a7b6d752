"""What tests of S3 share: the real server, a bucket of their own in it, servers that misbehave, and calls of programs.

The real server's address comes from the environment (tests/services/rgw.py); a test that needs it skips without.
"""
import os
import subprocess
import sys
import uuid
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/services"))

from s3_client import Client  # noqa: E402

SERVER = "CKPTBENCH_TEST_S3"


class Server:
    """The real server, one bucket in it that this process made, and what a program needs to reach it."""

    def __init__(self, tls=False):
        self.endpoint = os.environ[SERVER + "_TLS" if tls else SERVER]
        self.authority = os.environ[SERVER + "_CA"]
        self.access_key, self.secret_key = os.environ[SERVER + "_ACCESS_KEY"], os.environ[SERVER + "_SECRET_KEY"]
        self.client = Client(self.endpoint, self.access_key, self.secret_key, authority=self.authority)
        self.bucket = f"test-{uuid.uuid4().hex[:20]}"
        self.client.make_bucket(self.bucket)

    def environment(self):
        return {"AWS_ACCESS_KEY_ID": self.access_key, "AWS_SECRET_ACCESS_KEY": self.secret_key, "AWS_REGION": "us-east-1"}

    def clean(self):
        for key, upload in self.client.uploads(self.bucket):
            self.client.must("DELETE", self.bucket, key, query={"uploadId": upload})
        for key in self.client.keys(self.bucket):
            self.client.remove(self.bucket, key)
        self.client.must("DELETE", self.bucket)


def open_server(tls=False):
    if SERVER not in os.environ:
        pytest.skip(f"{SERVER} is not set: Ceph RGW is missing (tests/services/rgw.py)")
    return Server(tls)


@pytest.fixture(scope="module")
def server():
    found = open_server()
    yield found
    found.clean()


@pytest.fixture(scope="module")
def tls_server():
    found = open_server(tls=True)
    yield found
    found.clean()


def clean_environment():
    """Without credentials and settings of the person who runs the tests."""
    return {key: value for key, value in os.environ.items() if not key.startswith("AWS_")}


def call(*words, timeout=120, code=0, **environment):
    """One program's end, with nothing of AWS in its environment but what is given."""
    full = clean_environment() | {"AWS_EC2_METADATA_DISABLED": "true"} | environment
    result = subprocess.run([str(word) for word in words], env=full, capture_output=True, text=True, timeout=timeout)
    if code is not None:
        assert result.returncode == code, f"{words}: {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result
