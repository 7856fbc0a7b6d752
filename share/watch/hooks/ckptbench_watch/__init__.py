"""The hooks of `ckptbench watch`: they see the checkpoints of the program that runs here, whose code is not changed.

PyTorch calls `start` at the end of `import torch`, since this package is an entry point of torch.backends. An error
here would end that import, so none leaves this file.
"""
import importlib
import sys

from ckptbench_watch_finder import Finder

from .recorder import SPLIT_WRITERS, watch

_hooked = {"torch.distributed.checkpoint": "dcp", "safetensors.torch": "opaque", "ckptbench.checkpoint": "own",
           "ckptbench._library": "own", **dict.fromkeys(SPLIT_WRITERS, "writers")}


def _install(name):
    try:
        module = importlib.import_module(f"{__name__}.{_hooked[name]}")
        module.install(sys.modules[name])
    except Exception as error:
        watch.fail(name, error)


def start():
    try:
        if not watch.folder or watch.started:
            return
        watch.started = True
        from . import environment, opaque, steps

        opaque.install_torch(sys.modules["torch"])
        steps.install()
        environment.install()
        sys.meta_path.insert(0, Finder([name for name in _hooked if name not in sys.modules], _install))
        for name in [name for name in _hooked if name in sys.modules]:
            _install(name)
        watch.write({"op": "process", "torch": sys.modules["torch"].__version__})
    except Exception as error:
        watch.fail("start", error)
