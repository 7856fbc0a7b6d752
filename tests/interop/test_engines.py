"""engine=torch-dcp, torch-native and native over one store: what one saved the others load, timed and verified."""
import pytest

from conftest import verify_checkpoint

LAYOUTS = ["ranks=2 tp=2", "ranks=3 zero=1", "ranks=2 zero=3"]


def measured(document, op):
    """One measured operation that passed, in the record that both engines write."""
    assert document["outcome"] == "pass" and document["state"] == "done"
    metrics = document["metrics"]
    assert metrics[f"{op}_s"]["n"] == 1 and metrics[f"{op}_s"]["median"] > 0
    assert metrics[f"{op}_bytes_per_s"]["median"] > 0
    assert sum(document["states"][op].values()) == pytest.approx(1, abs=0.01)
    return metrics


@pytest.fixture(scope="module")
def by_torch(place):
    """folder of the store by layout: what engine=torch-dcp saved, each once."""
    saved = {}

    def save(layout):
        suffix = "torch-" + layout.replace("=", "").replace(" ", "-")
        if layout not in saved:
            saved[layout] = place.run(f"engine=torch-dcp ops=save keep=true suffix={suffix} {layout}")
        return suffix, saved[layout]

    return save


@pytest.mark.parametrize("layout", LAYOUTS)
def test_we_load_what_pytorch_saved(place, by_torch, layout):
    suffix, document = by_torch(layout)
    metrics = measured(document, "save")
    assert metrics["save.io_s"]["median"] > 0 and metrics["save.plan_s"]["median"] > 0
    assert verify_checkpoint(place.checkpoint(suffix)).returncode == 0
    loaded = place.run(f"ops=load suffix={suffix} verify=full {layout}")
    measured(loaded, "load")
    assert loaded["verified"] == {"iterations": 1, "of": 1}


def test_we_load_in_another_layout_what_pytorch_saved(place, by_torch):
    suffix, _ = by_torch("ranks=2 tp=2")
    loaded = place.run(f"ops=load suffix={suffix} verify=full ranks=3 zero=3")
    assert loaded["verified"] == {"iterations": 1, "of": 1}


@pytest.mark.parametrize("layout", LAYOUTS)
def test_pytorch_loads_what_we_saved(place, layout):
    suffix = "native-" + layout.replace("=", "").replace(" ", "-")
    measured(place.run(f"ops=save keep=true suffix={suffix} {layout}"), "save")
    loaded = place.run(f"engine=torch-dcp ops=load suffix={suffix} verify=full {layout}")
    metrics = measured(loaded, "load")
    assert metrics["load.io_s"]["median"] > 0
    assert loaded["verified"] == {"iterations": 1, "of": 1}


def test_both_engines_count_the_same_bytes_of_the_same_state(place):
    counted, overheads = [], []
    for engine in ("native", "torch-dcp"):
        metrics = measured(place.run(f"engine={engine} ops=save ranks=2 zero=1"), "save")
        counted.append(round(metrics["save_bytes_per_s"]["median"] * metrics["save_s"]["median"]))
        overheads.append(metrics["save_overhead"]["median"])
    assert counted[0] == counted[1] and all(0 < overhead < 0.2 for overhead in overheads)


def test_pytorch_saves_and_loads_in_one_run(place):
    document = place.run("engine=torch-dcp ranks=2 pp=2 iterations=2 verify=full")
    assert document["verified"] == {"iterations": 2, "of": 2}
    assert document["metrics"]["save_s"]["n"] == document["metrics"]["load_s"]["n"] == 2


def test_pytorch_misses_a_file_and_its_reason_is_told(place):
    next(place.save("ranks=2 tp=2", "lacking").glob("__1*")).unlink()
    document = place.run("engine=torch-dcp ops=load suffix=lacking ranks=2 tp=2", code=3)
    assert document["outcome"] == "benchmark_failed" and "__1_0.distcp" in document["message"]


def test_the_package_inside_pytorch_saves_and_loads_what_the_ranks_hold(place):
    """Its time is divided as that of the others, and another engine verifies what it left, in another layout."""
    document = place.run("engine=torch-native suffix=inside keep=true ranks=2 zero=1 verify=full io.block=1MiB load.exchange=split")
    for op in ("save", "load"):
        metrics = measured(document, op)
        assert metrics[f"{op}.io_s"]["median"] > 0 and metrics[f"{op}.plan_s"]["median"] > 0 and metrics[f"{op}.bytes_moved"]["median"] > 0
    assert document["verified"] == {"iterations": 1, "of": 1}
    folder = place.checkpoint("inside")
    assert verify_checkpoint(folder).returncode == 0 and not list(folder.parent.glob(".ckptbench-saving-*"))
    loaded = place.run("ops=load suffix=inside verify=full ranks=3 zero=3")
    assert loaded["verified"] == {"iterations": 1, "of": 1}


def test_the_package_inside_pytorch_loads_what_pytorch_saved(place, by_torch):
    suffix, _ = by_torch("ranks=2 tp=2")
    loaded = place.run(f"engine=torch-native ops=load suffix={suffix} verify=full ranks=2 zero=3")
    measured(loaded, "load")
    assert loaded["verified"] == {"iterations": 1, "of": 1}


def test_the_package_inside_pytorch_tells_what_is_missing(place):
    next(place.save("ranks=2 tp=2", "lacking-inside").glob("__1*")).unlink()
    document = place.run("engine=torch-native ops=load suffix=lacking-inside ranks=2 tp=2", code=3)
    assert document["outcome"] == "benchmark_failed" and "__1_0.distcp" in document["message"]


def test_both_engines_in_pytorch_write_the_same_bytes_of_the_same_state(place, by_torch):
    _, document = by_torch("ranks=2 zero=3")
    ours = place.run("engine=torch-native ops=save ranks=2 zero=3")
    (theirs, mine) = (round(metrics["save_bytes_per_s"]["median"] * metrics["save_s"]["median"])
                      for metrics in (document["metrics"], measured(ours, "save")))
    assert theirs == mine
