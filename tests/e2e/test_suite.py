"""The cluster suite on this machine: every section measures, says what it cannot, and keeps to its rules."""
import json
import os
import re
import shutil
import subprocess
from pathlib import Path

import pytest

BUILD = Path(os.environ.get("CKPTBENCH_BUILD", "build")).resolve()
SMALL = ("workload=suite", "suite.file_bytes=1MiB", "suite.message_bytes=64KiB", "suite.gemm_size=128", "iterations=1", "warmup=0")
CPU = {"cpu_gemm_flops", "cpu_gemm_node_flops", "cpu_integer_ops_per_s", "cpu_compress_bytes_per_s", "cpu_compress_ratio",
       "cpu_sort_elements_per_s"}
NET = {"all_reduce_latency_s", "all_reduce_bus_bytes_per_s", "all_gather_bus_bytes_per_s", "reduce_scatter_bus_bytes_per_s",
       "all_to_all_bus_bytes_per_s", "broadcast_bus_bytes_per_s", "local_latency_s", "local_bandwidth_bytes_per_s", "overlap_fraction"}


def ckptbench(place, *words, code=0):
    environment = dict(os.environ, CKPTBENCH_HOME=str(place / "home"))
    result = subprocess.run([BUILD / "ckptbench", *words], cwd=place, env=environment, capture_output=True, text=True, timeout=200)
    assert result.returncode == code, result.stdout + result.stderr
    return result


def suite(place, *words, code=0):
    return json.loads(ckptbench(place, "run", "--json", f"store={place}/store", *SMALL, *words, code=code).stdout)


def measured(document):
    return {name.removeprefix("suite.") for name in document["metrics"] if name.startswith("suite.")} - {"op_s"}


def test_every_section_measures_something_positive(tmp_path):
    document = suite(tmp_path, "ranks=2")
    names = measured(document)
    assert CPU | NET <= names
    for section in ("storage_", "memory_"):
        assert len([name for name in names if name.startswith(section)]) >= 6
    for name in names - {"overlap_fraction"}:
        row = document["metrics"][f"suite.{name}"]
        assert row["n"] == 1 and row["min"] > 0, name


def test_only_the_sections_asked_for_run(tmp_path):
    assert measured(suite(tmp_path, "ranks=1", "suite.only=cpu", "store=null:")) == CPU


def test_what_cannot_run_here_is_absent_and_says_why(tmp_path):
    out = ckptbench(tmp_path, "run", *SMALL, "store=null:", "suite.only=net+cpu", "ranks=1").stdout
    assert "not measured  net=one rank" in out
    assert "all_reduce" not in out


def test_pairs_of_nodes_are_measured_by_the_nodes_names(tmp_path):
    """Ranks that are told other names of nodes stand for ranks on other machines."""
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("ckptbench", "ckptbench-agent"):
        shutil.copy(BUILD / name, programs)
    worker = programs / "ckptbench-worker"
    worker.write_text(f'#!/bin/sh\nexport CKPTBENCH_NODE=node$OMPI_COMM_WORLD_RANK\nexec {BUILD}/ckptbench-worker "$@"\n')
    worker.chmod(0o755)
    environment = dict(os.environ, CKPTBENCH_HOME=str(tmp_path / "home"))
    result = subprocess.run([programs / "ckptbench", "run", "--json", *SMALL, "store=null:", "suite.only=net", "ranks=3"], cwd=tmp_path,
                            env=environment, capture_output=True, text=True, timeout=200)
    assert result.returncode == 0, result.stderr
    document = json.loads(result.stdout)
    assert {"net_latency_s", "net_bandwidth_bytes_per_s", "net_latency_p99_s"} <= measured(document)
    facts = json.loads(ckptbench(tmp_path, "export", "LATEST", "--json").stdout)["facts"]
    pairs = {fact.split("=")[0] for fact in facts if fact.startswith("suite.pair.")}
    assert pairs == {"suite.pair.node0.node1", "suite.pair.node0.node2", "suite.pair.node1.node2"}
    nodes = json.loads(ckptbench(tmp_path, "show", "LATEST", "--nodes", "--json").stdout)["nodes"]
    assert nodes["names"] == ["node0", "node1", "node2"]
    assert nodes["metrics"]["net_latency_s"]["worst"] in nodes["names"]
    for cells in nodes["pairs"].values():
        assert [[cell is None for cell in row] for row in cells] == [[a == b for b in range(3)] for a in range(3)]


def test_a_rule_that_is_not_met_fails_the_run_with_both_figures(tmp_path):
    document = suite(tmp_path, "ranks=1", "suite.only=cpu", "store=null:", "suite.fail_below=cpu_gemm_flops:1e18", code=3)
    assert document["outcome"] == "benchmark_failed"
    assert "cpu_gemm_flops is" in document["message"] and "1e+18" in document["message"]
    assert measured(document) == CPU  # what was measured is kept


@pytest.mark.parametrize("word,named", [("suite.only=cpus", "cpus"), ("suite.fail_below=nothing:3", "nothing:3"),
                                        ("engine=torch-dcp", "workload=suite")])
def test_wrong_words_are_refused_before_anything_starts(tmp_path, word, named):
    result = ckptbench(tmp_path, "run", *SMALL, "store=null:", word, code=2)
    assert named in result.stderr
    assert not (tmp_path / "home/runs").exists()


def test_nothing_is_left_in_the_store(tmp_path):
    suite(tmp_path, "ranks=2", "suite.only=storage")
    assert [path.name for path in (tmp_path / "store").rglob("*") if path.is_file()] == [".ckptbench-store"]


def test_a_store_that_returns_wrong_bytes_is_found_out(tmp_path):
    document = suite(tmp_path, "ranks=1", "suite.only=storage", f"store=fault:bit_flip=3:{tmp_path}/store", code=3)
    assert "not what was written there" in document["message"]


def test_clusterbench_has_the_older_suites_rows_with_numbers_and_units_apart(tmp_path):
    suite(tmp_path, "ranks=2", "suite.only=cpu", "store=null:")
    out = ckptbench(tmp_path, "export", "LATEST", "--clusterbench", "--per-rank").stdout
    documents = out.split("---\n")[1:]
    assert len(documents) == 3  # the run, and each rank
    whole = documents[0]
    assert re.search(r'^timestamp: "\d{4}-.*Z"$', whole, re.M) and re.search(r"^total_time: \d+\.\d\d$", whole, re.M)
    assert re.search(r'^    "Matrix multiply \(NumPy\)": \{value: [\d.e+]+, unit: "GFLOPS"\}$', whole, re.M)
    assert '"All-reduce (2 GPUs)": {value: null, unit: "GB/s"}' in whole  # net was not asked for
    assert "rank: 1\n" in documents[2]


def test_clusterbench_of_a_checkpoint_run_is_refused(tmp_path):
    ckptbench(tmp_path, "run", "model=gpt2-tiny", "ranks=1", "iterations=1", "warmup=0", "baseline=false", f"store={tmp_path}/store")
    assert "workload=suite" in ckptbench(tmp_path, "export", "LATEST", "--clusterbench", code=2).stderr
