"""One rank's ckptbench.checkpoint inside PyTorch, driven by ckptbench-worker over pipes: engine=torch-native.

It speaks what torch_dcp.py speaks, over the same memory, and calls what a training would call: checkpoint.save and
checkpoint.load. "words" of its init are the run's keys for the library, a line each; "programs" is the folder of the
worker, near which the library is; "run_folder" is named after the run that it works for.
"""
import os
import resource
import sys
import threading
import time
from pathlib import Path

from torch_dcp import Adapter, serve

# The package in a source tree, in a wheel (whose own folder this is), and where `make install` puts it.
HERE = Path(__file__).resolve().parent
PACKAGES = (HERE.parents[1] / "python", HERE.parents[2], HERE.parent / "python")
LIBRARY = "libckptbench.so"


def import_checkpoint(programs):
    """ckptbench.checkpoint of the same build as the programs, whatever else is installed."""
    for folder in (programs, programs.parent / "lib"):
        if (folder / LIBRARY).exists():
            os.environ.setdefault("CKPTBENCH_LIBRARY", str(folder / LIBRARY))
            break
    sys.path[:0] = [str(folder) for folder in PACKAGES if (folder / "ckptbench/checkpoint.py").exists()][:1]
    import ckptbench.checkpoint as checkpoint

    return checkpoint


class NativeAdapter(Adapter):
    def open_store(self):
        os.environ["CKPTBENCH_WORKS_FOR_RUN"] = Path(self.request["run_folder"]).name
        self.checkpoint = import_checkpoint(Path(self.request["programs"]))
        pairs = (word.partition("=") for word in self.request["words"].splitlines())
        self.options = {key.replace(".", "_", 1): value for key, _, value in pairs}
        self.options["record"] = ""  # the run itself records

    def state_dict(self, request):
        """A rank's pieces by name, as of a training with distributed tensors of its own."""
        state, boxes = self.states[request["name"]], {}
        for fqn, shape, dtype, chunk in state.pieces:
            boxes.setdefault((fqn, shape, dtype), []).append((chunk.offsets, state.tensors[fqn, chunk.offsets]))
        tensors = {fqn: self.checkpoint.Pieces(shape, dtype, parts) for (fqn, shape, dtype), parts in boxes.items()}
        return {**tensors, **state.objects}

    def save(self, request):
        state_dict, start = self.state_dict(request), time.monotonic()
        times = self.checkpoint.save(request["path"], state_dict, **self.options).result()
        return figures(times, time.monotonic() - start, times.bytes)

    def save_async(self, request):
        state_dict = self.state_dict(request)
        self.usage, self.begun_s = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
        self.behind = self.checkpoint.save(request["path"], state_dict, async_checkpoint=True, **self.options)
        self.called_s = time.monotonic() - self.begun_s
        self.watcher = threading.Thread(target=self.watch, daemon=True)
        self.watcher.start()
        return {}

    def watch(self):
        try:
            self.behind.result()
        except self.checkpoint.Error:
            pass  # wait() raises it
        self.ended_usage = resource.getrusage(resource.RUSAGE_SELF)
        self.count_end()

    def wait(self, request):
        self.watcher.join()
        times, before, after = self.behind.result(), self.usage, self.ended_usage
        described_s = max(0.0, self.called_s - times.stall_s)  # in Python, before the library's clock starts
        return dict(figures(times, times.total_s + described_s, times.bytes), ended_s=self.begun_s + described_s + times.total_s,
                    save_cpu_s=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    def load(self, request):
        state_dict, start = self.state_dict(request), time.monotonic()
        times = self.checkpoint.load(request["path"], state_dict, **self.options)
        seconds = time.monotonic() - start
        self.states[request["name"]].compare(state_dict)
        return figures(times, seconds, times.moved_bytes)


def figures(times, seconds, count):
    """Planning includes the description in Python: what a call takes beyond the library's own time."""
    return {"plan_s": times.plan_s + max(0.0, seconds - times.total_s), "io_s": times.transfer_s, "wait_s": times.wait_s, "bytes": count}


if __name__ == "__main__":
    serve(NativeAdapter())
