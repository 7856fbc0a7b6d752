"""`make bench-slurm`: what jobs cost on a real Slurm of four nodes on this machine, as medians and ratios with intervals.

usage: tests/bench/bench_slurm.py [--build DIR] [--pairs N] [--only WORD…] [--json FILE]
The peer is Slurm itself: `sbatch` of a script that starts an empty MPI program with `srun --mpi=pmix`, over as many nodes.
"""
import argparse
import contextlib
import json
import os
import resource
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from ratio import Table, alternate

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "tests/services"), str(ROOT / "tests/e2e"), str(ROOT / "tests")]

from services import slurm, sshd  # noqa: E402
from ssh_proxy import Proxy  # noqa: E402

EMPTY = "#include <mpi.h>\nint main(int c, char **v) { MPI_Init(&c, &v); MPI_Barrier(MPI_COMM_WORLD); MPI_Finalize(); return 0; }\n"
TINY = ["model=gpt2-tiny", "ops=save", "iterations=1", "warmup=0", "baseline=false", "verify=none"]
FINAL = ("done", "failed", "cancelled", "lost")
LIMIT_S = 120


class Bench:
    def __init__(self, arguments):
        self.build = (ROOT / arguments.build).resolve()
        self.pairs = arguments.pairs
        self.table = Table()
        self.home = Path(tempfile.mkdtemp(prefix="ckptbench-bench-slurm-"))
        (self.home / "store").mkdir()
        self.configuration = slurm.start(self.home / "slurm")[slurm.VARIABLE]

    def clean(self):
        slurm.stop(self.home / "slurm")
        shutil.rmtree(self.home, ignore_errors=True)

    def environment(self, home="home", **more):
        return dict(os.environ, CKPTBENCH_HOME=str(self.home / home), SLURM_CONF=self.configuration, OMPI_MCA_btl="self,tcp",
                    OMPI_ALLOW_RUN_AS_ROOT="1", OMPI_ALLOW_RUN_AS_ROOT_CONFIRM="1", **more)

    def call(self, *words, home="home", **more):
        result = subprocess.run(words, cwd=self.home, env=self.environment(home, **more), capture_output=True, text=True, timeout=LIMIT_S)
        if result.returncode:
            sys.exit(f"{' '.join(words)}\n{result.stdout}\n{result.stderr}")
        return result.stdout

    def ours(self, *words, **options):
        return self.call(str(self.build / "ckptbench"), *words, **options)

    def wait_for(self, path):
        deadline = time.monotonic() + LIMIT_S
        while not path.exists():
            if time.monotonic() > deadline:
                sys.exit(f"{path} did not come")
            time.sleep(0.01)

    def wait_idle(self):
        """Nothing in the queue: completing jobs of the last measurement would be waited for by the next one."""
        deadline = time.monotonic() + LIMIT_S
        while self.call("squeue", "-h", "-a", "-t", "PD,R,CF,CG").strip():
            if time.monotonic() > deadline:
                sys.exit("the cluster is not idle")
            time.sleep(0.1)

    def first_operation_s(self, *words, idle=True):
        """From the start of `submit` to the first operation of the ranks, all on this machine's clock."""
        if idle:
            self.wait_idle()
        start = time.time()
        run = json.loads(self.ours("submit", "--json", *TINY, f"store={self.home}/store", *words))["runs"][0]["run"]
        self.wait_for(self.home / "home/runs" / run / "attempts/1/manifest.json")
        deadline = time.monotonic() + LIMIT_S
        while json.loads(self.ours("status", "--json", run))[0]["state"] not in FINAL and time.monotonic() < deadline:
            time.sleep(0.2)
        shown = json.loads(self.ours("show", "--json", run))
        if shown["outcome"] != "pass":
            sys.exit(f"run {run}: {shown}")
        query = f"select started_ns from attempt where run='{run}'"
        started_s = int(json.loads(self.ours("sql", "--json", query))[0]["started_ns"]) / 1e9
        return started_s - start + shown["metrics"]["launch_s"]["median"] + shown["metrics"]["setup_s"]["median"]

    def empty_program_s(self, nodes):
        """sbatch of a script that starts an empty MPI program, until that has ended."""
        self.wait_idle()
        program, script, done = self.home / "empty", self.home / "empty.sh", self.home / "empty.done"
        if not program.exists():
            (self.home / "empty.c").write_text(EMPTY)
            self.call("mpicc", "-o", str(program), str(self.home / "empty.c"))
            script.write_text(f"#!/bin/sh\nsrun --mpi=pmix {program}\ndate +%s.%N > {done}.new\nmv {done}.new {done}\n")
        done.unlink(missing_ok=True)
        start = time.time()
        self.call("sbatch", "--exclusive", "-N", str(nodes), "--ntasks-per-node=1", "-o", "/dev/null", str(script))
        self.wait_for(done)
        return float(done.read_text()) - start


