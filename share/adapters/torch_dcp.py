"""One rank's PyTorch DCP, driven by ckptbench-worker over pipes.

The worker owns the memory of the state and the clock; this process lets stock
torch.distributed.checkpoint save that memory and load into it. A line of JSON on stdin asks, a line of
JSON on stdout answers ("ok": false carries the reason in "error"); everything else goes to stderr.

  {"command": "init", "rank", "ranks", "address", "port", "threads", "fsync", "dedup", "timeout_s", "async", "ended",
   "words", "programs", "run_folder",              of torch_native.py alone, which speaks the same
   "s3"}                                           null, or what the keys s3.* say: the store is in a bucket then
  {"command": "state", "name", "memory", "layout"}   a file to map, and a JSON file that says what is in it
  {"command": "save" | "load", "name", "path"}       answers its own durations, CPU seconds and bytes written or read
  {"command": "save_async", "name", "path"}          answers when the state may change; the save goes on
  {"command": "wait"}                                when that has ended: "ended_s" on the monotonic clock, and its figures
  {"command": "quit"}

"async" is "stager" (one DefaultStager for all saves, whose buffers stay) or "default" (async_save as it
comes); "ended" is a file of 8 bytes that holds how many such saves have ended.

A layout is {"tensors": [{"fqn", "dtype", "shape", "offsets", "sizes", "at"}], "objects": {fqn: literal}}:
each tensor entry is one contiguous piece of this rank, at byte `at` of the memory.
"""
import ast
import datetime
import inspect
import io
import ipaddress
import json
import math
import mmap
import os
import resource
import socket
import sys
import time

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed.checkpoint import DefaultLoadPlanner, DefaultSavePlanner, FileSystemReader, FileSystemWriter, default_planner
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    MetadataIndex,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.distributed.checkpoint.planner import LoadPlan, SavePlan, TensorWriteData, WriteItem, WriteItemType
from torch.distributed.checkpoint.planner_helpers import _create_read_items, create_read_items_for_chunk_list


class State:
    """Pieces of global tensors in mapped memory, and small objects."""

    def __init__(self, memory_path, layout_path):
        with open(layout_path, encoding="utf-8") as file:
            layout = json.load(file)
        with open(memory_path, "r+b") as file:
            size = os.fstat(file.fileno()).st_size
            self.memory = mmap.mmap(file.fileno(), size) if size else b""
        self.pieces = []
        self.tensors = {}
        for entry in layout["tensors"]:
            dtype = getattr(torch, entry["dtype"])
            count = math.prod(entry["sizes"])
            view = torch.empty(0, dtype=dtype)
            if count:
                view = torch.frombuffer(self.memory, dtype=dtype, count=count, offset=entry["at"])
            view = view.reshape(entry["sizes"])
            chunk = ChunkStorageMetadata(torch.Size(entry["offsets"]), torch.Size(entry["sizes"]))
            self.pieces.append((entry["fqn"], torch.Size(entry["shape"]), dtype, chunk))
            self.tensors[entry["fqn"], chunk.offsets] = view
        self.objects = {fqn: ast.literal_eval(literal) for fqn, literal in layout["objects"].items()}

    def compare(self, objects):
        """ValueError unless these are the small objects that were saved."""
        wrong = [fqn for fqn, value in self.objects.items() if objects.get(fqn) != value]
        if wrong:
            raise ValueError(f"small objects differ from what was saved: {', '.join(wrong[:10])}")

    def lookup(self, index):
        return self.tensors[index.fqn, torch.Size(index.offset)]

    def plan(self):
        items = [
            WriteItem(
                index=MetadataIndex(fqn, chunk.offsets),
                type=WriteItemType.SHARD,
                tensor_data=TensorWriteData(chunk=chunk, properties=TensorProperties(dtype=dtype), size=shape),
            )
            for fqn, shape, dtype, chunk in self.pieces
        ]
        return SavePlan(items + [WriteItem(index=MetadataIndex(fqn), type=WriteItemType.BYTE_IO) for fqn in self.objects])

    @property
    def bytes(self):
        return sum(tensor.numel() * tensor.element_size() for tensor in self.tensors.values())


