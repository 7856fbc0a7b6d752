"""`make bench`: this build against its peers, as ratios of medians with intervals, A against A first.

usage: tests/bench/bench.py [--build DIR] [--pairs N] [--folder DIR] [--memory DIR] [--only WORD] [--user NAME] [--json FILE]
Nothing here is a test: machines are noisy, and what tests assert are counts, not times.
--user runs our side as an ordinary user (needs root).
"""
import argparse
import json
import mmap
import os
import random
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ratio import Table, alternate

ROOT = Path(__file__).resolve().parents[2]
GIB = 2**30
MODEL = "model=tests/bench/two-gib.yaml"
MADV_POPULATE_WRITE = 23  # which Python's mmap does not name


class Bench:
    def __init__(self, arguments):
        self.build = (ROOT / arguments.build).resolve()
        self.pairs = arguments.pairs
        self.user = arguments.user
        self.table = Table()
        self.disk = Path(tempfile.mkdtemp(prefix="ckptbench-bench-", dir=arguments.folder))
        self.memory = Path(tempfile.mkdtemp(prefix="bench-of-ckptbench-", dir=arguments.memory))
        self.home = Path(tempfile.mkdtemp(prefix="ckptbench-home-"))
        for folder in (self.disk, self.memory, self.home):
            folder.chmod(0o777)

    def clean(self):
        for folder in (self.disk, self.memory, self.home):
            shutil.rmtree(folder, ignore_errors=True)

    def run(self, store, *words):
        """One `ckptbench run`; its JSON document."""
        command = [str(self.build / "ckptbench"), "run", "--json", "-q", f"store={store}", "baseline=false", "verify=none",
                   "keep=false", *words]
        if self.user:
            command = ["setpriv", f"--reuid={self.user}", "--regid=nogroup", "--clear-groups", *command]
        environment = dict(os.environ, CKPTBENCH_HOME=str(self.home), CKPTBENCH_PYTHON=sys.executable)
        result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        if result.returncode:
            sys.exit(f"{' '.join(command)}\n{result.stdout}\n{result.stderr}")
        return json.loads(result.stdout)

    def run_in(self, place, *words):
        """The same in a fresh folder of `place`, removed afterwards."""
        store = Path(tempfile.mkdtemp(dir=place))
        store.chmod(0o777)
        try:
            return self.run(store, *words)
        finally:
            shutil.rmtree(store, ignore_errors=True)

    def ours(self, place, *words, iterations=1, warmup=0):
        """2 ranks x 1 GiB of bf16 weights."""
        return self.run_in(place, MODEL, "state=weights", "ranks=2", "sharding=full", f"iterations={iterations}", f"warmup={warmup}", *words)

    def rate(self, place, metric, *words):
        return 2.0 / self.ours(place, *words)["metrics"][metric]["median"]


def fio(folder, mode, block, depth, *extra):
    """GiB/s of 2 jobs of 1 GiB, O_DIRECT through io_uring with registered buffers, fsync inside the time."""
    command = ["fio", "--name=peer", f"--rw={mode}", "--ioengine=io_uring", "--fixedbufs=1", "--direct=1", f"--bs={block}",
               f"--iodepth={depth}", "--numjobs=2", "--size=1g", "--end_fsync=1", "--fallocate=none", f"--directory={folder}",
               "--group_reporting", "--output-format=json", *extra]
    if mode == "write":
        for path in folder.glob("peer.*"):
            path.unlink()
    out = subprocess.run(command, capture_output=True, text=True, check=True).stdout
    return 2000.0 / json.loads(out)["jobs"][0][mode]["runtime"]


def best_of_fio(folder, mode):
    measured = {(block, depth): statistics.median(fio(folder, mode, block, depth) for _ in range(3))
                for block in ("1m", "4m", "8m") for depth in (4, 8, 16)}
    best = max(measured, key=measured.get)
    print(f"fio's {mode}, bs/iodepth: " + ", ".join(f"{b}/{d} {rate:.2f}" for (b, d), rate in measured.items()), flush=True)
    huge = huge_page_words()
    if huge:
        rate = statistics.median(fio(folder, mode, *best, *huge) for _ in range(3))
        print(f"fio's {mode}, {best[0]}/{best[1]} with huge pages {rate:.2f}", flush=True)
        if rate > measured[best]:
            return *best, *huge
    return best


