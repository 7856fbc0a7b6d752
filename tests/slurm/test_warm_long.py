"""Warm pools on nodes that are powered down when idle, and boot when a job needs them."""
import os
import time

import pytest
from services import slurm
from slurm_harness import TINY, Cluster, own_service

SUSPEND_S = 20
QUICK = (*TINY, "ops=save")


@pytest.fixture
def sleeping(tmp_path, tmp_path_factory):
    folder = tmp_path_factory.mktemp("slurm")
    (tmp_path / "store").mkdir()
    with own_service(folder, power_saving={"boot_s": 2, "suspend_time": SUSPEND_S, "resume_timeout": 20, "cred_expire": 40}):
        yield Cluster(tmp_path, folder / "slurm.conf")


def pool(cluster):
    (line,) = cluster.document("warm", "list")
    return line


def wait_for(cluster, test, seconds=200):
    deadline = time.monotonic() + seconds
    while True:
        line = pool(cluster)
        if test(line):
            return line
        assert time.monotonic() < deadline, line
        time.sleep(0.5)


def node_state(cluster, node):
    return cluster.slurm("sinfo", "-h", "-N", "-n", node, "-p", "train", "-o", "%T").strip()


def test_a_job_runs_on_nodes_that_have_booted(sleeping):
    run, _ = sleeping.submit_one("model=gpt2-tiny", "nodes=2", "ranks_per_node=1", "baseline=false", "iterations=1", "warmup=0", "ops=save")
    line = sleeping.wait_final(run, seconds=150)[run]
    assert line["outcome"] == "pass" and line["boot_s"] >= 2, line
    assert "booting" in sleeping.states(run)


def test_a_boot_that_nobody_watched_is_known_afterwards(sleeping):
    run, _ = sleeping.submit_one(*QUICK)
    deadline = time.monotonic() + 150
    while not (sleeping.run_folder(run) / "attempts/1/manifest.json").exists():
        assert time.monotonic() < deadline
        time.sleep(0.5)
    line = sleeping.wait_final(run)[run]
    assert "booting" not in sleeping.states(run) and line["boot_s"] >= 2, line


def test_touches_keep_a_node_up_and_without_them_it_sleeps(sleeping):
    sleeping.call("warm", "start", "t", "nodes=1", "for=10m")
    up = wait_for(sleeping, lambda line: line["jobs"] >= 2)
    assert up["boot_s"] >= 2 and up["period_s"] == SUSPEND_S / 2
    end = time.monotonic() + 3 * SUSPEND_S
    while time.monotonic() < end:
        state = node_state(sleeping, up["nodes"])
        assert not state.endswith(("~", "%", "#", "!")), state
        time.sleep(0.5)
    run, _ = sleeping.submit_one(*QUICK, "--warm", "t")
    line = sleeping.wait_final(run)[run]
    assert line["outcome"] == "pass" and line["boot_s"] == 0 and sleeping.record(run)["slurm"]["nodes"] == up["nodes"]
    after = pool(sleeping)
    touched_s = after["job_node_hours"] * 3600 - after["boot_s"]
    kept_s = after["node_hours"] * 3600 - after["boot_s"]
    print(f"touches took {touched_s:.2f} s of {kept_s:.1f} s node time in {after['jobs']} jobs; {after['saved_s']:.0f} s of boots saved")
    assert touched_s / after["jobs"] < 0.1 * 60 / 2  # of a node at a SuspendTime of 60 s, touched every 30 s; less on a machine that is idle
    assert after["saved_s"] >= 2
    sleeping.call("warm", "stop", "t")
    deadline = time.monotonic() + 6 * SUSPEND_S
    while not node_state(sleeping, up["nodes"]).endswith("~"):
        assert time.monotonic() < deadline, node_state(sleeping, up["nodes"])
        time.sleep(0.5)
    run, _ = sleeping.submit_one(*QUICK)
    line = sleeping.wait_final(run, seconds=150)[run]
    assert line["outcome"] == "pass" and line["boot_s"] >= 2, line


def test_a_held_allocation_pays_for_the_boot_once(sleeping):
    sleeping.call("warm", "start", "h", "mode=hold", "nodes=1", "for=10m")
    runs = [sleeping.submit_one(*QUICK, "--warm", "h")[0] for _ in range(2)]
    lines = sleeping.wait_final(*runs, seconds=150)
    assert [line["outcome"] for line in lines.values()] == ["pass", "pass"]
    line = pool(sleeping)
    assert line["boot_s"] >= 2 and line["saved_s"] >= 2 * line["boot_s"] - 1
    assert line["node_hours"] * 3600 >= line["boot_s"]  # they cost while they boot
    sleeping.call("warm", "stop", "h")


@pytest.mark.parametrize("mode", ["hold", "touch"])
def test_a_failed_boot_ends_a_pool_that_is_led_from_here(sleeping, mode):
    """Slurm repeats no allocation of salloc."""
    (sleeping.configuration.parent / "resume").write_text("#!/bin/sh\nexit 0\n")
    sleeping.call("warm", "start", "n", f"mode={mode}", "nodes=1", "for=1h", "slurm.sbcast=/tmp")
    run = sleeping.submit_one(*QUICK, "slurm.sbcast=/tmp", "--warm", "n")[0] if mode == "hold" else None
    ended = wait_for(sleeping, lambda line: line["state"] == "ended", seconds=150)
    assert "did not come up" in ended["note"] and "slurm.constraint" in ended["note"] and ended["jobs"] == 0, ended
    if run:
        line = sleeping.wait_final(run)[run]
        assert line["outcome"] == "cancelled" and "did not come up" in line["note"], line
    assert not sleeping.slurm("squeue", "-h", "-a", "-n", ended["id"]).strip()
    assert (sleeping.home / "pools" / ended["id"] / "end.json").exists()


def test_nodes_that_never_boot_are_given_up_with_a_proposal(sleeping):
    (sleeping.configuration.parent / "resume").write_text("#!/bin/sh\nexit 0\n")
    sleeping.call("warm", "start", "n", "mode=hold", "nodes=1", "for=1h")
    run, _ = sleeping.submit_one(*QUICK, "--warm", "n")
    once = wait_for(sleeping, lambda line: "failed to come up 1 time" in (line["note"] or ""), seconds=150)
    assert "slurm.constraint" in once["note"]
    ended = wait_for(sleeping, lambda line: line["state"] == "ended", seconds=500)
    assert "failed to come up 3 times" in ended["note"] and ended["jobs"] == 0
    line = sleeping.wait_final(run)[run]
    assert line["outcome"] == "cancelled" and "ended before this run was started" in line["note"]
    assert not sleeping.slurm("squeue", "-h", "-a", "-n", ended["id"]).strip()
    assert os.path.exists(sleeping.run_folder(run) / "attempts/1/manifest.json")
