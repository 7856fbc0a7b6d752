"""The cluster suite on this machine: every section measures, says what it cannot, and keeps to its rules."""
import json
import os
import re
import shutil
import socket
import subprocess

import pytest

from harness import BUILD, ckptbench

SMALL = ("workload=suite", "suite.file_bytes=1MiB", "suite.message_bytes=64KiB", "suite.gemm_size=128", "iterations=1", "warmup=0")
CPU = {"cpu_gemm_flops", "cpu_gemm_node_flops", "cpu_integer_ops_per_s", "cpu_compress_bytes_per_s", "cpu_compress_ratio",
       "cpu_compress_fp32_bytes_per_s", "cpu_compress_fp32_ratio",
       "cpu_sort_elements_per_s"}
NET = {"all_reduce_latency_s", "all_reduce_bus_bytes_per_s", "all_gather_bus_bytes_per_s", "reduce_scatter_bus_bytes_per_s",
       "all_to_all_bus_bytes_per_s", "broadcast_bus_bytes_per_s", "local_latency_s", "local_bandwidth_bytes_per_s", "overlap_fraction"}


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
    check_curves(tmp_path)
    check_the_older_file_on_one_node(tmp_path)
    heading, row = (line.split() for line in ckptbench(tmp_path, "list").stdout.splitlines())
    assert row[heading.index("MODEL")] == "-"  # none is used


def check_curves(place):
    """Collectives over sizes up to the largest, 64 KiB, and latencies within the one node, in both forms."""
    document = json.loads(ckptbench(place, "show", "LATEST", "--nodes", "--json").stdout)
    factors = {"all_reduce": 1, "all_gather": 0.5, "reduce_scatter": 0.5, "all_to_all": 0.5, "broadcast": 1}  # of two ranks
    assert document["collectives"].keys() == factors.keys()
    for name, points in document["collectives"].items():
        assert [point["bytes"] for point in points] == ([8, 64, 512, 4096, 32768, 65536] if factors[name] == 1 else [16, 128, 1024, 8192, 65536])
        for point in points:
            assert point["algorithm_bytes_per_s"] == pytest.approx(point["bytes"] / point["seconds"], rel=1e-2)
            assert point["bus_bytes_per_s"] == pytest.approx(factors[name] * point["algorithm_bytes_per_s"], rel=1e-2)
    ((points,),) = (document["latencies"]["within_nodes"].values(),)
    assert [point["bytes"] for point in points] == [8, 64, 512, 4096, 32768, 262144, 2097152, 4194304]
    assert all(0 < point["median_s"] <= point["p99_s"] for point in points) and not document["latencies"]["between_nodes"]
    shown = ckptbench(place, "show", "LATEST", "--nodes").stdout
    assert re.search(r"^COLLECTIVE +BYTES +TIME +ALGORITHM +BUS$", shown, re.M) and re.search(r"^all_reduce +8 B ", shown, re.M), shown


def check_the_older_file_on_one_node(place):
    """What is between nodes, or between GPUs, is not there."""
    out = ckptbench(place, "export", "LATEST", "--clusterbench").stdout
    for row in ("Latency (ping-pong)", "All-to-all bandwidth (2 GPUs)", "Memory bandwidth", "All-reduce (2 GPUs)"):
        assert f'"{row}": {{value: null' in out, out
    assert re.search(r'"Parallel Read \(16 workers\)": \{value: \d', out), out


def test_only_the_sections_asked_for_run(tmp_path):
    assert measured(suite(tmp_path, "ranks=1", "suite.only=cpu", "store=null:")) == CPU


def test_what_cannot_run_here_is_absent_and_says_why(tmp_path):
    out = ckptbench(tmp_path, "run", *SMALL, "store=null:", "suite.only=net+cpu", "ranks=1").stdout
    assert "not measured  net=one rank" in out
    assert "all_reduce" not in out


def run_on_nodes(place, *words, setting="", timeout=200):
    """Ranks that are told other names of nodes stand for ranks on other machines."""
    programs = place / "bin"
    programs.mkdir()
    for name in ("ckptbench", "ckptbench-agent"):
        shutil.copy(BUILD / name, programs)
    worker = programs / "ckptbench-worker"
    worker.write_text(f'#!/bin/sh\nexport CKPTBENCH_NODE=node$OMPI_COMM_WORLD_RANK {setting}\nexec {BUILD}/ckptbench-worker "$@"\n')
    worker.chmod(0o755)
    environment = dict(os.environ, CKPTBENCH_HOME=str(place / "home"))
    result = subprocess.run([programs / "ckptbench", "run", *SMALL, "store=null:", "suite.only=net", *words], cwd=place, env=environment,
                            capture_output=True, text=True, timeout=timeout)
    assert result.returncode == 0, result.stderr
    return result.stdout


