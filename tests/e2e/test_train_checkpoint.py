"""Checkpoints of a training: going on from one is as if nothing had been, whatever killed it; a store that fails does not."""
import json
import math
import os
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path

import pytest

from harness import BUILD, ckptbench, environment, without_save_id
from train_harness import SMALL, batch, facts, linear, losses, train, values

EVERY = "train.checkpoint_every=2"


def step_of(place):
    """The newest committed checkpoint's, -1 where there is none."""
    return max([int(marker.parent.name.split("-")[1]) for marker in (place / "store/a").glob("iteration-*/.metadata")], default=-1)


def payload(place, step):
    return [without_save_id(path.read_bytes()) for path in sorted((place / f"store/a/iteration-{step}").glob("*.distcp"))]


@pytest.mark.parametrize("words", [(), ("save.async=true",), ("train.data_parallel=ddp",), ("train.dropout=0.1", "sharding=hybrid(1)")],
                         ids=["fsdp", "async", "ddp", "hybrid+dropout"])
def test_a_training_that_is_resumed_ends_bitwise_equal(tmp_path, words):
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    for place in (straight, resumed):
        place.mkdir()
    common = (*batch(2), EVERY, "suffix=a", "train.resume=latest", "io.engine=psync", *words)
    train(straight, *common, "train.steps=6", store=straight / "store")
    train(resumed, *common, "train.steps=4", store=resumed / "store")
    before = losses(resumed)
    train(resumed, *common, "train.steps=6", store=resumed / "store")
    whole, after = losses(straight), losses(resumed)
    assert {**before, **after} == whole and sorted(after) == [4, 5]
    assert payload(resumed, 6) == payload(straight, 6) and step_of(straight) == 6
    assert facts(resumed)["train.resumed"] == "a/iteration-4, from step 4"


def test_another_number_of_ranks_goes_on_with_the_same_losses(tmp_path):
    place = tmp_path
    train(place, *batch(1), "train.steps=8")
    alone = losses(place)
    seen = {}
    for steps, words in ((4, batch(2)), (6, (*batch(3), "save.async=true")), (8, (*batch(2), "train.data_parallel=ddp"))):
        train(place, *words, EVERY, f"train.steps={steps}", "suffix=a", "train.resume=latest", store=place / "store")
        seen.update(losses(place))
    assert seen.keys() == alone.keys()
    for step, loss in seen.items():
        assert math.isclose(loss, alone[step], rel_tol=2e-5)


def pids_of(place):
    """Ranks of the training that saves there, by what their command line says."""
    found = []
    for folder in Path("/proc").iterdir():
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0") if folder.name.isdigit() else []
        except OSError:
            continue
        if words and words[0].endswith(b"ckptbench-worker") and any(bytes(place) in word for word in words):
            found.append(int(folder.name))
    return found


