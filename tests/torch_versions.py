"""Runs the tests of the Python package, of its wheel and of `ckptbench watch` with another PyTorch, another Python, or both.

usage: tests/torch_versions.py [VERSION] [--python PYTHON] [-k WORD]

The tests run in an environment of their own, build/venv-torch-VERSION-pythonX.Y, which PYTHON makes: any interpreter from
3.10 on that has venv. Builds for CUDA are run on the CPU: the libraries of CUDA, several GiB that nothing here calls, are
replaced by stand-ins that say that there is no device."""
import argparse
import os
import re
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
OLDEST = "2.4.1"
# pytest imports the conftest of the last folder: the tests of that one need theirs.
CHOSEN = ["tests/e2e/test_watch.py", *(f"tests/interop/test_{name}.py" for name in ("torch_checkpoint", "torch_state", "wheel"))]
# What they need of tests/requirements.txt, and what PyTorch asks for that a CPU has no use for.
NEEDED = re.compile(r"(pytest|numpy)\b")
OF_CUDA = re.compile(r"nvidia|cuda|triton")


def output(*command):
    return subprocess.run(command, capture_output=True, text=True, check=True).stdout


def absent_libraries(folder):
    """The libraries that those in `folder` need and that neither it nor the system has."""
    needed = {name for path in folder.glob("*.so*") for name in re.findall(r"\(NEEDED\).*\[(.*)\]", output("readelf", "--dynamic", "--wide", path))}
    of_system = output("/sbin/ldconfig", "-p")
    return {name for name in needed if not (folder / name).exists() and f"\t{name} " not in of_system}


def write_stand_ins(folder):
    """One library under the name of each that is absent, with all functions of CUDA that are called somewhere."""
    absent = absent_libraries(folder)
    if not absent:
        return
    listing = output("nm", "--dynamic", "--undefined-only", *folder.glob("*.so*"))
    found = set(re.findall(r"^\s+U ((?:__cuda|_*cu|nccl|nv)\w*)(?:@(\S+))?$", listing, re.M))
    # 100 is cudaErrorNoDevice. What registers kernels when a library is loaded must not fail.
    functions = [f"long {name}(void) {{ return {100 if name.startswith('cuda') else 0}; }}" for name in sorted({name for name, _ in found})]
    versions = [f"{version} {{ {' '.join(f'{name};' for name, of in found if of == version)} }};" for version in sorted({of for _, of in found if of})]
    made, script = folder / "libstand_ins.so", folder / "stand_ins.versions"
    script.write_text("\n".join(versions))
    subprocess.run(["gcc", "-shared", "-fPIC", "-w", f"-Wl,--version-script={script}", "-x", "c", "-o", made, "-"], input="\n".join(functions), text=True, check=True)
    for name in absent:
        (folder / name).symlink_to(made.name)


def environment(version, maker):
    """The interpreter of the environment, which is made if it is missing or was not made completely."""
    minor = output(maker, "-c", "import sys; print('%d.%d' % sys.version_info[:2])").strip()
    folder = ROOT / f"build/venv-torch-{version}-python{minor}"
    python, made = folder / "bin/python", folder / "made"
    if not made.exists():
        install = [python, "-m", "pip", "install", "-q", "--no-compile"]
        subprocess.run([maker, "-m", "venv", "--clear", folder], check=True)
        subprocess.run([*install, "--no-deps", f"torch=={version}"], check=True)
        asked = output(python, "-c", "from importlib.metadata import requires; print(*requires('torch'), sep='\\n')").splitlines()
        needed = filter(NEEDED.match, (ROOT / "tests/requirements.txt").read_text().splitlines())
        subprocess.run([*install, *needed, *(one for one in asked if "extra ==" not in one and not OF_CUDA.match(one))], check=True)
        (packages,) = (folder / "lib").glob("python*/site-packages")
        write_stand_ins(packages / "torch/lib")
        made.touch()
    return python


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("version", nargs="?", default=OLDEST)
    parser.add_argument("--python", default=sys.executable)
    parser.add_argument("-k", dest="word", default="")
    arguments = parser.parse_args()
    python = environment(arguments.version, arguments.python)
    print(output(python, "-c", "import platform, torch; print('PyTorch', torch.__version__, 'Python', platform.python_version())"), flush=True)
    os.chdir(ROOT)
    os.execv(sys.executable, [sys.executable, "tests/run.py", "--no-unit", "--python", str(python), "--folders", *CHOSEN, "-k", arguments.word])


if __name__ == "__main__":
    main()
