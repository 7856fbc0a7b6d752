"""The tests that prove the CUDA plugin on a GPU, here against its own source built for the processor (tests/cuda_on_cpu):
kernels run with the threads of a block in a random order, and whatever no device allows fails them."""
import os
import subprocess

import pytest

from harness import BUILD

VARIANTS = BUILD / "tests/cuda_on_cpu"


def run(program, variant, seed, **settings):
    plugin = VARIANTS / variant / "ckptbench-cuda.so"
    environment = dict(os.environ, CKPTBENCH_CUDA_PLUGIN=str(plugin), CKPTBENCH_SMALL_GPU_TESTS="1", CUDA_ON_CPU_SEED=str(seed), **settings)
    return subprocess.run([BUILD / "tests" / program], env=environment, capture_output=True, text=True, timeout=580)


@pytest.mark.parametrize("program, checked", [("test_gpu", False), ("test_gpu_train", True), ("test_gpu_library", False)])
def test_the_plugin_passes_its_own_tests_with_threads_in_random_order(program, checked):
    variant = "asan" if (VARIANTS / "asan").exists() else "checked" if checked else "plain"
    settings = {} if variant == "checked" else {"CUDA_ON_CPU_STAYS_OPEN": "1"}  # the host's accesses are looked at once
    result = run(program, variant, os.getpid(), **settings)
    assert result.returncode == 0, f"seed {os.getpid()}\n{result.stdout[-4000:]}{result.stderr[-4000:]}"


def test_elements_beyond_32_bits_are_reached():
    variant = "asan" if (VARIANTS / "asan").exists() else "plain"
    settings = {"CUDA_ON_CPU_EDGES": "1", "CUDA_ON_CPU_BYTES": str(128 << 30), "CUDA_ON_CPU_STAYS_OPEN": "1"}
    result = run("test_gpu_large", variant, os.getpid(), **settings)
    assert result.returncode == 0 and "SKIPPED" not in result.stdout, f"seed {os.getpid()}\n{result.stdout[-4000:]}{result.stderr[-4000:]}"
