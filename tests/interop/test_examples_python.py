"""examples/: a training saved in one layout goes on in another with the losses that it would have had."""
import sys
from pathlib import Path

import pytest

from conftest import BUILD, call
from harness import ROOT

pytestmark = pytest.mark.timeout(900)  # imports and trainings on a machine that is busy with other tests
RANKS = Path(__file__).with_name("example_ranks.py")
VARIABLES = {"PYTHONPATH": f"{ROOT / 'python'}:{ROOT / 'examples'}", "CKPTBENCH_LIBRARY": str(BUILD / "libckptbench.so")}


def losses_in(text):
    """step -> loss, as the examples print them."""
    lines = [line.split() for line in text.splitlines() if line.startswith("step ")]
    return {int(line[1]): float(line[3]) for line in lines}


def losses(example, *trainings):
    """The losses of each training, "RANKS words…", one after the other."""
    result = call(sys.executable, "-W", "ignore", RANKS, example, *trainings, timeout=880, HF_HUB_OFFLINE="1", **VARIABLES)
    assert result.returncode == 0, result.stderr
    parts = result.stdout.split("== ")[1:]
    assert len(parts) == len(trainings)
    return [losses_in(part) for part in parts]


@pytest.mark.xdist_group("examples_nanogpt")
class TestNanogpt:
    """4 ranks of two stages with tensor parallelism save in the background; other layouts load."""

    @pytest.fixture(scope="class")
    def found(self, tmp_path_factory):
        folder = tmp_path_factory.mktemp("nanogpt")
        common = "--dtype float64 --steps 4"
        load = f"{common} --load {folder}/step-2"
        names = ["whole", "same", "dp2", "tp2", "pp2", "pp2 dp2"]
        return dict(zip(names, losses("nanogpt", f"4 {common} --pp 2 --tp 2 --save-every 2 --folder {folder}", f"4 {load} --pp 2 --tp 2",
                                      f"2 {load}", f"2 {load} --tp 2", f"2 {load} --pp 2", f"4 {load} --pp 2")))

    def test_the_losses_of_the_same_layout_go_on_bit_for_bit(self, found):
        assert found["same"] == {step: found["whole"][step] for step in (3, 4)}
        assert found["whole"][4] < found["whole"][1]

    @pytest.mark.parametrize("layout", ["dp2", "tp2", "pp2", "pp2 dp2"])
    def test_the_losses_of_another_layout_go_on(self, found, layout):
        assert found[layout] == pytest.approx({step: found["whole"][step] for step in (3, 4)}, rel=1e-6)


@pytest.mark.xdist_group("examples_train_loop")
class TestTrainLoop:
    @pytest.fixture(scope="class")
    def found(self, tmp_path_factory):
        """The losses of a whole training, of one that is started three times with other ranks at last, and its folder."""
        whole, folder = (tmp_path_factory.mktemp(name) for name in ("whole", "restarted"))
        for killed in ("step-5", "step-6"):  # as a training that was killed leaves it
            (folder / killed).mkdir()
            (folder / killed / "__0_0.distcp").write_bytes(b"a part")
        common = "--dtype float64 --save-every 2"
        return folder, *losses("train_loop", f"2 {common} --folder {whole} --steps 8", f"2 {common} --folder {folder} --steps 4",
                               f"2 {common} --folder {folder} --steps 6", f"4 {common} --folder {folder} --steps 8")

    def test_a_training_that_is_started_again_goes_on_bit_for_bit(self, found):
        _, whole, first, second, _ = found
        assert first | second == {step: whole[step] for step in range(1, 7)} and min(second) == 5
        assert whole[8] < whole[1]

    def test_a_training_that_is_started_with_other_ranks_goes_on(self, found):
        _, whole, *_, third = found
        assert third == pytest.approx({step: whole[step] for step in (7, 8)}, rel=1e-6)

    def test_the_newest_complete_checkpoints_stay(self, found):
        assert sorted(path.parent.name for path in found[0].glob("*/.metadata")) == ["step-4", "step-6", "step-8"]

    def test_torchrun_starts_it(self, tmp_path):
        result = call(sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", 2, ROOT / "examples/train_loop.py",
                      "--folder", tmp_path, "--steps", 2, "--save-every", 2, timeout=880, **VARIABLES)
        assert result.returncode == 0, result.stderr
        assert sorted(losses_in(result.stdout)) == [1, 2] and (tmp_path / "step-2/.metadata").exists()


class InFramework:
    """Ranks save, and go on by the example's class and by the framework's own way to load."""

    ranks = 2

    @pytest.fixture(scope="class")
    def found(self, tmp_path_factory):
        folder = tmp_path_factory.mktemp(self.example)
        load = f"--folder {folder}/again --steps 4 --load {folder}/{self.saved}"
        return losses(self.example, f"{self.ranks} --folder {folder} --steps 4 --save-every 2", *(f"{ranks} {load}" for ranks in self.continued))

    def test_a_training_goes_on_bit_for_bit(self, found):
        assert found[1] == {step: found[0][step] for step in (3, 4)}

    def test_the_framework_itself_loads_what_was_saved(self, found):
        assert found[2] == {step: found[0][step] for step in (3, 4)}


@pytest.mark.xdist_group("framework_lightning")
class TestInLightning(InFramework):
    example, saved, continued = "lightning_fsdp", "step=2.ckpt", ("2", "2 --stock", "4")

    def test_other_ranks_go_on(self, found):
        assert found[3] == pytest.approx({step: found[0][step] for step in (3, 4)}, rel=1e-6)


@pytest.mark.xdist_group("framework_hf_trainer")
class TestInHfTrainer(InFramework):
    example, saved, continued = "hf_trainer", "checkpoint-2", ("2", "2 --stock")


@pytest.mark.xdist_group("framework_hf_trainer")
class TestInHfTrainerOn4Ranks(InFramework):
    example, saved, ranks, continued = "hf_trainer", "checkpoint-2", 4, ("4", "4 --stock")
