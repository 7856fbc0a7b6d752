"""Training over ranks: one rank, FSDP in all its ways and DDP come to the same losses; traces, memory, what is refused."""
import json
import math
import re
from pathlib import Path

import pytest

from harness import ckptbench
from train_harness import WHOLE_BATCH, batch, facts, linear, losses, train, values

TOLERANCE = 2e-5  # of losses, relative: sums in another order, fp32, after five steps
STEPS = "train.steps=5"


@pytest.fixture(scope="module")
def alone(tmp_path_factory):
    place = tmp_path_factory.mktemp("alone")
    train(place, *batch(1), STEPS)
    return losses(place)


def same(ours, theirs):
    assert ours.keys() == theirs.keys()
    for step, loss in ours.items():
        assert math.isclose(loss, theirs[step], rel_tol=TOLERANCE), (step, loss, theirs[step])


@pytest.mark.parametrize("words", [
    ("train.backward_prefetch=BACKWARD_PRE",),
    ("train.backward_prefetch=BACKWARD_POST", "train.forward_prefetch=true"),
    ("train.backward_prefetch=NONE", "train.cpu_offload=true"),
    ("train.auto_wrap_policy=size_based", "train.min_num_params=100000"),
    ("train.auto_wrap_policy=none",),
    ("train.data_parallel=ddp",),
], ids=lambda words: "+".join(word.split("=")[1] for word in words))
def test_two_ranks_come_to_the_losses_of_one(tmp_path, alone, words):
    train(tmp_path, *batch(2), STEPS, *words)
    same(losses(tmp_path), alone)


@pytest.mark.parametrize("words", [("ranks=3", "train.batch_size=4"), ("ranks=3", "train.batch_size=4", "train.data_parallel=ddp"),
                                   ("ranks=4", "train.batch_size=3", "sharding=hybrid(2)")], ids=["fsdp", "ddp", "hybrid"])
def test_three_and_four_ranks_come_to_the_losses_of_one(tmp_path, alone, words):
    train(tmp_path, *words, STEPS)
    same(losses(tmp_path), alone)


def test_the_loss_falls_and_clipping_holds_the_norm_of_all_ranks(tmp_path, alone):
    assert alone[4] < alone[0] - 0.05
    train(tmp_path, *batch(2), STEPS, "train.clip=0.001", "train.optimizer=sgd", "train.lr=1")
    clipped = losses(tmp_path)
    assert abs(clipped[4] - clipped[0]) < abs(alone[4] - alone[0])
    for ranks in values(tmp_path, "gradient_norm").values():
        assert ranks[0] == ranks[1] > 0.001  # as it was before it was clipped


def test_gathers_are_those_of_the_wraps_and_shards_are_equal(tmp_path):
    train(tmp_path, "ranks=3", "train.batch_size=1", STEPS, "layers=4")
    told = facts(tmp_path)
    # The root once, blocks forward and backward, the last of them once for both.
    assert re.match(r"a rank and step: 8 all-gathers, 5 reduce-scatters, 0 all-reduces, .* at most 2 gathered at a time",
                    told["train.exchange"]), told
    share, whole = map(int, re.search(r"(\d+) of (\d+) parameters on this rank", told["train.share"]).groups())
    assert abs(share / (whole / 3) - 1) < 0.01


def course(place, *words):
    """Of rank 0's trace: a step's exchange in order, and for how long (us, all steps) gathers went on beside stages that computed."""
    document = train(place, *batch(2), STEPS, "layers=4", "warmup=1", "train.trace=4", *words)
    path, = (place / "home/runs" / document["run"]).glob("attempts/1/traces/*/rank-0.pt.trace.json")
    spans = [(*event["name"].split(" "), event["ts"], event["ts"] + event["dur"], event["args"]["step"])
             for event in json.loads(path.read_text())["traceEvents"] if event["ph"] == "X" and " " in event["name"]]
    exchange = sorted((begin, what[0] + number) for what, number, begin, _, step in spans if step == 1 and what in ("all-gather", "reduce-scatter"))
    beside = {way: sum(max(0, min(end, stage_end) - max(begin, stage_begin)) for what, _, begin, end, _ in spans if what == "all-gather"
                       for stage, _, stage_begin, stage_end, _ in spans if stage == way) for way in ("forward", "backward")}
    return "".join(name for _, name in exchange), {way: time > 0.01 for way, time in beside.items()}


