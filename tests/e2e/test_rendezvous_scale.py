"""A rendezvous of 1,000 nodes: real connections, handshakes and messages, the agents in one other process."""
import json
import subprocess

from harness import BUILD


def test_a_thousand_nodes_join_in_little_memory():
    result = subprocess.run([BUILD / "tests/rendezvous_bench", "1000"], capture_output=True, text=True, timeout=120)
    assert result.returncode == 0, result.stdout + result.stderr
    figures = json.loads(result.stdout)
    assert (figures["joined"], figures["finished"], figures["lost"]) == (1000, 1000, 0)
    sanitized = b"__asan_init" in (BUILD / "ckptbench-agent").read_bytes() or b"__tsan_init" in (BUILD / "ckptbench-agent").read_bytes()
    assert sanitized or figures["head_memory_bytes"] < 64 << 20
