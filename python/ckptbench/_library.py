"""libckptbench (include/ckptbench.h) through ctypes, which releases the GIL during every call."""
import array
import ast
import contextlib
import ctypes
import functools
import itertools
import os
import pathlib
import struct
import threading
import warnings

DIMS = 8
TIMEOUT = -6
ABORTED = -7
IS_MISSING = ": not in the checkpoint"  # in the library's error for a name that a load does not find
MEETING_BYTES = 256
REASON_BYTES = 512  # of what other ranks are told
USELESS = "; this handle can only be closed"  # at the end of the library's error


class Error(RuntimeError):
    """A save or load failed. `code` is the library's number for the reason."""

    def __init__(self, text, code=None):
        super().__init__(text)
        self.code = code


class _CError(ctypes.Structure):
    _fields_ = [("code", ctypes.c_int), ("text", ctypes.c_char * 1024)]


class _OpenOptions(ctypes.Structure):
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("rank", ctypes.c_uint32), ("rank_count", ctypes.c_uint32),
                ("listener", ctypes.c_void_p), ("meeting", ctypes.c_char_p),
                ("words", ctypes.POINTER(ctypes.c_char_p)), ("word_count", ctypes.c_size_t),
                ("allows_different_values", ctypes.c_uint32)]


class _State(ctypes.Structure):
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("tensors", ctypes.c_void_p), ("tensor_count", ctypes.c_size_t),
                ("regions", ctypes.c_void_p), ("region_count", ctypes.c_size_t),
                ("values", ctypes.c_void_p), ("value_count", ctypes.c_size_t),
                ("splits", ctypes.c_void_p), ("split_count", ctypes.c_size_t)]


class _Result(ctypes.Structure):
    _fields_ = [("struct_bytes", ctypes.c_size_t)] + \
        [(name, ctypes.c_double) for name in ("total_s", "stall_s", "plan_s", "transfer_s", "wait_s", "durable_s")] + \
        [(name, ctypes.c_uint64) for name in ("bytes", "moved_bytes", "plan_is_kept", "told_bytes")]


class _Entry(ctypes.Structure):
    _fields_ = [("struct_bytes", ctypes.c_size_t), ("fqn", ctypes.c_char_p), ("path", ctypes.c_char_p),
                ("is_value", ctypes.c_uint64), ("dtype", ctypes.c_int64), ("dims", ctypes.c_uint64),
                ("shape", ctypes.c_uint64 * DIMS), ("bytes", ctypes.c_uint64)]


def _find():
    """The path of the library: CKPTBENCH_LIBRARY, beside this file as in a wheel, in the source tree, where `make install`
    puts it, or the system's."""
    given = os.environ.get("CKPTBENCH_LIBRARY")
    if given:
        return given
    here = pathlib.Path(__file__).resolve().parent
    folders = (here / "bin", here.parents[1] / "build", *(prefix / "lib" for prefix in here.parents[3:4]))
    for candidate in (folder / "libckptbench.so" for folder in folders):
        if candidate.exists():
            return str(candidate)
    return "libckptbench.so"


def _load():
    try:
        library = ctypes.CDLL(_find(), use_errno=True)
    except OSError as error:
        raise ImportError(f"libckptbench cannot be loaded: {error}. `make` builds it; CKPTBENCH_LIBRARY names it") from None
    error, pointer, integer = ctypes.POINTER(_CError), ctypes.c_void_p, ctypes.c_int
    prototypes = {
        "version": (ctypes.c_char_p, []),
        "dtype": (ctypes.c_int64, [ctypes.c_char_p]),
        "dtype_name": (ctypes.c_char_p, [ctypes.c_int64]),
        "listen": (integer, [ctypes.c_char_p, ctypes.POINTER(pointer), ctypes.c_char_p, error]),
        "listener_free": (None, [pointer]),
        "timeout": (integer, [ctypes.POINTER(ctypes.c_char_p), ctypes.c_size_t, ctypes.POINTER(ctypes.c_double), error]),
        "open": (integer, [ctypes.POINTER(_OpenOptions), ctypes.POINTER(pointer), error]),
        "close": (integer, [pointer, error]),
        "save": (integer, [pointer, ctypes.c_char_p, ctypes.POINTER(_State), ctypes.POINTER(_Result), error]),
        "save_async": (integer, [pointer, ctypes.c_char_p, ctypes.POINTER(_State), ctypes.POINTER(pointer), error]),
        "async_wait": (integer, [pointer, ctypes.c_double, ctypes.POINTER(integer), ctypes.POINTER(_Result), error]),
        "async_free": (None, [pointer]),
        "load": (integer, [pointer, ctypes.c_char_p, ctypes.POINTER(_State), ctypes.POINTER(_Result), error]),
        "loaded_value": (integer, [pointer, ctypes.c_size_t, ctypes.POINTER(pointer), ctypes.POINTER(ctypes.c_uint64), error]),
        "inspect": (integer, [pointer, ctypes.c_char_p, ctypes.POINTER(pointer), error]),
        "checkpoint_count": (ctypes.c_size_t, [pointer]),
        "checkpoint_entry": (integer, [pointer, ctypes.c_size_t, ctypes.POINTER(_Entry), error]),
        "checkpoint_free": (None, [pointer]),
    }
    for name, (result, arguments) in prototypes.items():
        function = getattr(library, f"ckptbench_{name}")
        function.restype, function.argtypes = result, arguments
    return library


