"""What the S3 client counts, how it can be told to work, and what is left when its process is killed."""
import json
import os
import re
import signal
import subprocess
import time
from pathlib import Path

import pytest
from harness import PROGRAM
from s3_harness import Client, call, clean_environment
from s3_faults import FaultServer  # its folder is put in the path by the harness

# A file of 11 MiB in 3 parts a save.
TINY = ("model=gpt2-tiny", "ranks=1", "iterations=1", "warmup=0", "baseline=false", "store=s3://bucket/p", "s3.part_size=5MiB")


@pytest.fixture(scope="module")
def shared():
    with FaultServer() as faults:
        Client(faults.endpoint, faults.access_key, faults.secret_key).make_bucket("bucket")
        yield faults


class Bed:
    def __init__(self, faults, home):
        self.faults = faults
        self.environment = {"AWS_ACCESS_KEY_ID": faults.access_key, "AWS_SECRET_ACCESS_KEY": faults.secret_key,
                            "AWS_ENDPOINT_URL": faults.endpoint, "CKPTBENCH_HOME": str(home)}

    def call(self, *words, code=0):
        return call(PROGRAM, *words, code=code, timeout=120, **self.environment)

    def run(self, *words):
        return json.loads(self.call("run", "--json", *TINY, *words).stdout)

    def metric(self, name, op="save"):
        rows = json.loads(self.call("sql", "--json", f"SELECT max(max) AS v FROM metric WHERE metric='{name}' AND op='{op}'").stdout)
        return rows[0]["v"]


@pytest.fixture
def bed(shared, tmp_path):
    shared.tell(rules=[])
    shared.clear()
    return Bed(shared, tmp_path / "home")


def test_requests_and_retries_are_counted_by_what_happened(bed):
    bed.faults.fail({"operation": "UploadPart", "part": 1, "fault": "error", "times": 2},
                    {"operation": "UploadPart", "part": 2, "fault": "error", "status": 500, "code": "InternalError", "times": 1},
                    {"operation": "UploadPart", "part": 3, "fault": "reset", "request_bytes": 1000, "times": 1})
    assert bed.run("ops=save", "verify=none")["outcome"] == "pass"
    assert bed.metric("retries_throttled") == 2
    assert bed.metric("retries_server") == 1
    assert bed.metric("retries_connection") == 1
    assert bed.metric("retries_stalled") == 0
    assert bed.metric("retries") == bed.metric("errors") == 4
    assert bed.metric("requests") >= 3 + 4 + 3  # parts, repeated parts, the upload's beginning, end and the look at it
    assert bed.metric("wire_bytes") > 11 << 20
    assert bed.metric("connections") >= 1
    assert 0 < bed.metric("ttfb_p50_s") <= bed.metric("ttfb_p99_s")


OF_REQUESTS = ("requests", "retries", "errors", "retries_throttled", "retries_server", "retries_connection", "retries_stalled", "throttled_s", "backoff_s",
               "repeated_bytes", "wire_bytes", "connections", "requests_in_flight", "ttfb_p50_s", "ttfb_p99_s")


def test_what_is_counted_of_requests_is_in_the_history(bed):
    bed.run("verify=none", "baseline=true")
    ask = lambda text: json.loads(bed.call("sql", "--json", text).stdout)  # noqa: E731
    values = {(row["op"], row["metric"]): row["median"] for row in ask("SELECT op, metric, median FROM metric")}
    assert not [(op, name) for op in ("save", "load") for name in OF_REQUESTS if values.get((op, name)) is None]
    assert 1 <= values["save", "requests_in_flight"] <= values["save", "requests"]
    assert values["none", "request_rate"] > 0 and values["none", "success_ratio"] == 1
    assert values["none", "save_limit_fraction"] > 0 and values["none", "load_limit_fraction"] > 0  # of puts and gets of raw bytes, as many at once
    latencies = {row["op"]: row["count"] for row in ask("SELECT op, count FROM histogram")}
    assert latencies["save"] >= 3 and latencies["load"] >= 3


def test_one_refusal_among_many_answers_costs_no_long_wait_and_one_part(bed):
    bed.faults.fail({"operation": "UploadPart", "part": 2, "fault": "error", "times": 1})
    assert bed.run("ops=save", "verify=none")["outcome"] == "pass"
    assert bed.metric("retries_throttled") == 1
    assert bed.metric("backoff_s") <= 0.010
    assert bed.metric("repeated_bytes") == 5 << 20