@pytest.mark.parametrize("words,order,beside", [
    ((), "a0a1a2a3a4a3r4a2r3a1r2r1r0", {"forward": False, "backward": True}),
    (("train.backward_prefetch=BACKWARD_POST",), "a0a1a2a3a4a3r4a2r3a1r2r1r0", {"forward": False, "backward": False}),
    (("train.backward_prefetch=NONE",), "a0a1a2a3a4r4a3r3a2r2a1r1r0", {"forward": False, "backward": False}),
    (("train.backward_prefetch=NONE", "train.forward_prefetch=true"), "a0a1a2a3a4r4a3r3a2r2a1r1r0", {"forward": True, "backward": False}),
], ids=["PRE", "POST", "NONE", "forward"])
def test_what_is_prefetched_is_gathered_beside_computing_or_ahead_of_gradients(tmp_path, words, order, beside):
    """The root is wrap 0, the blocks 1 to 4. Without a prefetch every gather waits for the reduce-scatter before it, and computing for the gather."""
    assert course(tmp_path, *words) == (order, beside)
    alone = words == ("train.backward_prefetch=NONE",)
    assert f"at most {1 if alone else 2} gathered at a time" in facts(tmp_path)["train.exchange"]


def test_what_the_tutorials_options_do_to_memory_and_exchange_is_in_the_metrics(tmp_path):
    """Two ranks, a root r and four blocks b: each of the step's figures follows from them."""
    def figures(*words):
        document = train(tmp_path, *batch(2), "train.steps=3", "layers=4", *words)
        ranks, found = int(document["experiment"]["ranks"]), {}
        for metric in ("gathered_bytes", "comm_bytes", "offload_bytes"):
            of_all = {value for ranks in values(tmp_path, metric).values() for value in ranks.values()}
            assert len(of_all) < 2, (metric, of_all)  # every step and rank the same
            found[metric] = of_all.pop() if of_all else None
            shown = document["metrics"].get(f"step.{metric}", {}).get("median")  # amounts are added up over the ranks, memory is a rank's
            assert shown == (found[metric] and found[metric] * (1 if metric == "gathered_bytes" else ranks)), metric
        return found
    pre, none = figures(), figures("train.backward_prefetch=NONE")
    block = (pre["gathered_bytes"] - none["gathered_bytes"]) / 4
    root = none["gathered_bytes"] / 4 - block
    assert block > 0 and root > 0  # one block more is whole at a time
    gathered, scattered = root + 7 * block, root + 4 * block  # the last block is gathered once for both
    assert pre["comm_bytes"] == none["comm_bytes"] == (gathered + scattered) * 4 / 2 and pre["offload_bytes"] is None
    assert figures("dtype=bf16")["comm_bytes"] == (gathered * 2 + scattered * 4) / 2  # parameters in two bytes, gradients in four
    whole = figures("train.auto_wrap_policy=none")
    assert whole["gathered_bytes"] >= 4 * scattered and whole["comm_bytes"] < pre["comm_bytes"]  # all of it whole, gathered once
    ddp = figures("train.data_parallel=ddp")
    assert ddp["gathered_bytes"] is None and ddp["comm_bytes"] == 2 * 4 * scattered / 2
    hybrid = figures(*batch(4), "sharding=hybrid(2)")  # in groups as with two ranks, and shares are added up over the two groups
    assert hybrid["gathered_bytes"] == pre["gathered_bytes"] and hybrid["comm_bytes"] == pre["comm_bytes"] + scattered / 2 * 4
    offload = figures("train.cpu_offload=true")
    assert offload["comm_bytes"] == pre["comm_bytes"] and offload["offload_bytes"] == (gathered + scattered) * 4 / 2


