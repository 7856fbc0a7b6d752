"""An image: a root folder of its own that has the worker, and the words that start it in there."""
import os
import shutil

from harness import BUILD


RUNTIME = shutil.which("ch-run")
NO_RUNTIME = "ch-run is missing (Debian: charliecloud-runtime)"
BOUND = ("/usr", "/etc/alternatives", "/etc/openmpi")


def make_image(root):
    for folder in ("dev", "proc", "sys", "tmp", "home", "root", "run", "var/tmp", "opt/bench", *(bound.lstrip("/") for bound in BOUND)):
        (root / folder).mkdir(parents=True)
    for link in ("bin", "lib", "lib64", "sbin"):
        (root / link).symlink_to(f"usr/{link}")
    for name in ("passwd", "group", "hosts", "resolv.conf", "nsswitch.conf", "ld.so.cache"):
        shutil.copy(f"/etc/{name}", root / "etc") if os.path.exists(f"/etc/{name}") else (root / "etc" / name).touch()
    shutil.copy2(BUILD / "ckptbench-worker", root / "opt/bench")
    binds = " ".join(f"--bind {bound}:{bound}" for bound in BOUND)
    return f"/usr/bin/env USER=somebody {RUNTIME} {binds} --set-env=PATH=/opt/bench:/usr/bin {root} --"