# A link that is slow in both directions (for what latencies are measured with), put between the ranks and MPI.
SLOW_LINK = """
#include <mpi.h>
#include <unistd.h>
int MPI_Isend(const void *bytes, int count, MPI_Datatype type, int to, int tag, MPI_Comm comm, MPI_Request *request)
{
    int rank;
    PMPI_Comm_rank(MPI_COMM_WORLD, &rank);
    if (comm == MPI_COMM_WORLD && count <= 8 && ((rank == 1 && to == 2) || (rank == 2 && to == 1)))
        usleep(20000);
    return PMPI_Isend(bytes, count, type, to, tag, comm, request);
}
"""


def test_pairs_of_nodes_are_measured_by_the_nodes_names_and_a_slow_link_is_blamed_on_its_pair(tmp_path):
    (tmp_path / "slow_link.c").write_text(SLOW_LINK)
    subprocess.run(["mpicc", "-shared", "-fPIC", "-o", "slow_link.so", "slow_link.c"], cwd=tmp_path, check=True, timeout=120)
    first = "ASAN_OPTIONS=$ASAN_OPTIONS:verify_asan_link_order=0" if "ASAN_OPTIONS" in os.environ else ""
    out = run_on_nodes(tmp_path, "--json", "ranks=4", "suite.message_bytes=64", setting=f"LD_PRELOAD={tmp_path}/slow_link.so {first}", timeout=580)
    assert {"net_latency_s", "net_bandwidth_bytes_per_s", "net_latency_p99_s"} <= measured(json.loads(out))
    facts = json.loads(ckptbench(tmp_path, "export", "LATEST", "--json").stdout)["facts"]
    pairs = {fact.split("=")[0] for fact in facts if fact.startswith("suite.pair.")}
    assert pairs == {f"suite.pair.node{a}.node{b}" for b in range(4) for a in range(b)}
    assert {fact for fact in facts if fact.startswith("suite.node.")} == {f"suite.node.node{rank}={rank}" for rank in range(4)}
    nodes = json.loads(ckptbench(tmp_path, "show", "LATEST", "--nodes", "--json").stdout)["nodes"]
    assert nodes["names"] == ["node0", "node1", "node2", "node3"]
    assert nodes["metrics"]["net_latency_s"]["worst"] in nodes["names"]
    for cells in nodes["pairs"].values():
        assert [[cell is None for cell in row] for row in cells] == [[a == b for b in range(4)] for a in range(4)]
    slow = nodes["worst_pairs"]["net_latency_s"]
    assert slow["nodes"] == ["node1", "node2"] and slow["value"] > 0.02 > slow["median"] and slow["z"] > 3.5
    shown = ckptbench(tmp_path, "show", "LATEST").stdout
    line = next(line for line in shown.splitlines() if line.startswith("outlier "))
    assert line.split(None, 1)[1].startswith("node1 and node2: net_latency_s is "), shown
    assert re.search(r"^worst pair  node1 and node2, .* outlier$", ckptbench(tmp_path, "show", "LATEST", "--nodes").stdout, re.M)


