"""ckptbench watch is right: one rank's writes or fsyncs are delayed, and the report must blame that rank and that phase."""
import random
import statistics
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

TESTS = Path(__file__).resolve().parents[1]
sys.path[:0] = [str(TESTS / "e2e"), str(TESTS)]
from test_watch import STATES, TORCHRUN, TRAINING, Watched, slow_calls  # noqa: E402, F401

TRAININGS, SAVES = 4, 25
TRIALS = TRAININGS * SAVES
DELAY_MS = {"fsync": 600, "write": 200}  # of each call; a save has one fsync and a few writes
OWN = [state for state in STATES if state != "wait_s"]


def blame(place, slow_calls, cases):  # noqa: F811
    """In how many saves of a training the right one was blamed, and by how much times differ from the delays."""
    steps = ["save:first"]
    for number, (call, rank) in enumerate(cases):
        steps += [f"delay:{call}:{rank}:{DELAY_MS[call]}", f"save:{number % 4}", f"delay:{call}:{rank}:0", "waited"]
    place.mkdir()
    watched = Watched(place, "env", f"LD_PRELOAD={slow_calls}", *TORCHRUN, TRAINING, place, *steps, words=["baseline=false"])
    watched.check_sums("save")
    waits = {0: [], 1: []}
    for line in watched.result.stdout.splitlines():
        if line.startswith("waited "):
            _, rank, ns = line.split()
            waits[int(rank)].append(int(ns) / 1e9)
    own = watched.values("save", "own_s")
    states = {state: watched.values("save", state) for state in OWN}
    right, errors = 0, []
    for number, (call, rank) in enumerate(cases):
        iteration = number + 2  # after the first save, which is number 1
        blamed = max((0, 1), key=lambda one: own[iteration][one])
        phase = max(OWN, key=lambda state: states[state][iteration][blamed] - states[state][iteration][1 - blamed])
        wanted = {"fsync": "fsync_s", "write": "io_s"}[call]
        right += (blamed, phase) == (rank, wanted)
        errors.append(abs(states[wanted][iteration][rank] / waits[rank][number] - 1))
    return right, errors


def test_the_right_rank_and_phase_are_blamed(tmp_path, slow_calls):  # noqa: F811
    """In several trainings at once, which wait for most of their time."""
    draw = random.Random(4)
    cases = [[(draw.choice(["fsync", "write"]), draw.randrange(2)) for _ in range(SAVES)] for _ in range(TRAININGS)]
    with ThreadPoolExecutor(TRAININGS) as pool:
        found = list(pool.map(lambda number: blame(tmp_path / str(number), slow_calls, cases[number]), range(TRAININGS)))
    right, errors = sum(one for one, _ in found), [error for _, some in found for error in some]
    print(f"right in {right} of {TRIALS}; times differ from the delays by {100 * statistics.median(errors):.2f} % (median), "
          f"{100 * statistics.quantiles(errors, n=20)[-1]:.1f} % (95th of 100)")
    assert right >= 0.95 * TRIALS
