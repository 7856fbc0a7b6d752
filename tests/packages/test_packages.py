"""The Debian package and the wheel, each installed in a clean root of Debian 12 and run there; the container recipe's
steps are those that install the package."""
import glob
import re
import shlex
import shutil
import subprocess
import sys

import pytest

from harness import BUILD, ROOT

pytestmark = [pytest.mark.xdist_group("packages"), pytest.mark.timeout(1500)]


@pytest.fixture(scope="module")
def container(clean, package):
    """The clean root after every step of the Containerfile, and its ENTRYPOINT and ENV."""
    lines = (ROOT / "Containerfile").read_text().replace("\\\n", " ").splitlines()
    steps = [line.partition(" ")[::2] for line in lines if line and not line.startswith("#")]
    environment, entry = {}, None
    for word, rest in steps:
        if word == "FROM":
            assert rest == "debian:bookworm-slim"  # the release of `clean`
        elif word == "COPY":
            source, target = rest.split()
            for path in glob.glob(str(package.parent / source)):
                shutil.copy(path, f"{clean.folder}/{target}")
        elif word == "RUN":
            clean.run(rest)
        elif word == "ENV":
            environment.update([rest.split("=", 1)])
        else:
            assert word == "ENTRYPOINT", word
            entry = re.findall(r'"([^"]*)"', rest)
    return clean, environment, entry


def test_the_container_recipe_installs_the_package_and_its_entry_runs_a_benchmark(container):
    clean, environment, entry = container
    words = [*entry, "run", "model=gpt2-tiny", "layers=1", "ranks=2", "iterations=1", "warmup=0", "baseline=false", "store=/tmp/store"]
    assert "verified" in clean.run(shlex.join(words), **environment).stdout


def test_the_demo_of_the_installed_package_ends_well(container):
    clean, environment, _ = container
    shown = clean.run("cd /tmp && sh /usr/share/ckptbench/demo.sh", **environment).stdout
    assert shown.count("verified") >= 1 and "--by io.direct" in shown and "verdict" in shown


def test_the_package_brings_manual_completion_header_library_and_python_package(container):
    clean, _, _ = container
    files = clean.run("dpkg -L ckptbench").stdout.split()
    for path in ("/usr/share/man/man1/ckptbench.1.gz", "/usr/include/ckptbench.h", "/usr/lib/libckptbench.so",
                 "/usr/share/bash-completion/completions/ckptbench", "/usr/share/ckptbench/adapters/torch_native.py"):
        assert path in files
    assert not re.search("not found", clean.run("ldd /usr/bin/ckptbench /usr/bin/ckptbench-* /usr/lib/libckptbench.so").stdout)


def test_the_wheel_needs_neither_compiler_nor_libraries_of_the_system(clean, package, tmp_path):
    """In a root without the package: Python alone."""
    clean.run("apt-get update -qq && apt-get purge -y -qq ckptbench && apt-get autoremove -y -qq && apt-get install -y -qq --no-install-recommends python3-venv")
    assert clean.run("ls /usr/bin/ckptbench* /usr/lib/libckptbench* /usr/share/ckptbench", code=None).returncode != 0
    built = subprocess.run([sys.executable, "-m", "pip", "wheel", "-q", "--no-index", "--no-deps", "-w", tmp_path, "--config-settings",
                            f"built={BUILD}", ROOT], capture_output=True, text=True, timeout=600)
    assert built.returncode == 0, built.stderr
    (wheel,) = tmp_path.glob("*.whl")
    shutil.copy(wheel, clean.folder / "tmp")
    clean.run(f"python3 -m venv /opt/bench && /opt/bench/bin/pip install -q --no-index /tmp/{wheel.name}")
    assert "ckptbench" in clean.run("/opt/bench/bin/ckptbench --version").stdout
    assert "ranks" in clean.run("/opt/bench/bin/ckptbench plan model=gpt2 ranks=2", CKPTBENCH_HOME="/tmp/home").stdout
    version = clean.run("/opt/bench/bin/python -c 'import ckptbench._library as library; print(library.version())'").stdout
    assert re.match(r"\d+\.\d+", version)
