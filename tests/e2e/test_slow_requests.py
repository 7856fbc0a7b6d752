"""show --latency: what was slow is named with its operation, rank, file and offset."""
import json
import re

import pytest

from harness import ckptbench

TINY = ("model=gpt2-tiny", "ranks=2", "tp=2", "warmup=1", "iterations=2", "baseline=false", "io.block=1MiB")


@pytest.fixture(scope="module")
def place(tmp_path_factory):
    place = tmp_path_factory.mktemp("slow")
    (place / "store").mkdir()
    return place


def latency(place, spec, *words, store="./store"):
    run = json.loads(ckptbench(place, "run", *TINY, f"store=fault:{spec}:{store}", *words, "--json").stdout)["run"]
    return json.loads(ckptbench(place, "show", run, "--latency", "--json").stdout)["latency"]


def test_slow_reads_of_a_rank_are_the_slowest_requests(place):
    slowest = latency(place, "delay=2s+ops=read+rank=1")["load"]["slowest"]
    assert len(slowest) == 10
    assert {(request["rank"], request["request"]) for request in slowest} == {(1, "read")}
    assert {request["iteration"] for request in slowest} <= {1, 2}  # the warm-up has none


def test_a_slow_finish_names_its_file(place):
    slowest = latency(place, "delay=400ms+ops=finish+rank=1", "ops=save", "verify=none", store="null:")["save"]["slowest"]
    assert [(request["request"], request["rank"]) for request in slowest[:2]] == [("finish", 1)] * 2
    assert all(re.fullmatch(r".*/iteration-[12]/__1_0\.distcp", request["file"]) for request in slowest[:2])


def test_the_offset_is_that_of_the_request(place):
    slowest = latency(place, "delay=400ms+ops=write+rank=0", "ops=save", "verify=none", store="null:")["save"]["slowest"]
    assert {request["offset"] for request in slowest} <= {mib << 20 for mib in range(8)}
    assert all(request["offset"] % (1 << 20) == 0 and request["bytes"] <= 1 << 20 for request in slowest)
    assert all(request["file"].endswith("/__0_0.distcp") for request in slowest)


@pytest.mark.parametrize("words", [(), ("workload=raw",), ("save.async=true",)])
def test_the_histogram_has_every_request_of_the_measured_iterations(place, words):
    operations = latency(place, "delay=1us", *words)
    assert set(operations) == {"save", "load"}
    for operation in operations.values():
        assert sum(line["requests"] for line in operation["histogram"]) == operation["requests"] > 0
        assert operation["p50_s"] <= operation["p99_s"] <= operation["max_s"] == operation["slowest"][0]["latency_s"]


def test_the_text_has_percentiles_a_histogram_and_the_slowest(place):
    run = json.loads(ckptbench(place, "run", *TINY, "store=./store", "--json").stdout)["run"]
    text = ckptbench(place, "show", run, "--latency").stdout
    assert re.search(r"^ +REQUESTS +MEAN +P50 +P90 +P99 +P99\.9 +MAX$", text, re.M)
    assert re.search(r"^ +at most \S+ \S+ +\d+ +[\d.]+ %", text, re.M)
    assert len(re.findall(rf"^ +\S+ \S+ +read +[01] +[12] +{run}/iteration-", text, re.M)) == 10


def test_a_run_that_made_no_requests_says_so(place):
    words = ("workload=suite", "suite.only=cpu", "ranks=1", "suite.gemm_size=64", "iterations=1")
    run = json.loads(ckptbench(place, "run", *words, "store=./store", "--json").stdout)["run"]
    assert "no latencies" in ckptbench(place, "show", run, "--latency").stdout
    assert json.loads(ckptbench(place, "show", run, "--latency", "--json").stdout)["latency"] == {}
