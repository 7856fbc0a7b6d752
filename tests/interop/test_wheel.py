"""A wheel of the Python package in a new environment: it is installed without a network and without a compiler, and works."""
import os
import re
import subprocess
import sys
import venv
import zipfile
from pathlib import Path

import pytest
import torch

from conftest import BUILD, call
from harness import ROOT

pytestmark = pytest.mark.xdist_group("wheel")


@pytest.fixture(scope="module")
def wheel(tmp_path_factory):
    folder = tmp_path_factory.mktemp("wheel")
    result = call(sys.executable, "-m", "pip", "wheel", "--no-index", "--no-deps", "--no-cache-dir", "-w", folder,
                  "--config-settings", f"built={BUILD}", ROOT, timeout=280)
    assert result.returncode == 0, result.stderr
    (made,) = folder.glob("*.whl")
    return made


@pytest.fixture(scope="module")
def installed(wheel, tmp_path_factory):
    """The Python of an environment that has the wheel, and this one's PyTorch, which the wheel does not bring."""
    folder = tmp_path_factory.mktemp("environment")
    venv.create(folder, symlinks=True)
    python = folder / "bin/python"
    result = call(sys.executable, "-m", "pip", "--python", python, "install", "--no-index", "--no-compile", wheel, timeout=280)
    assert result.returncode == 0, result.stderr
    (packages,) = folder.glob("lib/python*/site-packages")
    (packages / "torch.pth").write_text(str(Path(torch.__file__).resolve().parents[1]))
    return python


def test_the_wheel_is_for_every_python_and_for_the_glibc_that_its_files_need(wheel, tmp_path):
    archive = zipfile.ZipFile(wheel)
    archive.extractall(tmp_path)
    programs = [path for path in (tmp_path / "ckptbench/bin").rglob("*") if path.is_file()]
    needed = re.findall(r"Name: GLIBC_(\d+)\.(\d+)", call("readelf", "--version-info", "--wide", *programs).stdout)
    major, minor = max(tuple(map(int, version)) for version in needed)
    assert wheel.name.endswith(f"-py3-none-manylinux_{major}_{minor}_x86_64.whl")
    names = archive.namelist()
    assert "ckptbench/bin/libckptbench.so" in names and "ckptbench/checkpoint.py" in names
    assert any(name.startswith("ckptbench/bin/libs/libcurl.so") for name in names)
    assert any(name.startswith("ckptbench/bin/libs/liburing.so") for name in names)
    for file in ("adapters/torch_dcp.py", "report/page.html", "watch/hooks"):
        assert any(name.startswith(f"ckptbench/share/{file}") for name in names), file
    assert not any("/libc.so" in name or "/libmpi" in name for name in names)


def test_an_installed_wheel_saves_and_loads_with_the_libraries_that_it_carries(installed, tmp_path):
    program = """
import sys, torch, ckptbench.checkpoint as checkpoint
state = {"w": torch.arange(5000.0), "n": 3}
checkpoint.save(sys.argv[1] + "/one", state, async_checkpoint=True).result()
loaded = {"w": torch.zeros(5000), "n": 0}
checkpoint.load(sys.argv[1] + "/one", loaded)
assert torch.equal(loaded["w"], state["w"]) and loaded["n"] == 3
print(*sorted({line.split()[-1] for line in open("/proc/self/maps") if "/ckptbench/bin/" in line}), sep="\\n")
"""
    environment = {key: value for key, value in os.environ.items() if not key.startswith(("PYTHON", "CKPTBENCH", "LD_"))}
    result = subprocess.run([installed, "-c", program, tmp_path], capture_output=True, text=True, timeout=120, env=environment)
    assert result.returncode == 0, result.stderr
    loaded = {Path(line).name for line in result.stdout.split()}
    assert "libckptbench.so" in loaded and any(name.startswith("libcurl.so") for name in loaded), loaded


def test_an_installed_wheel_has_the_command_and_runs_a_benchmark(installed, tmp_path):
    command = installed.with_name("ckptbench")
    assert "ckptbench" in call(command, "--version").stdout
    result = call(command, "run", "model=gpt2-tiny", "layers=1", "ranks=2", "iterations=1", "warmup=0", "baseline=false",
                  f"store={tmp_path}/store", CKPTBENCH_HOME=str(tmp_path / "home"))
    assert result.returncode == 0 and "verified" in result.stdout, result.stdout + result.stderr
