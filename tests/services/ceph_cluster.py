"""A Ceph cluster in memory on this machine: one monitor, one OSD that keeps objects in memory, and one manager, on 127.0.0.1 and on
free ports, all below a folder. Services add what clients talk to."""
import os
import shutil
import signal
import subprocess
import sys
import time
import uuid
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from ports import free_ports  # noqa: E402

PROGRAMS = ("ceph-mon", "ceph-osd", "ceph-mgr", "ceph", "monmaptool")
MEMORY_BYTES = 3 << 30  # of objects; a full one makes writes wait for ever, so it is more than tests keep
START_SECONDS = 200

CONFIGURATION = """[global]
fsid={fsid}
mon_host=[v2:127.0.0.1:{ports[0]},v1:127.0.0.1:{ports[1]}]
public_addr=127.0.0.1
auth_cluster_required=none
auth_service_required=none
auth_client_required=none
osd_pool_default_size=1
osd_pool_default_min_size=1
osd_pool_default_pg_num=8
osd_crush_chooseleaf_type=0
mon_allow_pool_size_one=true
mon_osd_full_ratio=0.99
run_dir={folder}/run
admin_socket={sockets}/$cluster-$name.asok
log_file={folder}/run/$name.log
pid_file={folder}/run/$name.pid
mon_data={folder}/mon
osd_data={folder}/osd
mgr_data={folder}/mgr
osd_objectstore=memstore
memstore_device_bytes={memory}
"""


class Missing(Exception):
    pass


def check_programs(*more, packages):
    absent = [name for name in (*PROGRAMS, *more) if not shutil.which(name)]
    if absent:
        raise Missing(f"{', '.join(absent)} (apt-get install ceph-mon ceph-osd ceph-mgr ceph-common {packages})")


def environment():
    """Without what the user's own cluster needs."""
    return {key: value for key, value in os.environ.items() if not key.startswith("CEPH_")}


class Cluster:
    def __init__(self, folder):
        self.folder = Path(folder).resolve()
        self.configuration = self.folder / "ceph.conf"
        self.output = self.folder / "start.log"

    def say(self, *words):
        """The words of a program that runs against this cluster."""
        return [words[0], "-c", str(self.configuration), *words[1:]]

    def call(self, *words, timeout=60):
        """One program to its end; what it prints goes to the log, and into the message if it fails."""
        result = subprocess.run(self.say(*words), env=environment(), stdin=subprocess.DEVNULL, capture_output=True, text=True,
                                timeout=timeout)
        with self.output.open("a") as log:
            log.write(f"$ {' '.join(words)}\n{result.stdout}{result.stderr}")
        if result.returncode:
            raise RuntimeError(f"{words[0]} ended with {result.returncode}: {result.stderr[-2000:]}")
        return result.stdout

    def spawn(self, *words):
        """A daemon in the foreground of a session of its own. Its command line has the configuration's path: stop finds it by that."""
        with self.output.open("a") as log:
            return subprocess.Popen(self.say(*words, "-f"), env=environment(), stdin=subprocess.DEVNULL, stdout=log, stderr=log,
                                    start_new_session=True)

    def wait_until(self, condition, process, what):
        deadline = time.monotonic() + START_SECONDS
        while not condition():
            if process.poll() is not None:
                raise RuntimeError(f"{what} ended with {process.returncode}: see {self.output} and {self.folder}/run")
            if time.monotonic() > deadline:
                raise RuntimeError(f"{what} did not come up in {START_SECONDS} s: see {self.output} and {self.folder}/run")
            time.sleep(0.1)

    def osd_is_up(self):
        try:
            return "1 up" in self.call("ceph", "--connect-timeout", "5", "osd", "stat", timeout=20)
        except (RuntimeError, subprocess.TimeoutExpired):
            return False

    def write_configuration(self, more="", ports=0):
        """`more` sections, in which {ports[2]} and so on are as many further ports; all ports."""
        for name in ("mon", "osd", "mgr", "run"):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        ports = free_ports(2 + ports)
        sockets = self.folder / "run"
        if len(str(sockets)) > 60:  # a socket's path has room for 107 characters
            sockets = Path(f"/tmp/ckptbench-ceph-{os.getpid()}-{ports[0]}")
            sockets.mkdir()
            (self.folder / "sockets").write_text(str(sockets))
        self.fsid = str(uuid.uuid4())
        self.configuration.write_text((CONFIGURATION + more).format(fsid=self.fsid, ports=ports, folder=self.folder, sockets=sockets, memory=MEMORY_BYTES))
        return ports

    def start_cluster(self, ports):
        monmap, osd = self.folder / "monmap", str(uuid.uuid4())
        addresses = f"[v2:127.0.0.1:{ports[0]},v1:127.0.0.1:{ports[1]}]"
        self.call("monmaptool", "--create", "--fsid", self.fsid, "--addv", "a", addresses, str(monmap))
        self.call("ceph-mon", "--mkfs", "-i", "a", "--monmap", str(monmap))
        self.spawn("ceph-mon", "-i", "a")
        self.call("ceph", "--connect-timeout", "30", "osd", "create", osd)
        self.call("ceph-osd", "-i", "0", "--mkfs", "--osd-uuid", osd)
        process = self.spawn("ceph-osd", "-i", "0")
        self.spawn("ceph-mgr", "-i", "x")
        self.wait_until(self.osd_is_up, process, "ceph-osd")

    def processes(self):
        """Every process that was started with this cluster's configuration, whoever its parent is now."""
        found = []
        for entry in Path("/proc").iterdir():
            try:
                words = (entry / "cmdline").read_bytes().split(b"\0") if entry.name.isdigit() else []
            except OSError:
                continue
            if str(self.configuration).encode() in words and int(entry.name) != os.getpid():
                found.append(int(entry.name))
        return found

    def stop(self):
        """What is in memory goes with the processes, so nothing is to be saved."""
        deadline = time.monotonic() + 20
        while True:
            left = self.processes()
            for pid in left:
                try:
                    os.kill(pid, signal.SIGKILL)
                    os.waitpid(pid, 0)
                except (ProcessLookupError, ChildProcessError):
                    pass
            if not left:
                break
            if time.monotonic() > deadline:
                raise RuntimeError(f"these processes do not end: {left}")
            time.sleep(0.05)
        sockets = self.folder / "sockets"
        if sockets.exists():
            shutil.rmtree(sockets.read_text(), ignore_errors=True)
        shutil.rmtree(self.folder, ignore_errors=True)


def start(cluster):
    """What the cluster's start returns. Ends what it started if it fails."""
    try:
        return cluster.start()
    except BaseException:
        log = cluster.output.read_text() if cluster.output.exists() else ""
        cluster.stop()
        sys.stderr.write(log[-4000:])
        raise
