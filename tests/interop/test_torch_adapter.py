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