@pytest.mark.parametrize("words", [(), ("save.async=true",)], ids=["sync", "async"])
def test_a_killed_rank_loses_no_more_than_the_steps_since_the_last_checkpoint(tmp_path, words):
    common = (*SMALL, *batch(2), "train.checkpoint_every=3", "train.steps=100000", "suffix=a", f"store={tmp_path / 'store'}", *words)
    process = subprocess.Popen([BUILD / "ckptbench", "run", "--json", *common], cwd=tmp_path, env=environment(tmp_path),
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
    end = time.monotonic() + 200
    while step_of(tmp_path) < 6:
        assert time.monotonic() < end and process.poll() is None
        time.sleep(0.02)
    os.kill(pids_of(tmp_path)[0], signal.SIGKILL)
    out, _ = process.communicate(timeout=120)
    assert process.returncode == 4, out
    dead = json.loads(out)
    reached = max(step for step, ranks in values(tmp_path, "loss", dead["run"]).items() if ranks)
    committed = step_of(tmp_path)
    allowed = 2 * 3 if words else 3 + 1  # one more interval where the save itself goes on behind; the step under way
    assert reached - committed <= allowed
    document = train(tmp_path, *batch(2), "train.checkpoint_every=3", f"train.steps={committed + 4}", "suffix=a", "train.resume=latest",
                     *words, store=tmp_path / "store")
    assert min(losses(tmp_path)) == committed
    metrics = document["metrics"]
    assert metrics["recovery_s"]["median"] > 0
    assert metrics["lost_steps"]["median"] >= reached + 1 - committed
    before = losses(tmp_path, dead["run"])
    for step, loss in losses(tmp_path).items():
        assert step not in before or before[step] == loss  # done again, to the same bits


def test_a_full_store_fails_checkpoints_and_not_the_training(tmp_path):
    store = f"fault:enospc_after=20MiB:{tmp_path}/store"
    document = train(tmp_path, *batch(2), "train.steps=20", EVERY, "suffix=a", code=3, store=store)
    assert len(losses(tmp_path)) == 20
    assert document["outcome"] == "benchmark_failed"
    assert "training went on to step 20" in document["message"] and "checkpoints failed" in document["message"]
    metrics = document["metrics"]
    assert metrics["checkpoints_failed"]["median"] > 0 and metrics["checkpoints"]["median"] > 0
    assert metrics["checkpoints"]["median"] + metrics["checkpoints_failed"]["median"] == 10
    assert [fact for fact in facts(tmp_path) if fact.startswith("train.checkpoint_failed.")]
    good = step_of(tmp_path)
    assert good > 0 and [path.name for path in (tmp_path / "store/a").glob("iteration-*")] == [f"iteration-{good}"]
    train(tmp_path, *batch(2), f"train.steps={good + 2}", EVERY, "suffix=a", "train.resume=latest", store=tmp_path / "store")
    assert min(losses(tmp_path)) == good


def test_a_full_store_behind_the_steps_fails_checkpoints_and_not_the_training(tmp_path):
    store = f"fault:enospc_after=20MiB:{tmp_path}/store"
    document = train(tmp_path, *batch(2), "train.steps=20", EVERY, "suffix=a", "save.async=true", code=3, store=store)
    assert len(losses(tmp_path)) == 20 and "checkpoints failed" in document["message"]
    assert document["metrics"]["checkpoints_failed"]["median"] > 0
    assert step_of(tmp_path) > 0


@pytest.mark.parametrize("steps, words, fault, failed, kept", [
    (2, ("save.inflight=2",), "delay=200ms+error_at=3/ENOSPC", 2, {1}),  # two writes a checkpoint
    (4, ("save.inflight=2", "keep.last=2"), "delay=200ms+error_at=7/ENOSPC", 4, {2, 3}),
    (6, ("save.inflight=3", "keep.last=9"), "delay=200ms+error_at=3/ENOSPC", 2, {1, 6}),  # those begun before it fails are not written
    (60, ("train.checkpoint_every=30", "keep.last=2"), "error_at=1/ENOSPC", 30, {60}),  # has ended before the next save tells of it
], ids=["last", "keep", "middle", "ended"])
def test_of_saves_behind_the_steps_the_one_that_failed_is_named_and_removed(tmp_path, steps, words, fault, failed, kept):
    document = train(tmp_path, *batch(1), f"train.steps={steps}", "train.checkpoint_every=1", "save.async=true", "io.block=4MiB", "suffix=a", *words,
                     code=3, store=f"fault:{fault}:{tmp_path}/store")
    assert f"the first, of step {failed}: saving a/iteration-{failed} behind" in document["message"]
    assert [fact for fact in facts(tmp_path) if fact.startswith("train.checkpoint_failed.")] == [f"train.checkpoint_failed.{failed}"]
    found = {int(path.name.split("-")[1]) for path in (tmp_path / "store/a").glob("iteration-*")}
    assert failed not in found and (found >= kept if "save.inflight=3" in words else found == kept)
    for step in found:
        ckptbench(tmp_path, "verify", tmp_path / f"store/a/iteration-{step}")
    metrics = document["metrics"]
    assert metrics["checkpoints"]["median"] + metrics["checkpoints_failed"]["median"] == (2 if steps == 60 else steps)


def test_ranks_that_learn_of_a_failed_save_at_different_times_go_on_together(tmp_path):
    """Saves end all the time just when the next one begins, on one rank before and on the other after it."""
    document = train(tmp_path, *batch(2), "train.batch_size=1", "layers=1", "train.steps=120", "train.checkpoint_every=1", "save.async=true",
                     "save.inflight=3", "keep.last=2", "suffix=a", code=3, store=f"fault:delay=5ms+error_every=5/ENOSPC+rank=1:{tmp_path}/store")
    metrics = document["metrics"]
    assert "training went on to step 120" in document["message"] and metrics["checkpoints_failed"]["median"] > 0
    assert metrics["checkpoints"]["median"] + metrics["checkpoints_failed"]["median"] == 120
    found = sorted((tmp_path / "store/a").glob("iteration-*"))
    assert found
    for path in found:
        ckptbench(tmp_path, "verify", path)


def test_a_checkpoint_of_another_model_is_refused_with_names(tmp_path):
    train(tmp_path, *batch(1), "train.steps=2", EVERY, "suffix=a", store=tmp_path / "store")
    document = train(tmp_path, *batch(1), "train.steps=4", EVERY, "suffix=a", "train.resume=latest", "layers=3", code=3,
                     store=tmp_path / "store")
    assert "model.transformer.h.2." in document["message"] and "not in the checkpoint" in document["message"]
    assert "a/iteration-2" in ckptbench(tmp_path, "show", "LATEST", "--failures").stdout


@pytest.mark.parametrize("words", [(), ("save.async=true",)], ids=["sync", "async"])
def test_weights_that_lead_to_no_number_are_not_what_is_gone_on_from(tmp_path, words):
    """A checkpoint is taken before the step that shows its weights to be broken: the one before is kept until then."""
    common = (f"model={linear(tmp_path)}", "layers=0", "train.seq_length=0", *batch(2), "train.checkpoint_every=1", "suffix=a", "train.optimizer=sgd",
              "train.clip=0", *words)
    document = train(tmp_path, *common, "train.steps=90", "train.lr=20", store=tmp_path / "store", code=3)
    broken = int(re.search(r"(?:loss|gradients) of step (\d+)", document["message"]).group(1))
    assert broken > 1 and f"a/iteration-{broken - 1} is kept" in document["message"], document["message"]
    assert [path.name for path in (tmp_path / "store/a").glob("iteration-*")] == [f"iteration-{broken - 1}"]
    train(tmp_path, *common, f"train.steps={broken}", "train.lr=1e-9", "train.resume=latest", store=tmp_path / "store")
    again = losses(tmp_path)
    assert list(again) == [broken - 1] and again == {broken - 1: losses(tmp_path, document["run"])[broken - 1]}


def test_nothing_to_resume_is_a_start_and_saves_by_time_keep_the_last(tmp_path):
    train(tmp_path, *batch(2), "train.steps=30", "train.checkpoint_every=100ms", "keep.last=2", "suffix=a", "train.resume=latest",
          store=tmp_path / "store")
    assert facts(tmp_path)["train.resumed"] == "nothing to resume: from step 0"
    kept = sorted(int(path.name.split("-")[1]) for path in (tmp_path / "store/a").glob("iteration-*"))
    assert kept[-1] == 30 and len(kept) <= 2


def test_what_attempts_before_have_left_is_kept_and_removed_as_ones_own(tmp_path):
    folder = tmp_path / "store/a"
    words = (*batch(2), EVERY, "suffix=a", "train.resume=latest", "keep.last=2")
    train(tmp_path, *words, "train.steps=4", store=tmp_path / "store")
    for name in ("iteration-3", "iteration-5", "iteration-of-mine"):  # a save that was killed has no marker
        (folder / name).mkdir()
        (folder / name / "__0_0.distcp").write_bytes(b"half")
    train(tmp_path, *words, "train.steps=5", "train.checkpoint_every=0", store=tmp_path / "store")  # saves nothing, removes nothing
    assert len(list(folder.glob("iteration-*"))) == 5
    train(tmp_path, *words, "train.steps=6", store=tmp_path / "store")
    assert sorted(path.name for path in folder.glob("iteration-*")) == ["iteration-4", "iteration-6", "iteration-of-mine"]


def test_a_checkpoint_of_another_run_is_not_overwritten_without_being_resumed(tmp_path):
    train(tmp_path, *batch(1), "train.steps=2", EVERY, "suffix=a", store=tmp_path / "store")
    document = train(tmp_path, *batch(1), "train.steps=2", EVERY, "suffix=a", code=3, store=tmp_path / "store")
    assert "suffix" in document["message"] and step_of(tmp_path) == 2


def test_what_checkpoints_cost_the_training_is_stored(tmp_path):
    document = train(tmp_path, *batch(2), "train.steps=12", EVERY, "save.async=true", "keep.last=3", store=tmp_path / "store")
    metrics = document["metrics"]
    assert metrics["checkpoints"]["median"] == metrics["stall_s"]["n"] == metrics["save_s"]["n"] == 6
    assert 0 < metrics["train_goodput"]["median"] <= 1
    assert len(list((tmp_path / "store" / document["run"]).glob("iteration-*/.metadata"))) == 3
    assert "train.resume=latest" in ckptbench(tmp_path, "show", "LATEST").stdout


def test_how_much_steps_lose_to_a_save_behind_them_is_stored(tmp_path):
    """Each save takes as long as some steps, so that there are some beside it and some without."""
    document = train(tmp_path, *batch(2), "train.steps=40", "train.checkpoint_every=20", "save.async=true", store=f"fault:delay=300ms:{tmp_path}/store")
    figures = document["metrics"]["save.interference_fraction"]
    assert 0 < figures["n"] <= 2 and figures["max"] < 1


def test_without_keep_nothing_stays_and_a_resume_alone_saves_nothing(tmp_path):
    train(tmp_path, *batch(2), "train.steps=4", EVERY, "keep=false", store=tmp_path / "store")
    assert [path.name for path in (tmp_path / "store").rglob("*")] == [".ckptbench-store"]
    train(tmp_path, *batch(2), "train.steps=4", EVERY, "suffix=a", store=tmp_path / "store")
    train(tmp_path, *batch(2), "train.steps=7", "suffix=a", "train.resume=latest", store=tmp_path / "store")
    assert sorted(losses(tmp_path)) == [4, 5, 6] and step_of(tmp_path) == 4
    train(tmp_path, *batch(2), "train.steps=4", "suffix=a", "train.resume=latest", store=tmp_path / "store")
    assert losses(tmp_path) == {} and "nothing is left to do" in facts(tmp_path)["train.resumed"]


# ---- which checkpoint it goes on from ----

def leave_checkpoints(place, *words):
    """Of steps 2, 4, 6, 8, 10 and 12, all kept."""
    train(place, *batch(2), EVERY, "suffix=a", "train.resume=latest", "io.engine=psync", "keep.last=9", "train.steps=12", *words, store=place / "store")
    assert step_of(place) == 12


def goes_on_from(place, *words):
    train(place, *batch(2), EVERY, "suffix=a", "train.resume=latest", "io.engine=psync", "train.steps=14", *words, store=place / "store")
    return facts(place)


def test_resume_takes_the_highest_step_not_the_newest_file(tmp_path):
    leave_checkpoints(tmp_path)
    os.utime(tmp_path / "store/a/iteration-4/.metadata")
    assert goes_on_from(tmp_path)["train.resumed"] == "a/iteration-12, from step 12"


def test_resume_tells_step_10_from_step_8_where_both_are_as_old(tmp_path):
    leave_checkpoints(tmp_path)
    shutil.rmtree(tmp_path / "store/a/iteration-12")
    for marker in (tmp_path / "store/a").glob("iteration-*/.metadata"):
        os.utime(marker, ns=(10**18, 10**18))
    assert goes_on_from(tmp_path)["train.resumed"] == "a/iteration-10, from step 10"


def test_resume_passes_over_what_is_damaged_and_says_so(tmp_path):
    leave_checkpoints(tmp_path)
    cut, flipped = (next((tmp_path / f"store/a/iteration-{step}").glob("__1_*.distcp")) for step in (12, 10))
    os.truncate(cut, cut.stat().st_size // 2)
    content = bytearray(flipped.read_bytes())
    content[len(content) // 2] ^= 1
    flipped.write_bytes(content)
    said = goes_on_from(tmp_path)
    assert said["train.resumed"] == "a/iteration-8, from step 8" and "a/iteration-10" in said["train.passed_over"]


def test_resume_passes_over_a_copy_under_another_step(tmp_path):
    leave_checkpoints(tmp_path)
    shutil.copytree(tmp_path / "store/a/iteration-4", tmp_path / "store/a/iteration-99")
    said = goes_on_from(tmp_path)
    assert said["train.resumed"] == "a/iteration-12, from step 12" and "iteration-99 says that its step is 4" in said["train.passed_over"]


def test_resume_where_all_are_damaged_does_not_begin_anew(tmp_path):
    leave_checkpoints(tmp_path)
    for path in (tmp_path / "store/a").glob("iteration-*/*.distcp"):
        os.truncate(path, 100)
    result = ckptbench(tmp_path, "run", *SMALL, *batch(2), "suffix=a", "train.resume=latest", "train.steps=14", f"store={tmp_path}/store", code=3)
    assert "a/iteration-2/" in result.stderr and "the file is too short" in result.stderr


def test_moments_that_the_optimizer_has_no_use_for_are_said_to_be_left_out(tmp_path):
    train(tmp_path, *batch(2), "train.steps=2", "train.checkpoint_every=2", "suffix=a", store=tmp_path / "store")
    train(tmp_path, *batch(2), "train.steps=3", "train.resume=latest", "train.optimizer=sgd", "suffix=a", store=tmp_path / "store")
    assert "exp_avg" in facts(tmp_path)["load.extra"]
    assert re.search(r"^left out +\d+ keys of the checkpoint are not loaded: .*exp_avg", ckptbench(tmp_path, "show", "LATEST").stdout, re.M)
