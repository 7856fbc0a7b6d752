"""Runs the tests of the Python package and of `ckptbench watch` with another PyTorch than that of the test environment.

usage: tests/torch_versions.py [VERSION] [--python VENV_PYTHON] [-k WORD]

The environment build/venv-torch-VERSION has that PyTorch alone, and everything else from the environment of the tests.
Builds for CUDA are run on the CPU: the libraries of CUDA, several GiB that nothing here calls, are replaced by stand-ins
that say that there is no device."""
import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = "2.4.1"
# pytest imports the conftest of the last folder: the tests of that one need theirs.
CHOSEN = ["tests/e2e/test_watch.py", "tests/interop/test_torch_checkpoint.py", "tests/interop/test_torch_state.py"]


def dynamic(path):
    return subprocess.run(["readelf", "--dynamic", "--wide", path], capture_output=True, text=True, check=True).stdout


def absent_libraries(folder):
    """The libraries that those in `folder` need and that neither it nor the system has."""
    needed = {name for path in folder.glob("*.so*") for name in re.findall(r"\(NEEDED\).*\[(.*)\]", dynamic(path))}
    of_system = subprocess.run(["/sbin/ldconfig", "-p"], capture_output=True, text=True, check=True).stdout
    return {name for name in needed if not (folder / name).exists() and f"\t{name} " not in of_system}


def write_stand_ins(folder):
    """One library under the name of each that is absent, with all functions of CUDA that are called somewhere."""
    absent = absent_libraries(folder)
    if not absent:
        return
    listing = subprocess.run(["nm", "--dynamic", "--undefined-only", *folder.glob("*.so*")], capture_output=True, text=True, check=True).stdout
    found = set(re.findall(r"^\s+U ((?:__cuda|_*cu|nccl|nv)\w*)(?:@(\S+))?$", listing, re.M))
    # 100 is cudaErrorNoDevice. What registers kernels when a library is loaded must not fail.
    functions = [f"long {name}(void) {{ return {100 if name.startswith('cuda') else 0}; }}" for name in sorted({name for name, _ in found})]
    versions = [f"{version} {{ {' '.join(f'{name};' for name, of in found if of == version)} }};" for version in sorted({of for _, of in found if of})]
    made, script = folder / "libstand_ins.so", folder / "stand_ins.versions"
    script.write_text("\n".join(versions))
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", f"-Wl,--version-script={script}", "-x", "c", "-o", made, "-"], input="\n".join(functions), text=True, check=True)
    for name in absent:
        (folder / name).symlink_to(made.name)


def environment(version, python):
    """The interpreter of the environment, which is made if it is missing or was not made completely."""
    folder = ROOT / f"build/venv-torch-{version}"
    made = folder / "made"
    if not made.exists():
        sites = subprocess.run([python, "-c", "import site; print(*site.getsitepackages(), sep='\\n')"], capture_output=True, text=True, check=True).stdout
        subprocess.run([python, "-m", "venv", "--clear", "--without-pip", folder], check=True)
        (below,) = (folder / "lib").glob("python*/site-packages")
        (below / "tests.pth").write_text(sites)
        subprocess.run([python, "-m", "pip", "--python", folder / "bin/python", "install", "-q", "--no-deps", "--no-compile", f"torch=={version}"], check=True)
        write_stand_ins(below / "torch/lib")
        made.touch()
    return folder / "bin/python"


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("version", nargs="?", default=OLDEST)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("-k", dest="word", default="")
    arguments = parser.parse_args()
    python = environment(arguments.version, arguments.python)
    print(subprocess.run([python, "-c", "import torch; print('PyTorch', torch.__version__)"], capture_output=True, text=True, check=True).stdout, flush=True)
    os.chdir(ROOT)
    os.execv(sys.executable, [sys.executable, "tests/run.py", "--no-unit", "--python", str(python), "--folders", *CHOSEN, "-k", arguments.word])


if __name__ == "__main__":
    main()
