"""The time between two steps of the first optimizer that makes any: alone, and while a save goes on behind it.

An interval in which the program was kept by a save or load is left out."""
import atexit
import sys

from .recorder import now_ns, watch

KEPT = 4096  # intervals of each kind; then every second one is dropped and only every second one is taken


class _Intervals:
    def __init__(self):
        self.values, self.every, self.skipped = [], 1, 0

    def add(self, seconds):
        self.skipped += 1
        if self.skipped < self.every:
            return
        self.skipped = 0
        self.values.append(seconds)
        if len(self.values) == KEPT:
            self.values = self.values[::2]
            self.every *= 2

    def median(self):
        ordered = sorted(self.values)
        middle = len(ordered) // 2
        return ordered[middle] if len(ordered) % 2 else (ordered[middle - 1] + ordered[middle]) / 2


class _Steps:
    def __init__(self):
        self.optimizer = None
        self.last_ns = 0
        self.last_kept = 0
        self.was_behind = False
        self.alone, self.behind = _Intervals(), _Intervals()

    def step(self, optimizer, args, kwargs):
        try:
            now, behind = now_ns(), bool(watch.saves_under_way())
            if self.optimizer is None:
                self.optimizer = id(optimizer)
            if self.optimizer != id(optimizer):
                return
            if self.last_ns and watch.kept == self.last_kept and behind == self.was_behind:
                (self.behind if behind else self.alone).add((now - self.last_ns) / 1e9)
            self.last_ns, self.last_kept, self.was_behind = now, watch.kept, behind
        except Exception as error:
            watch.fail("step", error)

    def write(self):
        try:
            for name, intervals in (("step_alone", self.alone), ("step_behind", self.behind)):
                if intervals.values and watch.broken is None:
                    watch.write({"op": name, "op_s": intervals.median()})
        except Exception as error:
            watch.fail("steps", error)


def install():
    steps = _Steps()
    register = getattr(sys.modules.get("torch.optim.optimizer"), "register_optimizer_step_post_hook", None)
    if register is None:
        watch.warn("this PyTorch cannot report steps of optimizers")
        return
    register(steps.step)
    atexit.register(steps.write)
