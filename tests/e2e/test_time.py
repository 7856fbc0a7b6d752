"""show --time: what every rank did when. Sums are those of the run's counters, and a stall is seen where it was."""
import fcntl
import json
import os
import pty
import re
import signal
import struct
import subprocess
import termios
import time
from pathlib import Path

import pytest

from harness import PROGRAM, ckptbench, environment

TINY = ("model=gpt2-tiny", "ranks=2", "tp=2", "warmup=1", "iterations=2", "baseline=false", "io.block=1MiB")
KINDS = ("write", "read", "fsync", "backoff")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("time")
    (place / "store").mkdir()
    return place


def shown(place, *words):
    """A run, and its document with everything of it over time."""
    run = json.loads(ckptbench(place, "run", *words, "--json").stdout)["run"]
    return run, json.loads(ckptbench(place, "show", run, "--time", "--latency", "--json").stdout)


def samples(place, run, metric):
    """Sums of a metric over all iterations, warm-up included, by operation and rank."""
    query = (f"select op, hex(ranks) as ranks from sample join run on run.id = run_id join catalogue on catalogue.id = sample.metric "
             f"where run = '{run}' and catalogue.metric = '{metric}'")
    sums = {}
    for row in json.loads(ckptbench(place, "sql", query, "--json").stdout):
        values = bytes.fromhex(row["ranks"])
        for rank, (value,) in enumerate(struct.iter_unpack("<d", values)):
            sums[row["op"], rank] = sums.get((row["op"], rank), 0) + value
    return sums


def totals(document, operation, member, *kinds):
    """Sums over the buckets of each rank, of these kinds of requests together."""
    found = {}
    for entry in document["time"]["operations"]:
        if entry["operation"] == operation and entry["request"] in (kinds or KINDS):
            for rank in entry["ranks"]:
                found[rank["rank"]] = found.get(rank["rank"], 0) + sum(rank[member])
    return found


def check_shape(document):
    for entry in document["time"]["operations"]:
        assert entry["request"] in KINDS
        for member in ("bytes", "requests", "in_flight_ns"):
            assert entry[member] == sum(sum(rank[member]) for rank in entry["ranks"])
        for rank in entry["ranks"]:
            assert 0 < len(rank["bytes"]) == len(rank["requests"]) == len(rank["in_flight_ns"]) <= 128
            assert any(rank[member][-1] for member in ("requests", "in_flight_ns"))
        exponent = round(entry["bucket_s"] / 0.00078125)
        assert exponent & (exponent - 1) == 0 and abs(exponent * 0.00078125 - entry["bucket_s"]) < 1e-9
        last = max(rank["first_bucket"] + len(rank["bytes"]) for rank in entry["ranks"])
        assert (last - 1) * entry["bucket_s"] <= document["time"]["duration_s"]


@pytest.mark.parametrize("words", [("store=./store",), ("store=./store", "workload=raw"), ("store=./store", "save.async=true"),
                                   ("store=./store", "load.exchange=auto"), ("store=null:", "ops=save", "verify=none")])
def test_sums_over_time_are_the_counters_of_the_run(place, words):
    run, document = shown(place, *TINY, *words)
    check_shape(document)
    moved, requests = samples(place, run, "bytes_moved"), samples(place, run, "requests")
    for operation in {entry["operation"] for entry in document["time"]["operations"]}:
        kinds = KINDS if "workload=raw" not in words else ("write", "read")  # raw does not count what ends a file
        for rank, total in totals(document, operation, "bytes").items():
            assert total == moved[operation, rank]
        for rank, total in totals(document, operation, "requests", *kinds).items():
            assert total == requests[operation, rank]
    assert {entry["request"] for entry in document["time"]["operations"]} >= {"write", "fsync"}


def test_time_in_flight_is_the_sum_of_all_latencies(place):
    run, document = shown(place, *TINY, "warmup=0", "store=./store")
    for operation, latency in document["latency"].items():
        in_flight_ns = sum(totals(document, operation, "in_flight_ns").values())
        assert abs(in_flight_ns / latency["requests"] - 1e9 * latency["mean_s"]) <= 1  # the mean is in whole nanoseconds


