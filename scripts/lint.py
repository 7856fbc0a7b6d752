"""Checks what a compiler does not: the layer rule from the includes, where third-party headers may
appear, the length of functions, the format, and headers that compile alone.

usage: scripts/lint.py [--cc CC]
"""
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = {
    "core": {"core"},
    "run": {"run", "core"},
    "store": {"store", "core"},
    "ckpt": {"ckpt", "store", "run", "core"},
    "setup": {"setup", "engine", "ckpt", "store", "run", "core"},
    "db": {"db", "run", "core"},
    "jobs": {"jobs", "run", "core"},
    "comm": {"comm", "run", "core"},
    "engine": {"engine", "comm", "ckpt", "store", "run", "core"},
    "cuda": {"cuda", "engine", "ckpt", "core"},
    "suite": {"suite", "engine", "comm", "setup", "ckpt", "store", "run", "core"},
    "train": {"train", "engine", "comm", "setup", "ckpt", "store", "run", "core"},
    "worker": {"worker", "suite", "train", "engine", "comm", "setup", "ckpt", "store", "run", "core"},
    "agent": {"agent", "setup", "store", "run", "core"},
    "cli": {"cli", "db", "jobs", "setup", "ckpt", "store", "run", "core"},
}
ENGINE_OF_RUN = {"run/metrics.h", "run/status_page.h", "run/cuda_plugin.h"}  # what it reports, and where its plugin is
THIRD_PARTY = {  # header pattern -> where it may appear
    r"yaml\.h|jansson\.h|openssl/.*|isa-l.*|crc\.h": r"core/",
    r"liburing\.h|curl/.*": r"store/",
    r"zstd\.h": r"ckpt/",
    r"sqlite3\.h": r"db/",
    r"libssh2.*": r"jobs/",
    r"hwloc.*": r"agent/",
    r"mpi\.h": r"comm/comm_(mpi|measure)\.c|tests/tools/plain_ping_pong\.c",
    r"pmix\.h": r"comm/comm_fence\.c",
    r"zlib\.h": r"suite/",
    r"cuda.*|nccl.*|cublas.*": r"cuda/",
    r"cmocka\.h": r"tests/",
}
SCHEMES = re.compile(r'"(?:[^"\\\n]|\\.)*?(?<!\w)(?:s3://|fault:|null:)')  # of stores: run/options.def has them for its readers
LONGEST_FUNCTION = 80
MENTIONED_ELSEWHERE = {"llm.c", "jobs/JOB.RESTARTS"}  # another project, a file of a pool
INCLUDE = re.compile(r'^\s*#\s*include\s+[<"]([^>"]+)[>"]', re.M)


def layer_complaints(path, text):
    room = path.parts[0]
    for header in INCLUDE.findall(text):
        first = header.split("/")[0]
        if room in ALLOWED and first in ALLOWED and "/" in header and first not in ALLOWED[room]:
            yield f"{path}: room {room} must not include {header}"
        if room == "engine" and first == "run" and header not in ENGINE_OF_RUN:
            yield f"{path}: the engine takes plain options: it must not include {header}"
        for pattern, place in THIRD_PARTY.items():
            if re.fullmatch(pattern, header) and not re.match(place, str(path)):
                yield f"{path}: {header} may only be included in {place}"


def scheme_complaints(path, text):
    """A store's kind is asked of store/kind.h, not of its URI."""
    if path.parts[0] == "tests" or str(path) in ("store/kind.h", "store/kind.c"):
        return
    code = re.sub(r"/\*.*?\*/", lambda comment: "\n" * comment.group().count("\n"), text, flags=re.S)
    for number, line in enumerate(code.split("\n"), 1):
        if SCHEMES.search(line):
            yield f"{path}:{number}: names a kind of store: ask store_uri_parse"
        elif path.parts[0] != "store" and re.search(r"(?:cmp|str)\(.*STORE_(?:S3|NULL|FAULT)", line):
            yield f"{path}:{number}: compares a store's scheme: ask store_uri_parse"