def test_a_slow_gpu_is_named_among_those_of_one_node_and_against_its_past(tmp_path, monkeypatch):
    """On a plugin whose device is a fake (tests/plugin/fake_plugin.c): what it says is stored, judged and shown."""
    monkeypatch.setenv("CKPTBENCH_CUDA_PLUGIN", str(BUILD / "tests/fake-plugin.so"))
    words = ("run", *SMALL, "store=null:", "suite.only=gpu", "ranks=4", "suite.fail_below=gpu_launch_s:20us")
    for _ in range(4):
        assert "outlier" not in ckptbench(tmp_path, *words).stdout
    monkeypatch.setenv("FAKE_DEVICE_SLOW_RANK", "2")
    out = ckptbench(tmp_path, *words).stdout
    slow = f"GPU fake:2 of {socket.gethostname()}"
    assert re.search(r"^gpu_copy_bytes_per_s +875 GB/s ", out, re.M), out  # the mean of three of 1e12 and one of half
    assert re.search(rf"^outlier +{slow}: gpu_copy_bytes_per_s is 500 GB/s, -50.0 % from the median of the GPUs", out, re.M), out
    table = ckptbench(tmp_path, "show", "LATEST", "--nodes").stdout
    for metric in ("gpu_copy_bytes_per_s", "gpu_gemm_bf16_flops", "gpu_launch_s"):
        assert re.search(rf"^{metric} +\d.* {slow} .* outlier$", table, re.M), table  # among the others
        assert re.search(rf"^{metric} +{slow} .*\(n=4\).* outlier$", table, re.M), table  # against what it did before
    document = json.loads(ckptbench(tmp_path, "show", "LATEST", "--nodes", "--json").stdout)
    assert document["gpus"]["gpu_launch_s"]["values"] == [1e-5, 1e-5, 2e-5, 1e-5] and document["gpus"]["gpu_launch_s"]["worst"] == slow
    assert document["gpu_history"]["metrics"]["gpu_launch_s"]["node"] == slow and "gpu_launch_s" not in document["history"]["metrics"]
    submitted = ckptbench(tmp_path, "submit", "--dry-run", "model=gpt2-tiny", "store=null:", "ops=save", "verify=none", "slurm.extra=--nice=1", "--exclude-from", "LATEST")
    assert f"#SBATCH --exclude={socket.gethostname()}\n" in submitted.stdout and "#SBATCH --nice=1\n" in submitted.stdout
    assert f"scontrol update nodename={socket.gethostname()} state=drain " in submitted.stderr
    assert "not measured  gpu.nccl=" in out
    whole, *ranks = ckptbench(tmp_path, "export", "LATEST", "--clusterbench", "--per-rank").stdout.split("---\n")[1:]
    assert re.findall(r'"GPU (\d)":\n    "Memory bandwidth": {value: (\d+), unit: "GB/s"}', whole) == [("0", "1000"), ("1", "1000"), ("2", "500"), ("3", "1000")]
    assert re.findall(r'"GPU (\d)":\n    "Memory bandwidth": {value: (\d+), unit: "GB/s"}', ranks[2]) == [("2", "500")]


def test_files_of_ranks_have_what_was_measured_for_their_node(tmp_path):
    run = suite(tmp_path, "ranks=2", "suite.only=storage")["run"]
    (tmp_path / "files").mkdir()
    ckptbench(tmp_path, "export", run, "--clusterbench", "--per-rank", "--into", "files")
    assert {path.name for path in (tmp_path / "files").iterdir()} == {f"benchmark_{run}{rank}.yaml" for rank in ("", "_rank0", "_rank1")}
    for rank in range(2):
        text = (tmp_path / f"files/benchmark_{run}_rank{rank}.yaml").read_text()
        assert f"rank: {rank}\n" in text
        assert re.search(r'"Sequential Write": \{value: \d', text) and re.search(r'"Random IOPS \(4K blocks\)": \{value: \d', text), text


def test_a_suite_without_bad_nodes_excludes_none(tmp_path):
    ckptbench(tmp_path, "submit", "--dry-run", "model=gpt2-tiny", "--exclude-from", "LATEST", code=2)
    suite(tmp_path, "ranks=1", "suite.only=cpu", "store=null:")
    submitted = ckptbench(tmp_path, "submit", "--dry-run", "model=gpt2-tiny", "store=./store", "--exclude-from", "LATEST")
    assert "--exclude" not in submitted.stdout and "found no bad node" in submitted.stderr


def test_ranks_that_share_a_gpu_leave_it_to_one_of_them(tmp_path, monkeypatch):
    """Two of four ranks measure, each while nobody else uses its GPU."""
    monkeypatch.setenv("CKPTBENCH_CUDA_PLUGIN", str(BUILD / "tests/fake-plugin.so"))
    monkeypatch.setenv("FAKE_DEVICES", "2")
    ckptbench(tmp_path, "run", *SMALL, "store=null:", "suite.only=gpu", "ranks=4")
    samples = json.loads(ckptbench(tmp_path, "export", "LATEST", "--json").stdout)["samples"]
    (copy,) = [sample for sample in samples if sample["metric"] == "gpu_copy_bytes_per_s"]
    assert copy["ranks"] == [1e12, 1e12, None, None]
    assert '"All-reduce (2 GPUs)"' in ckptbench(tmp_path, "export", "LATEST", "--clusterbench").stdout