def test_bf16_is_the_same_however_it_is_shared(tmp_path):
    """Rounded before it is sent, or after: the same weights."""
    train(tmp_path, *batch(2), STEPS, "dtype=bf16")
    sharded = losses(tmp_path)
    train(tmp_path, *batch(2), STEPS, "dtype=bf16", "train.data_parallel=ddp")
    same(losses(tmp_path), sharded)
    assert losses(tmp_path)[0] == sharded[0]


def test_bf16_rounds_and_is_near_fp32(tmp_path, alone):
    train(tmp_path, *batch(2), STEPS, "dtype=bf16")
    rounded = losses(tmp_path)
    assert rounded != alone
    for step, loss in rounded.items():
        assert math.isclose(loss, alone[step], rel_tol=5e-3)


def test_a_stack_of_linear_layers_trains_on_two_ranks_as_on_one(tmp_path):
    words = (f"model={linear(tmp_path)}", "layers=0", "train.seq_length=0", "train.lr=0.1", "train.optimizer=sgd", STEPS)
    train(tmp_path, *words, *batch(1))
    one = losses(tmp_path)
    assert len(set(one.values())) == len(one)
    for more in ((), ("train.data_parallel=ddp",), ("train.cpu_offload=true",)):
        train(tmp_path, *words, *batch(2), *more)
        for step, loss in losses(tmp_path).items():
            assert math.isclose(loss, one[step], rel_tol=1e-4, abs_tol=1e-6)


def test_traces_of_all_ranks_lie_in_a_folder_named_after_the_configuration(tmp_path):
    document = train(tmp_path, *batch(2), STEPS, "train.trace=2", "train.cpu_offload=true")
    folder = next((tmp_path / "home/runs" / document["run"] / "attempts/1/traces").iterdir())
    assert folder.name == "fsdp-module_wrap-BACKWARD_PRE-cpu_offload"
    assert sorted(path.name for path in folder.iterdir()) == ["rank-0.pt.trace.json", "rank-1.pt.trace.json"]
    for rank, path in enumerate(sorted(folder.iterdir())):
        trace = json.loads(path.read_text())
        assert trace["distributedInfo"] == {"backend": "mpi", "rank": rank, "world_size": 2} and trace["droppedEvents"] == 0
        tracks = {event["tid"]: event["args"]["name"] for event in trace["traceEvents"] if event["name"] == "thread_name"}
        assert list(tracks.values()) == ["compute", "comm", "io", "h2d"]
        spans = [event for event in trace["traceEvents"] if event["ph"] == "X"]
        assert {event["pid"] for event in spans} == {rank} and all(event["ts"] >= 0 and event["dur"] >= 0 for event in spans)
        on = {name: {re.sub(r"[ #]\d+$", "", event["name"]) for event in spans if tracks[event["tid"]] == name} for name in tracks.values()}
        assert on["compute"] == {"ProfilerStep", "forward", "backward", "optimizer"}
        assert on["comm"] == {"all-gather", "reduce-scatter"} and on["h2d"] == {"to device", "to host"}
        assert len([event for event in spans if event["name"].startswith("ProfilerStep#")]) == 2
        assert [event for event in trace["traceEvents"] if event["ph"] == "C"]


def test_memory_is_kept_at_the_stages_with_the_tutorials_keys(tmp_path):
    document = train(tmp_path, *batch(2), STEPS)
    attempt = tmp_path / "home/runs" / document["run"] / "attempts/1"
    for rank in range(2):
        records = [json.loads(line) for line in (attempt / f"memory/rank-{rank}.jsonl").read_text().splitlines()]
        assert [record["stage"] for record in records] == ["after data creation", "after model creation", "after warmup"]
        for record in records:
            assert list(record) == ["stage", "rank", "log_key", "cuda_memory_allocated_GB", "cuda_max_memory_allocated_GB",
                                    "cuda_memory_reserved_GB", "cuda_max_memory_reserved_GB", "cpu_memory_rss_GB"]
            assert record["rank"] == rank and record["cpu_memory_rss_GB"] > 0
            assert [record[key] for key in record if key.startswith("cuda_")] == [None] * 4