def huge_page_words():
    """fio's memory in huge pages, as ours is, where the machine has some to give."""
    free = [int(line.split()[1]) for line in Path("/proc/meminfo").read_text().splitlines() if line.startswith("HugePages_Free")]
    return ["--iomem=mmaphuge"] if free and free[0] >= 160 else []


def bench_disk(bench):
    peer_folder = bench.disk / "fio"
    peer_folder.mkdir()
    best = best_of_fio(peer_folder, "write")
    words = [f"io.block={best[0]}iB".replace("m", "M"), f"io.depth={best[1]}", "ops=save"]
    save = lambda: bench.rate(bench.disk, "save_s", *words)
    peer = lambda: fio(peer_folder, "write", *best)
    bench.table.add("disk save, A against A", alternate(save, save, bench.pairs), 1.00, "GiB/s")
    bench.table.add("disk save against fio's best (direct, fsync)", alternate(save, peer, bench.pairs), 0.95, "GiB/s")
    best_read = best_of_fio(peer_folder, "read")
    words = [f"io.block={best_read[0]}iB".replace("m", "M"), f"io.depth={best_read[1]}"]
    load = lambda: bench.rate(bench.disk, "load_s", *words)
    peer = lambda: fio(peer_folder, "read", *best_read)
    bench.table.add("disk cold load, A against A", alternate(load, load, bench.pairs), 1.00, "GiB/s")
    bench.table.add("disk cold load against fio's best (direct)", alternate(load, peer, bench.pairs), 0.95, "GiB/s")
    shutil.rmtree(peer_folder)


def dcp(bench, folder, iterations, sync, cold):
    """Rows of PyTorch DCP, the first (cold allocator) dropped."""
    command = [str(Path(sys.executable).parent / "torchrun"), "--nproc-per-node", "2", "tests/bench/dcp_peer.py", str(folder / "dcp"),
               "1", str(iterations + 1), str(int(sync)), str(int(cold))]
    result = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, env=dict(os.environ, OMP_NUM_THREADS="1"))
    if result.returncode:
        sys.exit(result.stderr)
    return [json.loads(line) for line in result.stdout.splitlines() if line.startswith("{")][1:]


def bench_disk_cpu(bench):
    rows = dcp(bench, bench.disk, 3, True, True)
    ours = [bench.ours(bench.disk, iterations=2, warmup=1)["metrics"] for _ in rows]
    for op in ("save", "load"):
        mine = [run[f"{op}.cpu_s"]["mean"] / 2.0 for run in ours]  # the sum of both ranks, a GiB
        pairs = list(zip(mine, [row[f"{op}_cpu_s"] / row["gib"] for row in rows]))
        bench.table.add(f"CPU seconds a GiB, disk {op}, against DCP (lower is better)", pairs, 0.20, "s/GiB")


WARM = {"iterations": 7, "warmup": 2}  # a new page costs up to seconds a GiB on a virtual machine that gives freed ones back: both sides reuse theirs


def plain_copy(bench, folder):
    """GiB/s, and CPU seconds a GiB, of 2 processes that write a fresh file with write(2) alone: medians of rounds after warm-up."""
    block = str(4 << 20)
    ranks = [subprocess.Popen([str(bench.build / "tests/plain_copy"), str(folder / f"plain{rank}"), str(GIB), block],
                              stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) for rank in range(2)]
    for rank in ranks:
        rank.stdout.readline()
    rounds = []
    for _ in range(WARM["warmup"] + WARM["iterations"]):
        for rank in ranks:
            rank.stdin.write("\n")
            rank.stdin.flush()
        lines = [[float(word) for word in rank.stdout.readline().split()] for rank in ranks]
        rounds.append((max(seconds for seconds, _ in lines), sum(cpu for _, cpu in lines)))
    for rank in ranks:
        rank.communicate()
    measured = rounds[WARM["warmup"]:]
    return 2.0 / statistics.median(seconds for seconds, _ in measured), statistics.median(cpu for _, cpu in measured) / 2.0


def bench_memory(bench):
    """On a tmpfs, mounted as it is, against writing alone. Each round has two runs of ours, for A against A, and the plain writer between them."""
    place = bench.memory

    def save():
        metrics = bench.ours(place, "ops=save", "load.cold=false", **WARM)["metrics"]
        return 2.0 / metrics["save_s"]["median"], metrics["save.cpu_s"]["median"] / 2.0  # of both ranks, a GiB

    rounds = [(save(), plain_copy(bench, place), save()) for _ in range(bench.pairs)]
    bench.table.add("tmpfs save, A against A", [(a[0], again[0]) for a, _, again in rounds], 1.00, "GiB/s")
    ours_and_plain = [((a if index % 2 else again), plain) for index, (a, plain, again) in enumerate(rounds)]
    bench.table.add("tmpfs save against a plain C writer", [(a[0], plain[0]) for a, plain in ours_and_plain], 0.95, "GiB/s")
    bench.table.add("CPU seconds a GiB, tmpfs save, against it (lower is better)", [(a[1], plain[1]) for a, plain in ours_and_plain],
                    "shown beside it", "s/GiB")


