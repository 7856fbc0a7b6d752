"""What the Python package says a rank holds, against PyTorch's own planner and against the elements themselves."""
import json
import sys
from pathlib import Path

import pytest

from conftest import call

LAYOUTS = ["replicated", "fsdp", "tp", "hybrid", "fsdp-tp", "strided", "runs"]


@pytest.fixture(scope="module")
def found():
    def of(ranks, known={}):
        if ranks not in known:
            known[ranks] = None  # ranks that fail or hang do so once
            result = call(sys.executable, Path(__file__).with_name("torch_plan_ranks.py"), ranks, timeout=280)
            assert result.returncode == 0, result.stderr
            known[ranks] = json.loads(result.stdout)
        assert known[ranks], f"{ranks} ranks failed in an earlier test"
        return known[ranks]
    return of


@pytest.mark.parametrize("layout", LAYOUTS)
@pytest.mark.parametrize("ranks", [2, 4])
def test_regions_are_those_of_pytorchs_planner_and_make_up_every_tensor(found, ranks, layout):
    assert found(ranks)[layout] == "ok"