def bench_submit(bench):
    """From submit to the first timed operation on four nodes, beside sbatch and srun of an empty MPI program."""
    words = ("nodes=4", "ranks_per_node=1")
    pairs = alternate(lambda: bench.first_operation_s(*words), lambda: bench.empty_program_s(4), bench.pairs)
    bench.table.add("submit to first operation, against sbatch + srun of an empty program", pairs, "+ 1.5 s", "s")
    bench.table.add_value("over it", statistics.median(a - b for a, b in pairs), "s", "<= 1.5")


def bench_hold(bench):
    """The same through a hold pool, on one node and on all of its four."""
    bench.wait_idle()
    bench.ours("warm", "start", "bench", "mode=hold", "nodes=4", "for=1h")
    try:
        deadline = time.monotonic() + LIMIT_S
        while json.loads(bench.ours("warm", "list", "--json"))[0]["state"] != "up" and time.monotonic() < deadline:
            time.sleep(0.2)
        for nodes in (1, 4):
            words = (f"nodes={nodes}", "ranks_per_node=1", "--warm", "bench")
            seconds = [bench.first_operation_s(*words, idle=False) for _ in range(bench.pairs + 1)][1:]
            bench.table.add_value(f"submit to first operation in a hold pool, {nodes} node{'s' if nodes > 1 else ''}", statistics.median(seconds), "s", "<= 1")
        bench.table.add_value("CPU of its waiter", waiter_cpu(bench), "of a core", "< 0.01")
    finally:
        bench.ours("warm", "stop", "bench")


def waiter_cpu(bench, seconds=10):
    """What the waiter takes of a core while nothing is to be done."""
    def ticks():
        for entry in Path("/proc").iterdir():
            with contextlib.suppress(OSError):
                words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
                if len(words) > 2 and words[0].endswith(b"ckptbench-agent") and words[1] == b"warm" and str(bench.home).encode() in words[2]:
                    fields = (entry / "stat").read_text().rsplit(")", 1)[1].split()
                    return int(fields[11]) + int(fields[12])
        sys.exit("the waiter is not there")
    before = ticks()
    time.sleep(seconds)
    return (ticks() - before) / os.sysconf("SC_CLK_TCK") / seconds


def count_commands(bench, *words):
    """A command of ours with Slurm's commands counted, its seconds, and its CPU seconds with theirs."""
    folder, log = bench.home / "bin", bench.home / "calls"
    folder.mkdir(exist_ok=True)
    log.write_text("")
    for name in ("squeue", "scontrol", "sacct", "sinfo", "sbatch"):
        if shutil.which(name):
            (folder / name).write_text(f'#!/bin/sh\necho "{name} $1" >> {log}\nexec {shutil.which(name)} "$@"\n')
            (folder / name).chmod(0o755)
    before, start = resource.getrusage(resource.RUSAGE_CHILDREN), time.monotonic()
    bench.ours(*words, home="many", PATH=f"{folder}:{os.environ['PATH']}")
    seconds, after = time.monotonic() - start, resource.getrusage(resource.RUSAGE_CHILDREN)
    calls = [line for line in log.read_text().splitlines() if line != "scontrol ping"]
    return len(calls), seconds, after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime


