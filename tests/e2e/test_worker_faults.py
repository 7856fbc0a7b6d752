"""Storage that fails, ranks that die, input that cannot work: each ends in time, with its reason."""
import os
import shutil
import signal
import time

import pytest

from worker_harness import Run, failed, passed


@pytest.mark.parametrize("spec, code, words", [
    ("enospc_after=3MiB", "no_space", ["No space left"]),
    ("error_at=2", "system", ["Input/output error"]),
    ("short_write=1", "system", []),
    ("fail=publish", "system", []),
    ("fail=finish/ENOSPC", "no_space", []),
])
@pytest.mark.parametrize("rank", [0, 1])
def test_a_store_that_fails_in_the_middle_of_a_save_ends_it_for_all(tmp_path, spec, code, words, rank):
    if spec == "fail=publish" and rank == 1:
        rank = 0  # rank 0 alone commits
    (tmp_path / "store").mkdir()
    run = Run(tmp_path, ranks=2, tp=2, store=f"fault:{spec}+rank={rank}:{tmp_path}/store", io__block="1MiB").run()
    failed(run, code, *words)
    assert not list(run.store.glob("**/.metadata"))
    assert run.page[rank]["failure"] == code and run.page[1 - rank]["failure"] == "aborted"


def test_a_failure_in_a_later_iteration_keeps_the_samples_before_it(tmp_path):
    (tmp_path / "store").mkdir()
    run = Run(tmp_path, iterations=50, store=f"fault:error_at=60+rank=1:{tmp_path}/store", io__block="1MiB").run()
    failed(run, "system")
    assert any(sample["flags"] == 0 for sample in run.samples("save"))


def test_a_bit_flipped_below_the_reader_is_caught_and_named(tmp_path):
    (tmp_path / "store").mkdir()
    run = Run(tmp_path, ranks=2, tp=2, store=f"fault:bit_flip=1+rank=1:{tmp_path}/store", checksum="none").run()
    failed(run, "corrupt", "tensor ", "offset ")


def damage(run, action):
    data = sorted(run.checkpoint().glob("*.distcp"), key=lambda file: file.stat().st_size)[-1]
    action(data)
    return data


