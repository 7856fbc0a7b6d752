"""Ratios of two things measured in turn: A B A B …, with an interval, and A against A first.

The interval of a ratio of medians is a percentile bootstrap over pairs (10,000 resamples, fixed seed),
so that what drifts with the machine's evening stays inside a pair.
"""
import random
import statistics
import time


def ratio_of_medians(pairs):
    return statistics.median(a for a, _ in pairs) / statistics.median(b for _, b in pairs)


def interval(pairs, resamples=10000):
    generator = random.Random(1)
    ratios = sorted(ratio_of_medians(generator.choices(pairs, k=len(pairs))) for _ in range(resamples))
    return ratios[int(0.025 * resamples)], ratios[int(0.975 * resamples) - 1]


FEWEST_PAIRS = 3


def alternate(first, second, pairs, warmup=1, within_s=float("inf")):
    """Calls first() and second() in turn, the order swapped in every other pair; both return a rate. Past `within_s` no
    more pairs begin than the fewest that an interval takes: what a disk takes for one is not known beforehand."""
    end = time.monotonic() + within_s
    for _ in range(warmup):
        first(), second()
    measured = []
    for index in range(pairs):
        if index >= FEWEST_PAIRS and time.monotonic() > end:
            break
        if index % 2:
            b, a = second(), first()
        else:
            a, b = first(), second()
        measured.append((a, b))
    return measured


class Table:
    """Rows as they are measured, printed at once and kept for the report."""

    def __init__(self):
        self.rows = []

    def add(self, name, pairs, target, unit):
        low, high = interval(pairs)
        row = {
            "name": name,
            "ours": statistics.median(a for a, _ in pairs),
            "peer": statistics.median(b for _, b in pairs),
            "unit": unit,
            "ratio": ratio_of_medians(pairs),
            "low": low,
            "high": high,
            "pairs": len(pairs),
            "target": target,
        }
        self.rows.append(row)
        print(f"{name:58s} {row['ours']:9.3f} {row['peer']:9.3f} {unit:12s} ratio {row['ratio']:.3f} "
              f"[{low:.3f}, {high:.3f}] n={len(pairs)}  target {target}", flush=True)

    def add_value(self, name, value, unit, target):
        self.rows.append({"name": name, "ours": value, "unit": unit, "target": target})
        print(f"{name:58s} {value:9.4g} {'':9s} {unit:12s} target {target}", flush=True)