def test_a_rule_that_is_not_met_fails_the_run_with_both_figures(tmp_path):
    document = suite(tmp_path, "ranks=1", "suite.only=cpu", "store=null:", "suite.fail_below=cpu_gemm_flops:1e18", code=3)
    assert document["outcome"] == "benchmark_failed"
    assert "cpu_gemm_flops is" in document["message"] and "1e+18" in document["message"]
    assert measured(document) == CPU  # what was measured is kept


def test_a_rule_for_what_was_not_measured_fails_the_run_with_the_reason_beside_it(tmp_path):
    out = ckptbench(tmp_path, "run", *SMALL, "ranks=1", "suite.only=net", "store=null:", "suite.fail_below=net_latency_s:5us", code=3)
    assert "net_latency_s was not measured in this run" in out.stdout + out.stderr
    assert "not measured  net=one rank" in out.stdout


@pytest.mark.parametrize("word,named", [("suite.only=cpus", "cpus"), ("suite.only=", "must be all"), ("suite.only=net+", "must be all"), ("ops=save", "ops=save"), ("suite.fail_below=nothing:3", "nothing:3"),
                                        ("suite.fail_below=save_bytes_per_s:3", "save_bytes_per_s is no figure of the suite"),
                                        ("engine=torch-dcp", "workload=suite")])
def test_wrong_words_are_refused_before_anything_starts(tmp_path, word, named):
    result = ckptbench(tmp_path, "run", *SMALL, "store=null:", word, code=2)
    assert named in result.stderr
    assert not (tmp_path / "home/runs").exists()


def test_a_node_that_does_worse_than_it_usually_does_is_named(tmp_path):
    """Reads that take 20 ms each, after four runs on the same place as it is."""
    words = ("ranks=1", "suite.only=storage")
    for earlier in range(4):
        suite(tmp_path, *words)
        history = json.loads(ckptbench(tmp_path, "show", "LATEST", "--nodes", "--json").stdout)["history"]
        assert history == {"runs": earlier, "metrics": {}}  # too few to say what is usual
    assert "3 earlier runs" in ckptbench(tmp_path, "show", "LATEST", "--nodes").stdout
    out = ckptbench(tmp_path, "run", *SMALL, *words, f"store=fault:delay=20ms+ops=read:{tmp_path}/store").stdout
    line = next(line for line in out.splitlines() if line.startswith("outlier ") and "storage_read_4k_p50_s" in line)
    assert f" {socket.gethostname()}: " in line and "its median of 4 earlier runs" in line
    history = json.loads(ckptbench(tmp_path, "show", "LATEST", "--nodes", "--json").stdout)["history"]
    slow = history["metrics"]["storage_read_4k_p50_s"]
    assert history["runs"] == slow["n"] == 4 and slow["z"] > 3.5 and slow["value"] > slow["usual"] and slow["node"] == socket.gethostname()
    table = ckptbench(tmp_path, "show", "LATEST", "--nodes").stdout
    assert re.search(r"^storage_read_4k_p50_s .*\(n=4\).* outlier$", table, re.M), table


def test_more_memory_than_there_is_is_told_before_it_is_taken(tmp_path):
    message = suite(tmp_path, "ranks=4", "suite.only=storage+cpu", "suite.file_bytes=64GiB", "io.block=1GiB", "io.depth=64", code=3)["message"]
    assert "256 GiB" in message and "64 GiB of section storage" in message and "io.block" in message, message
    assert not (tmp_path / "store").exists()


def test_files_need_be_no_whole_number_of_pages(tmp_path):
    names = measured(suite(tmp_path, "ranks=2", "suite.only=storage", "suite.file_bytes=1100KB", "io.block=256KiB", "suite.storage_workers=3"))
    assert {"storage_write_bytes_per_s", "storage_read_4k_depth_64_per_s", "storage_read_4k_depth_32_p99_s", "storage_aggregate_read_bytes_per_s"} <= names
    assert re.search(r'"Parallel Write \(3 workers\)": \{value: \d', ckptbench(tmp_path, "export", "LATEST", "--clusterbench").stdout)
    assert re.search(r"^cold reads +(unknown|at most \d+\.\d\d % of a file)", ckptbench(tmp_path, "show", "LATEST").stdout, re.M)


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
