"""engine=torch-dcp measures stock PyTorch: what stands between costs nothing of its own."""
import json
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/services"))
from ports import free_ports  # noqa: E402


def test_a_warm_save_pickles_no_more_than_plain_dcp_save(tmp_path):
    (port,) = free_ports(1)
    ranks = [subprocess.Popen([sys.executable, str(ROOT / "tests/interop/adapter_ranks.py"), str(ROOT / "share/adapters/torch_dcp.py"),
                               str(tmp_path), str(port), str(rank)], stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
             for rank in range(2)]
    said = [process.communicate(timeout=120) for process in ranks]
    assert all(process.returncode == 0 for process in ranks), said[0][1] + said[1][1]
    for out, _ in said:
        plain, ours = json.loads(out.splitlines()[-1])
        assert plain[2] < plain[0] / 2  # PyTorch's cache of plans works
        assert ours[1] <= 1.1 * plain[1] and ours[2] <= 1.1 * plain[2], (plain, ours)


def listeners(port):
    """The addresses at which somebody listens to the port, as /proc/net has them."""
    lines = [line.split() for name in ("tcp", "tcp6") for line in Path(f"/proc/net/{name}").read_text().splitlines()[1:]]
    return [place.split(":")[0] for _, place, _, state, *_ in lines if state == "0A" and int(place.split(":")[1], 16) == port]


def test_on_one_machine_nobody_else_can_reach_the_store_of_the_ranks():
    (port,) = free_ports(1)
    asked = {"command": "init", "rank": 0, "ranks": 1, "address": "127.0.0.1", "port": port, "threads": 1, "fsync": False, "dedup": "",
             "timeout_s": 60, "async": "default", "ended": "", "s3": None}
    with subprocess.Popen([sys.executable, str(ROOT / "share/adapters/torch_dcp.py")], stdin=subprocess.PIPE, stdout=subprocess.PIPE,
                          text=True) as process:
        process.stdin.write(json.dumps(asked) + "\n")
        process.stdin.flush()
        assert json.loads(process.stdout.readline())["ok"]
        assert listeners(port) == ["0100007F"]
        process.stdin.write('{"command": "quit"}\n')
        process.stdin.close()
