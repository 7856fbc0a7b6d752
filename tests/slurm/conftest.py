"""The harness of the short tier's tests of jobs."""
import sys
from pathlib import Path

TESTS = Path(__file__).resolve().parent.parent
sys.path[:0] = [str(TESTS / "e2e"), str(TESTS)]

# Tests that wait longest, for Slurm's own times: a requeued job pends about two minutes, nodes boot and are powered down.
LONGEST = ("preempted", "test_warm_long", "boot", "forgot", "test_site_build", "test_accounting", "lost")


def pytest_collection_modifyitems(items):
    """They begin first, so that none of them stands alone at the end; xdist hands tests out in this order."""
    items.sort(key=lambda item: next((place for place, word in enumerate(LONGEST) if word in item.nodeid), len(LONGEST)))
