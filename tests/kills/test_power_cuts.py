"""Cuts the power (fault:powercut_at=N) of runs with two ranks at random changes, and looks at what the disk may hold then.

Every checkpoint with a marker is whole; where older ones are kept until a newer one is durable, one is there if a save
had ended; a training resumes from it. The seed is printed; CKPTBENCH_CUT_SEED repeats it, CKPTBENCH_RUN_CUTS sets how
many. Cuts of saves without the processes around them: tests/unit/test_power_cut_saves.c.
"""
import json
import os
import random

import pytest

from test_random_kills import ckptbench, markers_of

CUTS = int(os.environ.get("CKPTBENCH_RUN_CUTS", "40"))
SEED = int(os.environ.get("CKPTBENCH_CUT_SEED", random.SystemRandom().randrange(2**31)))
SAVES = ["model=gpt2-tiny", "layers=1", "ranks=2", "tp=2", "iterations=4", "warmup=0", "keep=true", "baseline=false", "ops=save",
         "load.cold=false", "suffix=s"]
TRAINING = ["workload=train", "model=gpt2-tiny", "layers=1", "train.seq_length=16", "ranks=2", "train.batch_size=2", "train.steps=4",
            "train.checkpoint_every=1", "warmup=0", "suffix=s", "train.resume=latest"]
WAYS = [(SAVES, ["folder=overwrite"]), (SAVES, ["folder=rotate"]), (SAVES, ["keep.last=1"]), (SAVES, ["folder=rotate", "save.async=true"]),
        (SAVES, ["keep.last=1", "save.async=true", "save.inflight=2"]), (SAVES, ["folder=rotate", "format=raw", "copies=2", "io.files=item"]),
        (TRAINING, ["keep.last=1"]), (TRAINING, ["keep.last=1", "save.async=true"])]


def saves_that_ended(home):
    run = json.loads(ckptbench(home, "list", "--json").stdout)[0]["run"]
    metrics = json.loads(ckptbench(home, "show", run, "--json").stdout)["metrics"]
    return metrics.get("save_s", {}).get("n", 0)


@pytest.mark.parametrize("number", range(CUTS))
def test_what_a_disk_holds_after_a_power_cut(number, tmp_path):
    generator = random.Random(SEED * 1000003 + number)
    common, way = WAYS[number % len(WAYS)]
    at, seed = generator.randint(1, 160), generator.randrange(2**31)
    home, store = tmp_path / "home", tmp_path / "store"
    store.mkdir()
    print(f"seed {SEED} number {number}: {way}, cut at change {at} with seed {seed}")
    result = ckptbench(home, "run", "--json", *common, *way, f"store=fault:powercut_at={at}+seed={seed}:{store}")
    was_cut = result.returncode != 0
    whole = markers_of(store)
    for marker in whole:
        found = ckptbench(home, "verify", str(marker.parent))
        assert found.returncode == 0, f"an accepted checkpoint is not whole: {found.stdout}{found.stderr}"
    assert was_cut or whole, result.stderr
    if "folder=overwrite" not in way and saves_that_ended(home) > 0:
        assert whole, "a save had ended, and nothing of it is there"
    if common is TRAINING and whole:
        resumed = json.loads(ckptbench(home, "run", "--json", *common, *way, "train.steps=6", f"store={store}").stdout)
        assert resumed["outcome"] == "pass"
