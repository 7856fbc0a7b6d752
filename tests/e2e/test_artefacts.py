"""What ckptbench 9e37080 wrote is read by this version, which prints of it what that version printed
(tests/data/9e37080/make_artefacts.py made both). Runs keep absolute paths, so the world lies where it was made."""
import difflib
import fcntl
import gzip
import importlib.util
import json
import re
import shutil
import tarfile
from pathlib import Path

import pytest

from harness import BUILD

DATA = Path(__file__).resolve().parents[1] / "data/9e37080"
OLD = json.loads(gzip.decompress((DATA / "printed.json.gz").read_bytes()))

# Lines that this version prints otherwise or in addition, and why; both sides lose them before they are compared.
CHANGED = {
    r"^ *(libcurl|libssh2|zlib|pmix) ": "--version lists all optional libraries",
    r"^slowest rank of \w+: ": "compare says where the reasons differ",
    r"^ *(--ranks +)?what each rank took, medians": "show --ranks --phases has every state",
    r"replace a checkpoint that was kept|replace\W*kept|keep\.replace": "--replace-kept and keep.replace are new",
    r"timeout\.lease|its claim on its folder in the store": "timeout.lease is new",
    r"^\.TP$": "of which the manual has one more before each option",
    r"^tensor bytes (this rank had to save|that all ranks wrote)|^bytes moved by all ranks / save_s|^bytes of the files of one checkpoint":
        "throughput of a save counts tensor bytes, whichever engine",
    r"checkpoint_stored_bytes|save_overhead": "what headers and padding add is a metric",
    r"fail.{1,2}on|6: inconclusive|inconclusive: also 6|^ *compare\) flags=": "compare --fail-on is new",
    r"^Shows the keys whose name|tool have a WORD|^WORD\.$|are accepted when settings are read": "options finds names of other tools",
    r"benchmark_JOB|into\\fR": "export writes the files of the older cluster benchmark",
    r"exclude.{1,2}from|this run of workload=suite found bad": "submit --exclude-from is new",
    r"one run, for other tools|a run or a sweep, for other tools|\bexport (\[flags\] )?\[RUN": "export takes a sweep, too",
    r"prometheus|as text for Prometheus": "export --prometheus is new",
    r"throughput_mibs": "a metric of several operations is named with its operation",
    r"on_error|after an iteration that failed because of the store|failed_fraction|measured iterations that failed": "on_error=continue and its failure rate are new",
    r"requests that did not fail / requests": "success_ratio counts what failed",
    r"^ *report(  |\) flags=)": "report is new",
    r"^ *--lines N |^\\fB\\-\\-lines|at most N lines of ranks": "show --lines is new",
    r"^ *--iterations  |^\\fB\\-\\-iterations|what each measured iteration took": "show --iterations is new",
    r"^ *trace  |^\s*trace\) |^\\fBtrace\\fR|every request to the store, of all ranks": "trace is new",
    r"perfetto": "export --perfetto is new",
    r"^ *--time  |^\\fB\\-\\-time|bytes of all ranks and activity": "show --time is new",
    r"^ *--latency  |^\\fB\\-\\-latency|latencies of requests by operation": "show --latency is new",
    r"^ *(--nodes +)?the nodes and how they joined": "show --nodes has what each did",
    r"s3\\?\.checksum|what lets the server check a body": "s3.checksum=auto is new, and the default",
    r"store\\?\.prepare|for the run's new folder in a file system": "store.prepare is new",
    r"store\\?\.record|for the run's folder in a file system": "store.record is new",
    r"io\\?\.fanout|files .*over this many folders|d00000 and so on|0 is one folder": "io.fanout is for every format",
    r"a path, (paths of|s3://)|paths of several mounts|PREFIX, null:, or": "store is one folder or several",
    r"one side for each value of a key": "compare --by nodes has a scaling model",
    r"slurm\\?\.pending|job up if it has not started": "slurm.pending is new",
    r"torch\\?-native|native(\||  *)torch\\?-dcp|who does it: this program|engine=torch\\?-dcp runs": "engine=torch-native is new",
    r"slurm\\?\.sbcast|each node has for itself, as /tmp|run( or pool)? is led from where it is submitted": "slurm.sbcast is for warm, too",
    r"load\\?\.evict|so many bytes of other files": "load.evict is new",
    r"load\\?\.dataset|other files from the store at this rate|dataset_bytes|read beside the load|rate of these reads": "load.dataset is new",
    r"io\\?\.gds|saves and loads go between files and the GPU|by cuFile|pinned memory \(off\)|run fails with the reason\), through": "io.gds is new",
    r"^ *adapter  |^\s*adapter\) |^\\fBadapter\\fR|give MPI \(UCX|network adapter near each|near the GPUs of the machine": "adapter is new",
    r"gpu_overlap_|matrix products in bf16 \(8192 rows\)|one NCCL all.*alone|these products at once, on two|shorter of the two that|same with an NCCL":
        "the suite measures overlap on GPUs",
    r"exploratory, p = 0\.047$": "p of 3 tied values against 3 is counted: 0.1",
    r"URL of an S3 server, as": "s3.endpoint is one or several",
    r"HOME/runs; runs whose|folders under HOME/runs\.|^(gone )?are kept\.": "runs whose folder is gone leave the history",
    r"CKPTBENCH.INDEX|where runs (and history\.db )?are kept|local disk for the index": "the history is an index on a local disk",
    r"^A line for each experiment among|^medians of the runs that passed|^which runs, and what else|^loads where saves":
        "history marks where a level changed",
    r"what the ranks do: save and load a checkpoint|for engine=command: a shell command|suite\|verify\|wait\|train": "workload=watch is new",
    r"^ *watch(  |\))|^\.SS .watch |record its saves and loads|training stays as it is|torchrun|^\.(PP|nf|fi)$|step_(alone|behind)_s": "watch is new",
    r"^ *--advise  |^\\fB\\-\\-advise|things to change, and why|from one optimizer step to the next|same while an asynchronous save": "watch is new",
    r"^ *--(join|tasks)  |^\\fB\\-\\-(join|tasks)|this command is one task of the run|how many tasks there are": "watch --join is new",
    r'"\$keys"': "the completion of watch has the keys that it takes",
    r"in_backoff_s|every request under way was in its backoff": "waiting for a store's retries is a state",
}

