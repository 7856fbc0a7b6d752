"""Trainings through `ckptbench run`, for tests: small ones, and what their steps came to."""
import csv
import json

from harness import BUILD, ckptbench

SMALL = ("workload=train", "model=gpt2-tiny", "layers=2", "train.seq_length=32", "train.lr=0.003", "train.schedule=constant", "warmup=0")
WHOLE_BATCH = 12  # of all ranks
# The CUDA plugin's own source, built for the processor (tests/cuda_on_cpu); some builds have none.
PLUGIN = next((path for path in (BUILD / f"tests/cuda_on_cpu/{kind}/ckptbench-cuda.so" for kind in ("plain", "asan")) if path.exists()), None)


def batch(ranks):
    return (f"ranks={ranks}", f"train.batch_size={WHOLE_BATCH // ranks}")


def train(place, *words, code=0, store="null:"):
    return json.loads(ckptbench(place, "run", "--json", *SMALL, f"store={store}", *words, code=code).stdout)


def values(place, metric, run="LATEST", op="step"):
    """{iteration: {rank: value}}"""
    found = {}
    for row in csv.DictReader(ckptbench(place, "export", run, "--csv").stdout.splitlines()):
        if row["op"] == op and row["metric"] == metric:
            found.setdefault(int(row["iteration"]), {})[int(row["rank"])] = float(row["value"])
    return found


def losses(place, run="LATEST"):
    """{step: loss}; every rank knows the same."""
    by_step = values(place, "loss", run)
    for step, ranks in by_step.items():
        assert len(set(ranks.values())) == 1, (step, ranks)
    return {step: ranks[0] for step, ranks in by_step.items()}


def facts(place, run="LATEST"):
    return dict(line.split("=", 1) for line in json.loads(ckptbench(place, "export", run, "--json").stdout)["facts"])


def linear(place, width=48, layers=4):
    """The tutorial's stack, scaled."""
    model = place / "linear.yaml"
    model.write_text("".join(f"- {{name: layers.{i}.weight, shape: {width}x{width}, dtype: fp32, layer: {i}}}\n"
                             f"- {{name: layers.{i}.bias, shape: {width}, dtype: fp32, layer: {i}}}\n" for i in range(layers)))
    return model