def format_id_complaints(path, text):
    """What a checkpoint format can do is asked of its row (ckpt/format/format_ops.h)."""
    if path.parts[0] != "tests" and path.parts[:2] != ("ckpt", "format") and re.search(r"\bPLAN_(DCP|RAW|SAFETENSORS|DCP_SAFETENSORS)\b", text):
        yield f"{path}: asks which format it is: ask format_ops_of"


def workload_complaints(path, text):
    """Which workload a run has is asked of run/workload_kind.h, by property."""
    if path.parts[0] != "tests" and str(path) != "run/workload_kind.c" and re.search(r"\bOPT_WORKLOAD\b", text):
        yield f"{path}: asks for the name of the workload: ask workload_kind_of for a property"


def metric_complaints(path, text):
    """The order of metrics means nothing beyond samples first: what a metric is stands in its columns."""
    for number, line in enumerate(text.split("\n"), 1):
        if re.search(r"[<>]=? METRIC_(?!COUNT|SAMPLE_COUNT)|METRIC_\w+ [<>]=? ", line) and path.parts[0] != "tests":
            yield f"{path}:{number}: compares metrics by their order: ask a column of run/metrics.def"


def length_complaints(path, text):
    start = name = None
    lines = text.split("\n")
    for number, line in enumerate(lines, 1):
        if line == "{" and lines[number - 2].rstrip().endswith((")", ",")):
            start, name = number, lines[number - 2]
        elif line == "}" and start:
            if number - start > LONGEST_FUNCTION:
                yield f"{path}:{start}: {number - start} lines in a function (at most {LONGEST_FUNCTION}): {name.strip()}"
            start = None


def header_complaints(path, compiler):
    command = [compiler, "-std=c11", "-D_GNU_SOURCE", "-I.", "-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-x", "c", "-"]
    result = subprocess.run(command, input=f'#include "{path}"\n', cwd=ROOT, capture_output=True, text=True)
    if result.returncode:
        yield f"{path}: does not compile alone: {result.stderr.strip().splitlines()[0]}"


def format_complaints(paths):
    result = subprocess.run(["clang-format", "--dry-run", "-Werror", *map(str, paths)], cwd=ROOT, capture_output=True, text=True)
    for line in result.stderr.splitlines():
        if "error:" in line:
            yield line


def mentioned_path_complaints():
    """Paths that a comment or a page of documentation names, and that are not in the tree."""
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout.split()
    known = {*listed, *(Path(path).name for path in listed), *(str(folder) for path in listed for folder in Path(path).parents)}
    folders = "|".join(sorted({path.split("/")[0] for path in listed if "/" in path}))
    mentioned = re.compile(rf"(?<![\w./$~-])(?:(?:{folders})/[\w/.-]+\.\w+|[a-z]\w+\.(?:c|cu|def))(?![\w/*{{])")
    for path in listed:
        if not path.endswith((".c", ".h", ".cu", ".def", ".md")) or not (ROOT / path).exists():
            continue
        text = (ROOT / path).read_text()
        parts = [text] if path.endswith(".md") else re.findall(r"/\*.*?\*/", text, re.S)
        for name in mentioned.findall("\n".join(parts)):
            if name.rstrip(".") not in known | MENTIONED_ELSEWHERE:
                yield f"{path}: there is no {name}"


def main():
    compiler = sys.argv[sys.argv.index("--cc") + 1] if "--cc" in sys.argv else "gcc"
    listed = subprocess.run(["git", "ls-files", "*.c", "*.h"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [Path(line) for line in listed.splitlines()]
    complaints = []
    for path in paths:
        text = (ROOT / path).read_text()
        complaints += layer_complaints(path, text)
        complaints += scheme_complaints(path, text)
        complaints += workload_complaints(path, text)
        complaints += format_id_complaints(path, text)
        complaints += metric_complaints(path, text)
        complaints += length_complaints(path, text)
        if path.suffix == ".h" and path.parts[0] in ALLOWED and path.parts[0] != "cuda":
            complaints += header_complaints(path, compiler)
    complaints += format_complaints(paths)
    complaints += mentioned_path_complaints()
    for complaint in complaints:
        print(complaint)
    print(f"lint: {len(paths)} files, {len(complaints)} complaints")
    sys.exit(1 if complaints or not paths else 0)


if __name__ == "__main__":
    main()
