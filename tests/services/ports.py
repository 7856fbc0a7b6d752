"""Free TCP ports on 127.0.0.1 for services that must be told theirs."""
import random
import socket
from pathlib import Path


def free_ports(count):
    """Ports that nobody listens on now, below those that the kernel gives to outgoing connections."""
    first = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    generator, taken = random.SystemRandom(), {}
    while len(taken) < count:
        port = generator.randrange(10000, max(first, 12000))
        candidate = socket.socket()
        try:
            candidate.bind(("127.0.0.1", port))
            taken[port] = candidate
        except OSError:
            candidate.close()
    for candidate in taken.values():
        candidate.close()
    return list(taken)
