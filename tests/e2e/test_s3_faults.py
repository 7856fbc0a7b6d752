"""Every failure of a server that the field knows: a clear message or a right result, in time, and never half a
checkpoint that verifies. The server misbehaves as tests/services/s3_faults.py is told; times are short, so that
giving up is quick."""
import json
import socket

import pytest
from harness import PROGRAM
from s3_harness import Client, call
from s3_faults import FaultServer  # its folder is put in the path by the harness

# One file of 11 MiB in 3 parts, saved and then read back and compared byte for byte.
SAVE = ("model=gpt2-tiny", "ranks=1", "launcher=none", "ops=save", "iterations=1", "warmup=0", "baseline=false", "suffix=x",
        "store=s3://bucket/p", "s3.part_size=5MiB", "s3.stall=1s", "s3.deadline=8s")


@pytest.fixture(scope="module")
def shared():
    with FaultServer() as faults:
        yield faults


class Bed:
    """A server without rules, an empty bucket, and runs against it."""

    def __init__(self, faults, home):
        self.faults, self.home = faults, home
        self.client = Client(faults.endpoint, faults.access_key, faults.secret_key)
        self.keys = {"AWS_ACCESS_KEY_ID": faults.access_key, "AWS_SECRET_ACCESS_KEY": faults.secret_key}

    def run(self, *words, code=0, **environment):
        environment = self.keys | {"CKPTBENCH_HOME": str(self.home), "AWS_ENDPOINT_URL": self.faults.endpoint} | environment
        return call(PROGRAM, "run", "--json", *SAVE, *words, code=code, timeout=120, **environment)

    def passes(self, *words, **environment):
        return json.loads(self.run(*words, **environment).stdout)

    def fails(self, *wanted, words=(), **environment):
        """The run fails, its message has every word, and what is in the bucket is no checkpoint nor an open upload."""
        result = self.run(*words, code=None, **environment)
        said = result.stdout + result.stderr
        assert result.returncode in (3, 4), said  # 4: it took too long
        for word in wanted:
            assert word in said, f"'{word}' is not in: {said}"
        self.faults.fail()
        assert not [key for key in self.client.keys("bucket", "p/") if key.endswith("/.metadata")], said
        assert self.faults.uploads() == [], said
        return said

    def save(self):
        """A whole checkpoint, for what is tested about loads."""
        self.faults.fail()
        self.passes("verify=none")
        self.faults.clear()

    def load(self, *words, code=0):
        return self.run("ops=load", "s3.deadline=4s", *words, code=code)


@pytest.fixture
def bed(shared, tmp_path):
    shared.tell(rules=[], clock_offset_s=0, region=None, seed=1, credentials={shared.access_key: {"secret": shared.secret_key}})
    bed = Bed(shared, tmp_path)
    bed.client.request("PUT", "bucket")
    for key in bed.client.keys("bucket"):
        bed.client.remove("bucket", key)
    shared.clear()
    return bed


# ---- what passes by itself is repeated, and the result is right ----

