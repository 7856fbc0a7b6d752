"""The PEP 517 backend of the package: runs make, and zips what came of it.

The wheel carries the library, the programs, and the shared libraries that they need, apart from those that every glibc
system has. It depends on no version of Python, since the package reaches the library through ctypes.

`--config-settings built=DIR` takes what make has built in DIR."""
import base64
import hashlib
import os
import pathlib
import re
import subprocess
import sysconfig
import tempfile
import zipfile

HERE = pathlib.Path(__file__).resolve().parent
ROOT = HERE.parent
PROGRAMS = ["libckptbench.so", "ckptbench", "ckptbench-agent", "ckptbench-worker", "ckptbench-cuda.so"]
OPTIONAL = {"ckptbench-worker", "ckptbench-cuda.so"}
# Libraries of every system with glibc.
NOT_CARRIED = re.compile(r"(ld-linux.*|lib(c|m|dl|rt|pthread|resolv|gcc_s|stdc\+\+))\.so\.\d+")


def _version():
    return re.search(r"^VERSION\s*:=\s*(\S+)", (ROOT / "Makefile").read_text(), re.M).group(1)


def _metadata():
    return f"""Metadata-Version: 2.1
Name: ckptbench
Version: {_version()}
Summary: Saves and loads checkpoints of PyTorch trainings at the speed of the storage, and measures checkpoints
Classifier: Operating System :: POSIX :: Linux
Classifier: Programming Language :: C
Classifier: Programming Language :: Python :: 3 :: Only
Classifier: Programming Language :: Python :: 3.10
Classifier: Programming Language :: Python :: 3.11
Classifier: Programming Language :: Python :: 3.12
Classifier: Programming Language :: Python :: 3.13
Classifier: Topic :: System :: Benchmark
Requires-Python: >=3.10
Requires-Dist: torch>=2.4; extra == "torch"
Provides-Extra: torch
"""


def _tag(programs):
    """For every Python 3, and for systems with the newest glibc whose functions the programs and libraries call, or a
    newer one. Which glibc the machine has that builds them does not matter."""
    listing = subprocess.run(["objdump", "-T", *programs], capture_output=True, text=True, check=True).stdout
    glibc = max(tuple(map(int, version)) for version in re.findall(r"\bGLIBC_(\d+)\.(\d+)", listing))
    machine = sysconfig.get_platform().partition("-")[2].replace("-", "_")
    return f"py3-none-manylinux_{glibc[0]}_{glibc[1]}_{machine}"


def _shared_libraries(program):
    """path by file name of the libraries that a program needs and the wheel carries."""
    listing = subprocess.run(["ldd", program], capture_output=True, text=True, check=True).stdout
    if missing := re.findall(r"^\s*(\S+) => not found", listing, re.M):
        raise RuntimeError(f"{program} needs {', '.join(missing)}, which this machine lacks")
    return {name: pathlib.Path(path) for name, path in re.findall(r"^\s*(\S+) => (\S+) \(", listing, re.M)
            if not NOT_CARRIED.fullmatch(name)}


def _build(built, folder):
    """Runs make, unless `built` names what it made, and puts the programs without their debugging symbols into `folder`.
    File in the wheel -> path."""
    build = pathlib.Path(built or ROOT / "build").resolve()
    if not built:
        subprocess.run(["make", "-s", f"-j{os.cpu_count()}", "-C", ROOT, f"BUILD={build}", "all"], check=True)
    files = {f"ckptbench/{path.name}": path for path in sorted((HERE / "ckptbench").glob("*.py"))}
    files |= {f"ckptbench/{path.relative_to(ROOT)}": path for path in sorted((ROOT / "share").rglob("*"))
              if path.is_file() and path.suffix != ".pyc"}
    for name in PROGRAMS:
        if name in OPTIONAL and not (build / name).exists():
            continue
        files[f"ckptbench/bin/{name}"] = pathlib.Path(folder) / name
        subprocess.run(["strip", "--strip-debug", "-o", files[f"ckptbench/bin/{name}"], (build / name).resolve()], check=True)
        if name not in OPTIONAL:  # MPI and CUDA are the cluster's
            files |= {f"ckptbench/bin/libs/{library}": path for library, path in _shared_libraries(build / name).items()}
    return files


def _info():
    return f"ckptbench-{_version()}.dist-info"


def build_wheel(wheel_directory, config_settings=None, metadata_directory=None):
    with tempfile.TemporaryDirectory() as folder:
        files = _build((config_settings or {}).get("built"), folder)
        contents = {name: path.read_bytes() for name, path in files.items()}
        tag = _tag([path for name, path in files.items() if name.startswith("ckptbench/bin/")])
    contents[f"{_info()}/METADATA"] = _metadata().encode()
    contents[f"{_info()}/WHEEL"] = f"Wheel-Version: 1.0\nGenerator: ckptbench\nRoot-Is-Purelib: false\nTag: {tag}\n".encode()
    contents[f"{_info()}/entry_points.txt"] = b"[console_scripts]\nckptbench = ckptbench._program:main\n"

    def digest(content):
        return base64.urlsafe_b64encode(hashlib.sha256(content).digest()).rstrip(b"=").decode()
    record = "".join(f"{name},sha256={digest(content)},{len(content)}\n" for name, content in contents.items())
    contents[f"{_info()}/RECORD"] = f"{record}{_info()}/RECORD,,\n".encode()
    wheel = f"ckptbench-{_version()}-{tag}.whl"
    with zipfile.ZipFile(os.path.join(wheel_directory, wheel), "w", zipfile.ZIP_DEFLATED) as archive:
        for name, content in contents.items():
            entry = zipfile.ZipInfo(name, (1980, 1, 1, 0, 0, 0))
            entry.compress_type = zipfile.ZIP_DEFLATED
            entry.external_attr = (0o100755 if name.startswith("ckptbench/bin/") else 0o100644) << 16
            archive.writestr(entry, content)
    return wheel


def build_sdist(sdist_directory, config_settings=None):
    raise NotImplementedError("the package is built from a clone of ckptbench; there is no source distribution")