def test_plan_has_the_tutorials_memory_without_allocating_it(tmp_path):
    def planned(*words):
        out = ckptbench(tmp_path, "plan", "--json", "workload=train", "model=linear-8x16384", "ranks=8", "train.optimizer=none", *words)
        return [record["cuda_memory_allocated_GB"] for record in json.loads(out.stdout)["memory"]]
    assert planned()[:2] == [1, 9.00048828125]
    assert round(planned()[2], 2) == 3.00
    assert round(planned("train.data_parallel=ddp")[2], 2) == 25.00
    assert planned("train.cpu_offload=true")[2] == 1


def test_validation_figures_and_rates_are_stored_shown_and_compared(tmp_path):
    document = train(tmp_path, *batch(2), "train.steps=6", "train.validate_every=2", "warmup=1")
    assert sorted(values(tmp_path, "validation_loss")) == [1, 3, 5]
    metrics = document["metrics"]
    for name in ("step_s", "tokens_per_s", "step.loss", "step.mfu", "step.exchange_s"):
        assert metrics[name]["n"] == 5 and metrics[name]["min"] > 0, name
    out = ckptbench(tmp_path, "show", "LATEST").stdout
    assert re.search(r"^tokens_per_s ", out, re.M) and re.search(r"^loss ", out, re.M) and re.search(r"^peak .* GFLOP/s", out, re.M)
    train(tmp_path, *batch(2), "train.steps=6", "train.validate_every=2", "warmup=1")
    assert "step.loss" in ckptbench(tmp_path, "compare", document["run"], "LATEST").stdout


def test_a_loss_that_is_no_number_stops_all_ranks_and_says_where(tmp_path):
    document = train(tmp_path, *batch(2), "train.steps=9", "train.lr=1e30", "train.clip=0", "train.checkpoint_every=1",
                     "train.optimizer=sgd", code=3, store=tmp_path / "store")
    assert document["outcome"] == "benchmark_failed"
    assert re.search(r"(loss|gradients) of step \d+", document["message"]) and "train.lr" in document["message"]
    assert list((tmp_path / "store").glob("*/iteration-*/.metadata"))  # the last good one


@pytest.mark.parametrize("words,said", [
    (("train.batch_size=2000000", "layers=0", "train.seq_length=128"), ("train.batch_size", "train.seq_length")),
])
def test_more_memory_than_there_is_is_refused_with_the_way_out(tmp_path, words, said):
    document = train(tmp_path, "ranks=1", *words, code=3)
    for word in (*said, "free"):
        assert word in document["message"]


@pytest.mark.parametrize("words,said", [
    (("model=llama3-8b",), "gpt2"), (("tp=2",), "tp"), (("iterations=3",), "train.steps"), (("train.seq_length=4096",), "positions"),
    (("train.steps=1", "warmup=1"), "warmup"), (("train.checkpoint_every=often",), "as 30s"), (("train.dropout=1",), "less than 1"),
    (("train.data_parallel=ddp", "train.cpu_offload=true"), "cpu_offload"),
    (("train.data_parallel=ddp", "train.forward_prefetch=true"), "forward_prefetch"),
    (("train.data_parallel=ddp", "train.backward_prefetch=NONE"), "backward_prefetch"),
    (("train.data_parallel=ddp", "train.auto_wrap_policy=none"), "auto_wrap_policy"), (("train.min_num_params=5000",), "size_based"),
    (("sharding=hybrid(2)", "ranks=3"), "hybrid(2)"),
    (("folder=overwrite",), "keep.last"), (("train.vocab=a.json",), "train.merges"), (("engine=torch-dcp",), "workload=train"),
    (("dtype=fp16",), "fp16"), (("train.checkpoint_every=99999999999999999999",), "as 30s"), (("train.checkpoint_every=0.5",), "as 30s"),
    (("ranks=2", "train.checkpoint_every=5", "format=safetensors"), "ckptbench convert"),
    (("train.data_parallel=ddp", "sharding=full"), "shards nothing"), (("train.epochs=2",), "has no end"),
    (("train.vocab=a.json", "train.merges=b.txt"), "has no text"), (("train.data=",), "train.data= is empty"), (("ops=save",), "train.checkpoint_every"), (("model=linear-8x16384", "train.dropout=0.1"), "same rows in every step"),
])
def test_keys_that_do_not_go_together_are_refused_before_anything_starts(tmp_path, words, said):
    result = ckptbench(tmp_path, "run", "workload=train", "model=gpt2-tiny", "store=null:", *words, code=2)
    assert said in result.stderr
    assert not (tmp_path / "home/runs").exists()


