"""`make prove-gpu`: builds, tests and measures the CUDA plugin on this machine's GPU, and writes one file to send back.

usage: tests/gpu/prove_gpu.py [--build DIR] [--report FILE] [--no-build] [--no-bench] [--limit SECONDS]
What could only crash later (no driver, one for an older CUDA, a GPU that is too old) is looked at before anything is
installed or built. Every part runs in a process of its own with a time limit, so that a crash or a hang is a failed
check and the parts after it still run. The file begins with the outcome, and can be read without knowing ckptbench.
Exits 0 if every check passed, 1 otherwise; a figure below its target is no failed check.
"""
import argparse
import datetime
import json
import os
import platform
import re
import signal
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
LEAST_CUDA, LEAST_CAPABILITY = (13, 0), (8, 0)  # of scripts/cuda_requirements.txt, and of CUDA_ARCH in the Makefile
QUERY = ("name", "driver_version", "compute_cap", "memory.total", "pci.bus_id")
SHOWN_CHARACTERS = 4000  # of what a failed part printed, from its end


class Proof:
    def __init__(self, build, limit_s):
        self.build, self.limit_s = build, limit_s
        plugin = os.environ.get("CKPTBENCH_CUDA_PLUGIN", str(build / "ckptbench-cuda.so"))
        self.environment = dict(os.environ, CKPTBENCH_CUDA_PLUGIN=plugin)
        self.checks = []  # (what, whether it passed, what it printed)
        self.facts = []  # (name, value)
        self.notes = []  # what this machine cannot show
        self.figures = {}

    def check(self, what, passed, said=""):
        self.checks.append((what, passed, said.strip()[-SHOWN_CHARACTERS:]))
        print(f"{'ok     ' if passed else 'FAILED '} {what}", flush=True)
        return passed

    def call(self, *command):
        """(exit status, what it printed). A program that takes too long is killed with its children: 124."""
        try:
            process = subprocess.Popen([str(word) for word in command], cwd=ROOT, env=self.environment, stdin=subprocess.DEVNULL,
                                       stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, errors="replace", start_new_session=True)
        except OSError as error:
            return 127, str(error)
        try:
            said = process.communicate(timeout=self.limit_s)[0]
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            return 124, process.communicate()[0]
        return process.returncode, said


def how_it_ended(proof, code):
    if code == 124:
        return f"did not end in {proof.limit_s} s"
    return f"was ended by {signal.Signals(-code).name}" if code < 0 else f"ended with {code}"


def version_of(text):
    """"13.0" as (13, 0); None if it is no version."""
    found = re.match(r"\s*(\d+)\.(\d+)", text)
    return (int(found[1]), int(found[2])) if found else None


def dotted(version):
    return ".".join(map(str, version))


def look_at_the_machine(proof):
    """Whether a driver and a GPU are there that the plugin can use."""
    proof.facts += [("system", f"{platform.system()} {platform.release()}, {platform.machine()}"), ("Python", platform.python_version())]
    code, said = proof.call("nvidia-smi", f"--query-gpu={','.join(QUERY)}", "--format=csv,noheader")
    rows = [[cell.strip() for cell in line.split(",")] for line in said.splitlines() if line.count(",") == len(QUERY) - 1]
    if not proof.check("nvidia-smi finds a driver and a GPU", code == 0 and bool(rows), said or how_it_ended(proof, code)):
        return False
    for index, (name, driver, capability, memory, pci) in enumerate(rows):
        proof.facts.append((f"GPU {index}", f"{name}, {memory}, compute capability {capability}, driver {driver}, {pci}"))
    found = re.search(r"CUDA(?: UMD)? Version\s*:\s*(\d+\.\d+)", proof.call("nvidia-smi")[1])
    driver_cuda = version_of(found[1]) if found else None
    passed = proof.check(f"the driver is for CUDA {dotted(LEAST_CUDA)} or newer", bool(driver_cuda) and driver_cuda >= LEAST_CUDA,
                         f"it is for CUDA {dotted(driver_cuda)}: update the driver" if driver_cuda else "nvidia-smi does not say for which CUDA it is")
    old = [name for name, _, capability, _, _ in rows if (version_of(capability) or (0, 0)) < LEAST_CAPABILITY]
    if old and len(old) < len(rows):
        proof.notes.append(f"too old: {', '.join(old)}; CUDA_VISIBLE_DEVICES must leave them out")
    return proof.check(f"a GPU has compute capability {dotted(LEAST_CAPABILITY)} or newer", len(old) < len(rows), f"too old: {', '.join(old)}") and passed


def build_all(proof):
    code, said = proof.call("make", "cuda", f"BUILD={os.path.relpath(proof.build, ROOT)}")
    return proof.check("everything builds (make cuda)", code == 0, f"{how_it_ended(proof, code)}\n{said}")


def find_devices(proof):
    """Whether the plugin that was built finds what nvidia-smi found."""
    said = proof.call(proof.build / "ckptbench", "--version")[1]
    proof.facts += [tuple(line.split(None, 1)) for line in said.splitlines() if len(line.split(None, 1)) == 2]
    code, said = proof.call(proof.build / "ckptbench-worker", "--devices")
    found = code == 0 and said.strip() and not said.startswith("none")
    if found:
        proof.facts += [(f"device {index}", line) for index, line in enumerate(said.strip().splitlines())]
    return proof.check("the plugin finds the GPU", bool(found), f"{how_it_ended(proof, code)}\n{said}")