_library = _load()


@functools.cache
def find_plugin():
    """The path of the library's CUDA plugin, beside the library or where `make install` puts it; None if there is none."""
    given = os.environ.get("CKPTBENCH_CUDA_PLUGIN")
    places = [pathlib.Path(given)] if given else []
    if not given and os.sep in _library._name:  # else the system has found the library
        folder = pathlib.Path(_library._name).resolve().parent
        places = [folder / "ckptbench-cuda.so", folder / "ckptbench" / "ckptbench-cuda.so"]
    found = next((str(path) for path in places if path.exists()), None)
    if found:
        os.environ["CKPTBENCH_CUDA_PLUGIN"] = found  # the library would look near the program, which is Python
    return found


def _call(name, *arguments):
    """Calls a function that can fail; raises its error. A text without one says, once, why saves are not recorded."""
    error = _CError()
    code = getattr(_library, f"ckptbench_{name}")(*arguments, ctypes.byref(error))
    text = error.text.decode(errors="replace")
    if code and text.endswith(USELESS):
        text = text.removesuffix(USELESS) + "; checkpoint.close() lets the next save or load open new connections"
    if code:
        raise Error(text, code)
    if text:
        warnings.warn(f"ckptbench: {text}", RuntimeWarning, stacklevel=5)


def version():
    return _library.ckptbench_version().decode()


_dtypes = {}


def dtype_number(dtype):
    """The library's number for a torch.dtype. ValueError if it has none."""
    number = _dtypes.get(dtype)
    if number is None:
        name = str(dtype).removeprefix("torch.")
        number = _library.ckptbench_dtype(name.encode())
        if number < 0:
            raise ValueError(f"tensors of type {name} cannot be saved or loaded")
        _dtypes[dtype] = number
    return number


_CONTROLS = dict.fromkeys((*range(32), *range(127, 160)), " ")
_ESCAPES = {code: f"\\x{code:02x}" for code in (*range(32), 127)} | {ord("\\"): "\\\\", ord("'"): "\\'"}


def _literal(path):
    """A path as the library reads it: a Python tuple, other characters than ASCII's controls as they are."""
    keys = (str(key) if isinstance(key, int) else "'" + key.translate(_ESCAPES) + "'" for key in path)
    return f"({', '.join(keys)},)"


# What a description consists of is the same from save to save: the parts below are made once.

@functools.lru_cache(maxsize=65536)
def _texts(name, path):
    """(name, path) as C sees them: their memory, and the two addresses."""
    texts = [text.encode("utf-8", "surrogatepass") + b"\0" for text in (name, _literal(path))]
    memory = ctypes.create_string_buffer(b"".join(texts), sum(map(len, texts)))
    address = ctypes.addressof(memory)
    return memory, address, address + len(texts[0])


@functools.lru_cache(maxsize=65536)
def _tensor_row(name, path, dtype, shape):
    """(a ckptbench_tensor, the memory of its texts)."""
    if len(shape) > DIMS:
        raise ValueError(f"{name}: a tensor of {len(shape)} dimensions cannot be saved or loaded")
    memory, name_at, path_at = _texts(name, path)
    empty = (0,) * (DIMS - len(shape))
    return struct.pack(f"={4 + DIMS}Q", name_at, path_at, dtype_number(dtype), len(shape), *shape, *empty), memory


@functools.lru_cache(maxsize=65536)
def _box_row(offsets, sizes, strides):
    """The part of a ckptbench_region that does not depend on where it is."""
    empty = (0,) * (DIMS - len(sizes))
    return struct.pack(f"={3 * DIMS}Q", *offsets, *empty, *sizes, *empty, *strides, *empty)