@pytest.mark.parametrize("checksum", ["crc32", "none"])
def test_a_flipped_bit_in_a_stored_checkpoint_names_file_tensor_and_offset(tmp_path, checksum):
    saved = passed(Run(tmp_path, tp=2, ops="save", verify="none", checksum=checksum).run())

    def flip(file):
        with file.open("r+b") as stream:
            stream.seek(file.stat().st_size // 2)
            byte = stream.read(1)
            stream.seek(-1, os.SEEK_CUR)
            stream.write(bytes([byte[0] ^ 0x10]))

    data = damage(saved, flip)
    run = Run(tmp_path, name="load", tp=2, ops="load", suffix="run", checksum=checksum).run()
    failed(run, "corrupt", data.name)
    assert "model." in run.failures() or "optimizer." in run.failures()


def test_a_truncated_checkpoint_names_every_short_item(tmp_path):
    saved = passed(Run(tmp_path, tp=2, ops="save", verify="none").run())
    data = damage(saved, lambda file: os.truncate(file, file.stat().st_size // 3))
    run = Run(tmp_path, name="load", tp=2, ops="load", suffix="run").run()
    assert run.code != 0
    assert data.name in run.failures()
    assert run.failures().count(data.name) > 1


def test_a_missing_file_is_named(tmp_path):
    saved = passed(Run(tmp_path, tp=2, ops="save", verify="none").run())
    data = damage(saved, lambda file: file.unlink())
    run = Run(tmp_path, name="load", tp=2, ops="load", suffix="run").run()
    assert run.code != 0 and data.name in run.failures()


def test_a_checkpoint_without_its_marker_is_no_checkpoint(tmp_path):
    saved = passed(Run(tmp_path, ops="save", verify="none").run())
    (saved.checkpoint() / ".metadata").unlink()
    run = Run(tmp_path, name="load", ops="load", suffix="run").run()
    failed(run, "not_found", "no complete checkpoint")


def test_a_checkpoint_that_is_not_there_is_named(tmp_path):
    passed(Run(tmp_path, ops="save", verify="none").run())
    run = Run(tmp_path, name="load", ops="load", suffix="nightly").run()
    failed(run, "not_found", "no checkpoint nightly")


def test_a_state_too_large_for_memory_is_refused_with_the_figures(tmp_path):
    run = Run(tmp_path, ranks=1, model="llama3-405b").run()
    failed(run, "memory", "TiB", "is free")
    assert not run.store.exists()


def test_a_checkpoint_too_large_for_the_disk_is_refused_with_the_figures(tmp_path):
    free = shutil.disk_usage(tmp_path).free
    run = Run(tmp_path, ranks=1, model="llama3-405b", engine="command", command="true").run()
    if free > 6 * 2**40:
        pytest.skip("needs a disk with less than 6 TiB free")
    failed(run, "no_space", "TiB", "is free")


def test_a_folder_with_foreign_files_is_used_and_they_stay(tmp_path):
    store = tmp_path / "store"
    store.mkdir()
    (store / "thesis.tex").write_text("years of work")
    passed(Run(tmp_path).run())
    assert {entry.name for entry in store.iterdir()} == {"thesis.tex", ".ckptbench-store"}
    assert (store / "thesis.tex").read_text() == "years of work"


def test_a_suffix_of_another_run_is_refused(tmp_path):
    passed(Run(tmp_path, ops="save", verify="none", suffix="nightly").run())
    run = failed(Run(tmp_path, name="next", suffix="nightly").run(), "exists", "run run")
    assert run.checkpoint()


def test_a_missing_path_is_named(tmp_path):
    run = Run(tmp_path, store=f"{tmp_path}/no/such/store").run()
    failed(run, "not_found", "no/such/store")


def test_a_store_that_is_a_file_is_refused(tmp_path):
    (tmp_path / "store").write_text("")
    failed(Run(tmp_path).run(), "usage", "not a folder")


def test_a_read_only_path_is_refused(tmp_path):
    """As root only the file system can refuse: sysfs does."""
    run = Run(tmp_path, store="/sys/kernel/ckptbench").run()
    assert run.code != 0
    assert "/sys/kernel/ckptbench" in run.failures()


def test_the_wrong_number_of_ranks_is_refused(tmp_path):
    run = Run(tmp_path, ranks=2, dp=3, tp=1).run()
    assert run.code != 0
    failed(run, "usage", "3")


def test_a_disk_that_stalls_ends_at_the_deadline(tmp_path):
    (tmp_path / "store").mkdir()
    run = Run(tmp_path, store=f"fault:stall_at=2+rank=1:{tmp_path}/store", io__block="1MiB", timeout__op="3s").run()
    failed(run, "timeout")
    assert run.page[1]["failure"] == "timeout"
    assert not list(run.store.glob("**/.metadata"))


def test_a_rank_stuck_in_the_kernel_does_not_hang_the_others(tmp_path):
    (tmp_path / "store").mkdir()
    run = Run(tmp_path, store=f"fault:block_at=2+rank=1:{tmp_path}/store", io__block="1MiB", timeout__op="3s").run()
    assert run.page[0]["failure"] == "timeout"
    assert run.page[1]["op"] == "save" and run.page[1]["state"] in ("io", "write", "serialize")


@pytest.mark.parametrize("ops, state", [("write", "io"), ("finish", "fsync"), ("publish", "commit"), ("read", "io")])
def test_a_rank_killed_in_a_phase_ends_the_run_and_leaves_no_half_checkpoint(tmp_path, ops, state):
    """The store stalls where the rank is to die, so that it dies there."""
    (tmp_path / "store").mkdir()
    rank = 0 if ops == "publish" else 1
    spec = f"stall_at=1+ops={ops}+rank={rank}"
    run = Run(tmp_path, ranks=2, tp=2, store=f"fault:{spec}:{tmp_path}/store", timeout__op="60s").start()
    names = {"io": ("io", "write", "read")}.get(state, (state,))
    run.wait_until(lambda page: page[rank]["state"] in names and page[rank]["op"] == ("load" if ops == "read" else "save"))
    os.kill(run.page[rank]["pid"], signal.SIGKILL)
    run.wait(60)
    assert run.code != 0
    if ops != "read":
        assert not list(run.store.glob("**/.metadata"))
    for page in run.page:
        assert not alive(page["pid"])


def alive(pid):
    try:
        with open(f"/proc/{pid}/stat", encoding="ascii") as file:
            return file.read().rsplit(")", 1)[1].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_killed_launcher_leaves_no_rank_behind(tmp_path):
    run = Run(tmp_path, iterations=100000).start()
    run.wait_until(lambda page: len(page[0]["samples"]) > 2)
    os.kill(run.process.pid, signal.SIGKILL)
    run.process.communicate(timeout=120)
    pids = [page["pid"] for page in run.page]
    end = time.monotonic() + 200
    while any(alive(pid) for pid in pids):
        assert time.monotonic() < end, pids
        time.sleep(0.1)