def test_a_text_and_a_file_that_is_too_short(tmp_path):
    text = tmp_path / "text.txt"
    text.write_text("It was the best of times, it was the worst of times. " * 200)
    train(tmp_path, *batch(2), STEPS, f"train.data={text}")
    assert "text.txt" in facts(tmp_path)["train.data"]
    samples = len(text.read_text()) // 33
    document = train(tmp_path, *batch(2), "train.steps=100", "train.epochs=1", f"train.data={text}")
    assert document["outcome"] == "pass" and len(losses(tmp_path)) < samples / WHOLE_BATCH + 1
    text.write_text("short")
    document = train(tmp_path, *batch(2), STEPS, f"train.data={text}", code=3)
    assert "short" in document["message"] or "text.txt" in document["message"]


ROOT = Path(__file__).resolve().parents[2]
TUTORIAL = {"train-ddp": "ddp", "train-fsdp": "fsdp-module_wrap-BACKWARD_PRE",
            "train-fsdp-offload": "fsdp-module_wrap-BACKWARD_PRE-cpu_offload",
            "train-fsdp-prefetch": "fsdp-module_wrap-BACKWARD_POST-forward_prefetch"}


@pytest.mark.parametrize("name", TUTORIAL)
def test_the_tutorials_commands_are_planned_as_published_and_run_scaled(tmp_path, name):
    file = ROOT / f"experiments/{name}.yaml"
    memory = json.loads(ckptbench(tmp_path, "plan", "--json", file).stdout)["memory"]
    after = {"train-ddp": 25.00, "train-fsdp-offload": 1.00}.get(name, 3.00)
    assert memory[1]["cuda_memory_allocated_GB"] == 9.00048828125 and round(memory[2]["cuda_memory_allocated_GB"], 2) == after
    document = json.loads(ckptbench(tmp_path, "run", "--json", file, f"model={linear(tmp_path)}", "ranks=2", "train.batch_size=8").stdout)
    assert document["metrics"]["step_s"]["n"] == 7
    folders = list((tmp_path / "home/runs" / document["run"] / "attempts/1/traces").iterdir())
    assert [folder.name for folder in folders] == [TUTORIAL[name]]


def test_the_gpt2_trainers_settings_run_scaled_as_the_files_head_says(tmp_path):
    file = ROOT / "experiments/train-gpt2.yaml"
    scaled = next(line for line in file.read_text().splitlines() if line.startswith("# Scaled: ")).removeprefix("# Scaled: ").split()
    out = ckptbench(tmp_path, "run", "--json", file, *scaled, "layers=2", "train.steps=6", "train.checkpoint_every=3", "train.validate_every=3",
                    f"train.data={ROOT}/docs/training.md", f"store={tmp_path}/store")
    metrics = json.loads(out.stdout)["metrics"]
    assert metrics["checkpoints"]["median"] == 2 and metrics["step.validation_loss"]["n"] == 2


def test_suite_and_training_in_one_go(tmp_path):
    ckptbench(tmp_path, "run", ROOT / "experiments/suite-and-train.yaml", f"store={tmp_path}/store", "suite.only=net", "suite.message_bytes=64KiB",
              "layers=1", "train.steps=4", "train.seq_length=32", "train.checkpoint_every=2")
    runs = json.loads(ckptbench(tmp_path, "list", "--json").stdout)
    assert len(runs) == 2 or len(runs["runs"]) == 2