def test_a_server_that_refuses_most_requests_is_given_time_and_fewer(bed):
    bed.faults.fail({"operation": "UploadPart", "fault": "error", "times": 8})
    assert bed.run("ops=save", "verify=none")["outcome"] == "pass"
    assert bed.metric("retries_throttled") == 8
    assert bed.metric("throttled_s") > 0
    assert bed.metric("backoff_s") > 0.030  # more than three that are repeated almost at once


def test_refused_requests_are_a_state_and_a_line_of_the_report(bed):
    quiet = bed.run("ops=save", "verify=none", "iterations=10")
    bed.faults.fail({"fault": "error", "percent": 20, "times": 0})
    refused = bed.run("ops=save", "verify=none", "iterations=10")
    assert refused["states"]["save"]["backoff"] > 0 and sum(refused["states"]["save"].values()) == pytest.approx(1)
    assert "backoff" not in quiet["states"]["save"]
    said = bed.call("show", refused["run"]).stdout
    line = re.search(r"^repeated +(\d+) of (\d+) requests in 10 saves \((\d+) %\): (\d+) throttled; TIME of TIME waiting to try again, throttled for TIME; "
                     r"first byte p50 TIME, p99 TIME$".replace("TIME", r"\S+ [mu]?s"), said, re.M)
    assert line and line[1] == line[4] and 5 < int(line[3]) < 40, said
    assert "repeated" not in bed.call("show", quiet["run"]).stdout
    compared = bed.call("compare", quiet["run"], refused["run"], code=None).stdout
    assert f"\nrepeated: 0 of {quiet['metrics']['save.requests']['median'] * 10:.0f} requests in 10 saves (0 %) -> {line[1]} of {line[2]} requests" in compared
    assert "repeated" not in bed.call("compare", quiet["run"], quiet["run"], code=None).stdout


@pytest.mark.parametrize("loops", [1, 2])
def test_waiting_for_a_refused_request_alone_is_backoff_whichever_thread_sends_it(bed, loops):
    bed.faults.fail({"operation": "CreateMultipartUpload", "fault": "error", "times": 4})
    assert bed.run("ops=save", "verify=none", f"s3.loops={loops}")["states"]["save"]["backoff"] > 0


def test_a_refused_request_beside_others_is_not_the_state_backoff(bed):
    bed.faults.fail({"operation": "UploadPart", "part": 1, "fault": "error", "times": 1}, {"operation": "UploadPart", "part": 2, "fault": "delay", "seconds": 1})
    assert "backoff" not in bed.run("ops=save", "verify=none")["states"]["save"]
    assert bed.metric("retries_throttled") == 1


def test_a_read_that_broke_goes_on_where_it_broke(bed):
    bed.faults.fail({"operation": "GetObject", "key": "distcp$", "fault": "close", "response_bytes": 1000000, "range": "bytes"})
    assert bed.run("verify=none")["outcome"] == "pass"
    assert bed.metric("retries_connection", "load") == 1
    assert bed.metric("repeated_bytes", "load") == 0
    reads = [row for row in bed.faults.log("GetObject") if row["key"].endswith("distcp")]
    broken = next(row for row in reads if row["fault"])
    first, last = broken["range"].removeprefix("bytes=").split("-")
    assert f"bytes={int(first) + 1000000}-{last}" in [row["range"] for row in reads]


def test_bytes_of_an_answer_that_made_no_sense_are_not_kept(bed):
    bed.faults.fail({"operation": "GetObject", "key": "distcp$", "fault": "truncate", "response_bytes": 1000, "range": "bytes"})
    assert bed.run("verify=none")["outcome"] == "pass"
    assert bed.metric("retries_server", "load") == 1
    reads = [row["range"] for row in bed.faults.log("GetObject") if row["key"].endswith("distcp")]
    assert len(reads) - len(set(reads)) == 1  # the same range again


def test_uploads_begin_side_by_side(bed):
    bed.faults.fail({"operation": "CreateMultipartUpload", "fault": "delay", "seconds": 3, "times": 0})
    assert bed.run("ops=save", "verify=none", "io.files=2")["outcome"] == "pass"
    operations = [row["operation"] for row in bed.faults.log() if row["operation"] in ("CreateMultipartUpload", "UploadPart")]
    assert operations[:2] == ["CreateMultipartUpload"] * 2 and operations[2:] == ["UploadPart"] * 4