stock_local_plan = default_planner.create_default_local_save_plan


def create_local_plan(state_dict, is_coordinator):
    """What stock PyTorch calls for the plan of a rank: with ours all around it stays stock, its cache of plans too."""
    return state_dict.plan() if isinstance(state_dict, State) else stock_local_plan(state_dict, is_coordinator)


default_planner.create_default_local_save_plan = create_local_plan


def read_so_far():
    """Bytes that this process has asked of files, whatever library asked."""
    with open("/proc/self/io", encoding="ascii") as file:
        return next(int(line.split()[1]) for line in file if line.startswith("rchar:"))


class Timed:
    """Seconds by name, for the parts of an operation that are visible from here."""

    def __init__(self):
        self.seconds = {}

    def call(self, name, function, *arguments):
        start = time.monotonic()
        try:
            return function(*arguments)
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.monotonic() - start


class PieceSavePlanner(DefaultSavePlanner):
    """Offers the pieces as chunks of global tensors; dedup and the global plan are torch's own."""

    def __init__(self, state, timed, **options):
        super().__init__(**options)
        self.pieces_state, self.timed = state, timed

    def set_up_planner(self, state_dict, storage_meta=None, is_coordinator=False):
        super().set_up_planner({}, storage_meta, is_coordinator)
        self.state_dict = self.pieces_state
        self.mappings = {fqn: (fqn,) for fqn in (*(piece[0] for piece in self.pieces_state.pieces), *self.pieces_state.objects)}

    def create_local_plan(self):
        return self.timed.call("plan_s", super().create_local_plan)

    def create_global_plan(self, all_plans):
        return self.timed.call("plan_s", super().create_global_plan, all_plans)

    def finish_plan(self, new_plan):
        plan = super().finish_plan(new_plan)
        self.bytes = sum(
            math.prod(item.tensor_data.chunk.sizes) * item.tensor_data.properties.dtype.itemsize
            for item in plan.items
            if item.tensor_data is not None
        )
        return plan

    def lookup_object(self, index):
        state = self.pieces_state
        return state.objects[index.fqn] if index.offset is None else state.lookup(index)

    def transform_object(self, write_item, object):
        if write_item.type != WriteItemType.BYTE_IO:
            return object
        bytes_io = io.BytesIO()
        torch.save(object, bytes_io)
        return bytes_io


class StagedSavePlanner(PieceSavePlanner):
    """The same on the copies that async_save has staged: {number of the piece: tensor}."""

    def set_up_planner(self, state_dict, storage_meta=None, is_coordinator=False):
        super().set_up_planner(state_dict, storage_meta, is_coordinator)
        self.staged = dict(zip(self.pieces_state.tensors, (state_dict[str(i)] for i in range(len(state_dict)))))

    def lookup_object(self, index):
        return self.pieces_state.objects[index.fqn] if index.offset is None else self.staged[index.fqn, torch.Size(index.offset)]


class PieceLoadPlanner(DefaultLoadPlanner):
    """Asks for the pieces of global tensors, straight into their memory."""

    def __init__(self, state, timed):
        super().__init__()
        self.pieces_state, self.timed, self.objects = state, timed, {}

    def set_up_planner(self, state_dict, metadata=None, is_coordinator=False):
        super().set_up_planner({}, metadata, is_coordinator)

    def create_local_plan(self):
        return self.timed.call("plan_s", self._create_local_plan)

    def _create_local_plan(self):
        state, stored = self.pieces_state, self.metadata.state_dict_metadata
        missing = sorted(({fqn for fqn, *_ in state.pieces} | set(state.objects)) - set(stored))
        if missing:
            raise KeyError(f"the checkpoint lacks {len(missing)} keys: {', '.join(missing[:10])}")
        requests = []
        for fqn, shape, dtype, chunk in state.pieces:
            there = stored[fqn]
            if not isinstance(there, TensorStorageMetadata) or there.size != shape:
                raise ValueError(f"{fqn} is {getattr(there, 'size', 'no tensor')} in the checkpoint, {shape} here")
            if there.properties.dtype != dtype:
                raise ValueError(f"{fqn} is {there.properties.dtype} in the checkpoint, {dtype} here")
            requests += create_read_items_for_chunk_list(fqn, there, [chunk])
        for fqn in state.objects:
            if not isinstance(stored[fqn], BytesStorageMetadata):
                raise ValueError(f"{fqn} is a tensor in the checkpoint, not a small object")
            requests += _create_read_items(fqn, stored[fqn], state.objects[fqn])
        return LoadPlan(requests)

    def load_bytes(self, read_item, value):
        self.objects[read_item.dest_index.fqn] = torch.load(value, weights_only=False)

    def lookup_tensor(self, index):
        return self.pieces_state.lookup(index)


