"""Which checksum protects bodies by default: a CRC-32C that the server compares, and what servers get that refuse it."""
import json

import pytest
from test_s3_client import TINY, bed, shared  # noqa: F401

BODIES = ("PutObject", "UploadPart")
UNSIGNED = {"operation": list(BODIES), "headers_sent": {"x-amz-content-sha256": "^UNSIGNED-PAYLOAD$"}, "fault": "error", "times": 0}
# Refusals that servers are known for: a policy of the bucket, a server without unsigned bodies, servers without checksums.
REFUSALS = {
    "by a policy": [UNSIGNED | {"status": 403, "code": "AccessDenied"}],
    "of the hash": [UNSIGNED | {"status": 400, "code": "XAmzContentSHA256Mismatch"}],
    "of the header": [{"operation": list(BODIES), "headers_sent": {"x-amz-checksum-crc32c": "."}, "fault": "error", "times": 0, "status": 501,
                       "code": "NotImplemented"},
                      {"operation": "CreateMultipartUpload", "headers_sent": {"x-amz-checksum-algorithm": "."}, "fault": "error", "times": 0,
                       "status": 400, "code": "InvalidArgument"}],
}


def used(bed, run):  # noqa: F811
    facts = json.loads(bed.call("export", run["run"], "--json").stdout)["facts"]
    return next(fact for fact in facts if fact.startswith("io.used="))


def bodies(bed):  # noqa: F811
    return [row for row in bed.faults.log() if row["operation"] in BODIES]


def test_bodies_have_a_crc32c_and_are_not_hashed(bed):  # noqa: F811
    bed.run("ops=save", "verify=none")
    assert len(bed.faults.log("UploadPart")) >= 3
    assert {(row["payload"], *row["checksums"]) for row in bodies(bed)} == {("UNSIGNED-PAYLOAD", "x-amz-checksum-crc32c")}
    assert [row["checksums"] for row in bed.faults.log("CreateMultipartUpload")] == [["x-amz-checksum-algorithm"]]


def test_a_report_says_which_checksum_was_asked_for_and_whether_the_server_checks_it(bed):  # noqa: F811
    said = bed.call("run", *TINY, "ops=save", "verify=none").stdout
    assert 'checksum auto: CRC-32C of unsigned bodies ("used" says whether the server checks it)' in said
    assert any(line.startswith("used") and "the server compares their CRC-32C" in line for line in said.splitlines()), said
    assert ", checksum sha256\n" in bed.call("run", *TINY, "ops=save", "verify=none", "s3.checksum=sha256").stdout


@pytest.mark.parametrize("rules, found", [([], "the server compares their CRC-32C"), (REFUSALS["by a policy"], "bodies signed (SHA-256)")],
                         ids=["checks", "refuses"])
def test_doctor_says_before_a_run_who_checks_bodies(bed, rules, found):  # noqa: F811
    bed.faults.fail(*rules)
    said = json.loads(bed.call("doctor", "--json", "store=s3://bucket/p", code=None).stdout)
    row = next(row for row in said["checks"] if row["name"] == "s3 write")
    assert row["status"] == "ok" and found in row["found"], row


@pytest.mark.parametrize("rules", REFUSALS.values(), ids=REFUSALS)
def test_a_server_that_refuses_such_bodies_gets_signed_ones(bed, rules):  # noqa: F811
    bed.faults.fail(*rules)
    run = bed.run("verify=full", "ranks=2", "tp=2", "iterations=2")
    assert run["outcome"] == "pass" and run["verified"]["iterations"] == run["verified"]["of"] > 0
    assert "bodies signed (SHA-256): the server refuses unsigned ones with a CRC-32C" in used(bed, run)
    accepted = [row for row in bodies(bed) if row["status"] == 200]
    assert accepted and {len(row["payload"]) for row in accepted} == {32} and not [row for row in accepted if row["payload"].startswith("UNSIGNED")]
    assert bed.faults.uploads() == []


def test_a_refusal_is_asked_for_once_and_then_every_body_is_signed(bed):  # noqa: F811
    bed.faults.fail(*REFUSALS["by a policy"])
    bed.run("ops=save", "verify=none", "iterations=4", "io.depth=1")
    parts = bed.faults.log("UploadPart")
    assert len(parts) >= 12 and len([row for row in parts if row["status"] == 403]) <= 1


def test_who_may_not_write_learns_so_from_two_requests(bed):  # noqa: F811
    bed.faults.fail({"operation": "UploadPart", "part": 1, "fault": "error", "status": 403, "code": "AccessDenied", "times": 0})
    said = bed.call("run", *TINY, "ops=save", "io.depth=1", code=3)
    assert "AccessDenied" in said.stdout + said.stderr and "part 1" in said.stdout + said.stderr
    assert len(bed.faults.log("UploadPart")) <= 2


def test_a_checksum_that_was_asked_for_is_not_replaced(bed):  # noqa: F811
    bed.faults.fail(*REFUSALS["by a policy"])
    bed.call("run", *TINY, "ops=save", "s3.checksum=crc32c", code=3)
    assert {row["payload"] for row in bodies(bed)} == {"UNSIGNED-PAYLOAD"}


def test_runs_of_the_former_default_are_told_from_new_ones(bed):  # noqa: F811
    words = ("ops=save", "verify=none", "name=night")
    old, new = bed.run(*words, "s3.checksum=sha256")["run"], bed.run(*words)["run"]
    assert "differs: s3.checksum sha256 -> auto" in bed.call("compare", old, new, code=None).stdout
    said = bed.call("history", "save_s", "name=night").stdout
    assert "s3.checksum=sha256" in said and "s3.checksum=auto" in said
