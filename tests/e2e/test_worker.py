"""ckptbench-worker by itself: iterations, cold loads, verification, folders, stopping, peers."""
import os
import signal
import subprocess

import pytest

from harness import is_mpich
from worker_harness import FLAG_SUSPECTED, FLAG_UNKNOWN, FLAG_WARMUP, PAGES, WORKER, Run, passed

TINY_BYTES = 11796736  # gpt2-tiny, weights+adam


def test_save_and_load_are_measured_verified_and_removed(tmp_path):
    run = passed(Run(tmp_path, ranks=2, tp=2, iterations=2, warmup=1, baseline="true").run())
    for rank in range(2):
        for op in ("save", "load", "verify"):
            samples = run.samples(op, rank)
            assert [sample["iteration"] for sample in samples] == [0, 1, 2]
            assert [sample["flags"] & FLAG_WARMUP for sample in samples] == [1, 0, 0]
    for sample in run.samples("save") + run.samples("load"):
        parts = ("other", "plan", "stage", "serialize", "io", "fsync", "exchange", "commit", "wait")
        assert sum(sample[f"{part}_s"] for part in parts) == pytest.approx(sample["op_s"], rel=1e-6)
        assert sample["bytes_needed"] <= sample["bytes_moved"]
    assert sum(run.samples("save", rank)[0]["bytes_needed"] for rank in range(2)) == TINY_BYTES
    for rank in range(2):
        assert all(sample["verified_bytes"] > 0 for sample in run.samples("verify", rank))
    assert len(run.samples("delete")) == 3
    values = run.page[0]["run_values"]
    assert values["checkpoint_bytes"] == TINY_BYTES and values["checkpoint_files"] == 3
    assert values["baseline_write_bytes_per_s"] > 0 and values["baseline_read_bytes_per_s"] > 0
    assert {entry.name for entry in run.store.iterdir()} == {".ckptbench-store"}


def test_every_rank_verifies_every_byte_of_what_it_loaded(tmp_path):
    run = passed(Run(tmp_path, ranks=3, dp=3, zero=3, load__shift=2).run())
    verified = [run.samples("verify", rank)[0]["verified_bytes"] for rank in range(3)]
    needed = [run.samples("load", rank)[0]["bytes_needed"] for rank in range(3)]
    assert verified == needed and sum(verified) == TINY_BYTES


def test_a_saved_checkpoint_is_kept_verified_from_the_store_and_loads_by_its_suffix(tmp_path):
    saved = passed(Run(tmp_path, tp=2, ops="save", iterations=2).run())
    assert saved.samples("load") == []
    assert saved.samples("verify")[0]["verified_bytes"] > 0
    assert saved.facts()["checkpoint"] == "run/iteration-1"
    loaded = passed(Run(tmp_path, name="again", tp=2, ops="load", suffix="run", baseline="true").run())
    assert loaded.facts()["checkpoint"] == "run/iteration-1"
    assert loaded.samples("verify")[0]["verified_bytes"] > 0
    assert saved.checkpoint().name == "iteration-1"


def test_loads_are_cold_and_shown_to_be(tmp_path):
    run = passed(Run(tmp_path, io__direct="false").run())
    load = run.samples("load")[0]
    assert load["resident_fraction"] <= 0.01 and not load["flags"] & (FLAG_SUSPECTED | FLAG_UNKNOWN)
    warm = passed(Run(tmp_path, name="warm", io__direct="false", load__cold="false").run())
    assert "resident_fraction" not in warm.samples("load")[0]
    assert warm.facts()["coldness"] == "not asked for"


def test_on_tmpfs_coldness_is_not_claimed(tmp_path):
    folder = f"/dev/shm/ckptbench-test-{os.getpid()}"
    try:
        run = passed(Run(tmp_path, store=folder, io__direct="false").run())
        load = run.samples("load")[0]
        assert load["flags"] & (FLAG_SUSPECTED | FLAG_UNKNOWN)
    finally:
        subprocess.run(["rm", "-rf", folder], check=True)


@pytest.mark.parametrize("folder, names", [("overwrite", {"checkpoint"}), ("rotate", {"checkpoint-0", "checkpoint-1"})])
def test_folders_that_are_used_again(tmp_path, folder, names):
    run = passed(Run(tmp_path, folder=folder, iterations=3, keep="true").run())
    assert {entry.name for entry in (run.store / "run").iterdir() if entry.is_dir()} == names
    assert all(sample["verified_bytes"] > 0 for sample in run.samples("verify"))


@pytest.mark.parametrize("before, replaced", [(1, "checkpoint-1"), (2, "checkpoint-0"), (3, "checkpoint-1")])
def test_a_run_that_starts_again_replaces_the_older_of_two(tmp_path, before, replaced):
    passed(Run(tmp_path, folder="rotate", iterations=before, keep="true", suffix="a").run())
    markers = {path.parent.name: path.stat().st_mtime_ns for path in (tmp_path / "store/a").glob("*/.metadata")}
    passed(Run(tmp_path, name="again", folder="rotate", iterations=1, keep="true", keep__replace="true", suffix="a").run())
    now = {path.parent.name: path.stat().st_mtime_ns for path in (tmp_path / "store/a").glob("*/.metadata")}
    assert {name for name in now if now[name] != markers.get(name)} == {replaced}


@pytest.mark.parametrize("keys", [{"io__files": "item"}, {"io__files": "3"}, {"io__files": "shared"}, {"format": "raw"},
                                  {"io__engine": "psync", "io__threads": 2}, {"save__dedup": "none"},
                                  {"save__dedup": "lowest_rank"}, {"checksum": "none"}, {"payload": "random"}])
