"""Ranks talking to each other, under the real launcher."""
import os
import subprocess

import pytest

from harness import BUILD

DRILL = BUILD / "tests/comm_drill"


def drill(name, ranks, ends_in_order=True):
    command = ["mpirun", "--oversubscribe", "-n", str(ranks)]
    if os.geteuid() == 0:
        command.insert(1, "--allow-run-as-root")
    result = subprocess.run([*command, str(DRILL), name], capture_output=True, text=True, timeout=60)
    assert (result.returncode == 0) == ends_in_order, result.stderr
    return sorted(result.stdout.split("\n"))[1:]


def test_agreement_names_the_lowest_failing_rank_and_reduces_the_numbers():
    said = "no_space by 1, 2 failed, sum 46 min 10 max 13"
    assert drill("agree", 4) == [f"rank {rank} of 4: {said}" for rank in range(4)]


def test_broadcast_gives_every_rank_what_rank_0_has():
    assert drill("broadcast", 3) == [f"rank {rank} of 3: rank 0's" for rank in range(3)]


def test_two_threads_talk_at_once_and_do_not_hear_each_other():
    assert drill("twin", 3) == [f"rank {rank} of 3: 0 and 0 wrong" for rank in range(3)]


@pytest.mark.parametrize("name, code", [("absent", "timeout"), ("stop", "aborted")])
def test_a_rank_that_never_comes_does_not_hang_the_others(name, code):
    said = drill(name, 3, ends_in_order=False)
    # The launcher ends the other rank as soon as one has left, perhaps before it has said its line.
    assert said and set(said) <= {f"rank {rank} of 3: {code}" for rank in (1, 2)}


def test_one_rank_needs_no_launcher():
    result = subprocess.run([str(DRILL), "broadcast"], capture_output=True, text=True, timeout=30)
    assert result.stdout == "rank 0 of 1: rank 0's\n", result.stderr