TRANSIENT = [
    {"operation": "UploadPart", "fault": "error", "times": 3},
    {"operation": "UploadPart", "fault": "error", "times": 2, "early": True, "headers": {"retry-after": "0"}},
    {"operation": "PutObject", "fault": "error", "status": 500, "code": "InternalError", "times": 2},
    {"operation": "PutObject", "fault": "error", "status": 429, "code": "TooManyRequests", "times": 1},
    {"operation": "CreateMultipartUpload", "fault": "error", "times": 2},
    {"operation": "CompleteMultipartUpload", "fault": "error", "times": 2},
    {"operation": "ListObjectsV2", "fault": "error", "times": 2},
    {"operation": ["HeadObject", "GetObject"], "fault": "error", "times": 2},
    {"operation": "UploadPart", "fault": "reset", "request_bytes": 1000000},
    {"operation": "UploadPart", "fault": "reset", "times": 2},
    {"operation": "UploadPart", "fault": "close", "request_bytes": 5000000},
    {"operation": "GetObject", "fault": "reset", "response_bytes": 1000000, "range": "bytes"},
    {"operation": "GetObject", "fault": "close", "response_bytes": 1000000, "range": "bytes"},
    {"operation": "UploadPart", "fault": "stall", "request_bytes": 100000},
    {"operation": "UploadPart", "fault": "stall"},
    {"operation": "GetObject", "fault": "stall", "response_bytes": 100000, "range": "bytes"},
    {"operation": "CompleteMultipartUpload", "fault": "stall"},
    {"operation": "UploadPart", "fault": "drip", "request": True, "bytes_per_s": 3000000},  # slow is not stalled
    {"operation": "GetObject", "fault": "drip", "bytes_per_s": 3000000, "range": "bytes"},
    {"operation": "GetObject", "fault": "truncate", "response_bytes": 1000, "range": "bytes"},
    {"operation": "CompleteMultipartUpload", "fault": "ok_error"},
    {"operation": "CompleteMultipartUpload", "fault": "ok_error", "code": "SlowDown"},
    {"fault": "error", "percent": 10},
    {"operation": ["UploadPart", "GetObject", "PutObject"], "fault": "reset", "percent": 10},
]


@pytest.mark.parametrize("rule", TRANSIENT, ids=lambda rule: f"{rule['fault']}-{rule.get('operation', 'any')}")
def test_what_passes_by_itself_is_repeated_and_every_byte_is_right(bed, rule):
    bed.faults.fail(rule)
    document = bed.passes("s3.deadline=60s")
    assert document["outcome"] == "pass"
    assert [row for row in bed.faults.log() if row["fault"]], "the fault never happened"
    assert bed.faults.uploads() == []
    bed.faults.fail()
    call(PROGRAM, "verify", "s3://bucket/p/x", AWS_ENDPOINT_URL=bed.faults.endpoint, **bed.keys)


# ---- what does not pass is given up in time, by name ----

FOR_EVER = [
    ({"operation": "UploadPart", "part": 2, "fault": "error", "times": 0}, 
     ["part 2", "SlowDown (Please reduce your request rate.)", "rank 0", "__0_0.distcp", "request id REQ", "gave up after", "attempts"]),
    ({"operation": "UploadPart", "part": 3, "fault": "stall", "request_bytes": 1000, "times": 0}, ["part 3", "rank 0", "__0_0.distcp"]),
    ({"operation": "UploadPart", "fault": "reset", "request_bytes": 1000, "times": 0}, ["rank 0", "__0_0.distcp"]),
    ({"operation": "UploadPart", "fault": "drip", "request": True, "bytes_per_s": 20000, "times": 0}, ["rank 0", "__0_0.distcp"]),
    ({"operation": "CreateMultipartUpload", "fault": "garbage", "times": 0}, ["__0_0.distcp"]),
    ({"operation": "CreateMultipartUpload", "fault": "garbage", "body": "", "times": 0}, ["__0_0.distcp"]),
    ({"operation": "CompleteMultipartUpload", "fault": "ok_error", "times": 0}, ["InternalError", "__0_0.distcp"]),
    ({"operation": "UploadPart", "fault": "wrong_etag", "times": 0}, ["__0_0.distcp"]),
    ({"operation": "CompleteMultipartUpload", "fault": "lose_part", "part": 2, "times": 0}, ["__0_0.distcp"]),
]


@pytest.mark.parametrize("rule, wanted", FOR_EVER, ids=lambda value: value["fault"] + value["operation"] if isinstance(value, dict) else "")
def test_what_does_not_pass_is_given_up_by_name_and_leaves_nothing_that_verifies(bed, rule, wanted):
    bed.faults.fail(rule)
    bed.fails(*wanted, words=["s3.deadline=4s"])