def test_ways_of_writing_give_back_the_same_bytes(tmp_path, keys):
    run = passed(Run(tmp_path, ranks=2, dp=2, zero=1, **keys).run())
    assert all(run.samples("verify", rank)[0]["verified_bytes"] > 0 for rank in range(2))


def test_one_rank_runs_without_a_launcher(tmp_path):
    run = Run(tmp_path, ranks=1)
    command = [WORKER, "--run-folder", run.run_folder, "--attempt", "1", "--pages", run.pages]
    result = subprocess.run(command, capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stderr
    assert run.page[0]["phase"] == "done"


def test_raw_bytes_without_a_checkpoint(tmp_path):
    run = passed(Run(tmp_path, workload="raw", iterations=2).run())
    assert sum(run.samples("save", rank)[0]["bytes_moved"] for rank in range(2)) >= TINY_BYTES
    assert run.samples("load")[0]["bytes_moved"] == run.samples("save")[0]["bytes_moved"]
    assert run.samples("verify") == []


def test_null_store_saves_and_says_that_nothing_can_be_loaded(tmp_path):
    passed(Run(tmp_path, store="null:", ops="save").run())
    run = Run(tmp_path, name="load", store="null:").run()
    assert run.code != 0 and "use ops=save" in run.failures()


def test_duration_goes_on_until_the_time_has_passed(tmp_path):
    run = passed(Run(tmp_path, duration="2s", ops="save", verify="none", store="null:").run())
    assert len(run.samples("save")) > 2


def test_a_stop_after_the_iteration_ends_in_order(tmp_path):
    run = Run(tmp_path, iterations=1000).start()
    run.wait_until(lambda page: len(page[0]["samples"]) > 4)
    run.stop("later")
    passed(run.wait())
    assert "on request" in run.facts()["stopped"]
    assert not list(run.store.glob("**/.metadata"))


@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT])
def test_a_signal_to_one_rank_leaves_a_clean_page_on_all(tmp_path, number):
    run = Run(tmp_path, iterations=1000).start()
    run.wait_until(lambda page: len(page[0]["samples"]) > 4)
    os.kill(run.page[1]["pid"], number)
    run.wait()
    phases = {page["phase"] for page in run.page}
    if is_mpich() and number == signal.SIGTERM:
        phases -= {"running"}  # its mpirun kills the other rank as soon as one has failed
    assert phases == ({"done"} if number == signal.SIGINT else {"failed"}), run.page


def test_cores_are_shared_out_and_recorded(tmp_path):
    run = passed(Run(tmp_path, ranks=2, ops="save", verify="none").run())
    shares = {run.facts(rank)["affinity"] for rank in range(2)}
    assert len(shares) == min(2, len(os.sched_getaffinity(0)))
    free = passed(Run(tmp_path, name="free", affinity="none", ops="save", verify="none").run())
    assert "not pinned" in free.facts()["affinity"]


def test_a_command_is_run_timed_and_sized(tmp_path):
    save = "head -c 1000 /dev/zero > {path}/part-{rank}"
    report = "echo '{\"metrics\": {\"io_s\": 0.001, \"retries\": 2}}'"
    command = f"if [ {{op}} = save ]; then {save}; fi; test $CKPTBENCH_RANKS = {{ranks}} && {report}"
    run = passed(Run(tmp_path, engine="command", command=command).run())
    save = run.samples("save")[0]
    assert save["bytes_moved"] == 2000 and save["retries"] == 2 and save["io_s"] == pytest.approx(0.001)
    assert "command" in run.facts()["verify"]


def test_a_command_that_fails_is_quoted(tmp_path):
    run = Run(tmp_path, engine="command", command="echo the disk is upset >&2; exit 3").run()
    assert run.code != 0
    assert "exit status 3: the disk is upset" in run.failures()


def test_a_command_that_reports_an_unknown_metric_is_told_so(tmp_path):
    command = "touch {path}/a; echo x > {path}/b; echo '{\"metrics\": {\"speed\": 1}}'"
    run = Run(tmp_path, engine="command", command=command).run()
    assert run.code != 0 and "metric 'speed'" in run.failures()


def test_leftovers_of_an_earlier_attempt_are_removed(tmp_path):
    run = Run(tmp_path, iterations=1000).start()
    run.wait_until(lambda page: len(page[0]["samples"]) > 4)
    os.killpg(run.process.pid, signal.SIGKILL)
    for page in run.page:
        try:
            os.kill(page["pid"], signal.SIGKILL)
        except ProcessLookupError:
            pass
    run.process.communicate(timeout=120)
    run.wait_until_ranks_are_gone()
    (run.store / "run/iteration-77").mkdir(exist_ok=True)
    (run.store / "run/iteration-77/__0_0.distcp").write_bytes(b"half")
    for page in run.pages.iterdir():
        page.unlink()
    for entry in list(run.run_folder.iterdir()):
        entry.unlink() if entry.is_file() else None
    run.run_folder.rename(run.run_folder.with_name("old"))
    words = ["model=gpt2-tiny", "ranks=2", "iterations=1", "warmup=0", "baseline=false", f"store={run.store}"]
    subprocess.run([PAGES, "make", run.run_folder, run.pages, "2", *words], check=True, timeout=120)
    passed(run.run(attempt=2))
    assert {entry.name for entry in run.store.iterdir()} == {".ckptbench-store"}
