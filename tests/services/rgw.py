"""Ceph RGW in memory: a real S3 server on this machine, for tests, demos and benchmarks.

usage: tests/services/rgw.py start|stop FOLDER

One monitor, one OSD that keeps objects in memory, one manager and one gateway, all on 127.0.0.1 and on free
ports, all below FOLDER. It checks signatures for real, speaks HTTP and (with a certificate of a CA made in
FOLDER) HTTPS, and takes buckets in the path and in the host name (BUCKET.s3.localhost). Up in about 12 s.

Variables: CKPTBENCH_TEST_S3 is the endpoint, …_TLS the one with TLS, …_CA the file of its CA, …_ACCESS_KEY and
…_SECRET_KEY the credentials of a user.
"""
import http.client
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

import ceph_cluster  # noqa: E402
import service_command  # noqa: E402
from certificates import make_authority, make_certificate  # noqa: E402
from s3_client import Client  # noqa: E402

VARIABLE = "CKPTBENCH_TEST_S3"
ACCESS_KEY, SECRET_KEY = "ckptbenchtest", "ckptbench-test-secret"
Missing = ceph_cluster.Missing

CONFIGURATION = """[client.rgw]
rgw_data={folder}/rgw
# Removed objects give their memory back at once, not after two hours.
rgw_gc_obj_min_wait=1
rgw_gc_processor_period=2
rgw_gc_processor_max_time=60
rgw_dns_name=s3.localhost
# Without tcp_nodelay each small answer waits 40 ms for the delayed acknowledgement of its header.
rgw_frontends=beast tcp_nodelay=1 endpoint=127.0.0.1:{ports[2]} ssl_endpoint=127.0.0.1:{ports[3]} ssl_certificate={folder}/server.pem ssl_private_key={folder}/server.key
# Else the gateway asks for the secure mode, which does not work without cephx.
ms_mon_client_mode=crc
"""


class Gateway(ceph_cluster.Cluster):
    def start(self):
        (self.folder / "rgw").mkdir(parents=True, exist_ok=True)
        ports = self.write_configuration(CONFIGURATION, ports=2)
        authority = make_authority(self.folder, "ckptbench test CA")
        make_certificate(authority, self.folder / "server", ["s3.localhost", "*.s3.localhost"], ["127.0.0.1"])
        self.start_cluster(ports)
        gateway = self.spawn("radosgw", "-n", "client.rgw")
        self.wait_until(lambda: answers(ports[2]), gateway, "radosgw")
        self.call("radosgw-admin", "user", "create", "--uid=test", "--display-name=test", f"--access-key={ACCESS_KEY}",
                  f"--secret-key={SECRET_KEY}", "--max-buckets=100000")
        self.wait_until(lambda: makes_buckets(ports[2]), gateway, "a bucket in radosgw")
        return {
            VARIABLE: f"http://127.0.0.1:{ports[2]}",
            VARIABLE + "_TLS": f"https://127.0.0.1:{ports[3]}",
            VARIABLE + "_CA": str(self.folder / "ca.pem"),
            VARIABLE + "_ACCESS_KEY": ACCESS_KEY,
            VARIABLE + "_SECRET_KEY": SECRET_KEY,
        }


def answers(port):
    connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
    try:
        connection.request("GET", "/")
        return connection.getresponse().status < 500
    except OSError:
        return False
    finally:
        connection.close()


def makes_buckets(port):
    """The first bucket makes the pools of all, which takes long on a busy machine; the same one again is no error."""
    try:
        Client(f"http://127.0.0.1:{port}", ACCESS_KEY, SECRET_KEY).make_bucket("first-of-all")
        return True
    except (OSError, http.client.HTTPException, AssertionError):
        return False


def start(folder):
    """Starts a cluster below the folder; the variables that lead to it."""
    ceph_cluster.check_programs("radosgw", "radosgw-admin", packages="radosgw")
    return ceph_cluster.start(Gateway(folder))


def stop(folder):
    Gateway(folder).stop()


if __name__ == "__main__":
    service_command.main(sys.modules[__name__])
