"""The Python package among real ranks over gloo: its checkpoints against those of stock torch.distributed.checkpoint.

The ranks run all cases in one go (torch_checkpoint_ranks.py); each test looks at one of them."""
import json
import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest

from conftest import BUILD, call

sys.path.insert(0, str(Path(__file__).parent))
import torch_states  # noqa: E402

pytestmark = pytest.mark.xdist_group("torch_checkpoint")
LIBRARY = {"CKPTBENCH_LIBRARY": str(BUILD / "libckptbench.so")}
RANKS = Path(__file__).with_name("torch_checkpoint_ranks.py")
PACKAGE = str(Path(__file__).resolve().parents[2] / "python")

SAVED_BY_LOADED_BY = ["ours_stock", "ours_ours", "async_stock", "stock_ours", "stock_broadcast", "writer_stock",
                      "writer_async_ours", "stock_reader", "ours_reader"]
MODULES = [*(f"modules_{kind}" for kind in torch_states.KINDS if kind != "plain"), "modules_flat", "modules_stock", "modules_numbered",
           *(f"modules_writer_async_{kind}" for kind in torch_states.STAGED), "stages"]
ALWAYS = ["modules_numbered", "stages"]  # of MODULES, also where FSDP1 cannot be used
FAILURES = ["mismatches", "one_rank_cannot_describe", "partial_sums", "values_that_differ", "what_is_no_state", "a_place_that_is_taken",
            "unknown_options", "one_rank_cannot_open", "one_rank_cannot_open_where_others_have",
            "one_rank_calls_wrongly", "a_handle_of_no_more_use",
            "a_rank_that_does_not_come",
            "a_store_of_torch_that_has_ended", "a_failed_save_is_told_at_the_next_call"]
WAYS = ["a_first_save_is_planned_without_tables_of_others_where_the_mesh_tells", "options_that_differ_have_one_order",
        "a_save_in_progress", "changed_while_it_is_saved",
        "the_thread_needs_no_gil", "groups", "a_process_that_ends"]


@pytest.fixture(scope="module")
def found(tmp_path_factory):
    def of(ranks, known={}):
        if ranks not in known:
            folder = tmp_path_factory.mktemp(f"ranks-{ranks}")
            known[ranks] = folder, None  # ranks that fail or hang do so once
            result = call(sys.executable, RANKS, ranks, folder, timeout=280, **LIBRARY)
            assert result.returncode == 0, result.stderr
            known[ranks] = folder, json.loads(result.stdout)
        assert known[ranks][1], f"{ranks} ranks failed in an earlier test"
        return known[ranks]
    return of


@pytest.mark.parametrize("ranks", [2, 4])
class TestRanks:
    @pytest.mark.parametrize("case", SAVED_BY_LOADED_BY)
    def test_every_layout_is_loaded_bit_for_bit_in_others(self, found, ranks, case):
        assert found(ranks)[1][case] == "ok"

    @pytest.mark.parametrize("case", MODULES)
    def test_modules_and_optimizers_are_loaded_under_other_parallelisms(self, found, ranks, case):
        if ranks == torch_states.NO_FSDP1_RANKS and case not in ALWAYS:
            pytest.skip("this PyTorch itself fails")
        assert found(ranks)[1][case] == "ok"

    @pytest.mark.parametrize("case", FAILURES)
    def test_what_is_wrong_is_an_error_with_its_reason(self, found, ranks, case):
        assert found(ranks)[1][case] == "ok"

    @pytest.mark.parametrize("case", WAYS)
    def test_ways_to_save(self, found, ranks, case):
        assert found(ranks)[1][case] == "ok"

    def test_a_save_in_progress_is_complete_when_the_processes_have_ended(self, found, ranks):
        folder, cases = found(ranks)
        assert cases["a_process_that_ends"] == "ok"
        assert (folder / "at-exit" / ".metadata").exists()

    def test_every_case_is_looked_at(self, found, ranks):
        modules = MODULES if ranks != torch_states.NO_FSDP1_RANKS else ALWAYS
        assert sorted(found(ranks)[1]) == sorted(SAVED_BY_LOADED_BY + modules + FAILURES + WAYS)


def run(program, folder, **environment):
    """One process without torch.distributed."""
    return subprocess.run([sys.executable, "-c", textwrap.dedent(program), str(folder)], capture_output=True, text=True, timeout=120,
                          env={**os.environ, **LIBRARY, "PYTHONPATH": PACKAGE, "OMP_NUM_THREADS": "1", **environment})