def unit_tests(proof, program):
    """Each test of a program that says "[       OK ] name" or "[  FAILED  ] name" as cmocka's do."""
    code, said = proof.call(proof.build / "tests" / program)
    seen = {}
    for status, name in re.findall(r"^\[\s+(OK|FAILED|SKIPPED)\s+\] (\w+)$", said, re.MULTILINE):
        seen.setdefault(name, status)
    running = re.findall(r"^\[ RUN\s+\] (\w+)", said, re.MULTILINE)
    for name, status in seen.items():
        if status == "SKIPPED":
            proof.notes.append(f"{program}: {words(name)}: left out on this machine")
        else:
            proof.check(f"{program}: {words(name)}", status == "OK", said)
    unfinished = [name for name in running if name not in seen]
    if unfinished or not seen or (code != 0 and "FAILED" not in seen.values()):
        where = f" in: {words(unfinished[0])}" if unfinished else ""
        proof.check(f"{program} runs to its end{where}", False, f"{how_it_ended(proof, code)}\n{said}")


def words(name):
    return name.removeprefix("test_").replace("_", " ")


def whole_runs(proof):
    """tests/gpu/prove.py prints a line a claim."""
    code, said = proof.call(sys.executable, ROOT / "tests/gpu/prove.py", proof.build)
    claims = re.findall(r"^(ok|FAILED)\s+(.*)$", said, re.MULTILINE)
    for status, claim in claims:
        what, _, why = claim.partition(": ")
        proof.check(what if status == "FAILED" else claim, status == "ok", why)
    proof.notes += re.findall(r"^--\s+(.*)$", said, re.MULTILINE)
    if not claims or (code != 0 and all(status == "ok" for status, _ in claims)):
        proof.check("whole runs on the GPU", False, f"{how_it_ended(proof, code)}\n{said}")


def measure(proof):
    figures = proof.build / "bench-gpu.json"
    figures.unlink(missing_ok=True)
    code, said = proof.call(sys.executable, ROOT / "tests/bench/bench_gpu.py", "--build", proof.build, "--json", figures)
    try:
        proof.figures = json.loads(figures.read_text())
    except (OSError, ValueError):
        proof.figures = {}
    proof.check("everything is measured (bench-gpu)", code == 0, f"{how_it_ended(proof, code)}\n{said}")


# --- the file ---


def outcome(proof):
    failed = [what for what, passed, _ in proof.checks if not passed]
    if not failed:
        return f"**All {len(proof.checks)} checks passed.**"
    return f"**{len(failed)} of {len(proof.checks)} checks failed:** {'; '.join(failed)}."


def cell(text):
    return " ".join(str(text).split()).replace("|", "\\|")


def table(heads, rows):
    return ["| " + " | ".join(heads) + " |", "|" + "---|" * len(heads), *("| " + " | ".join(map(cell, row)) + " |" for row in rows), ""]


def figure_rows(rows):
    for row in rows:
        peer = f"{row['peer']:.4g} {row['unit']}" if "peer" in row else ""
        ratio = f"{row['ratio']:.3f} [{row['low']:.3f}, {row['high']:.3f}] of {row['pairs']} pairs" if "ratio" in row else ""
        yield row["name"], f"{row['ours']:.4g} {row['unit']}", peer, ratio, row["target"]


def report_text(proof):
    lines = ["# ckptbench on a GPU", "", outcome(proof), "", f"Written by `make prove-gpu` on {datetime.date.today()}. ckptbench measures how fast checkpoints of "
             "trainings are saved and loaded; what follows are the tests and measurements of its part that uses a GPU.", "", "## The machine", ""]
    lines += table(("what", "value"), proof.facts)
    failed = [(what, said) for what, passed, said in proof.checks if not passed]
    if failed:
        lines += ["## What failed", ""]
        for what, said in failed:
            lines += [f"### {what}", "", "```", said.replace("```", "'''") or "it printed nothing", "```", ""]
    lines += ["## Every check", "", *table(("check", "result"), ((what, "passed" if passed else "FAILED") for what, passed, _ in proof.checks))]
    if proof.notes:
        lines += ["## What this machine cannot show", "", *(f"- {note}" for note in proof.notes), ""]
    if proof.figures:
        lines += ["## Figures", "", "Medians of runs in turn with the other program; the ratio is ours to the other's, with a 95 % interval.", ""]
        lines += table(("measurement", "ckptbench", "other program", "ratio", "target"), figure_rows(proof.figures["rows"]))
        lines += [*(f"- not measured: {missing}" for missing in proof.figures["missing"]), ""]
    return "\n".join(lines)


def prove(proof, arguments):
    if not look_at_the_machine(proof) or (arguments.build_first and not build_all(proof)) or not find_devices(proof):
        proof.notes.append("everything after the first failed check: it was not tried")
        return
    for program in ("test_gpu", "test_gpu_train", "test_gpu_large", "test_gpu_library"):
        unit_tests(proof, program)
    whole_runs(proof)
    if arguments.bench:
        measure(proof)


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--build", default="build")
    parser.add_argument("--report", default="ckptbench-gpu.md", help="the file to write")
    parser.add_argument("--no-build", dest="build_first", action="store_false")
    parser.add_argument("--no-bench", dest="bench", action="store_false")
    parser.add_argument("--limit", type=float, default=3600, help="seconds for each part")
    arguments = parser.parse_args()
    proof = Proof((ROOT / arguments.build).resolve(), arguments.limit)
    try:
        prove(proof, arguments)
    finally:  # an interrupted proof shows what it found until then
        Path(arguments.report).write_text(report_text(proof))
        print(f"prove-gpu: {outcome(proof).replace('*', '')} Everything is in {arguments.report}; please send that file back.")
    sys.exit(0 if all(passed for _, passed, _ in proof.checks) else 1)


if __name__ == "__main__":
    main()