@pytest.mark.parametrize("silent", [{}, {"method": "PUT"}, {"operation": "PutObject", "after": 1}], ids=["anything", "writes", "all-but-the-claim"])
def test_a_server_that_accepts_and_never_answers_is_asked_three_times(bed, silent):
    """As one does that is full. Neither s3.deadline nor timeout.op is near."""
    bed.faults.fail(silent | {"fault": "stall", "times": 0})
    said = bed.fails("gave up after 3 attempts", "none of the last was answered with a single byte", words=["s3.deadline=5m"])
    assert "no byte moved for 1 s (s3.stall)" in said
    asked = [(row["method"], row["key"], row["part"], *row["query"]) for row in bed.faults.log() if row["fault"] == "stall"]
    puts = [row for row in asked if row[0] == "PUT"]
    assert len(puts) == 3 * len(set(puts)) or silent == {}, asked
    assert max(asked.count(row) for row in asked) == 3 or silent == {}, asked  # the agent asks for the claim, too


def test_a_server_that_cannot_be_reached_is_not_taken_for_one_that_does_not_answer(bed):
    with socket.socket() as full, socket.socket() as first, socket.socket() as second:
        full.bind(("127.0.0.1", 0))
        full.listen(0)
        for fills in (first, second):  # nobody accepts: the kernel answers no more
            fills.setblocking(False)
            fills.connect_ex(full.getsockname())
        host, port = full.getsockname()
        said = bed.fails("gave up after 5 attempts", words=["s3.attempts=5", "s3.deadline=5m"], AWS_ENDPOINT_URL=f"http://{host}:{port}")
    assert "none of the last was answered" not in said


def test_a_run_that_goes_on_counts_the_save_that_the_server_refused(bed):
    bed.faults.fail({"operation": "UploadPart", "fault": "error", "after": 3, "times": 1})  # a save has three parts
    run = bed.passes("on_error=continue", "iterations=3", "s3.attempts=1", "s3.stall=6s")
    assert run["outcome"] == "pass" and run["message"].startswith("1 of 3 iterations failed (33.3 %); iteration 2: saving ")
    assert "SlowDown" in run["message"]
    assert run["metrics"]["failed_fraction"]["median"] == pytest.approx(1 / 3)
    assert run["metrics"]["success_ratio"]["median"] < 1 and run["metrics"]["save_s"]["n"] == 2
    assert bed.faults.uploads() == []
    assert not [key for key in bed.client.keys("bucket", "p/x/") if "iteration-1" in key]


def test_latencies_have_the_first_bytes_of_the_servers_answers(bed):
    run = bed.passes()
    words = (PROGRAM, "show", run["run"], "--latency")
    save = json.loads(call(*words, "--json", CKPTBENCH_HOME=str(bed.home)).stdout)["latency"]["save"]
    assert save["first_byte"]["requests"] >= 3 and save["first_byte"]["max_s"] <= save["max_s"]
    assert "\n  first byte " in call(*words, CKPTBENCH_HOME=str(bed.home)).stdout


NEVER_REPEATED = [
    ({"fault": "redirect", "region": "eu-west-3", "times": 0}, ["eu-west-3"]),
    ({"fault": "error", "status": 403, "code": "AccessDenied", "message": "Access Denied", "times": 0}, ["AccessDenied"]),
    ({"fault": "error", "status": 404, "code": "NoSuchBucket", "message": "The specified bucket does not exist", "times": 0}, ["bucket"]),
    ({"fault": "error", "status": 400, "code": "ExpiredToken", "message": "The provided token has expired.", "times": 0}, ["ExpiredToken"]),
]


@pytest.mark.parametrize("rule, wanted", NEVER_REPEATED, ids=lambda value: value.get("code", value["fault"]) if isinstance(value, dict) else "")
def test_what_no_repetition_mends_is_asked_for_once(bed, rule, wanted):
    bed.faults.fail(rule)
    bed.fails(*wanted, words=["s3.stall=6s"])
    asked = [(row["operation"], row["key"]) for row in bed.faults.log() if row["fault"]]
    assert len(asked) - len(set(asked)) <= 1, asked  # the agent and the rank look, each for itself