def busy(document, operation, request, rank):
    """When requests were in flight, as first and last bucket's limits in seconds, and how wide buckets are."""
    for entry in document["time"]["operations"]:
        if (entry["operation"], entry["request"]) == (operation, request):
            width = entry["bucket_s"]
            for one in entry["ranks"]:
                if one["rank"] == rank:
                    return one["first_bucket"] * width, (one["first_bucket"] + len(one["bytes"])) * width, width
    return None


@pytest.mark.parametrize("operation, request_kind, ops", [("save", "fsync", "finish"), ("save", "write", "write"), ("load", "read", "read")])
def test_a_stall_is_seen_at_its_rank_operation_and_time(place, operation, request_kind, ops):
    stall_s = 1.2
    _, document = shown(place, *TINY, "warmup=0", "iterations=1", "io.block=16MiB", f"store=fault:delay={round(stall_s * 1000)}ms+ops={ops}+rank=1:./store")
    latency_s = next(request for request in document["latency"][operation]["slowest"] if request["rank"] == 1)["latency_s"]
    assert latency_s >= stall_s
    start_s, end_s, width_s = busy(document, operation, request_kind, 1)
    assert width_s <= 0.1
    stalled = next(entry for entry in document["time"]["operations"] if (entry["operation"], entry["request"]) == (operation, request_kind))
    ranks = {rank["rank"]: rank for rank in stalled["ranks"]}
    assert sum(ranks[1]["in_flight_ns"]) >= 1e9 * stall_s
    waits = [count == 0 and spent > 0 for count, spent in zip(ranks[1]["requests"], ranks[1]["in_flight_ns"])]
    longest = max(len(part) for part in "".join("x" if wait else " " for wait in waits).split(" "))
    assert stall_s - 2 * width_s <= longest * width_s <= latency_s + 2 * width_s
    assert latency_s - 2 * width_s <= end_s - start_s
    if request_kind == "fsync":  # after the rank's last write
        assert busy(document, "save", "write", 1)[1] <= start_s + 2 * width_s


def test_activity_of_the_machine_is_on_the_same_axis(place):
    run, document = shown(place, *TINY, "store=./store")
    folder = place / "data/runs" / run
    (host,) = document["time"]["host"]
    assert 0.1 <= host["bucket_s"] and host["first_bucket"] * host["bucket_s"] <= document["time"]["duration_s"] + host["bucket_s"]
    arrays = [value for value in host.values() if isinstance(value, list)]
    assert len(arrays) >= 4 and len({len(values) for values in arrays}) == 1 and len(arrays[0]) <= 128
    assert all(fraction is None or 0 <= fraction <= 1 for fraction in host["cpu_fraction"])
    assert max(filter(None, host["memory_used_bytes"])) > 0
    files = list(place.rglob(f"{run}/attempts/1/host.json"))
    (disk,) = [json.loads(file.read_text())["disk"] for file in files]
    if disk:
        assert sum(filter(None, host["disk_written_bytes"])) == disk["written_bytes"]
    assert (host["first_bucket"] + len(arrays[0]) + 1) * host["bucket_s"] >= max(
        rank["first_bucket"] * entry["bucket_s"] for entry in document["time"]["operations"] for rank in entry["ranks"])


def test_a_run_that_made_no_requests_says_so(place):
    run, document = shown(place, "workload=suite", "suite.only=cpu", "ranks=1", "suite.gemm_size=64", "iterations=1", "store=./store")
    assert document["time"]["operations"] == []
    assert "nothing over time" in ckptbench(place, "show", run, "--time").stdout


# ---- on a terminal ----

@pytest.fixture(scope="module")
def run(place):
    return shown(place, *TINY, "warmup=0", "store=fault:delay=20ms:./store")[0]