def bench_memory_dcp(bench):
    """On a tmpfs against PyTorch DCP, both warm, in turn."""
    rounds = []
    for _ in range(bench.pairs):
        rows = dcp(bench, bench.memory, 5, True, False)
        rounds.append((bench.ours(bench.memory, "load.cold=false", **WARM)["metrics"], rows))
    for op, target in (("save", 1.0), ("load", 4.0)):
        pairs = [(2.0 / ours[f"{op}_s"]["median"], rows[0]["gib"] / statistics.median(row[f"{op}_s"] for row in rows))
                 for ours, rows in rounds]
        bench.table.add(f"tmpfs {op} against warm DCP", pairs, target, "GiB/s")


def tool(bench, name, *words):
    result = subprocess.run([str(bench.build / "tests" / name), *words], cwd=ROOT, capture_output=True, text=True)
    if result.returncode:
        sys.exit(f"{name}: {result.stderr}")
    return json.loads(result.stdout)


def bench_payload(bench):
    for kind in ("weights", "random"):
        for dtype in ("bf16", "fp32"):
            rates = tool(bench, "payload_bench", kind, dtype)
            bench.table.add_value(f"payload fill, {kind} {dtype}, one core", rates["fill_gib_per_s"], "GiB/s", ">= 5")
            bench.table.add_value(f"payload check, {kind} {dtype}, one core", rates["check_gib_per_s"], "GiB/s", ">= 5")


def bench_items(bench):
    run = bench.run("null:", "model=gpt2", "ranks=1", "ops=save", "io.files=item", "checksum=none", "iterations=20", "warmup=2")
    metrics = run["metrics"]
    items = metrics["plan_items"]["median"]
    for state in ("serialize_s", "plan_s", "commit_s"):
        bench.table.add_value(f"null store, gpt2, one file an item: {state} an item", metrics[f"save.{state}"]["median"] / items * 1e6,
                              "us", "< 1 in all")


def bench_plan(bench):
    words = ["model=llama3-405b", "ranks=16384", "tp=8", "pp=16", "dp=128", "zero=1"]
    seconds = []
    for _ in range(5):
        out = subprocess.run([str(bench.build / "ckptbench"), "plan", "--json", *words], cwd=ROOT, capture_output=True, text=True,
                             env=dict(os.environ, CKPTBENCH_HOME=str(bench.home)))
        if out.returncode:
            sys.exit(out.stderr)
        plan = json.loads(out.stdout)
        seconds.append(plan["plan_s"])
    bench.table.add_value("plan llama3-405b, 16,384 ranks", statistics.median(seconds), "s", "< 1")
    bench.table.add_value("plan llama3-405b: cost an item", statistics.median(seconds) / plan["items"] * 1e9, "ns", "given")
    bench.table.add_value("plan llama3-405b: memory", plan["rss_bytes"] / GIB, "GiB", "< 1")
    bench.table.add_value("plan llama3-405b: fullest rank / lower bound", plan["imbalance_vs_bound"], "ratio", "<= 1.02")
    cached = tool(bench, "plan_bench", *(word for word in words if not word.startswith("ranks=")))["cached_s"]
    bench.table.add_value("cached re-plan llama3-405b, 16,384 ranks", cached * 1e3, "ms", "<= 10")
    worst = 0
    for dp in (2, 3, 4, 8, 16, 32, 64, 128):
        worst = max(worst, tool(bench, "plan_bench", "model=llama3-8b", f"dp={dp}", "rounds=1")["imbalance_vs_bound"])
    bench.table.add_value("llama3-8b, all of it replicated over dp 2 … 128: fullest rank / lower bound", worst, "ratio", "<= 1.02")
    peer = json.loads(subprocess.run([sys.executable, "tests/bench/dcp_planner.py", "1024", "873", "8"], cwd=ROOT, capture_output=True,
                                     text=True, check=True).stdout)
    # Items in: what ranks hold, 1,024 x 873 there. Items out: with dedup, what is written once; without, all of them.
    for dedup, target in (("balanced", ">= 20"), ("none", "shown beside it")):
        ours = tool(bench, "plan_bench", "model=llama3-8b", "ranks=3072", "tp=8", "dp=384", "state=weights", f"save.dedup={dedup}")
        held = ours["tensors"] * ours["ranks"]
        bench.table.add_value(f"planning {held:,} held items, dedup {dedup}", ours["plan_s"], "s", "-")
        bench.table.add_value(f"DCP's planner at {peer['items']:,} held items / ours, an item",
                              peer["plan_s"] / peer["items"] / (ours["plan_s"] / held), "x", target)