def bench_status(bench):
    """status of 1,000 runs that wait (their jobs are held), and submit of a sweep of 200, as an array and as a job each."""
    words = ["submit", "-q", *TINY, f"store={bench.home}/store", "slurm.extra=--hold"]
    for name, flags, most in (("", (), 3), (", a job each", ("--no-array",), 201)):
        calls, seconds, cpu_s = count_commands(bench, *words, "repeat=200", *flags)
        bench.table.add_value(f"submit of a sweep of 200{name}", seconds, "s", "< 5")
        bench.table.add_value("CPU of it, sbatch included", cpu_s, "s", "-")
        bench.table.add_value("commands of Slurm in it", calls, "", str(most))
    count_commands(bench, *words, "repeat=600")
    looked = [count_commands(bench, "status", "--json") for _ in range(bench.pairs + 1)][1:]
    bench.table.add_value("status of 1,000 runs", statistics.median(seconds for _, seconds, _ in looked), "s", "< 0.3")
    bench.table.add_value("CPU of it, squeue included", statistics.median(cpu_s for _, _, cpu_s in looked), "s", "-")
    bench.table.add_value("commands of Slurm in it", max(calls for calls, _, _ in looked), "", "<= 2")
    bench.call("scancel", "--me")


class SlowLine:
    """A login node behind an sshd and a proxy that adds 20 ms to a round trip, and a laptop that knows it as "slow"."""

    def __init__(self, bench):
        self.bench = bench
        self.server = bench.home / "sshd"
        sshd.start(self.server)
        port = (self.server / "port").read_text()
        self.proxy = Proxy(int(port), delay_s=0.01)
        user = bench.home / "laptop"
        (user / ".ssh").mkdir(parents=True)
        (user / ".ssh/config").write_text((self.server / "config").read_text().replace(f"Port {port}", f"Port {self.proxy.port}"))
        prefix = bench.home / "there"
        (prefix / "bin").mkdir(parents=True)
        for name in ("ckptbench", "ckptbench-agent", "ckptbench-worker"):
            shutil.copy2(bench.build / name, prefix / "bin" / name)
        sites = user / "config/ckptbench/sites"
        sites.mkdir(parents=True)
        (sites / "slow.yaml").write_text("".join(f"{key}: {json.dumps(value)}\n" for key, value in {
            "host": "node-a", "prefix": str(prefix), "home": str(prefix / "home"), "environment.SLURM_CONF": bench.configuration,
            "environment.OMPI_MCA_btl": "self,tcp", "environment.HOME": str(prefix)}.items()))
        self.variables = {"HOME": str(user), "XDG_CONFIG_HOME": str(user / "config")}

    def ours(self, *words):
        """What it says, its seconds, and the round trips that it has waited for, all over one connection."""
        turns, connections, start = self.proxy.turns, self.proxy.accepted, time.monotonic()
        said = self.bench.ours(*words, home="away", **self.variables)
        seconds = time.monotonic() - start
        if self.proxy.accepted - connections != 1:
            sys.exit(f"{words[0]} took {self.proxy.accepted - connections} connections")
        return said, seconds, self.proxy.turns - turns

    def close(self):
        self.proxy.close()
        sshd.stop(self.server)


