"""Checks what a compiler does not: the layer rule from the includes, circles of calls and of folders, names of files,
where third-party headers may appear, kinds that are asked of their tables, the length of functions, the format, and
headers that compile alone.

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
    "ckpt": {"ckpt", "store", "core"},
    "setup": {"setup", "engine", "ckpt", "store", "run", "core"},
    "db": {"db", "run", "core"},
    "jobs": {"jobs", "run", "core"},
    "comm": {"comm", "core"},
    "engine": {"engine", "comm", "ckpt", "store", "run", "core"},
    "cuda": {"cuda", "engine", "ckpt", "core"},
    "suite": {"suite", "engine", "comm", "setup", "ckpt", "store", "run", "core"},
    "train": {"train", "engine", "comm", "setup", "ckpt", "store", "run", "core"},
    "worker": {"worker", "suite", "train", "engine", "comm", "setup", "ckpt", "store", "run", "core"},
    "lib": {"lib", "include", "engine", "comm", "setup", "ckpt", "store", "run", "core"},
    "include": {"include"},
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
    r"mpi\.h": r"comm/comm_(mpi|measure)\.c|tests/tools/plain_ping_pong\.c|examples/ckptbench_mpi_example\.c",
    r"pmix\.h": r"comm/comm_fence\.c",
    r"zlib\.h": r"suite/",
    r"cuda.*|nccl.*|cublas.*": r"cuda/|tests/cuda_on_cpu/|tests/bench/plain_cuda.cu",
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


DEFINITION = re.compile(r"^(?!static\b(?! inline))[a-z][\w *]*?\b(\w+)\((?:[^;{}]*)\)\n\{", re.M)
BODY = re.compile(r"^\{\n(.*?)^\}", re.M | re.S)
CALL = re.compile(r"(?<![.>\w])(\w+)\(")  # not through a pointer of a struct


def code_of(text):
    """Without comments, strings and directives."""
    text = re.sub(r'/\*.*?\*/|"(?:[^"\\\n]|\\.)*"|\'(?:[^\'\\\n]|\\.)*\'', " ", text, flags=re.S)
    return re.sub(r"^#(?:[^\\\n]|\\\n|\\.)*", "", text, flags=re.M)


def circles(arrows):
    """The groups of more than one that reach each other, each sorted (Tarjan's strongly connected components)."""
    index, low, stack, found = {}, {}, [], []

    def visit(node):
        index[node] = low[node] = len(index)
        stack.append(node)
        for other in sorted(arrows.get(node, ())):
            if other not in index:
                visit(other)
            if other in stack:
                low[node] = min(low[node], low[other])
        if low[node] == index[node]:
            at = stack.index(node)
            found.append(sorted(stack[at:]))
            del stack[at:]

    for node in sorted(arrows):
        if node not in index:
            visit(node)
    return [group for group in found if len(group) > 1]


def circle_complaints(texts):
    """Within a room no files call each other in a circle, and no folders include each other in one. A function that is
    only pointed to, as the rows of tables do, is not called."""
    code = {path: code_of(text) for path, text in texts.items() if path.parts[0] in ALLOWED}
    home = {name: path.with_suffix("") for path, text in code.items() for name in DEFINITION.findall(text)}
    calls, includes = {}, {}
    for path, text in code.items():
        caller = path.with_suffix("")
        called = {home[name] for body in BODY.findall(text) for name in CALL.findall(body) if name in home}
        calls.setdefault(caller, set()).update(file for file in called if file != caller and file.parts[0] == path.parts[0])
        folders = {Path(header).parent for header in INCLUDE.findall(texts[path]) if header.split("/")[0] == path.parts[0]}
        if len(path.parts) > 2:  # what lies in the room itself is for all of its folders
            includes.setdefault(path.parent, set()).update(folder for folder in folders - {path.parent} if len(folder.parts) > 1)
    for group in circles(calls):
        yield "these files call each other in a circle: " + ", ".join(map(str, group))
    for group in circles(includes):
        yield "these folders include each other in a circle: " + ", ".join(map(str, group))


def name_complaints(paths):
    """A file is found by its name alone. A header and its source share one; the header may lie a folder higher."""
    homes = {}
    for path in paths:
        homes.setdefault(path.name, []).append(path)
    for name, places in homes.items():
        if len(places) > 1:
            yield f"{name} stands at {' and '.join(map(str, places))}"
    headers = {path.stem: path for path in paths if path.suffix == ".h"}
    for path in paths:
        if path.suffix != ".h" and path.stem in headers and headers[path.stem].parent not in (path.parent, path.parent.parent):
            yield f"{path} is not the source of {headers[path.stem]}, which has its name"


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
    listed = subprocess.run(["git", "ls-files", "*.c", "*.h", "*.cu"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    paths = [Path(line) for line in listed.splitlines()]
    texts = {path: (ROOT / path).read_text() for path in paths if (ROOT / path).exists()}
    complaints = [*circle_complaints(texts), *name_complaints(paths)]
    for path, text in texts.items():
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
