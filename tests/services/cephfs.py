"""CephFS in memory, mounted twice: a distributed file system as two machines see it, for tests.

usage: tests/services/cephfs.py start|stop FOLDER

A Ceph cluster (ceph_cluster.py), one metadata server, and two ceph-fuse clients that share nothing, all below FOLDER. Needs root and
/dev/fuse. Up in about 15 s.

Variables: CKPTBENCH_TEST_CEPHFS and …_SECOND are the two mounts.
"""
import os
import subprocess
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import ceph_cluster  # noqa: E402
import service_command  # noqa: E402

VARIABLE = "CKPTBENCH_TEST_CEPHFS"
Missing = ceph_cluster.Missing
MOUNTS = ("first", "second")

CONFIGURATION = """[mds]
mds_data={folder}/mds
[client]
admin_socket={sockets}/client.$pid.asok
# Else clients ask for the secure mode, which does not work without cephx.
ms_mon_client_mode=crc
"""


class FileSystem(ceph_cluster.Cluster):
    def start(self):
        for name in ("mds", *MOUNTS):
            (self.folder / name).mkdir(parents=True, exist_ok=True)
        self.start_cluster(self.write_configuration(CONFIGURATION))
        for pool in ("metadata", "data"):
            self.call("ceph", "osd", "pool", "create", pool, "8")
        self.call("ceph", "fs", "new", "fs", "metadata", "data")
        server = self.spawn("ceph-mds", "-i", "a")
        self.wait_until(lambda: "up:active" in self.call("ceph", "mds", "stat"), server, "ceph-mds")
        for name in MOUNTS:
            mount = self.folder / name
            client = self.spawn("ceph-fuse", str(mount))
            self.wait_until(lambda: os.path.ismount(mount) and os.statvfs(mount).f_blocks > 0, client, "ceph-fuse")  # 0 at first
        return {VARIABLE: str(self.folder / "first"), VARIABLE + "_SECOND": str(self.folder / "second")}

    def stop(self):
        for name in MOUNTS:  # also of a client that is gone
            subprocess.run(["umount", "--lazy", str(self.folder / name)], capture_output=True)
        super().stop()


def start(folder):
    """Starts a cluster below the folder; the variables that lead to it."""
    ceph_cluster.check_programs("ceph-mds", "ceph-fuse", packages="ceph-mds ceph-fuse")
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        raise Missing("root and /dev/fuse")
    return ceph_cluster.start(FileSystem(folder))


def stop(folder):
    FileSystem(folder).stop()


if __name__ == "__main__":
    service_command.main(sys.modules[__name__])