class _Splits:
    """The ckptbench_splits of a state: those of its regions' that tell what all `ranks` hold, in the order of their use."""

    def __init__(self, ranks):
        self.ranks, self.numbers, self.indexes, self.rows = ranks, {None: 0}, [], []

    def row(self, splits):
        """The part of a ckptbench_region that refers to them."""
        return _split_row(tuple(map(self._number, splits))) if splits else _NO_SPLITS

    def _number(self, split):
        number = self.numbers.get(split)
        if number is None:
            number = 0
            if self.ranks and all(rank in split.index for rank in self.ranks):
                index = array.array("Q", map(split.index.get, self.ranks))
                self.indexes.append(index)
                self.rows.append(struct.pack("=2Q", split.pieces, index.buffer_info()[0]))
                number = len(self.rows)
            self.numbers[split] = number
        return number


@functools.lru_cache(maxsize=4096)
def _split_row(numbers):
    return struct.pack(f"={DIMS}Q", *numbers, *(0,) * (DIMS - len(numbers)))


_NO_SPLITS = _split_row(())


def _table(parts):
    table = array.array("Q")
    table.frombytes(b"".join(parts))
    return table


class State:
    """A ckptbench_state. `tensors` are _state.Tensor; `values` name -> bytes, or None in a load; `paths` name -> path; `ranks`:
    those of the handle, by their numbers in the mesh of DTensors; without them ranks tell each other what they hold."""

    def __init__(self, tensors, values, paths, ranks=()):
        rows, regions, value_rows, held, count, pair = [], [], [], [], 0, struct.Struct("=2Q").pack
        splits = _Splits(ranks)
        for index, tensor in enumerate(tensors):
            name = tensor.name
            row, texts = _tensor_row(name, paths.get(name) or (name,), tensor.dtype, tensor.shape)
            rows.append(row)
            held.append(texts)
            for region in tensor.regions:
                memory = region.memory
                regions += (pair(index, memory.data_ptr()), _box_row(region.offsets, memory.shape, memory.stride()),
                            pair(region.device, region.stream), splits.row(region.splits))
                held.append(memory)
                count += 1
        for name, stored in values.items():
            content = ctypes.c_char_p(stored)
            texts, *addresses = _texts(name, paths.get(name) or (name,))
            held += (content, texts)
            value_rows.append(struct.pack("=4Q", *addresses, ctypes.cast(content, ctypes.c_void_p).value or 0, len(stored or b"")))
        tables = [_table(parts) for parts in (rows, regions, value_rows, splits.rows)]
        self.names = list(values)
        self.kept = (held, tables, values, splits)
        self.struct = _State(ctypes.sizeof(_State), tables[0].buffer_info()[0], len(rows), tables[1].buffer_info()[0], count,
                             tables[2].buffer_info()[0], len(values), tables[3].buffer_info()[0], len(splits.rows))

    def refuse(self, reason):
        """Makes it a state with one tensor, of a type that stands for this, which is called by the reason."""
        name = ctypes.create_string_buffer(reason.encode("utf-8", "replace")[:REASON_BYTES])
        row = array.array("Q", (ctypes.addressof(name), 0, 1 << 62, *(0,) * (DIMS + 1)))
        self.kept += (name, row)
        self.struct.tensors, self.struct.tensor_count = row.buffer_info()[0], 1
        self.place = lambda path: b"-"  # the path may be what is wrong

    @staticmethod
    def place(path):
        """The path to pass with this state."""
        return encode_path(path)


def said(failure):
    """What a failure says, in one line."""
    try:
        text = str(failure) if isinstance(failure, Error) else f"{type(failure).__name__}: {failure}"
        return " ".join(text.translate(_CONTROLS).split()) or type(failure).__name__
    except Exception:  # of its __str__
        return type(failure).__name__


def together(describe, call):
    """Passes the State that `describe` returns to a collective call. If describing it fails on this rank, the call is
    made with a state that the library refuses, so that it fails on every rank and none is left waiting."""
    try:
        state = describe()
    except BaseException as failure:
        refused = State((), {}, {})
        refused.refuse(said(failure))
        try:
            call(refused)
        except Error:
            pass
        raise
    return call(state)


class Result(dict):
    """Seconds and bytes of a save or load, by name; also as attributes."""

    __getattr__ = dict.__getitem__


def _read_result(result):
    return Result((name, getattr(result, name)) for name, _ in _Result._fields_[1:])


class AsyncSave:
    """A save that continues in a thread of the library."""

    def __init__(self, pointer):
        self.pointer, self.process = pointer, os.getpid()

    def wait(self, seconds):
        """The result; None if it has not ended after `seconds`; raises how it failed."""
        if self.process != os.getpid():
            raise Error("this save belongs to the process that was forked: ask there")
        ended, result = ctypes.c_int(0), _Result(ctypes.sizeof(_Result))
        try:
            _call("async_wait", self.pointer, seconds, ctypes.byref(ended), ctypes.byref(result))
        except Error as error:
            if error.code == TIMEOUT and not ended.value:
                return None
            raise
        return _read_result(result)

    def __del__(self):
        if self.pointer and self.process == os.getpid():  # in a forked child its lock may be held for ever
            _library.ckptbench_async_free(self.pointer)


