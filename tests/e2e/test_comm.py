"""Ranks talking to each other: the same exercises over MPI, under the real launcher, and over TCP."""
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import pytest

from harness import BUILD, mpirun

sys.path.insert(0, str(Path(__file__).resolve().parents[1] / "services"))
from ports import free_ports  # noqa: E402

DRILL = BUILD / "tests/comm_drill"


def over_mpi(name, ranks):
    result = subprocess.run([*mpirun(), "-n", str(ranks), str(DRILL), name], capture_output=True, text=True, timeout=120)
    return result.returncode == 0, result.stdout, result.stderr


def start_over_tcp(name, rank, ranks, port, **environment):
    variables = {**os.environ, "COMM_DRILL_TCP": f"{rank} {ranks} {port}", **environment}
    return subprocess.Popen([str(DRILL), name], env=variables, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)


def over_tcp(name, ranks):
    (port,) = free_ports(1)
    processes = [start_over_tcp(name, rank, ranks, port) for rank in range(ranks)]
    said = [process.communicate(timeout=120) for process in processes]
    return all(process.returncode == 0 for process in processes), "".join(out for out, _ in said), "".join(err for _, err in said)


@pytest.fixture(params=[over_mpi, over_tcp], ids=["mpi", "tcp"])
def drill(request):
    def run(name, ranks, ends_in_order=True):
        ended, out, err = request.param(name, ranks)
        assert ended or not ends_in_order, err
        return sorted(line for line in out.split("\n") if line.startswith("rank "))  # a launcher adds lines of its own

    return run


def test_agreement_names_the_lowest_failing_rank_and_reduces_the_numbers(drill):
    said = "no_space by 1, 2 failed, sum 46 min 10 max 13 word 70"
    assert drill("agree", 4) == [f"rank {rank} of 4: {said}" for rank in range(4)]


def test_broadcast_gives_every_rank_what_rank_0_has(drill):
    assert drill("broadcast", 3) == [f"rank {rank} of 3: rank 0's" for rank in range(3)]


def test_what_is_gathered_added_up_and_shared_out_is_right(drill):
    assert drill("collectives", 3) == [f"rank {rank} of 3: 0 wrong" for rank in range(3)]


@pytest.mark.parametrize("ranks", [1, 3])
def test_messages_arrive_in_the_order_of_their_tag_early_large_and_empty_ones(drill, ranks):
    assert drill("messages", ranks) == [f"rank {rank} of {ranks}: 0 wrong" for rank in range(ranks)]


def test_parts_of_the_ranks_talk_among_themselves(drill):
    assert drill("part", 5) == [f"rank {rank} of 5: {rank // 2} of {(3, 2)[rank % 2]}, sum {(6, 4)[rank % 2]}" for rank in range(5)]


def test_two_threads_talk_at_once_and_do_not_hear_each_other(drill):
    assert drill("twin", 3) == [f"rank {rank} of 3: 0 and 0 wrong" for rank in range(3)]


@pytest.mark.parametrize("name, code", [("absent", "timeout"), ("stop", "aborted")])
def test_a_rank_that_never_comes_does_not_hang_the_others(drill, name, code):
    said = drill(name, 3, ends_in_order=False)
    # A launcher ends the other rank as soon as one has left, perhaps before it has said its line.
    assert said and set(said) <= {f"rank {rank} of 3: {code}" for rank in (1, 2)}


def test_one_rank_needs_no_launcher():
    result = subprocess.run([str(DRILL), "broadcast"], capture_output=True, text=True, timeout=120)
    assert result.stdout == "rank 0 of 1: rank 0's\n", result.stderr


def test_over_tcp_a_rank_that_dies_is_named_to_the_others():
    _, out, _ = over_tcp("dead", 4)
    assert sorted(out.split("\n"))[1:] == [f"rank {rank} of 4: rank 1 is gone: the connection to it ended" for rank in (0, 2, 3)]


def test_over_tcp_sending_to_a_rank_that_died_fails_and_raises_no_signal():
    ended, out, _ = over_tcp("closed", 2)
    assert ended and out == "rank 0 of 2: rank 1 is gone: the connection to it ended\n"


def test_over_tcp_ranks_may_start_in_any_order():
    (port,) = free_ports(1)
    others = [start_over_tcp("agree", rank, 3, port) for rank in (1, 2)]
    time.sleep(0.3)  # they try, and are refused
    first = start_over_tcp("agree", 0, 3, port)
    for process in (first, *others):
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0 and "sum 33" in out, err


def test_over_tcp_a_stranger_is_turned_away_and_hinders_nobody():
    (port,) = free_ports(1)
    first = start_over_tcp("agree", 0, 3, port)
    strangers = []
    while len(strangers) < 3:
        try:
            strangers.append(socket.create_connection(("127.0.0.1", port)))
        except ConnectionRefusedError:
            time.sleep(0.01)
    strangers[0].sendall(b"GET / HTTP/1.1\r\n\r\n")
    other_key = start_over_tcp("agree", 1, 3, port, COMM_DRILL_KEY="x")
    _, why = other_key.communicate(timeout=120)
    assert other_key.returncode == 1 and "did not let this rank in" in why
    ranks = [start_over_tcp("agree", rank, 3, port) for rank in (1, 2)]
    for process in (first, *ranks):
        out, err = process.communicate(timeout=120)
        assert process.returncode == 0 and "sum 33" in out, err
    for stranger in strangers:
        stranger.close()


def test_over_tcp_who_has_not_come_is_named():
    (port,) = free_ports(1)
    processes = [start_over_tcp("agree", rank, 4, port, COMM_DRILL_KEY="k") for rank in (0, 1)]
    said = [process.communicate(timeout=120)[1] for process in processes]
    assert "2 of 4 ranks have not come; the first is rank 2" in said[0] and all(process.returncode == 1 for process in processes)