@pytest.mark.parametrize("times, code", [(1, 0), (0, None)], ids=["once", "for-ever"])
def test_an_upload_whose_id_was_lost_on_the_way_is_not_left_behind(bed, times, code):
    bed.faults.fail({"operation": "CreateMultipartUpload", "fault": "close", "response_bytes": 10, "times": times})
    said = bed.call("run", *TINY, "ops=save", "verify=none", "s3.attempts=3", code=code)
    assert (said.returncode == 0) == (times == 1)
    assert len(bed.faults.log("CreateMultipartUpload")) == (2 if times else 3)
    assert bed.faults.uploads() == []


@pytest.mark.parametrize("other", [True, False], ids=["of-another-writer", "its-own"])
def test_a_lost_upload_is_complete_only_if_the_object_is_its_own(bed, other):
    """The answer to a completion is lost, and the next attempt finds no such upload."""
    save = [PROGRAM, "run", *TINY, "ops=save", "verify=none", f"suffix=lost-{other}", "s3.attempts=20"]
    bed.call(*save[1:], f"suffix=of-this-size-{other}")
    size = sum(row["received"] for row in bed.faults.log("UploadPart"))
    bed.faults.clear()
    fault = {"fault": "error", "times": 0} if other else {"fault": "close", "response_bytes": 10, "times": 1}
    bed.faults.fail({"operation": "CompleteMultipartUpload"} | fault)
    environment = clean_environment() | {"AWS_EC2_METADATA_DISABLED": "true"} | bed.environment
    process = subprocess.Popen(save, env=environment, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    while other and not bed.faults.log("CompleteMultipartUpload"):
        assert process.poll() is None
        time.sleep(0.02)
    if other:
        client = Client(bed.faults.endpoint, bed.faults.access_key, bed.faults.secret_key)
        client.must("PUT", "bucket", bed.faults.log("CompleteMultipartUpload")[0]["key"], body=b"?" * size)
        bed.faults.fail({"operation": "CompleteMultipartUpload", "fault": "error", "status": 404, "code": "NoSuchUpload"})
    said = process.communicate(timeout=120)[0]
    assert (process.returncode == 0) == (not other), said
    assert not other or "what another upload wrote" in said


@pytest.mark.parametrize("words", [("s3.loops=3",), ("s3.checksum=sha256",), ("s3.checksum=crc32c",), ("s3.checksum=none",), ("io.depth=1",), ("io.files=item",),
                                   ("format=raw", "ranks=2"), ("workload=raw",)], ids=" ".join)
def test_every_way_to_work_gives_right_bytes(bed, words):
    assert bed.run(*words)["outcome"] == "pass"
    assert bed.faults.uploads() == []


PROTECTIONS = {"auto": "bodies unsigned, the server compares their CRC-32C", "sha256": "bodies signed (SHA-256)", "crc32c": "bodies unsigned, the server compares their CRC-32C", "none": "bodies unsigned, unchecked"}


@pytest.mark.parametrize("checksum, status", [("auto", 400), ("sha256", 400), ("crc32c", 400), ("none", 200)])
def test_a_checksum_finds_what_the_way_damaged_and_the_run_says_which(bed, checksum, status):
    words = ["ops=save", "verify=none", f"s3.checksum={checksum}"]
    run = bed.run(*words)
    facts = json.loads(bed.call("export", run["run"], "--json").stdout)["facts"]
    assert any(fact.startswith("io.used=") and PROTECTIONS[checksum] in fact for fact in facts), facts
    bed.faults.fail({"operation": "UploadPart", "part": 2, "fault": "damage", "at": 1000})
    said = bed.call("run", *TINY, *words, code=None)
    assert [row["status"] for row in bed.faults.log("UploadPart") if row["fault"]] == [status]
    if status == 200:
        assert said.returncode == 0  # nobody could know: the run said so
    else:
        assert said.returncode == 3 and "part 2" in said.stdout + said.stderr
    assert bed.faults.uploads() == []


def test_ranks_are_spread_over_the_endpoints_of_a_bucket(bed):
    port = bed.faults.endpoint.rpartition(":")[2]
    hosts = [f"127.0.0.1:{port}", f"localhost:{port}"]
    run = bed.run("ranks=3", "sharding=full", "verify=full", f"s3.endpoint=http://{hosts[0]}+http://{hosts[1]}", "suffix=spread-over-two", "keep=false")
    assert run["outcome"] == "pass"
    asked = {(row["key"].rpartition("/")[2], row["host"]) for row in bed.faults.log("UploadPart") + bed.faults.log("PutObject") if ".distcp" in row["key"]}
    assert asked == {(f"__{rank}_0.distcp", hosts[rank % 2]) for rank in range(3)}
    facts = json.loads(bed.call("export", run["run"], "--json").stdout)["facts"]
    assert any(f"s3 http://{hosts[0]} (ranks spread over 2 endpoints)" in fact for fact in facts if fact.startswith("io.used=")), facts


@pytest.mark.parametrize("words, said", [("s3.endpoint=http://127.0.0.1:1+nonsense", "the S3 endpoint 'nonsense'"),
                                         ("s3.endpoint=http://127.0.0.1:1+http://b engine=command command=true", "engine=command uses one")])
def test_a_list_of_endpoints_that_cannot_be_used_is_refused_before_anything_starts(bed, words, said):
    refused = bed.call("run", *TINY, *words.split(), code=None)
    assert refused.returncode == 2 and said in refused.stderr, refused.stdout + refused.stderr
    assert bed.faults.log() == []


def test_one_rank_lists_and_reads_metadata_for_all(bed):
    asked = []
    for ranks in (1, 3):
        bed.faults.clear()
        assert bed.run(f"ranks={ranks}", "sharding=full", f"suffix=ranks-{ranks}", "keep=false")["outcome"] == "pass"
        asked.append((len(bed.faults.log("ListObjectsV2")), len([row for row in bed.faults.log("GetObject") if row["key"].endswith(".metadata")])))
    assert asked[0] == asked[1] and min(asked[0]) > 0


def test_reads_go_across_gaps_as_wide_as_they_are_told(bed):
    """Half of the columns of a matrix are pieces of each of its rows: one read each, or one for all of them."""
    reads = {}
    for gap in ("0", "1MiB"):
        bed.faults.clear()
        words = ("ranks=2", "load.tp=2", "load.dp=1", "load.exchange=off", "state=weights", f"load.gap={gap}", "verify=full")
        assert bed.run(*words)["verified"] == {"iterations": 1, "of": 1}
        reads[gap] = len([row for row in bed.faults.log("GetObject") if row["key"].endswith(".distcp")])
    assert reads["1MiB"] < 20 and reads["0"] > 10 * reads["1MiB"], reads


@pytest.mark.parametrize("words, folders", [
    ("s3.prefix_strategy=binary", ["0/", "1/"]), ("s3.prefix_strategy=hex", ["0/", "1/"]),
    ("s3.prefix_strategy=round_robin s3.prefixes=left+right", ["left/", "right/"]), ("s3.prefix_strategy=none", [""])],
    ids=["binary", "hex", "round_robin", "none"])
def test_ranks_write_below_the_folders_of_the_strategy(bed, words, folders):
    assert bed.run("ranks=2", "tp=2", "suffix=spread", "keep=false", *words.split())["outcome"] == "pass"
    keys = {row["key"].removeprefix("p/spread/") for row in bed.faults.log() if row["key"].endswith(".distcp")}
    assert sorted({key.removeprefix("iteration-0/").rpartition("__")[0] for key in keys}) == folders, keys


def test_a_server_that_answers_no_more_is_not_asked_to_forget_every_upload(bed):
    bed.faults.fail({"operation": ["UploadPart", "AbortMultipartUpload", "ListMultipartUploads"], "fault": "stall", "times": 0})
    said = bed.call("run", *TINY, "ops=save", "io.files=2", "s3.stall=500ms", "s3.deadline=1s", code=None)
    assert said.returncode in (3, 4), said.stdout + said.stderr
    assert len(bed.faults.log("AbortMultipartUpload")) <= 2  # two attempts for one of two files
    bed.faults.fail()
    assert bed.call("s3", "clean", "s3://bucket/p", "--older-than", "0s", "--yes").stdout
    assert bed.faults.uploads() == []


def test_threads_of_their_own_give_up_as_one_does(bed):
    bed.faults.fail({"operation": "UploadPart", "part": 2, "fault": "error", "times": 0})
    said = bed.call("run", *TINY, "s3.loops=2", "s3.attempts=3", code=3)
    assert "part 2" in said.stdout + said.stderr and "after 3 attempts" in said.stdout + said.stderr
    bed.faults.fail()
    assert bed.faults.uploads() == []


def test_every_request_says_that_the_requester_pays_where_that_is_wanted(bed):
    assert bed.run("s3.requester_pays=true")["outcome"] == "pass"
    asked = bed.faults.log()
    assert {row["payer"] for row in asked} == {"requester"} and {"PutObject", "UploadPart", "GetObject", "HeadObject"} <= {row["operation"] for row in asked}
    bed.faults.clear()
    assert bed.run()["outcome"] == "pass"
    assert {row["payer"] for row in bed.faults.log()} == {""}


def test_requests_leave_by_every_interface_that_is_named(bed):
    assert bed.run("s3.interface=127.0.0.5+127.0.0.6")["outcome"] == "pass"
    assert {row["peer"] for row in bed.faults.log() if row["operation"] == "UploadPart"} == {"127.0.0.5", "127.0.0.6"}
    said = bed.call("run", *TINY, "s3.interface=192.0.2.1", code=None)
    assert said.returncode != 0 and "s3.interface" in said.stdout + said.stderr, said.stdout + said.stderr


def worker_of(folder):
    """The process of the rank whose command line names the folder."""
    for path in Path("/proc").glob("[0-9]*/cmdline"):
        try:
            words = path.read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"ckptbench-worker") and any(str(folder).encode() in word for word in words[1:]):
            return int(path.parent.name)
    return None


