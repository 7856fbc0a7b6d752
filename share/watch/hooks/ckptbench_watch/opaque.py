"""Files that are saved and loaded in one piece: torch.save and torch.load, and safetensors. Only their time and size
are seen; what happens inside is "write" or "read"."""
import os

from .recorder import Operation, absolute, current, set_current
from .wrap import around


def _hook(owner, name, op, position):
    """`position` is that of the file's name among the arguments."""

    def before(args, kwargs):
        if current() is not None:
            return None  # an item of a checkpoint that is recorded already
        place = args[position] if len(args) > position else kwargs.get("f", kwargs.get("filename"))
        if not isinstance(place, (str, os.PathLike)):  # a Path has a name, too: its last part
            place = getattr(place, "name", None)
        if not isinstance(place, (str, os.PathLike)):
            return None  # to memory
        operation = Operation(op, f"{owner.__name__}.{name}", os.path.dirname(absolute(place)), "io")
        operation.file, operation.is_whole_file = place, True
        return operation, set_current(operation)

    def after(token, error, result):
        operation, outer = token
        set_current(outer)
        try:
            operation.bytes_moved = os.stat(operation.file).st_size
        except OSError:
            pass  # a failed call, or a file that another rank has moved already
        operation.requests = operation.files = 1
        operation.end(error)

    return around(owner, name, before, after)


def install_torch(torch):
    _hook(torch, "save", "save", 1)
    _hook(torch, "load", "load", 0)


def install(module):
    _hook(module, "save_file", "save", 1)
    _hook(module, "load_file", "load", 0)
