"""One folder of a real distributed file system, used through two mounts as by two machines (tests/services/cephfs.py)."""
import json
import os
import signal
import subprocess
import time
import uuid
from pathlib import Path

import pytest

from claims_harness import Background, change_claim, claim, claim_file, killed, markers, run, until, wait_for_claim
from harness import BUILD, ckptbench

MOUNT = "CKPTBENCH_TEST_CEPHFS"


@pytest.fixture
def places(tmp_path):
    """Two homes, whose store/ is the same folder through the two mounts."""
    if MOUNT not in os.environ:
        pytest.skip(f"{MOUNT} is not set: CephFS is missing (tests/services/cephfs.py)")
    name, made = uuid.uuid4().hex[:12], []
    for variable in (MOUNT, MOUNT + "_SECOND"):
        place = tmp_path / variable.lower()
        place.mkdir()
        (Path(os.environ[variable]) / name).mkdir(exist_ok=True)
        (place / "store").symlink_to(Path(os.environ[variable]) / name)
        made.append(place)
    return made


def seem_far(place, **more):
    """The claim says of its owner what it would say of one on another machine."""
    change_claim(place, machine="another", run_folder="/nowhere", **more)


def test_a_run_is_refused_through_another_mount_while_the_owner_lives(places):
    first, second = places
    with Background(first, "folder=overwrite") as owner:
        wait_for_claim(owner)
        assert f"is in use by run {claim(second)['run']} (attempt 1" in run(second, "folder=overwrite", code=3)["message"]
        text = claim_file(second).read_text()
        seem_far(second)
        assert "is in use by" in run(second, "folder=overwrite", code=3)["message"]
        claim_file(second).write_text(text)
        owner.finish()
    ckptbench(second, "verify", second / "store/nightly")


def test_a_claim_is_renewed_through_one_mount_and_seen_through_the_other(places):
    first, second = places
    with Background(first, "timeout.lease=1s") as owner:
        wait_for_claim(owner)
        written = claim_file(second).stat().st_mtime_ns
        until(lambda: claim_file(second).stat().st_mtime_ns > written, "the other mount sees the renewal", owner.process)
        owner.finish()
    ckptbench(second, "verify", second / "store/nightly")


def test_a_lease_that_has_run_out_is_taken_over_through_another_mount(places):
    first, second = places
    killed(first, "timeout.lease=1h")
    seem_far(second)
    assert "is in use by" in run(second, "folder=overwrite", code=3)["message"]
    seem_far(second, age_s=3600, lasts_ns=1_000_000_000)
    run(second, "folder=overwrite")
    ckptbench(first, "verify", first / "store/nightly")


def test_a_run_that_stood_still_commits_nothing_after_a_take_over_through_another_mount(places):
    first, second = places
    with Background(first, "folder=overwrite", "timeout.lease=1s") as owner:
        wait_for_claim(owner)
        pid = int(claim(first)["pid"])
        os.kill(pid, signal.SIGSTOP)
        until(lambda: time.time() - claim_file(second).stat().st_mtime > 2.5, "the lease runs out")
        other = run(second, "folder=overwrite", "--replace-kept", "seed=7")["run"]
        os.kill(pid, signal.SIGCONT)
        assert f"belongs to run {other}" in json.loads(owner.finish(code=3))["message"]
    assert len(markers(second)) == 1
    ckptbench(second, "verify", second / "store/nightly")


def test_of_two_who_swap_at_the_same_moment_through_two_mounts_one_succeeds(places):
    stores = [place / "store" for place in places]
    said = subprocess.run([BUILD / "tests/swap_race", "50", *stores, *stores], capture_output=True, text=True, timeout=250)
    assert (said.returncode, said.stdout) == (0, "50 rounds, one of 4 succeeded in each\n"), said