class TimedWrites:
    """Mixed into a storage writer."""

    timed: Timed

    def write_data(self, plan, planner):
        return self.timed.call("io_s", super().write_data, plan, planner)

    def finish(self, metadata, results):
        return self.timed.call("commit_s", super().finish, metadata, results)


class TimedReads:
    """Mixed into a storage reader."""

    timed: Timed

    def read_data(self, plan, planner):
        return self.timed.call("io_s", super().read_data, plan, planner)


class TimedWriter(TimedWrites, FileSystemWriter):
    pass


class TimedReader(TimedReads, FileSystemReader):
    pass


class Bucket:
    """The S3 connector's writer and reader of a path s3://…, as the keys s3.* have it."""

    def __init__(self, keys):
        from s3torchconnector import S3ClientConfig

        if keys["endpoint"]:  # the connector has no other way to be told
            os.environ["AWS_ENDPOINT_URL"] = keys["endpoint"]
        if keys["profile"]:
            os.environ["AWS_PROFILE"] = keys["profile"]
        self.region = keys["region"] or os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"
        elsewhere = bool(os.environ.get("AWS_ENDPOINT_URL"))
        path_style = elsewhere if keys["path_style"] == "auto" else keys["path_style"] == "true"
        self.config = S3ClientConfig(part_size=keys["part_size"], force_path_style=path_style)

    def writer(self, path, threads):
        from s3torchconnector.dcp import S3StorageWriter

        kind = type("TimedBucketWriter", (TimedWrites, S3StorageWriter), {})
        return kind(region=self.region, path=path, s3client_config=self.config, thread_count=threads)

    def reader(self, path):
        from s3torchconnector.dcp import S3StorageReader

        kind = type("TimedBucketReader", (TimedReads, S3StorageReader), {})
        return kind(region=self.region, path=path, s3client_config=self.config)


def meet(request):
    """The ranks' store, which listens only at the address that they know: PyTorch's own listens at every one. A name
    that this machine has for itself alone is no address for others."""
    address, port, rank = request["address"], request["port"], request["rank"]
    timeout = datetime.timedelta(seconds=request["timeout_s"])
    options = {}
    if rank == 0:
        family, _, _, _, place = socket.getaddrinfo(address, port, type=socket.SOCK_STREAM)[0]
        if address == "127.0.0.1" or not ipaddress.ip_address(place[0]).is_loopback:
            listening = socket.create_server(place[:2], family=family, backlog=max(request["ranks"], 128))
            options = {"master_listen_fd": listening.detach(), "use_libuv": False}
    return dist.TCPStore(address, port, request["ranks"], rank == 0, timeout, **options)


