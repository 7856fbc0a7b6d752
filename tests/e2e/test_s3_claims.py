"""Two runs in one folder of a bucket: the claim changes by conditional writes, and uploads belong to who made them."""
import json
import os
import re
import signal
import subprocess
import time
from email.utils import parsedate_to_datetime

import pytest
from harness import PROGRAM
from s3_harness import Client, call, clean_environment, server  # noqa: F401
from s3_faults import FaultServer  # its folder is put in the path by the harness

TINY = ("model=gpt2-tiny", "ranks=1", "launcher=none", "baseline=false", "iterations=1", "warmup=0", "verify=none", "ops=save", "suffix=nightly",
        "s3.part_size=5MiB", "folder=overwrite")


class Place:
    """A bucket, a home, and runs that use both."""

    def __init__(self, endpoint, access_key, secret_key, bucket, folder):
        self.client, self.bucket, self.folder, self.gate = Client(endpoint, access_key, secret_key), bucket, folder, folder / "go"
        self.prefix = folder.name
        self.environment = {"AWS_ACCESS_KEY_ID": access_key, "AWS_SECRET_ACCESS_KEY": secret_key, "AWS_REGION": "us-east-1",
                            "AWS_ENDPOINT_URL": endpoint, "AWS_EC2_METADATA_DISABLED": "true", "CKPTBENCH_HOME": str(folder / "home")}

    def run(self, *words, code=0):
        return json.loads(call(PROGRAM, "run", "--json", *TINY, f"store=s3://{self.bucket}/{self.prefix}", *words, code=code,
                               **self.environment).stdout)

    def begin(self, *words):
        """A run that waits in its writes until the gate is there."""
        store = f"fault:until={self.gate}+ops=write:s3://{self.bucket}/{self.prefix}"
        first = subprocess.Popen([PROGRAM, "run", "--json", *TINY, f"store={store}", *words], env=clean_environment() | self.environment,
                                 stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.until(lambda: self.client.uploads(self.bucket, self.prefix), first)
        return first

    def until(self, condition, process):
        deadline = time.monotonic() + 200
        while not condition():
            assert time.monotonic() < deadline
            assert process is None or process.poll() is None, process.communicate()
            time.sleep(0.05)

    def finish(self, first, code=0):
        self.gate.touch()
        out, err = first.communicate(timeout=120)
        assert first.returncode == code, (out, err)
        return json.loads(out)

    @property
    def key(self):
        return f"{self.prefix}/nightly/.ckptbench-run"

    def claim(self):
        return self.client.get(self.bucket, self.key).decode()

    def change_claim(self, **values):
        text = self.claim()
        for key, value in values.items():
            text = re.sub(rf"^{key}=.*$", f"{key}={value}", text, flags=re.M)
        self.client.put(self.bucket, self.key, text.encode())

    def claim_age_s(self):
        headers = self.client.must("HEAD", self.bucket, self.key).headers
        return (parsedate_to_datetime(headers["date"]) - parsedate_to_datetime(headers["last-modified"])).total_seconds()

    def pid(self):
        return int(re.search(r"^pid=(\d+)$", self.claim(), re.M)[1])

    def markers(self):
        return [key for key in self.client.keys(self.bucket, self.prefix) if key.endswith("/.metadata")]


@pytest.fixture
def place(server, tmp_path):  # noqa: F811
    return Place(server.endpoint, server.access_key, server.secret_key, server.bucket, tmp_path)


@pytest.fixture(scope="module")
def faults():
    with FaultServer() as running:
        yield running


@pytest.fixture
def faulty(faults, tmp_path):
    client = Client(faults.endpoint, faults.access_key, faults.secret_key)
    try:
        client.make_bucket("claims")
    except AssertionError:
        pass  # made by the test before
    faults.fail()
    faults.clear()
    return Place(faults.endpoint, faults.access_key, faults.secret_key, "claims", tmp_path)


def test_a_run_in_the_folder_of_a_live_one_is_refused_and_that_ones_uploads_stay(place):
    first = place.begin()
    uploads, pid = place.client.uploads(place.bucket, place.prefix), place.pid()
    refused = place.run(code=3)["message"]
    assert "is in use by run" in refused and f"process {pid} on" in refused
    assert place.client.uploads(place.bucket, place.prefix) == uploads
    place.finish(first)
    assert len(place.markers()) == 1
    call(PROGRAM, "verify", f"s3://{place.bucket}/{place.prefix}/nightly", **place.environment)


def test_the_folder_of_a_killed_run_is_taken_over_with_an_end_of_its_uploads(place):
    first = place.begin("timeout.lease=1h", "keep=false")
    worker, agent = place.pid(), first.pid
    agents = subprocess.run(["pgrep", "-P", str(agent)], capture_output=True, text=True, check=True).stdout.split()
    for pid in (first.pid, *map(int, agents), worker):  # nobody is left to clean up
        os.kill(pid, signal.SIGKILL)
    first.wait()
    assert place.client.uploads(place.bucket, place.prefix)
    place.run("keep=false")
    assert place.client.uploads(place.bucket, place.prefix) == []
    assert not [key for key in place.client.keys(place.bucket, place.prefix) if "/nightly/" in key]


def test_a_run_whose_claim_is_anothers_commits_nothing(place):
    first = place.begin()
    place.change_claim(token="0" * 32)
    assert "commits and removes nothing there" in place.finish(first, code=3)["message"]
    assert not place.markers()


def test_an_owner_elsewhere_keeps_its_folder_until_its_lease_has_run_out(place):
    first = place.begin("timeout.lease=1h", "keep=false")
    os.kill(place.pid(), signal.SIGKILL)
    place.finish(first, code=4)
    place.change_claim(machine="another", run_folder="/nowhere")
    assert "is in use by run" in place.run(code=3)["message"]
    place.change_claim(lasts_ns=1_000_000_000)
    place.until(lambda: place.claim_age_s() > 2, None)  # whole seconds, by the server's clock
    place.run()


def test_the_claim_is_renewed(place):
    first = place.begin("timeout.lease=1s")

    def modified():
        return place.client.must("HEAD", place.bucket, place.key).headers["last-modified"]
    text, before = place.claim(), modified()
    place.until(lambda: modified() != before, first)
    assert place.claim() == text
    place.finish(first)


# ---- servers that know less ----

def test_where_the_server_knows_conditional_writes_nothing_is_said(faulty):
    run = faulty.run()["run"]
    assert "claim" not in call(PROGRAM, "show", run, **faulty.environment).stdout.split()


@pytest.mark.parametrize("rule", [{"fault": "ignore_conditions", "times": 0}, {"fault": "error", "status": 501, "code": "NotImplemented", "times": 1}])
def test_where_the_server_knows_no_conditional_writes_the_run_says_that_its_claim_is_weak(faults, faulty, rule):
    faults.fail({"operation": "PutObject", "key": r"\.ckptbench-run$", **rule})
    run = faulty.run()["run"]
    assert "claim         weak: " in call(PROGRAM, "show", run, **faulty.environment).stdout
    assert faulty.markers()


def test_a_write_of_the_claim_whose_answer_was_lost_is_ours(faults, faulty):
    faults.fail({"operation": "PutObject", "key": r"\.ckptbench-run$", "fault": "reset", "response_bytes": 0})
    faulty.run()
    assert faulty.claim().splitlines()[1:] == ["kept"]


def test_a_server_that_compares_etags_without_quotes_is_understood(faults, faulty):
    faults.fail({"operation": "PutObject", "key": r"\.ckptbench-run$", "fault": "plain_etags", "times": 0})
    run = faulty.run("keep=false")["run"]
    assert "weak" not in call(PROGRAM, "show", run, **faulty.environment).stdout
    first = faulty.begin("keep=false")
    os.kill(faulty.pid(), signal.SIGKILL)
    faulty.finish(first, code=4)
    faulty.gate.unlink()
    assert "weak" not in call(PROGRAM, "show", faulty.run("keep=false")["run"], **faulty.environment).stdout


def test_where_another_run_made_the_claim_first_it_is_refused(faults, faulty):
    first = faulty.begin()
    faults.fail({"operation": "HeadObject", "key": r"\.ckptbench-run$", "fault": "error", "status": 404, "code": "NoSuchKey"},
                {"operation": ["ListObjectsV2", "ListObjects"], "fault": "answer", "status": 200, "headers": {"content-type": "application/xml"},
                 "body": "<ListBucketResult><IsTruncated>false</IsTruncated></ListBucketResult>"})
    assert "is in use by run" in faulty.run(code=3)["message"]
    faulty.finish(first)