def bench_ssh(bench):
    """A sweep of 200 over SSH with 20 ms of latency: sent, and, when all have ended there, fetched."""
    line = SlowLine(bench)
    try:
        line.ours("status", "--site", "slow")
        words = ("submit", "--site", "slow", "--json", *TINY, f"store={bench.home}/store", "slurm.extra=--hold", "repeat=200")
        said, seconds, turns = line.ours(*words)
        bench.table.add_value("submit of a sweep of 200 over SSH, 20 ms away", seconds, "s", "< 10")
        bench.table.add_value("round trips of it", turns, "", "-")
        bench.ours("cancel", json.loads(said)["sweep"], home="there/home")
        deadline = time.monotonic() + LIMIT_S
        while any(run["state"] not in FINAL for run in json.loads(bench.ours("status", "--json", home="there/home"))):
            if time.monotonic() > deadline:
                sys.exit("the sweep did not end")
            time.sleep(0.5)
        _, seconds, turns = line.ours("status")
        fetched = len(list((bench.home / "away/runs").glob("*/attempts/1/manifest.json")))
        bench.table.add_value(f"fetching {fetched} runs over it", seconds, "s", "-")
        bench.table.add_value("round trips of it", turns, "", "-")
    finally:
        line.close()


def rendezvous_s(bench):
    """Of a run on four nodes: from the head's start until the agents of the other three have joined."""
    bench.wait_idle()
    words = [*TINY, f"store={bench.home}/store", "nodes=4", "ranks_per_node=1"]
    run = json.loads(bench.ours("submit", "--json", "--wait", *words))["runs"][0]["run"]
    return json.loads((bench.home / "home/runs" / run / "attempts/1/rendezvous.json").read_text())["rendezvous_s"]


def srun_s(bench):
    """In an allocation of four: srun of a program that does nothing, on three."""
    bench.wait_idle()
    script, done = bench.home / "true.sh", bench.home / "true.done"
    done.unlink(missing_ok=True)
    script.write_text("#!/bin/sh\nstart=$(date +%s.%N)\nsrun --overlap --mpi=none --nodes=3 --ntasks=3 true\n"
                      f"echo $start $(date +%s.%N) > {done}.new\nmv {done}.new {done}\n")
    bench.call("sbatch", "--exclusive", "-N", "4", "-o", "/dev/null", str(script))
    bench.wait_for(done)
    start, end = done.read_text().split()
    return float(end) - float(start)


def bench_rendezvous(bench):
    """Of four real nodes, beside the srun that it waits for; and a thousand node agents, simulated by one process, with real
    connections, handshakes and messages."""
    pairs = alternate(lambda: rendezvous_s(bench), lambda: srun_s(bench), bench.pairs)
    bench.table.add_value("rendezvous of 4 nodes", statistics.median(ours for ours, _ in pairs), "s", "< 0.2")
    bench.table.add_value("srun of nothing on three of them", statistics.median(peer for _, peer in pairs), "s", "-")
    runs = [json.loads(bench.call(str(bench.build / "tests/rendezvous_bench"), "1000")) for _ in range(max(bench.pairs // 3, 1))]
    bench.table.add_value("rendezvous of 1,000 agents", statistics.median(run["joined_s"] for run in runs), "s", "< 5")
    bench.table.add_value("memory of the head", max(run["head_memory_bytes"] for run in runs) / 2**20, "MiB", "< 64")


BENCHES = {"submit": bench_submit, "hold": bench_hold, "status": bench_status, "ssh": bench_ssh, "rendezvous": bench_rendezvous}


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--pairs", type=int, default=10)
    parser.add_argument("--only", choices=BENCHES, nargs="*", default=list(BENCHES))
    parser.add_argument("--json", default=str(ROOT / "build/bench-slurm.json"))
    arguments = parser.parse_args()
    try:
        bench = Bench(arguments)
    except slurm.Missing as missing:
        sys.exit(f"bench-slurm: {missing}")
    try:
        for name in arguments.only:
            print(f"-- {name}", flush=True)
            BENCHES[name](bench)
    finally:
        bench.clean()
        Path(arguments.json).write_text(json.dumps(bench.table.rows, indent=1))


if __name__ == "__main__":
    main()
