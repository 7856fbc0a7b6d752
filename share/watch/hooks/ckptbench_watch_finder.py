"""Calls a function right after a module has been imported for the first time."""
import importlib.abc
import importlib.util


class Finder(importlib.abc.MetaPathFinder):
    def __init__(self, names, then):
        self.names, self.then = set(names), then

    def find_spec(self, name, path, target=None):
        if name not in self.names:
            return None
        self.names.discard(name)  # the search below asks this finder again
        try:
            spec = importlib.util.find_spec(name)
            execute, then = spec.loader.exec_module, self.then

            def exec_module(module):
                execute(module)
                then(name)

            spec.loader.exec_module = exec_module
        except Exception:
            return None  # absent, or of a loader that is not ours to change: others import it, or say why not
        return spec