class Adapter:
    def __init__(self):
        self.states = {}
        self.stager = self.future = None

    def init(self, request):
        self.request, self.ended = request, 0
        self.open_store()
        dist.init_process_group(
            "gloo",
            store=meet(request),
            rank=request["rank"],
            world_size=request["ranks"],
            timeout=datetime.timedelta(seconds=request["timeout_s"]),
        )
        return {"torch": torch.__version__, "python": sys.version.split()[0]}

    def open_store(self):
        self.bucket = Bucket(self.request["s3"]) if self.request["s3"] else None

    def state(self, request):
        self.states[request["name"]] = State(request["memory"], request["layout"])
        return {}

    def prepare_save(self, request, planner_class):
        state, timed = self.states[request["name"]], Timed()
        options = {"dedup_save_to_lowest_rank": self.request["dedup"] == "lowest_rank"}
        if "enable_plan_caching" in inspect.signature(DefaultSavePlanner).parameters:
            options["enable_plan_caching"] = True
        if self.bucket:
            writer = self.bucket.writer(request["path"], self.request["threads"])
        else:
            writer = TimedWriter(
                request["path"],
                single_file_per_rank=True,
                sync_files=self.request["fsync"],
                thread_count=self.request["threads"],
            )
        writer.timed = timed
        return writer, planner_class(state, timed, **options)

    def save(self, request):
        writer, planner = self.prepare_save(request, PieceSavePlanner)
        dcp.save({}, storage_writer=writer, planner=planner)
        return dict(planner.timed.seconds, bytes=planner.bytes)

    def save_async(self, request):
        options = {}
        if self.request["async"] == "stager":
            from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions

            if self.stager is None:
                self.stager = DefaultStager(StagingOptions(False, False, False, False))
            options["async_stager"] = self.stager
        self.usage = resource.getrusage(resource.RUSAGE_SELF)
        writer, self.planner = self.prepare_save(request, StagedSavePlanner)
        tensors = {str(i): tensor for i, tensor in enumerate(self.planner.pieces_state.tensors.values())}
        self.future = dcp.async_save(tensors, storage_writer=writer, planner=self.planner, **options)
        self.future.add_done_callback(self.note_end)
        return {}

    def note_end(self, future):
        self.ended_s, self.ended_usage = time.monotonic(), resource.getrusage(resource.RUSAGE_SELF)
        self.count_end()

    def count_end(self):
        self.ended += 1
        with open(self.request["ended"], "r+b", buffering=0) as file:
            file.write(self.ended.to_bytes(8, "little"))

    def wait(self, request):
        future, self.future = self.future, None
        future.result()
        while not hasattr(self, "ended_s"):  # the callback runs right after the result is there
            time.sleep(0.0001)
        before, after = self.usage, self.ended_usage
        return dict(self.planner.timed.seconds, bytes=self.planner.bytes, ended_s=self.__dict__.pop("ended_s"),
                    save_cpu_s=after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime)

    def load(self, request):
        state, timed = self.states[request["name"]], Timed()
        reader = self.bucket.reader(request["path"]) if self.bucket else TimedReader(request["path"])
        reader.timed = timed
        planner = PieceLoadPlanner(state, timed)
        before = read_so_far()
        dcp.load({}, storage_reader=reader, planner=planner)
        read = read_so_far() - before
        state.compare(planner.objects)
        return dict(timed.seconds, bytes=read)

    def answer(self, request):
        before, start = resource.getrusage(resource.RUSAGE_SELF), time.monotonic()
        result = getattr(self, request["command"])(request)
        after = resource.getrusage(resource.RUSAGE_SELF)
        result["seconds"] = time.monotonic() - start
        result["cpu_s"] = after.ru_utime + after.ru_stime - before.ru_utime - before.ru_stime
        result["rss_bytes"] = after.ru_maxrss * 1024
        return result


def reason(failure):
    """The first cause: DCP wraps what the ranks raised."""
    failures = getattr(failure, "failures", None)
    if failures:
        rank, (cause, _) = sorted(failures.items())[0]
        return f"rank {rank}: {reason(cause)}"
    return f"{type(failure).__name__}: {failure}"


def serve(adapter):
    answers = os.fdopen(os.dup(1), "w", encoding="utf-8")
    os.dup2(2, 1)  # what libraries print must not get between the answers
    for line in sys.stdin:
        request = json.loads(line)
        if request["command"] == "quit":
            break
        try:
            result = dict(adapter.answer(request), ok=True)
        except (KeyboardInterrupt, SystemExit):
            raise
        except BaseException as failure:  # DCP's CheckpointException is no Exception
            result = {"ok": False, "error": reason(failure)[:2000]}
        print(json.dumps(result), file=answers, flush=True)


if __name__ == "__main__":
    serve(Adapter())
