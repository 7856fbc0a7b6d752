"""One folder of a real distributed file system, used through two mounts as by two machines (tests/services/cephfs.py)."""
import json
import os
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

import pytest

from claims_harness import Background, change_claim, claim, claim_file, killed, markers, run, stop, until, wait_for_claim
from harness import BUILD, PROGRAM, ckptbench
from mounts_harness import Mounts

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
        stop(pid, second)
        until(lambda: time.time() - claim_file(second).stat().st_mtime > 2.5, "the lease runs out")
        other = run(second, "folder=overwrite", "--replace-kept", "seed=7")["run"]
        os.kill(pid, signal.SIGCONT)
        assert f"belongs to run {other}" in json.loads(owner.finish(code=3))["message"]
    assert len(markers(second)) == 1
    ckptbench(second, "verify", second / "store/nightly")


def test_of_two_who_swap_at_the_same_moment_through_two_mounts_one_succeeds(places):
    stores = [place / "store" for place in places]
    said = subprocess.run([BUILD / "tests/swap_race", "100", *stores, *stores], capture_output=True, text=True, timeout=580)
    assert (said.returncode, said.stdout) == (0, "100 rounds, one of 4 succeeded in each\n"), said


# ---- one store in folders of both mounts ----

@pytest.fixture
def mounts(tmp_path):
    if MOUNT not in os.environ:
        pytest.skip(f"{MOUNT} is not set: CephFS is missing (tests/services/cephfs.py)")
    folders = [Path(os.environ[variable]) / f"{uuid.uuid4().hex[:12]}-{name}" for variable, name in ((MOUNT, "a"), (MOUNT + "_SECOND", "b"))]
    for folder in folders:
        folder.mkdir()
    return Mounts(tmp_path, *folders)


def layout_command(folder, body):
    """A shell command that runs a Python script with the run's folder in one mount."""
    script = folder / f"{uuid.uuid4().hex[:8]}.py"
    script.write_text(f"import os, sys\nfrom pathlib import Path\npath = Path(sys.argv[1])\n{body}\n")
    return f"{sys.executable} {script} {{path}}"


def test_a_store_of_two_mounts_is_saved_loaded_verified_and_cleaned(mounts):
    prepare = layout_command(mounts.folder, "for name in ('stripe_unit', 'object_size'):\n"
                                            "    os.setxattr(path, f'ceph.dir.layout.{name}', b'1048576')")
    record = layout_command(mounts.folder, "for file in sorted(path.rglob('*.distcp')):\n"
                                           "    print(file.name, os.getxattr(file, 'ceph.file.layout').decode())")
    saved = json.loads(mounts.run("ranks=4", "keep=true", "suffix=s", f"store.prepare={prepare}", f"store.record={record}").stdout)
    assert mounts.files(mounts.a, mounts.b) == {
        mounts.a.name: ["s/.ckptbench-run", "s/iteration-0/.metadata", "s/iteration-0/__0_0.distcp", "s/iteration-0/__2_0.distcp"],
        mounts.b.name: ["s/iteration-0/__1_0.distcp", "s/iteration-0/__3_0.distcp"]}
    layouts = (mounts.folder / f"home/runs/{saved['run']}/attempts/1/store-record.txt").read_text().split("# ")[1:]
    for layout, folder, ranks in zip(layouts, (mounts.a, mounts.b), ((0, 2), (1, 3)), strict=True):
        head, *lines = layout.splitlines()
        assert head.startswith(f"{folder}/s")
        found = {line.split()[0]: "object_size=1048576" in line for line in lines if ".distcp " in line}
        assert found == {f"__{rank}_0.distcp": True for rank in ranks}, layouts
    mounts.run("ranks=2", "ops=load", "suffix=s", "tp=2")
    elsewhere = f"{os.environ[MOUNT + '_SECOND']}/{mounts.a.name}/s/iteration-0+{os.environ[MOUNT]}/{mounts.b.name}/s/iteration-0"
    for where in (f"{mounts.a}/s/iteration-0+{mounts.b}/s/iteration-0", elsewhere):  # each part through the other client, too
        mounts.call("verify", where)
    mounts.call("clean", "--yes", saved["run"])
    assert mounts.files(mounts.a, mounts.b) == {mounts.a.name: [], mounts.b.name: []}


def test_a_mount_that_is_full_is_named_and_leaves_no_checkpoint(mounts):
    os.setxattr(mounts.b, "ceph.quota.max_bytes", b"1048576")
    message = json.loads(mounts.run("ops=save", "suffix=s", code=3).stdout)["message"]
    assert f"in store '{mounts.b}'" in message and "quota" in message.lower(), message
    assert not list(mounts.a.rglob(".metadata"))


def test_a_mount_that_is_gone_is_named_and_leaves_no_checkpoint(mounts):
    """A client of its own, which is killed while the run writes through it."""
    place, gate = mounts.folder / "third", mounts.folder / "go"
    place.mkdir()
    client = subprocess.Popen(["ceph-fuse", "-c", Path(os.environ[MOUNT]).parent / "ceph.conf", "-f", place], stdin=subprocess.DEVNULL,
                              stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, start_new_session=True)
    try:
        until(lambda: os.path.ismount(place) and os.statvfs(place).f_blocks > 0, "the third client mounts", client)
        gone = place / f"{mounts.b.name}-gone"
        gone.mkdir()
        words = ["model=gpt2-tiny", "ranks=2", f"store=fault:until={gate}+ops=write:{mounts.a}+{gone}", "baseline=false", "iterations=1", "warmup=0",
                 "verify=none", "ops=save", "suffix=s", "--json"]
        run = subprocess.Popen([PROGRAM, "run", *words], cwd=mounts.folder, env=mounts.environment, stdin=subprocess.DEVNULL,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        until(lambda: list(gone.rglob("*.distcp")), "rank 1 has its file", run)
        client.kill()
        client.wait()
        gate.touch()
        out, errors = run.communicate(timeout=120)
        assert run.returncode == 3 and str(gone) in json.loads(out)["message"], out + errors
        assert not list(mounts.a.rglob(".metadata"))
        refused = mounts.run("suffix=t", store=f"{mounts.a}+{gone}", code=None)
        assert refused.returncode == 4 and f"{place} cannot be written to" in refused.stderr, refused
    finally:
        client.kill()
        subprocess.run(["umount", "--lazy", str(place)], capture_output=True, check=False)
