"""Whole trainings with device=cuda, on a plugin whose device is a fake (tests/plugin/fake_plugin.c): the losses of this machine, checkpoints that
lie on the device, what is refused, what fails. The fake computes with one thread and all keys of attention, so sums are made in another order."""
import json
import math

import pytest

from harness import BUILD, ckptbench, without_save_id
from train_harness import batch, facts, losses, train, values

CUDA = ("ranks=1", "device=cuda")
EVERY = "train.checkpoint_every=2"
TOLERANCE = 1e-5


@pytest.fixture(autouse=True)
def fake_plugin(monkeypatch):
    monkeypatch.setenv("CKPTBENCH_CUDA_PLUGIN", str(BUILD / "tests/fake-plugin.so"))


def same(ours, theirs, tolerance=TOLERANCE):
    assert ours.keys() == theirs.keys()
    for step, loss in ours.items():
        assert math.isclose(loss, theirs[step], rel_tol=tolerance), (step, loss, theirs[step])


def both(place, *words):
    """The folders of the same training here and on the device."""
    here, there = place / "here", place / "there"
    for folder, device in ((here, "cpu"), (there, "cuda")):
        folder.mkdir()
        train(folder, "ranks=1", f"device={device}", "train.batch_size=4", *words)
    return here, there


@pytest.mark.parametrize("words", [("train.dropout=0.1",), ("dtype=bf16", "train.auto_wrap_policy=none"), ("train.optimizer=sgd", "train.data_parallel=ddp"),
                                   ("train.validate_every=2", "train.seq_length=100")], ids=["dropout", "bf16", "ddp+sgd", "validation"])
def test_a_training_on_a_device_has_the_losses_of_this_machine(tmp_path, words):
    here, there = both(tmp_path, "train.steps=4", *words)
    bf16 = "dtype=bf16" in words  # a device also rounds the activations that it multiplies
    assert not bf16 or losses(there) != losses(here)
    same(losses(there), losses(here), 2e-3 if bf16 else TOLERANCE)
    for metric in ("gradient_norm", "validation_loss"):
        ours, theirs = values(there, metric), values(here, metric)
        same({step: ranks[0] for step, ranks in ours.items()}, {step: ranks[0] for step, ranks in theirs.items()}, 2e-2 if bf16 else TOLERANCE)
    told = facts(there)
    assert "a fake device" in told["device"] and f"{'bf16' if bf16 else 'fp32'} matrix products on the GPU" in told["mfu.peak"] and "affinity" in told


def test_a_linear_stack_on_a_device_has_the_losses_of_this_machine(tmp_path):
    model = tmp_path / "stack.yaml"
    model.write_text("".join(f"- {{name: layers.{i}.weight, shape: 48x48, dtype: fp32, layer: {i}}}\n"
                             f"- {{name: layers.{i}.bias, shape: 48, dtype: fp32, layer: {i}}}\n" for i in range(3)))
    here, there = both(tmp_path, "train.steps=4", f"model={model}", "layers=0", "train.seq_length=1")
    same(losses(there), losses(here))


def payload(place, step):
    return [without_save_id(path.read_bytes()) for path in sorted((place / f"store/a/iteration-{step}").glob("*.distcp"))]


@pytest.mark.parametrize("words", [("save.async=true", "train.dropout=0.1"), ("train.optimizer=sgd", "dtype=bf16")], ids=["async+dropout", "sgd+bf16"])
def test_a_training_on_a_device_that_is_resumed_ends_bitwise_equal(tmp_path, words):
    straight, resumed = tmp_path / "straight", tmp_path / "resumed"
    for place in (straight, resumed):
        place.mkdir()
    common = (*CUDA, EVERY, "suffix=a", "train.resume=latest", "io.engine=psync", *words)
    train(straight, *common, "train.steps=6", store=straight / "store")
    train(resumed, *common, "train.steps=4", store=resumed / "store")
    before = losses(resumed)
    train(resumed, *common, "train.steps=6", store=resumed / "store")
    assert {**before, **losses(resumed)} == losses(straight)
    assert payload(resumed, 6) == payload(straight, 6)
    assert facts(resumed)["train.resumed"] == "a/iteration-4, from step 4"


def test_a_checkpoint_goes_from_the_device_to_two_ranks_here_and_back(tmp_path):
    train(tmp_path, *batch(1), "train.steps=6")
    alone, seen = losses(tmp_path), {}
    for steps, words in ((2, (*CUDA, "train.batch_size=12")), (4, batch(2)), (6, (*CUDA, "train.batch_size=12", "save.async=true"))):
        train(tmp_path, *words, EVERY, f"train.steps={steps}", "suffix=a", "train.resume=latest", store=tmp_path / "store")
        seen.update(losses(tmp_path))
    same(seen, alone)


@pytest.mark.parametrize("words,said", [(("ranks=1", "engine=torch-dcp"), "torch-dcp")])
def test_what_a_training_on_a_device_cannot_do_is_refused_before_anything_starts(tmp_path, words, said):
    result = ckptbench(tmp_path, "run", "workload=train", "model=gpt2-tiny", "store=null:", "device=cuda", *words, code=2)
    assert said in result.stderr
    assert not (tmp_path / "home/runs").exists()


def test_a_device_that_is_too_small_is_told_with_the_way_out(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_DEVICE_BYTES", "1000000")
    message = train(tmp_path, *CUDA, "train.steps=2", code=3)["message"]
    for word in ("a fake device", "977 KiB free", "train.batch_size", "train.seq_length"):
        assert word in message, message


def test_a_device_that_fails_ends_the_run_with_its_reason(tmp_path, monkeypatch):
    monkeypatch.setenv("FAKE_DEVICE_FAILS_AT", "400")
    assert "the fake device cannot multiply" in train(tmp_path, *CUDA, "train.steps=8", code=3)["message"]
    assert 0 < len(losses(tmp_path)) < 8


def test_memory_and_traces_are_those_of_the_device(tmp_path):
    document = train(tmp_path, *CUDA, "train.steps=3", "train.trace=1")
    attempt = tmp_path / "home/runs" / document["run"] / "attempts/1"
    records = [json.loads(line) for line in (attempt / "memory/rank-0.jsonl").read_text().splitlines()]
    allocated = [record["cuda_memory_allocated_GB"] for record in records]
    assert allocated[0] == 0 and allocated[1] == allocated[2] > 0.001
    assert all(record["cuda_memory_reserved_GB"] >= record["cuda_memory_allocated_GB"] for record in records)
    trace = json.loads(next((attempt / "traces").rglob("rank-0.pt.trace.json")).read_text())
    names = {event["name"].split(" ")[0] for event in trace["traceEvents"] if event["ph"] == "X"}
    assert {"forward", "backward", "optimizer"} <= {name.split("#")[0] for name in names}