@pytest.mark.parametrize("words, said", [(["s3.endpoint=ftp://x"], "http://HOST"), (["s3.tls.cert=/x"], "go together")])
def test_what_no_server_makes_right_is_refused_before_anything_starts(bed, words, said):
    assert said in bed.run(*words, code=2).stderr
    assert not (bed.home / "runs").exists()


def test_an_endpoint_that_is_no_s3_server_is_taken_for_none(bed):
    bed.faults.fail({"fault": "answer", "status": 404, "body": "<html>not here</html>", "times": 0})
    said = bed.run(code=3).stderr
    assert "status 404" in said and "an S3 server (s3.endpoint" in said


def test_wrong_keys_are_named_and_not_shown(bed):
    said = bed.fails("SignatureDoesNotMatch", AWS_SECRET_ACCESS_KEY="a-wrong-secret-key")
    assert "a-wrong-secret-key" not in said
    bed.fails("InvalidAccessKeyId", AWS_ACCESS_KEY_ID="NOBODY")


def test_a_bucket_that_is_not_there_is_named(bed):
    bed.fails("NoSuchBucket", "nowhere", words=["store=s3://nowhere/p"])


@pytest.mark.parametrize("offset_s", [3600, -3600])
def test_a_clock_that_is_wrong_is_corrected_by_the_servers(bed, offset_s):
    bed.faults.tell(clock_offset_s=offset_s)
    assert bed.passes()["outcome"] == "pass"


def test_the_region_that_a_server_wants_is_named(bed):
    bed.faults.tell(region="eu-west-3")
    result = bed.run(code=3)
    assert "set s3.region=eu-west-3" in result.stdout + result.stderr
    bed.faults.clear()
    assert bed.passes("s3.region=eu-west-3", "suffix=y")["outcome"] == "pass"


# ---- loads ----


def test_bytes_that_came_wrong_are_found(bed):
    bed.save()
    bed.faults.fail({"operation": "GetObject", "key": "distcp$", "fault": "corrupt", "at": 3000000, "times": 0})
    result = bed.load(code=3)
    assert "__0_0.distcp" in result.stdout + result.stderr


def test_bytes_that_were_stored_wrong_are_found(bed):
    bed.faults.fail({"operation": "UploadPart", "part": 2, "fault": "store_corrupt", "at": 1000})
    result = bed.run(code=3)
    assert "__0_0.distcp" in result.stdout + result.stderr
    verified = call(PROGRAM, "verify", "s3://bucket/p/x", code=3, AWS_ENDPOINT_URL=bed.faults.endpoint, **bed.keys)
    assert "__0_0.distcp" in verified.stdout


def test_verify_asks_for_windows_of_a_file_and_not_for_every_item(bed):
    bed.save()
    call(PROGRAM, "verify", "s3://bucket/p/x", AWS_ENDPOINT_URL=bed.faults.endpoint, **bed.keys)
    assert len([row for row in bed.faults.log("GetObject") if row["key"].endswith(".distcp")]) < 20  # of more than 400 items


def test_a_server_that_ignores_ranges_is_named(bed):
    bed.save()
    bed.faults.fail({"operation": "GetObject", "key": "distcp$", "fault": "ignore_range", "times": 0})
    result = bed.load(code=3)
    said = result.stdout + result.stderr
    assert "__0_0.distcp" in said and "it is not the range that was asked for" in said


def test_an_answer_that_drips_is_given_up_by_name(bed):
    bed.save()
    bed.faults.fail({"operation": "GetObject", "key": "distcp$", "fault": "drip", "bytes_per_s": 20000, "times": 0})
    result = bed.load(code=None)
    said = result.stdout + result.stderr
    assert result.returncode in (3, 4) and "__0_0.distcp" in said and "rank 0" in said and "s3.deadline is over" in said


