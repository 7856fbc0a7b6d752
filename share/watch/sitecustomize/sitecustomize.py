"""Starts the hooks of `ckptbench watch` where PyTorch does not load entry points (before 2.5, or where
TORCH_DEVICE_BACKEND_AUTOLOAD=0); then runs the sitecustomize that this file hides."""
import importlib.machinery
import os
import sys

sys.path[:] = [folder for folder in sys.path if folder != os.path.dirname(__file__)]


def _start(name):
    try:
        import ckptbench_watch

        ckptbench_watch.start()
    except Exception as failure:
        print(f"ckptbench watch: {failure!r}", file=sys.stderr)


try:
    from ckptbench_watch_finder import Finder

    sys.meta_path.insert(0, Finder(["torch"], _start))
except Exception as error:  # the user's program must run as it would without us
    print(f"ckptbench watch: {error!r}", file=sys.stderr)
_hidden = importlib.machinery.PathFinder.find_spec("sitecustomize")
if _hidden is not None and _hidden.loader is not None:
    _hidden.loader.exec_module(sys.modules[__name__])
