"""Tests marked without_sanitizers are left out, and counted as deselected, where programs have one: they limit the address
space, of which such programs take more to begin with than any limit leaves; or they test the source tree."""
import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[1]))
from harness import BUILD  # noqa: E402


def has_sanitizer():
    program = BUILD / "ckptbench-worker"
    return program.exists() and any(mark in program.read_bytes() for mark in (b"__asan_init", b"__tsan_init"))


def pytest_configure(config):
    config.addinivalue_line("markers", "without_sanitizers: needs programs that a limit of address space can bind, or none of this build")


def pytest_collection_modifyitems(config, items):
    if not has_sanitizer():
        return
    left_out = [item for item in items if item.get_closest_marker("without_sanitizers")]
    config.hook.pytest_deselected(items=left_out)
    items[:] = [item for item in items if item not in left_out]
