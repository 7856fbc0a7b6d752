"""examples/: a training saved in one layout goes on in another with the losses that it would have had."""
import sys
from pathlib import Path

import pytest

from conftest import BUILD, call
from harness import ROOT

sys.path.insert(0, str(ROOT / "tests/services"))
from ports import free_ports  # noqa: E402

pytestmark = pytest.mark.xdist_group("examples_python")


def losses(ranks, *words):
    """step -> loss, as the example prints them."""
    for _ in range(3):  # another process may take the port meanwhile
        (port,) = free_ports(1)
        result = call(sys.executable, "-m", "torch.distributed.run", "--nproc-per-node", ranks, "--master-port", port,
                      ROOT / "examples/nanogpt.py", "--dtype", "float64", *words, timeout=280, PYTHONPATH=str(ROOT / "python"),
                      CKPTBENCH_LIBRARY=str(BUILD / "libckptbench.so"))
        if "EADDRINUSE" not in result.stderr:
            break
    assert result.returncode == 0, result.stderr
    lines = [line.split() for line in result.stdout.splitlines() if line.startswith("step ")]
    return {int(line[1]): float(line[3]) for line in lines}


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A training of 4 ranks that saves in the background: its folder and losses."""
    folder = tmp_path_factory.mktemp("whole")
    return folder, losses(4, "--tp", 2, "--steps", 4, "--save-every", 2, "--folder", folder)


def test_the_losses_of_the_same_layout_go_on_bit_for_bit(whole):
    folder, expected = whole
    assert losses(4, "--tp", 2, "--steps", 4, "--load", folder / "step-2") == {step: expected[step] for step in (3, 4)}
    assert expected[4] < expected[1]


@pytest.mark.parametrize("ranks, tp", [(2, 1), (2, 2)])
def test_the_losses_of_another_layout_go_on(whole, ranks, tp):
    folder, expected = whole
    found = losses(ranks, "--tp", tp, "--steps", 4, "--load", folder / "step-2")
    assert found == pytest.approx({step: expected[step] for step in (3, 4)}, rel=1e-6)