def on_terminal(place, *words, columns=100, **variables):
    """What the program prints on a terminal of this width."""
    terminal, program_side = pty.openpty()
    fcntl.ioctl(program_side, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
    process = subprocess.Popen([PROGRAM, *words], cwd=place, env=environment(place, TERM="xterm", **variables), stdout=program_side)
    os.close(program_side)
    text = b""
    try:
        while block := os.read(terminal, 65536):
            text += block
    except OSError:  # the program has ended
        pass
    os.close(terminal)
    assert process.wait(timeout=120) == 0
    return text.decode().replace("\r\n", "\n")


UTF8 = {"LC_ALL": "C.UTF-8", "NO_COLOR": "1"}
BLOCKS = "▁▂▃▄▅▆▇█"


def drawing(text):
    """The part about time: from the line about the axis on."""
    lines = text.splitlines()
    return lines[next(i for i, line in enumerate(lines) if " a column, from " in line):]


@pytest.mark.parametrize("columns", [40, 60, 64, 100, 200])
def test_the_picture_fits_the_terminal(place, run, columns):
    lines = drawing(on_terminal(place, "show", run, "--time", columns=columns, **UTF8))[1:-1]
    assert all(len(line) <= columns for line in lines), lines
    text = "\n".join(lines)
    for label in ("save write", "save fsync", "load read", "CPU", "memory"):
        assert re.search(rf"^{label} ", text, re.M), text
    assert set(BLOCKS) & set(text)
    assert ("IN ALL" in text) == (columns >= 64)


@pytest.mark.parametrize("columns", [60, 200])
def test_without_utf_8_everything_that_show_prints_is_ascii(place, run, columns):
    text = on_terminal(place, "show", run, "--time", "--ranks", columns=columns, LC_ALL="C", NO_COLOR="1")
    assert any(line.startswith("save write") and re.search("[_=+#-]", line[12:]) for line in drawing(text))
    assert text.isascii() and re.search(r"[\d.]+ m?s \.\.\. [\d.]+ m?s", text), text


def test_no_color_is_honoured(place, run):
    assert "\033[" in on_terminal(place, "show", run, "--time", "--ranks", LC_ALL="C.UTF-8")
    assert "\033" not in on_terminal(place, "show", run, "--time", "--ranks", **UTF8)


@pytest.mark.parametrize("columns", [40, 60, 200])
def test_ranks_have_a_heat_map_on_a_terminal_only(place, run, columns):
    text = on_terminal(place, "show", run, "--ranks", columns=columns, **UTF8)
    for heading in ("save write by rank", "load read by rank"):
        map_of = text[text.index(heading):].splitlines()[1:3]
        assert [line.split()[0] for line in map_of] == ["0", "1"]
        assert all(set("░▒▓█") & set(line) and len(line) <= columns for line in map_of), map_of
    table = text[re.search(r"^save  rank", text, re.M).start():text.index("save write by rank")].splitlines()
    assert all(len(line) <= columns for line in table), table
    assert (" on a wider terminal" in "\n".join(table)) == (columns < 100) == ("rss_bytes" not in table[0]), table
    whole = ckptbench(place, "show", run, "--ranks").stdout
    assert "by rank" not in whole and "wider" not in whole and re.search(r"^save  rank .* rss_bytes$", whole, re.M)


def test_the_longest_wait_is_named_with_its_rank(place):
    run, _ = shown(place, *TINY, "warmup=0", "iterations=1", "ops=save", "verify=none", "store=fault:delay=900ms+ops=finish+rank=1:null:")
    text = ckptbench(place, "show", run, "--time").stdout
    found = re.search(r"^longest without a completed request: rank 1, save fsync, ([\d.]+) (m?s) from [\d.]+ m?s on", text, re.M)
    assert found and float(found[1]) * (1 if found[2] == "s" else 0.001) > 0.8, text


# ---- every request: trace=full ----

def trace(place, run):
    """The events of a run by rank, and the names of its processes."""
    events = json.loads(ckptbench(place, "export", run, "--perfetto").stdout)["traceEvents"]
    names = {event["pid"]: event["args"]["name"] for event in events if event["name"] == "process_name"}
    requests = [dict(event, rank=int(names[event["pid"]].removeprefix("rank "))) for event in events if event["ph"] == "X"]
    return requests, [event for event in events if event["ph"] == "M"]


@pytest.mark.parametrize("words", [(), ("save.async=true",), ("workload=raw", "warmup=0"), ("baseline=true", "io.engine=psync")])
def test_a_trace_has_every_request_of_the_counters(place, words):
    run, document = shown(place, *TINY, "trace=full", "verify=none", "store=./store", *words)
    requests, names = trace(place, run)
    counted = {}
    for entry in document["time"]["operations"]:
        for rank in entry["ranks"]:
            counted[entry["operation"], entry["request"], rank["rank"]] = (sum(rank["requests"]), sum(rank["bytes"]), sum(rank["in_flight_ns"]))
    traced = {}
    for event in requests:
        key = event["cat"], event["name"], event["rank"]
        count, moved, spent = traced.get(key, (0, 0, 0))
        traced[key] = count + 1, moved + event["args"]["bytes"], spent + round(1000 * event["dur"])
    assert traced == counted
    assert {event["rank"] for event in requests} == {0, 1}
    last = {}
    for event in requests:  # no event overlaps another of its thread
        thread = event["pid"], event["tid"]
        assert event["pid"] > 0 and event["tid"] > 0
        assert event["ts"] >= last.get(thread, 0) - 0.001
        last[thread] = event["ts"] + event["dur"]
    assert set(last) == {(name["pid"], name["tid"]) for name in names if name["name"] == "thread_name"}
    assert all(event["args"]["file"] for event in requests)
    facts = json.loads(ckptbench(place, "sql", f"select fact from fact where run = '{run}' and rank = 0 and fact like 'trace=%'", "--json").stdout)
    assert sum(int(fact["fact"].removeprefix("trace=").split()[0]) for fact in facts) == sum(event["rank"] == 0 for event in requests)


def test_a_trace_knows_iterations_and_files(place):
    run, _ = shown(place, *TINY, "trace=full", "verify=none", "store=./store")
    requests, _ = trace(place, run)
    saves = [event["args"] for event in requests if event["cat"] == "save" and event["name"] == "write"]
    assert {args["iteration"] for args in saves} == {0, 1, 2}  # 0: the warm-up
    assert all(args["file"].endswith((".distcp")) for args in saves)
    assert {args["offset"] for args in saves} <= {mib << 20 for mib in range(64)}


def test_without_a_trace_the_export_says_how_to_get_one(place, run):
    assert "trace=full" in ckptbench(place, "export", run, "--perfetto", code=2).stderr


def workers(run):
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(b"ckptbench-worker") and any(run.encode() in word for word in words):
            found.append(int(folder.name))
    return found


def test_a_killed_rank_leaves_a_trace(tmp_path):
    """Its last requests may be missing, but what is there can be read."""
    (tmp_path / "store").mkdir()
    words = ("model=gpt2-tiny", "ranks=1", "launcher=none", "trace=full", "iterations=100000", "ops=save", "verify=none", "baseline=false",
             "io.block=1MiB", "folder=overwrite", "store=fault:delay=60ms+ops=finish:./store", "--json")
    process = subprocess.Popen([PROGRAM, "run", *words], cwd=tmp_path, env=environment(tmp_path), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
    deadline = time.monotonic() + 200
    while not (traces := [path for path in (tmp_path / "home/runs").glob("*/attempts/1/traces/*") if path.stat().st_size >= 256 + 20 * 80]):
        assert time.monotonic() < deadline and process.poll() is None
        time.sleep(0.02)
    run = traces[0].parents[3].name
    (worker,) = workers(run)
    os.kill(worker, signal.SIGKILL)
    assert process.wait(timeout=120) == 4
    requests, _ = trace(tmp_path, run)
    assert {event["rank"] for event in requests} == {0} and len(requests) >= 20
    assert {event["name"] for event in requests} == {"write", "fsync"}