def wait_for(what, seconds=200):
    end = time.monotonic() + seconds
    while time.monotonic() < end:
        found = what()
        if found:
            return found
        time.sleep(0.05)
    raise AssertionError("it did not come to that in time")


def test_what_a_killed_rank_was_uploading_is_aborted(bed, tmp_path):
    bed.faults.fail({"operation": "UploadPart", "fault": "stall", "request_bytes": 1000, "times": 0})
    run = subprocess.Popen([str(PROGRAM), "run", *TINY, "s3.stall=60s", "suffix=killed"], env=clean_environment() | bed.environment,
                           stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True)
    try:
        wait_for(bed.faults.uploads)
        os.kill(wait_for(lambda: worker_of(tmp_path)), signal.SIGKILL)
        said, _ = run.communicate(timeout=120)
    finally:
        run.kill()
    assert run.returncode in (3, 4), said
    assert bed.faults.uploads() == []
    logs = [path.read_text() for path in (tmp_path / "home").rglob("agent.log")]
    assert any("aborted 1 upload" in log for log in logs), logs


def test_the_suite_measures_a_bucket_as_it_does_a_disk(bed):
    run = bed.call("run", "workload=suite", "suite.only=storage", "suite.file_bytes=16MiB", "ranks=2", "iterations=1", "warmup=0",
                   "store=s3://bucket/suite", "--json")
    document = json.loads(run.stdout)
    assert document["outcome"] == "pass", document
    for name in ("write", "read", "parallel_write", "parallel_read", "aggregate_write", "aggregate_read"):
        assert document["metrics"][f"suite.storage_{name}_bytes_per_s"]["median"] > 0
    assert document["metrics"]["suite.storage_creates_per_s"]["median"] > 0
    assert "suite.storage_buffered_write_bytes_per_s" not in document["metrics"]  # there is no page cache
    facts = bed.call("export", document["run"], "--json").stdout
    assert "suite.skipped.storage.buffered" in facts and "io.used=s3 " in facts, facts


def test_bodies_are_sent_in_few_system_calls(bed, tmp_path):
    """A send for each 256 KiB, but where the socket's buffer was full; bytes that move twice would show, too."""
    leaks = os.environ.get("ASAN_OPTIONS", "") + ":detect_leaks=0"  # cannot be looked for under strace
    trace = tmp_path / "trace"
    call("strace", "-ff", "-yy", "-o", trace, "-e", "trace=sendto,sendmsg,write,writev", PROGRAM, "run", *TINY, "ops=save", "verify=none", timeout=240,
         ASAN_OPTIONS=leaks, **bed.environment)
    lines = "".join(path.read_text() for path in tmp_path.glob("trace.*"))
    sends = [int(count) for count in re.findall(r"(?m)^(?:sendto|sendmsg|write|writev)\(\d+<TCP:.* = (\d+)$", lines)]
    uploads = [row["received"] for row in bed.faults.log() if row["operation"] == "UploadPart"]
    requests = len(bed.faults.log())
    assert len(uploads) == 3 and sum(uploads) > 10 << 20
    assert sum(uploads) < sum(sends) < sum(uploads) + requests * (8 << 10)
    assert len(sends) <= 2 * sum(uploads) // (256 << 10) + 3 * requests, sorted(sends)