def test_metadata_that_is_garbage_is_refused(bed):
    bed.save()
    bed.faults.fail({"operation": "GetObject", "key": "metadata$", "fault": "garbage", "times": 0})
    assert ".metadata" in (result := bed.load(code=3)).stdout + result.stderr


def test_a_list_that_never_ends_is_given_up(bed):
    bed.save()
    page = ('<ListBucketResult><IsTruncated>true</IsTruncated><NextContinuationToken>again</NextContinuationToken>'
            '<Contents><Key>p/x/a</Key><Size>1</Size></Contents></ListBucketResult>')
    bed.faults.fail({"operation": "ListObjectsV2", "fault": "answer", "body": page, "times": 0})
    result = call(PROGRAM, "verify", "s3://bucket/p", code=None, timeout=120, AWS_ENDPOINT_URL=bed.faults.endpoint, **bed.keys)
    assert result.returncode != 0


# ---- TLS ----


@pytest.mark.parametrize("kind, wanted", [("wrong-name", "certificate"), ("stranger", "certificate")])
def test_a_certificate_that_does_not_match_ends_the_run_with_a_message(tmp_path, kind, wanted):
    with FaultServer(tls=kind) as faults:
        bed = Bed(faults, tmp_path)
        bed.client.make_bucket("bucket")
        said = bed.run(f"s3.tls.ca={faults.authority}", code=None, AWS_ENDPOINT_URL=faults.tls_endpoint)
        assert said.returncode != 0 and wanted in said.stdout + said.stderr, said.stdout + said.stderr
        assert bed.client.keys("bucket") == {}


def test_tls_with_an_authority_and_a_client_certificate_of_ones_own(tmp_path):
    with FaultServer(tls="good", client_certificates=True) as faults:
        bed = Bed(faults, tmp_path)
        bed.client.make_bucket("bucket")
        faults.clear()
        words = [f"s3.tls.ca={faults.authority}", f"s3.tls.cert={faults.client_certificate}", f"s3.tls.key={faults.client_key}"]
        bed.passes(*words, AWS_ENDPOINT_URL=faults.tls_endpoint)
        assert {row["scheme"] for row in faults.log()} == {"https"}
        refused = bed.run(words[0], "suffix=y", code=None, AWS_ENDPOINT_URL=faults.tls_endpoint)
        assert refused.returncode != 0


# ---- backoff is seen when it was ----

@pytest.mark.parametrize("loops", [1, 3])
def test_backoff_over_time_is_what_the_counters_say(bed, loops):
    bed.faults.fail({"operation": "UploadPart", "fault": "error", "times": 3})
    run = bed.passes("s3.deadline=60s", "s3.stall=20s", f"s3.loops={loops}")["run"]
    shown = json.loads(call(PROGRAM, "show", run, "--time", "--json", CKPTBENCH_HOME=str(bed.home)).stdout)
    over_time = {(entry["operation"], entry["request"]): entry for entry in shown["time"]["operations"]}
    backoff = over_time["save", "backoff"]
    metric = {name: shown["metrics"][f"save.{name}"]["mean"] for name in ("backoff_s", "retries", "bytes_moved")}
    assert backoff["requests"] == metric["retries"] == 3 and backoff["bytes"] == 0
    assert abs(backoff["in_flight_ns"] - 1e9 * metric["backoff_s"]) < 1 and backoff["in_flight_ns"] > 0
    assert over_time["save", "write"]["bytes"] == metric["bytes_moved"]
    assert over_time["save", "fsync"]["requests"] == 1  # the upload is completed

    def limits(entry):
        (rank,) = entry["ranks"]
        return rank["first_bucket"] * entry["bucket_s"], (rank["first_bucket"] + len(rank["bytes"])) * entry["bucket_s"]

    writes, waits = limits(over_time["save", "write"]), limits(backoff)
    near = over_time["save", "write"]["bucket_s"] + backoff["bucket_s"]
    assert writes[0] - near <= waits[0] <= waits[1] <= writes[1] + near  # the parts' writes wait for it
