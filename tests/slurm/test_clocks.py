"""A node whose clock is an hour ahead: hosts of an sshd, of which one has time of its own (a library before its programs)."""
import os
import subprocess
import sys
from pathlib import Path

import pytest
from nodes_harness import Run

SSHD = os.environ.get("CKPTBENCH_TEST_SSHD")
pytestmark = pytest.mark.skipif(not SSHD, reason="no sshd (CKPTBENCH_TEST_SSHD, see tests/services/sshd.py)")
AHEAD_S = 3600
AHEAD = f"""\
#define _GNU_SOURCE
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>
int clock_gettime(clockid_t clock, struct timespec *at)
{{
    int rc = (int)syscall(SYS_clock_gettime, clock, at);
    at->tv_sec += clock == CLOCK_REALTIME ? {AHEAD_S} : 0;
    return rc;
}}
int gettimeofday(struct timeval *at, void *zone)
{{
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}}
time_t time(time_t *to)
{{
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (to)
        *to = now.tv_sec;
    return now.tv_sec;
}}
"""
# In front of ssh: what goes to node-b has the library.
SSH = """\
#!/bin/bash
words=()
for word in "$@"; do
    words+=("$word")
    [ "$word" != node-b ] || words+=("export LD_PRELOAD={library};")
done
exec {ssh} "${{words[@]}}"
"""


@pytest.fixture
def ahead(tmp_path):
    """A folder with such an ssh."""
    library = tmp_path / "ahead.so"
    subprocess.run(["gcc", "-shared", "-fPIC", "-O2", "-x", "c", "-", "-o", library], input=AHEAD, text=True, check=True, timeout=120)
    told = subprocess.run([sys.executable, "-c", "import time; print(time.time())"], env=dict(os.environ, LD_PRELOAD=str(library)),
                          capture_output=True, text=True, check=True, timeout=120)
    now = float(subprocess.run(["date", "+%s"], capture_output=True, text=True, check=True, timeout=120).stdout)
    assert abs(float(told.stdout) - now - AHEAD_S) < 60
    (tmp_path / "bin").mkdir()
    ssh = tmp_path / "bin/ssh"
    ssh.write_text(SSH.format(library=library, ssh=f"{SSHD}/bin/ssh"))
    ssh.chmod(0o755)
    return tmp_path / "bin"


@pytest.mark.parametrize("hosts", ["node-a,node-b", "node-b,node-a"])
def test_an_hour_between_clocks_is_recorded_and_harms_nothing(tmp_path, ahead, hosts):
    run = Run(tmp_path / "run", worker="ckptbench-worker", hosts=hosts, ranks=2, model="gpt2-tiny", baseline="false", iterations=3)
    kept = {name: value for name, value in os.environ.items() if not name.startswith("SLURM_")}
    agent = subprocess.Popen([run.programs / "ckptbench-agent", "run", run.run], start_new_session=True, stdin=subprocess.DEVNULL,
                             env=dict(kept, PATH=f"{ahead}:{os.environ['PATH']}", OMPI_MCA_btl="self,tcp", OMPI_MCA_btl_tcp_if_include="lo"))
    try:
        agent.wait(timeout=120)
        manifest = run.read("manifest.json")
        assert (manifest["outcome"], manifest["message"]) == ("pass", ""), run.logs()
        offsets = {node["node"]: node["clock_offset_s"] for node in run.rendezvous()["nodes"]}
        assert abs(offsets["node-a"]) < 60 and abs(offsets["node-b"] - AHEAD_S) < 60, offsets
        assert 0 < manifest["ended_wall_ns"] - manifest["started_wall_ns"] < 120e9, manifest
        run.assert_nothing_left()
    finally:
        agent.kill()
        agent.wait()
        run.end()
    assert Path(run.attempt / "records").stat().st_size > 0
