"""Packages in a clean root of Debian 12: nothing of this machine but its network and its clock."""
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import BUILD, ROOT  # noqa: E402

MOUNTS = "mount --rbind /dev {0}/dev && mount -t proc proc {0}/proc && mount -t tmpfs -o size=4g tmpfs {0}/dev/shm && exec chroot {0} {1}"


class Clean:
    """A root folder, in which commands run as in a container: with mounts and processes of their own."""

    def __init__(self, folder):
        self.folder = folder

    def run(self, command, code=0, timeout=600, **environment):
        proxies = {name: value for name, value in os.environ.items() if name.lower().endswith("_proxy")}
        given = {**proxies, "PATH": "/usr/sbin:/usr/bin:/sbin:/bin", "HOME": "/root", "DEBIAN_FRONTEND": "noninteractive", **environment}
        words = ["unshare", "--mount", "--propagation=slave", "--pid", "--fork", "--kill-child", "sh", "-c",
                 MOUNTS.format(self.folder, 'sh -c "$0"'), command]
        result = subprocess.run(words, env=given, capture_output=True, text=True, timeout=timeout)
        assert code is None or result.returncode == code, f"{command}: {result.returncode}\n{result.stdout[-4000:]}\n{result.stderr[-4000:]}"
        return result


@pytest.fixture(scope="session")
def clean(tmp_path_factory):
    folder = tmp_path_factory.mktemp("clean") / "root"
    made = subprocess.run(["mmdebstrap", "--variant=minbase", "bookworm", folder], capture_output=True, text=True, timeout=1200)
    assert made.returncode == 0, made.stderr[-4000:]
    for name in ("etc/resolv.conf", "etc/hosts"):
        shutil.copy(f"/{name}", folder / name)
    # How this machine reaches Debian's servers.
    for name in ("etc/apt/apt.conf.d", "etc/ssl/certs"):
        shutil.copytree(f"/{name}", folder / name, dirs_exist_ok=True, symlinks=False, ignore_dangling_symlinks=True)
    yield Clean(folder)
    shutil.rmtree(folder, ignore_errors=True)


@pytest.fixture(scope="session")
def package():
    subprocess.run(["make", "-s", "deb", f"BUILD={os.path.relpath(BUILD, ROOT)}"], cwd=ROOT, check=True, timeout=1200)
    (made,) = BUILD.glob("deb/ckptbench_*.deb")
    yield made
    subprocess.run(["make", "-s", "-j2", "all", f"BUILD={os.path.relpath(BUILD, ROOT)}"], cwd=ROOT, check=True, timeout=1200)  # with its own prefix again