CHANGED_OPTIONS = ("s3.checksum", "s3.endpoint", "io.fanout", "store", "workload", "command", "slurm.sbcast", "engine")
NEW_OPTIONS = ("keep.replace", "timeout.lease", "on_error", "store.prepare", "store.record", "slurm.pending", "load.evict", "load.dataset", "trace", "io.gds", "adapter")

spec = importlib.util.spec_from_file_location("make_artefacts", DATA / "make_artefacts.py")
maker = importlib.util.module_from_spec(spec)
spec.loader.exec_module(maker)

pytestmark = pytest.mark.xdist_group("artefacts")


@pytest.fixture(scope="module")
def world():
    with open(f"{maker.WORLD}.lock", "w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)  # the tests of another checkout use the same place
        shutil.rmtree(maker.WORLD, ignore_errors=True)
        with tarfile.open(DATA / "world.tar.gz") as archive:
            archive.extractall(maker.WORLD.parent, filter="data")
        yield maker.WORLD
        shutil.rmtree(maker.WORLD, ignore_errors=True)


def without_added(document):
    """A JSON document without the members that this version adds: why a rank was the slowest, reasons to doubt a run, the new options, and names of keys in other tools; what was null for
    the S3 connector's benchmark; and
    without those that it gives other values: a comparison proposes other numbers of further runs, none within one run; and throughput of
    a save, which the history made anew computes from tensor bytes alone; without the metric that had one name for saves and loads; the
    baseline's reads were called write."""
    if isinstance(document, list):
        return [without_added(value) for value in document if not (isinstance(value, dict) and value.get("name") in (*NEW_OPTIONS, *CHANGED_OPTIONS))]
    if not isinstance(document, dict):
        return document
    kept = {key: without_added(value) for key, value in document.items() if key not in ("slowest_rank_state", "runs_compared", "more_runs", "aliases", "processing_durations_s", "utilization", "doubts", *NEW_OPTIONS, *SAVE_RATES, *THROUGHPUTS)}
    for operation in kept.get("slowest_rank", {}).values():
        operation.pop("state", None)
    kept.pop("change_points", None), kept.pop("levels", None)
    if kept.get("p") == 0.04685417760387374:  # the normal approximation for 3 tied values against 3
        kept["p"] = 0.1
    if "experiment_hash" in kept and "median" in kept:  # a point of the history
        kept.pop("store", None), kept.pop("site", None)
    if "unit" in kept and "p" not in kept:  # a metric of a combination of a sweep
        kept.pop("ci", None)
    reading = kept.get("states", {}).get("baseline_read", {})
    if "write" in reading:
        reading["read"] = reading.pop("write")
    return kept


THROUGHPUTS = ("throughput_mibs", "save.throughput_mibs", "load.throughput_mibs")
SAVE_RATES = ("save_bytes_per_s", "save.save_bytes_per_s", "save_limit_fraction")


def without_save_rates(line):
    """A row of a save without GiB/s and their share of the limit, a row of CSV or of a query without its value."""
    line = re.sub(r"^(save .*? … [\d.]+ m?u?s ) *[\d.]+ +([\d.]+|-)", r"\1", line)
    return re.sub(rf"({'|'.join(SAVE_RATES)})\b.*", r"\1", line)


def is_same_json(old, now):
    try:
        return without_added(json.loads(old)) == without_added(json.loads(now))
    except ValueError:
        return False


def without_names(line):
    """The shell's completion lists all flags and all keys in one line; options names those of other tools."""
    return re.sub(r" \(also [^)]*\)$", "", re.sub(r" (watch|--advise|--replace-kept|--into|--exclude-from|keep\.replace|timeout\.lease|on_error|--latency|--iterations|--lines|--time|--prometheus|store\.prepare|trace|io\.gds|adapter|--perfetto|report(?= compare))(?=[ \"])", "", line))


def without_stores(line):
    """A line of the history is on one store, which its heading names if there are several."""
    return re.sub(r"^(\S+ of .*) on \S+(, \d+ runs?, )", r"\1\2", line)


def without_reasons(line):
    """`rank 1, +2.0 %: fsync` has its reason since runs are collected with it, which makes its column wider."""
    return re.sub(r"  +", "  ", re.sub(r"(rank \d+, [+-][\d.]+ %): [a-z]+", r"\1", line))


NEW_VERBS = ("report",)


def without_new_verbs(text):
    """The manual without the sections of verbs that this version adds."""
    return re.sub(rf'^\.SS "({"|".join(NEW_VERBS)})\b.*?(?=^\.S[SH])', "", text, flags=re.M | re.S)


def lines(text):
    text = without_new_verbs(text)
    return [without_save_rates(without_reasons(without_stores(line))) for line in map(without_names, text.splitlines()) if not any(re.search(pattern, line) for pattern in CHANGED)]


def difference(answer):
    """How this version's answer to the same question differs, as lines; empty where it does not."""
    all_keys = ("all",) if len(answer["words"]) == 2 and answer["words"][1] == "--help" else ()  # which --help printed without being asked
    now = maker.run(BUILD, *answer["words"], *all_keys, *(("--fail-on", "inconclusive") if answer["exit"] == 6 else ()))
    wanted = {"exit": answer["exit"], "stdout": answer["stdout"], "stderr": answer["stderr"]}
    got = {"exit": now.returncode, "stdout": now.stdout, "stderr": now.stderr}
    told = [] if wanted["exit"] == got["exit"] else [f"exit {got['exit']}, was {wanted['exit']}"]
    for stream in ("stdout", "stderr"):
        if not is_same_json(wanted[stream], got[stream]):
            told += difflib.unified_diff(lines(wanted[stream]), lines(got[stream]), "9e37080", "now", n=0, lineterm="")
    return told


def differences(answers):
    told = {" ".join(answer["words"]): difference(answer) for answer in answers}
    return "\n".join(f"== {words}\n" + "\n".join(diff) for words, diff in told.items() if diff)


def test_every_verb_prints_of_an_older_world_what_it_printed_then(world):
    found = differences(OLD["printed"])
    assert not found, found


def test_a_history_made_anew_from_older_run_folders_is_the_same(world):
    result = maker.run(BUILD, "collect", "--rebuild")
    assert result.returncode == 0, result.stderr
    found = differences([answer for answer in OLD["printed"] if answer["words"][0] in ("list", "show", "sql", "export", "compare", "history")])
    assert not found, found


@pytest.mark.parametrize("suffix, keys", [("dcp", ["ranks=2", "tp=2"]), ("full", ["ranks=2", "dp=2", "sharding=full"]),
                                          ("raw", ["ranks=1", "format=raw"]), ("safetensors", ["ranks=2", "format=safetensors"]),
                                          ("parts", ["ranks=2", "format=dcp+safetensors"])])
def test_an_older_checkpoint_is_loaded_and_its_bytes_are_right(world, suffix, keys):
    result = maker.run(BUILD, "run", "ops=load", "model=model.yaml", "store=store", f"suffix={suffix}", "baseline=false", "iterations=1", "warmup=0",
                       "verify=full", *keys)
    assert result.returncode == 0, result.stdout + result.stderr


def test_a_new_default_of_the_bucket_keys_is_no_difference_between_runs_on_a_file_system(world):
    """Older runs say s3.checksum=sha256, new ones auto."""
    made = maker.run(BUILD, "run", "ops=save", "model=model.yaml", "store=store", "baseline=false", "iterations=1", "warmup=0", "verify=none", "--json")
    older = json.loads(maker.run(BUILD, "list", "--json").stdout)[-1]["run"]
    said = maker.run(BUILD, "compare", older, json.loads(made.stdout)["run"]).stdout
    assert "differs:" in said and "s3.checksum" not in said, said
