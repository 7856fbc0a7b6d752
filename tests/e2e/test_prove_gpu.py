"""What `make prove-gpu` writes, with a stand-in for nvidia-smi and for the programs it starts: what they cannot do here
(find a GPU, crash on it, hang) is what the file has to tell."""
import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "tests/gpu"))

import prove_gpu  # noqa: E402

SMI = """#!/bin/sh
case "$*" in
*--query-gpu*) echo "NVIDIA Test GPU, 580.1, {capability}, 80000 MiB, 00000000:01:00.0" ;;
*) echo "| NVIDIA-SMI 580.1   Driver Version: 580.1   CUDA Version: {cuda} |" ;;
esac
"""
WORKER = """#!/bin/sh
echo "NVIDIA Test GPU 0000:01:00.0"
"""
PASSES = """#!/bin/sh
printf '[  SKIPPED ] 1 test(s), listed below:\\n'
printf '[ RUN      ] test_copies_arrive\\n[       OK ] test_copies_arrive\\n[ RUN      ] test_sums_are_right\\n[       OK ] test_sums_are_right\\n'
"""
CRASHES = """#!/bin/sh
printf '[ RUN      ] test_copies_arrive\\n[       OK ] test_copies_arrive\\n[ RUN      ] test_sums_are_right\\n'
printf 'about to fall: ``` | \\n'
kill -SEGV $$
"""
HANGS = """#!/bin/sh
printf '[ RUN      ] test_copies_arrive\\n'
exec sleep 1000
"""


def script(path, text):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


@pytest.fixture
def machine(tmp_path):
    """A folder of programs as a build has them, and one of nvidia-smi alone; prove() runs the script with them."""

    class Machine:
        build, tools, report = tmp_path / "build", tmp_path / "tools", tmp_path / "report.md"

        def driver(self, cuda="13.0", capability="9.0"):
            script(self.tools / "nvidia-smi", SMI.format(cuda=cuda, capability=capability))

        def programs(self, test_gpu=PASSES, worker=WORKER):
            for name, text in (("ckptbench", "#!/bin/sh\nexit 3\n"), ("ckptbench-worker", worker), ("tests/test_gpu", test_gpu),
                               *((f"tests/{name}", PASSES) for name in ("test_gpu_train", "test_gpu_large", "test_gpu_library"))):
                script(self.build / name, text)

        def prove(self, *words, code=1):
            environment = dict(os.environ, PATH=f"{self.tools}:/usr/bin:/bin")
            command = [sys.executable, "tests/gpu/prove_gpu.py", "--no-build", "--no-bench", "--build", self.build, "--report", self.report, *words]
            result = subprocess.run([*map(str, command)], cwd=ROOT, env=environment, capture_output=True, text=True, timeout=250)
            assert result.returncode == code, result.stdout + result.stderr
            assert str(self.report) in result.stdout
            return self.report.read_text()

    return Machine()


def test_a_machine_without_a_driver_is_told_so_before_anything_is_started(machine):
    machine.tools.mkdir()
    script(machine.tools / "nvidia-smi", "#!/bin/sh\necho nvidia-smi has failed because it could not talk to the driver\nexit 9\n")
    text = machine.prove()
    assert "**1 of 1 checks failed:** nvidia-smi finds a driver and a GPU." in text
    assert "could not talk to the driver" in text and "everything after the first failed check: it was not tried" in text


@pytest.mark.parametrize("cuda, capability, why", [("12.8", "9.0", "it is for CUDA 12.8: update the driver"), ("13.0", "7.5", "too old: NVIDIA Test GPU")])
def test_an_old_driver_or_gpu_is_refused_before_anything_is_started(machine, cuda, capability, why):
    machine.driver(cuda, capability)
    text = machine.prove()
    assert why in text and "the plugin finds the GPU" not in text


def test_a_crash_is_a_failed_check_with_its_test_and_signal_and_the_rest_goes_on(machine):
    machine.driver()
    machine.programs(test_gpu=CRASHES)
    text = machine.prove()
    assert "| test_gpu: copies arrive | passed |" in text
    assert "### test_gpu runs to its end in: sums are right" in text and "was ended by SIGSEGV" in text
    assert "about to fall: ''' |" in text  # a fence in the output does not end ours
    assert "| test_gpu_train: sums are right | passed |" in text


def test_a_part_that_hangs_is_ended_and_named(machine):
    machine.driver()
    machine.programs(test_gpu=HANGS)
    text = machine.prove("--limit", "10")
    assert "### test_gpu runs to its end in: copies arrive" in text and "did not end in 10.0 s" in text
    assert "| test_gpu_train: copies arrive | passed |" in text


def test_a_plugin_that_finds_no_gpu_is_a_failed_check(machine):
    machine.driver()
    machine.programs(worker="#!/bin/sh\necho 'none: no driver (libcuda.so.1)'\nexit 1\n")
    text = machine.prove()
    assert "### the plugin finds the GPU" in text and "none: no driver (libcuda.so.1)" in text and "test_gpu" not in text.split("## Every check")[1]


def test_the_file_leads_with_the_outcome_and_shows_figures_beside_the_other_program(tmp_path):
    proof = prove_gpu.Proof(tmp_path, 1)
    proof.check("copies arrive", True)
    proof.facts.append(("GPU 0", "a | b"))
    proof.figures = {"device": "d", "missing": ["products: no PyTorch"],
                     "rows": [{"name": "copy to the GPU", "ours": 50.0, "peer": 52.0, "unit": "GiB/s", "ratio": 0.96, "low": 0.95, "high": 0.97, "pairs": 5,
                               "target": ">= 0.9"}, {"name": "start", "ours": 0.5, "unit": "s", "target": "< 1"}]}
    text = prove_gpu.report_text(proof)
    assert text.split("\n")[2] == "**All 1 checks passed.**"
    assert "| copy to the GPU | 50 GiB/s | 52 GiB/s | 0.960 [0.950, 0.970] of 5 pairs | >= 0.9 |" in text and "| start | 0.5 s |  |  | < 1 |" in text
    assert "- not measured: products: no PyTorch" in text and "| GPU 0 | a \\| b |" in text