def test_a_save_that_fails_after_the_last_call_is_reported_when_the_process_ends(tmp_path):
    result = run("""
        import sys, torch, ckptbench.checkpoint as checkpoint
        checkpoint.save(f"fault:enospc_after=64KiB:{sys.argv[1]}/full", {"w": torch.ones(1 << 20)}, async_checkpoint=True)
        """, tmp_path)
    assert "in progress when the process ended has failed" in result.stderr and "space" in result.stderr
    assert not (tmp_path / "full" / ".metadata").exists()


def test_one_process_saves_and_loads_without_torch_distributed(tmp_path):
    result = run("""
        import sys, torch, ckptbench.checkpoint as checkpoint
        model = torch.nn.Linear(3, 2)
        optimizer = torch.optim.SGD(model.parameters(), lr=0.1, momentum=0.9)
        model(torch.ones(1, 3)).sum().backward()
        optimizer.step()
        times = checkpoint.save(sys.argv[1] + "/one", {"model": model, "optimizer": optimizer}).result()
        assert times.bytes == 4 * (6 + 2) * 2, times
        before = {name: value.clone() for name, value in model.state_dict().items()}
        optimizer.step()
        addresses = [value.data_ptr() for value in model.parameters()]
        checkpoint.load(sys.argv[1] + "/one", {"model": model, "optimizer": optimizer})
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        assert addresses == [value.data_ptr() for value in model.parameters()]
        """, tmp_path)
    assert result.returncode == 0, result.stderr


def test_threads_share_a_handle_and_one_that_was_closed_is_an_error(tmp_path):
    """Each load has its own values, and a call on a handle that another thread has closed does not end the process."""
    program = """
        import sys, threading
        import ckptbench.checkpoint as checkpoint
        from ckptbench import _world
        folder, wrong = sys.argv[1], []
        for number in range(2):
            checkpoint.save(f"{folder}/{number}", {"number": number})
        def load(number):
            for _ in range(100):
                state = {"number": None}
                checkpoint.load(f"{folder}/{number}", state)
                wrong.extend([state] if state["number"] != number else [])
        threads = [threading.Thread(target=load, args=(number,)) for number in range(2)]
        for thread in threads: thread.start()
        for thread in threads: thread.join()
        assert not wrong, wrong
        handle = _world.handle()
        checkpoint.close()
        try:
            handle.inspect(f"{folder}/0")
        except checkpoint.Error as error:
            print(error)
        """
    result = run(program, tmp_path)
    assert result.returncode == 0 and "were closed" in result.stdout, result.stdout + result.stderr


def test_saves_of_a_training_are_a_run_of_the_history(tmp_path):
    """Recorded by keyword; where it cannot be recorded, the save is made and a warning says why."""
    result = run("""
        import os, sys, warnings, torch, ckptbench.checkpoint as checkpoint
        warnings.simplefilter("error")
        for step in range(2):
            checkpoint.save(f"{sys.argv[1]}/step-{step}", {"w": torch.ones(1000)}, record="mine", label_job="nightly").result()
        checkpoint.close()
        warnings.simplefilter("always")
        os.environ["CKPTBENCH_RUN"] = "/proc/nowhere"
        with warnings.catch_warnings(record=True) as caught:
            checkpoint.save(f"{sys.argv[1]}/step-2", {"w": torch.ones(1000)})
        assert len(caught) == 1 and "/proc/nowhere" in str(caught[0].message), caught
        """, tmp_path, CKPTBENCH_HOME=str(tmp_path / "home"))
    assert result.returncode == 0, result.stderr
    assert all((tmp_path / f"step-{step}" / ".metadata").exists() for step in range(3))
    home = {"CKPTBENCH_HOME": str(tmp_path / "home")}
    assert call(BUILD / "ckptbench", "collect", "mine", **home).returncode == 0
    shown = json.loads(call(BUILD / "ckptbench", "show", "--json", "mine", **home).stdout)
    assert shown["labels"]["job"] == "nightly" and shown["metrics"]["save_s"]["n"] == 2, shown


def test_a_missing_library_says_how_to_get_it(tmp_path):
    result = run("import ckptbench.checkpoint", tmp_path, CKPTBENCH_LIBRARY=str(tmp_path / "nothing.so"))
    assert "`make` builds it" in result.stderr