class Copier:
    """The threaded memcpy, kept running: memory is touched once."""

    def __init__(self, bench, bytes_):
        self.process = subprocess.Popen([str(bench.build / "tests/copy_bench"), "2", str(bytes_)], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        self.process.stdout.readline()

    def seconds(self):
        self.process.stdin.write("\n")
        self.process.stdin.flush()
        return float(self.process.stdout.readline())

    def close(self):
        self.process.communicate()


def write_model(bench, name, tensors, more=""):
    """A model of so many tensors of 64 MiB, as the one of 2 GiB."""
    path = bench.home / f"{name}.yaml"
    path.write_text("".join(f"- {{name: layers.{i}.w, shape: [8192, 4096], dtype: bf16{more}}}\n" for i in range(tensors)))
    path.chmod(0o644)
    return f"model={path}"


def bench_async(bench):
    """What training waits for, 2 ranks x 1 GiB in memory; nothing else runs while it copies. Each round has one of each, in
    random order: what ran before decides how much memory the host must give back. The gap is long enough for a save to be
    durable before the next."""
    model = write_model(bench, "async", 32)
    copier = Copier(bench, GIB)

    def memcpy():
        return statistics.median(copier.seconds() for _ in range(5))

    def stall(*more):
        metrics = bench.run_in(bench.memory, model, "state=weights", "ranks=2", "sharding=full", "ops=save", "save.async=true", "compute_gap=4s",
                               "iterations=2", "warmup=1", *more)["metrics"]
        return metrics["stall_s"]["median"]

    clients = {"ours": stall, "A against A": stall, "against a threaded memcpy of the same bytes": memcpy}
    for how, name in (("stager", "a warm DefaultStager"), ("default", "async_save as it comes")):
        clients[f"against PyTorch DCP with {name}"] = lambda how=how: stall("engine=torch-dcp", f"torch.async={how}")
    targets = {"A against A": 1.00, "against a threaded memcpy of the same bytes": 1.15}
    names, rounds = list(clients), []
    try:
        memcpy()
        for index in range(bench.pairs):
            rounds.append({name: clients[name]() for name in random.Random(index).sample(names, len(names))})
    finally:
        copier.close()
    for name in names[1:]:
        bench.table.add(f"stall {name}", [(measured["ours"], measured[name]) for measured in rounds], targets.get(name, "< 1"), "s")


def bench_launch(bench):
    seconds, empty = [], []
    for _ in range(bench.pairs):
        start = time.monotonic()
        subprocess.run(["mpirun", "--allow-run-as-root", "--oversubscribe", "-n", "4", "true"], check=True)
        empty.append(time.monotonic() - start)
        run = bench.run_in(bench.disk, "model=gpt2-tiny", "ranks=4", "iterations=1", "warmup=0")
        seconds.append(run["metrics"]["launch_s"]["median"] + run["metrics"]["setup_s"]["median"])
    bench.table.add_value("agent's start to the first timed operation, 4 ranks", statistics.median(seconds), "s", "< 1")
    bench.table.add_value("mpirun of 4 empty programs", statistics.median(empty), "s", "shown beside it")


def bench_rendezvous(bench):
    runs = [tool(bench, "rendezvous_bench", "1000") for _ in range(bench.pairs)]
    bench.table.add_value("rendezvous of 1,000 nodes: all have joined", statistics.median(run["joined_s"] for run in runs), "s", "< 5")
    bench.table.add_value("rendezvous of 1,000 nodes: memory of the head", max(run["head_memory_bytes"] for run in runs) / 2**20, "MiB", "< 64")


def bench_history(bench):
    figures = tool(bench, "history_bench", "10000", str(bench.memory))
    size = f"history of {figures['runs']:,} runs, {figures['samples'] / 1e6:.0f} million samples"
    for name in ("list_ms", "list_filtered_ms", "list_json_100_ms", "list_json_all_ms", "show_ms", "compare_runs_ms", "compare_100_with_30_ms"):
        bench.table.add_value(f"{size}: {name.removesuffix('_ms')}", figures[name], "ms", "< 100")
    for name, target in (("rebuild", "< 30"), ("after_100_new", "< 1"), ("nothing_new", "< 0.1")):
        bench.table.add_value(f"{size}: list, {name.replace('_', ' ')}", figures[f"{name}_s"], "s", target)
    bench.table.add_value(f"{size}: ingest", figures["samples_per_s"], "samples/s", ">= 1e6")


RESHARDS = {
    "tp2 -> tp4": ["tp=2", "load.tp=4"],
    "tp4 -> tp1": ["tp=4", "load.tp=1"],
    "dp4 -> dp1": ["dp=4", "load.dp=1"],
    "pp2 -> pp4": ["pp=2", "load.pp=4"],
    "zero3 -> zero1, dp4": ["dp=4", "zero=3", "load.zero=1"],
}


def bench_reshard(bench):
    """Bytes read of the store / bytes needed, ours and PyTorch's (what its processes read of files, /proc/self/io)."""
    for name, words in RESHARDS.items():
        given = ["model=tests/bench/reshard.json", "iterations=1", "warmup=0", "load.cold=false", "io.direct=false", *words]
        for how, extra, target in (("load.exchange=split", ["load.exchange=split"], "<= 1.05"), ("load.exchange=off", [], "<= 1.05"),
                                   ("PyTorch DCP", ["engine=torch-dcp"], "shown beside it")):
            metrics = bench.run_in(bench.memory, *given, *extra)["metrics"]
            bench.table.add_value(f"reshard {name}: read / needed, {how}", metrics["read_amplification"]["median"], "ratio", target)


def bench_exchange(bench):
    """dp=4 on a store whose bandwidth is one bucket for all ranks: once through the exchange against four times."""
    words = ["model=tests/bench/reshard.json", "state=weights", "dp=4", "iterations=1", "warmup=0", "load.cold=false"]

    def load(exchange):
        folder = Path(tempfile.mkdtemp(dir=bench.memory))
        try:
            return bench.run(f"fault:bandwidth=200MiB/s+ops=read:{folder}", *words, f"load.exchange={exchange}")["metrics"]
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    seconds = {exchange: (lambda exchange=exchange: load(exchange)["load_s"]["median"]) for exchange in ("off", "broadcast", "split")}
    bench.table.add("capped store, dp4 load, A against A", alternate(seconds["off"], seconds["off"], bench.pairs), 1.00, "s")
    for exchange in ("broadcast", "split"):
        metrics = load(exchange)
        copies = metrics["load.bytes_moved"]["median"] / metrics["checkpoint_bytes"]["median"]
        bench.table.add_value(f"capped store, dp4 load, {exchange}: copies read of the store", copies, "copies", "1")
        bench.table.add(f"capped store, dp4 load, {exchange} against off", alternate(seconds[exchange], seconds["off"], bench.pairs),
                        "<= 0.6", "s")


def warm_pages(bytes_):
    """Free memory that this machine has for sure: on a virtual one a page that the hypervisor must find first takes up to a
    thousand times as long. Right before each of two things compared, so that both find the same."""
    with mmap.mmap(-1, bytes_, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS) as memory:
        memory.madvise(MADV_POPULATE_WRITE)


def copy_files(source, target, durable):
    """GiB/s of plain loops of read and write over the files of a folder, 4 MiB at a time, a thread a core."""
    def copy(path):
        buffer, moved = memoryview(bytearray(4 << 20)), 0
        with open(path, "rb", buffering=0) as reader, open(target / path.name, "wb", buffering=0) as writer:
            while count := reader.readinto(buffer):
                moved += writer.write(buffer[:count])
            if durable:
                os.fsync(writer.fileno())
        return moved

    target.mkdir()
    start = time.monotonic()
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        moved = sum(pool.map(copy, source.iterdir()))
    return moved / GIB / (time.monotonic() - start)


def bench_conversions(bench, place, where, model, gib, durable, conversions, within_s=float("inf")):
    """A checkpoint of two ranks as DCP into other formats and layouts. The source is in the page cache, what was
    written before is on the disk, and there are free pages, for both sides alike."""
    store = place / "source"
    store.mkdir()
    bench.run(store, model, "state=weights", "ranks=2", "tp=2", "ops=save", "iterations=1", "warmup=0", "keep=true", "suffix=it",
              "io.direct=false")
    (marker,) = (store / "it").rglob(".metadata")
    target = place / "target"

    def prepare():
        shutil.rmtree(target, ignore_errors=True)
        os.sync()
        for path in marker.parent.iterdir():
            with open(path, "rb", buffering=0) as file:
                while file.read(16 << 20):
                    pass
        warm_pages(2 * gib * GIB)

    def convert(*words):
        prepare()
        start = time.monotonic()
        subprocess.run([str(bench.build / "ckptbench"), "convert", "-q", str(marker.parent), str(target),
                        f"io.fsync={str(durable).lower()}", *words], check=True, capture_output=True)
        return gib / (time.monotonic() - start)

    def copy():
        prepare()
        return copy_files(marker.parent, target, durable)

    for name, words in conversions.items():
        both = (copy, copy) if words is None else (lambda: convert(*words), copy)
        bench.table.add(f"{where}: {name}", alternate(*both, bench.pairs, within_s=within_s), 1.00 if words is None else 0.80, "GiB/s")
    shutil.rmtree(store)
    shutil.rmtree(target, ignore_errors=True)


TO_SAFETENSORS = ["format=safetensors", "io.files=2"]


def bench_convert(bench):
    bench_conversions(bench, bench.memory, "tmpfs", MODEL, 2, False, {
        "copy loops, A against A": None,
        "convert DCP of whole tensors to safetensors against copy loops": TO_SAFETENSORS,
        "convert DCP of whole tensors to DCP tp4 against copy loops": ["tp=4", "ranks=4"]})
    bench_conversions(bench, bench.memory, "tmpfs", write_model(bench, "columns", 32, ", tp_dim: 1"), 2, False, {
        "convert DCP of two column halves to safetensors against copy loops": TO_SAFETENSORS})


def bench_convert_disk(bench):
    """1 GiB, and no pair begins after 100 s a row: at most 6 minutes, however slow the disk is today."""
    bench_conversions(bench, bench.disk, "disk, fsync inside", write_model(bench, "disk", 16, ", tp_dim: 1"), 1, True, {
        "copy loops, A against A": None,
        "convert DCP of two column halves to safetensors against copy loops": TO_SAFETENSORS,
        "convert DCP of two column halves to DCP tp4 against copy loops": ["tp=4", "ranks=4"]}, within_s=100)


def bench_inspect(bench):
    folder = bench.memory / "many"
    folder.mkdir()
    tool(bench, "many_items", str(folder), "1000000")
    seconds, cpu = [], []
    for _ in range(bench.pairs):
        warm_pages(2 * GIB)
        start, before = time.monotonic(), resource.getrusage(resource.RUSAGE_CHILDREN)
        subprocess.run([str(bench.build / "ckptbench"), "inspect", str(folder)], check=True, capture_output=True)
        seconds.append(time.monotonic() - start)
        after = resource.getrusage(resource.RUSAGE_CHILDREN)
        cpu.append(after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)
    bench.table.add_value("inspect of a DCP metadata file of 1 million items", statistics.median(seconds), "s", "< 2")
    bench.table.add_value("inspect of a DCP metadata file of 1 million items: CPU", statistics.median(cpu), "s", "shown beside it")
    shutil.rmtree(folder)


BENCHES = {"convert": bench_convert, "convert-disk": bench_convert_disk, "inspect": bench_inspect, "reshard": bench_reshard, "exchange": bench_exchange, "disk": bench_disk, "cpu": bench_disk_cpu, "memory": bench_memory, "memory-dcp": bench_memory_dcp, "payload": bench_payload, "items": bench_items,
           "plan": bench_plan, "async": bench_async, "launch": bench_launch, "rendezvous": bench_rendezvous, "history": bench_history}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--folder", default=str(ROOT / "build"), help="a folder on the disk to measure")
    parser.add_argument("--memory", default="/dev/shm", help="a folder on the memory file system to measure")
    parser.add_argument("--only", choices=BENCHES, nargs="*", default=list(BENCHES))
    parser.add_argument("--user", help="an ordinary user who runs our side")
    parser.add_argument("--json", default=str(ROOT / "build/bench.json"))
    arguments = parser.parse_args()
    bench = Bench(arguments)
    try:
        for name in arguments.only:
            print(f"-- {name}", flush=True)
            BENCHES[name](bench)
    finally:
        bench.clean()
        Path(arguments.json).write_text(json.dumps(bench.table.rows, indent=1))


if __name__ == "__main__":
    main()