class Entry:
    """An item of a stored checkpoint. `dtype` is a name, or None for a value."""

    __slots__ = ("name", "path", "dtype", "shape", "bytes")

    def __init__(self, entry):
        self.name = entry.fqn.decode("utf-8", "surrogatepass")
        self.path = ast.literal_eval(entry.path.decode("utf-8", "surrogatepass")) if entry.path else (self.name,)
        self.dtype = None if entry.is_value else _library.ckptbench_dtype_name(entry.dtype).decode()
        self.shape = tuple(itertools.islice(entry.shape, entry.dims))
        self.bytes = entry.bytes


def encode_path(path):
    """As C has it: any bytes that a file system may have, and the whole of it."""
    if "\0" in path:
        raise ValueError(f"{path!r}: a path has no byte 0")
    return os.fsencode(path)


def _word_texts(words):
    return (ctypes.c_char_p * len(words))(*(word.encode("utf-8", "surrogateescape") for word in words))


def timeout(words):
    """The seconds for which a handle with these words waits for other ranks. Raises what is wrong with the words."""
    seconds = ctypes.c_double()
    _call("timeout", _word_texts(words), len(words), ctypes.byref(seconds))
    return seconds.value


class Handle:
    """A ckptbench handle. Any thread may call its functions; one waits for another."""

    def __init__(self, rank=0, rank_count=1, listener=None, meeting=None, words=()):
        self.pointer, self.lock = ctypes.c_void_p(), threading.RLock()
        texts = _word_texts(words)
        options = _OpenOptions(ctypes.sizeof(_OpenOptions), rank, rank_count, listener, meeting, texts, len(words))
        _call("open", ctypes.byref(options), ctypes.byref(self.pointer))
        self.rank, self.rank_count = rank, rank_count

    @contextlib.contextmanager
    def _used(self):
        """The pointer, which no other thread closes or loads with meanwhile."""
        with self.lock:
            if self.pointer is None:
                raise Error("the connections were closed while this call waited for them", ABORTED)
            yield self.pointer

    def close(self):
        """Waits for asynchronous saves; raises the failure of one that no other call has raised."""
        with self.lock:
            pointer, self.pointer = self.pointer, None
            _call("close", pointer)

    def save(self, path, state):
        result = _Result(ctypes.sizeof(_Result))
        with self._used() as pointer:
            _call("save", pointer, state.place(path), ctypes.byref(state.struct), ctypes.byref(result))
        return _read_result(result)

    def save_async(self, path, state):
        save = ctypes.c_void_p()
        with self._used() as pointer:
            _call("save_async", pointer, state.place(path), ctypes.byref(state.struct), ctypes.byref(save))
        return AsyncSave(save)

    def load(self, path, state):
        """(result, name -> bytes of the values)."""
        result = _Result(ctypes.sizeof(_Result))
        values, address, length = {}, ctypes.c_void_p(), ctypes.c_uint64()
        with self._used() as pointer:
            _call("load", pointer, state.place(path), ctypes.byref(state.struct), ctypes.byref(result))
            for index, name in enumerate(state.names):
                _call("loaded_value", pointer, index, ctypes.byref(address), ctypes.byref(length))
                values[name] = ctypes.string_at(address, length.value)
        return _read_result(result), values

    def inspect(self, path):
        """The Entries of a checkpoint, by name."""
        checkpoint, entries = ctypes.c_void_p(), {}
        with self._used() as pointer:
            _call("inspect", pointer, encode_path(path), ctypes.byref(checkpoint))
        try:
            for index in range(_library.ckptbench_checkpoint_count(checkpoint)):
                entry = _Entry(ctypes.sizeof(_Entry))
                _call("checkpoint_entry", checkpoint, index, ctypes.byref(entry))
                found = Entry(entry)
                entries[found.name] = found
        finally:
            _library.ckptbench_checkpoint_free(checkpoint)
        return entries


def listen(host):
    """(listener, meeting text) of rank 0; the listener goes to a Handle, or to forget_listener."""
    listener, meeting = ctypes.c_void_p(), ctypes.create_string_buffer(MEETING_BYTES)
    _call("listen", host.encode() if host else None, ctypes.byref(listener), meeting)
    return listener, meeting.value


def forget_listener(listener):
    _library.ckptbench_listener_free(listener)
