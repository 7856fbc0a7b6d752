"""Saves and loads with ckptbench.checkpoint and with stock torch.distributed.checkpoint, in many layouts, by real ranks.

usage: torch_checkpoint_ranks.py RANKS FOLDER [CASE…]. Prints one JSON object: case -> "ok", or what went wrong."""
import contextlib
import ctypes
import datetime
import inspect
import json
import os
import shutil
import sys
import threading
import time
import traceback
import warnings
from unittest import mock

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
import torch.multiprocessing as mp
from torch.distributed.checkpoint import state_dict as torch_state

HERE = os.path.dirname(os.path.abspath(__file__))
sys.path[:0] = [HERE, os.path.join(HERE, "..", "..", "python")]
import torch_states  # noqa: E402

LAYOUTS = torch_states.LAYOUTS
CASES = {}  # name -> function of Ranks, which returns None or what went wrong


class Ranks:
    def __init__(self, folder):
        self.folder, self.rank, self.size = folder, dist.get_rank(), dist.get_world_size()
        self.meshes = torch_states.Meshes(self.size)

    def path(self, *words):
        return os.path.join(self.folder, "-".join(map(str, words)))

    def agreed(self, *texts):
        """The first text that a rank has, so that all ranks return from a case together."""
        return next(filter(None, sum(torch_states.gather(list(texts)), [])), None)

    def must_raise(self, name, call):
        """As must_fail, for an error of this type, or another one that names it."""
        try:
            call()
        except Exception as error:
            return None if type(error).__name__ == name or name in str(error) else f"fails with {type(error).__name__}: {error}"
        return f"did not raise {name}"

    def must_fail(self, text, call):
        """What was wrong with how a call failed, on this rank; None if its error contains the text."""
        try:
            call()
        except Exception as error:
            return None if text in str(error) else f"fails with {type(error).__name__}: {error}"
        return f"did not fail with {text!r}"


def case(function):
    CASES[function.__name__] = function
    return function


def check():
    import ckptbench.checkpoint as checkpoint
    return checkpoint


# Every layout saved by each way of saving, and loaded by each way of loading into its own layout and into others.

def ours(state, path):
    check().save(path, state)


def ours_async(state, path):
    save = check().save(path, state, async_checkpoint=True)
    forget(state)
    times = save.result()
    assert save.done() and times.stall_s > 0 and times.durable_s >= times.stall_s and times is save.times, times


def forget(state):
    """Changes all tensors as training would."""
    for value in torch_states.leaves(state):
        local = getattr(value, "_local_tensor", value)
        local.copy_(torch_states.zeros_like(local))


def stock(state, path):
    dcp.save(state, checkpoint_id=path)


def writer(state, path):
    dcp.save(state, storage_writer=check().Writer(path))


def writer_async(state, path):
    future = dcp.async_save(state, storage_writer=check().Writer(), checkpoint_id=path)
    forget(state)
    future.result()


SAVERS = {"ours": ours, "async": ours_async, "stock": stock, "writer": writer, "writer_async": writer_async}
LOADERS = {"ours": lambda state, path: check().load(path, state),
           "broadcast": lambda state, path: check().load(path, state, broadcast_checkpoint=True),
           "stock": lambda state, path: dcp.load(state, checkpoint_id=path),
           "reader": lambda state, path: dcp.load(state, storage_reader=check().Reader(path))}
NO_RUNS = {"stock", "writer", "writer_async", "reader"}  # PyTorch's planner takes rows that are apart for one box


def layouts_of(saver, loader, step):
    """Saves in every layout, and loads into the one `step` further; returns the first difference."""
    def run(ranks):
        for number, layout in enumerate(LAYOUTS):
            other = LAYOUTS[(number + step) % len(LAYOUTS)]
            if layout == "runs" and saver in NO_RUNS or other == "runs" and loader in NO_RUNS:
                continue
            path = ranks.path(saver, loader, layout)
            SAVERS[saver](torch_states.state(ranks.meshes, layout), path)
            loaded = torch_states.state(ranks.meshes, other, blank=True)
            LOADERS[loader](loaded, path)
            differs = ranks.agreed(torch_states.difference(torch_states.state(ranks.meshes, other), loaded))
            if differs:
                return f"{layout} to {other}: {differs}"
            dist.barrier()
            if ranks.rank == 0:
                shutil.rmtree(path)
        return None
    return run


for step, (saver, loader) in enumerate((("ours", "ours"), ("ours", "stock"), ("stock", "ours"), ("async", "stock"), ("writer", "stock"),
                                        ("stock", "broadcast"), ("stock", "reader"), ("ours", "reader"), ("writer_async", "ours"))):
    CASES[f"{saver}_{loader}"] = layouts_of(saver, loader, step)


@case
def a_first_save_is_planned_without_tables_of_others_where_the_mesh_tells(ranks):
    def told(layout, names):
        whole = torch_states.state(ranks.meshes, layout)
        state = {layout: {name: whole["model"][name] for name in whole["model"] if names in name}, "rest": whole["optimizer"]}
        times = check().save(ranks.path("told", layout, names), state).times
        loaded = check().load(ranks.path("told", layout, names), torch_states.blanked(state), broadcast_checkpoint=True)
        return times.told_bytes + loaded.told_bytes if not times.plan_is_kept else -1
    wrong = [layout for layout in LAYOUTS if layout not in ("strided", "runs") and told(layout, "layers") != 0]
    if "strided" in LAYOUTS and told("strided", "even") != 0:  # its rows are a multiple of the ranks
        wrong.append("strided")
    if "runs" in LAYOUTS and (told("runs", "layers") > 0) != (ranks.size > 2):  # where each rank has rows that are apart
        wrong.append("runs")
    return f"told although the mesh tells, or the other way round: {wrong}" if wrong else None


# Modules and optimizers

def train(model, optimizer, steps=2):
    for step in range(steps):
        optimizer.zero_grad()
        value = torch.linspace(-1, 1, 4 * 12).reshape(4, 12)
        value = model(value)
        (value if not hasattr(value, "full_tensor") else value.full_tensor()).square().mean().backward()
        optimizer.step()


class Net(torch.nn.Module):
    def __init__(self):
        super().__init__()
        torch.manual_seed(5)
        self.first, self.second = torch.nn.Linear(12, 13), torch.nn.Linear(13, 5, bias=False)
        self.register_buffer("scale", torch.tensor(3))
        self.norm = torch.nn.BatchNorm1d(13)

    def forward(self, value):
        return self.second(torch.relu(self.norm(self.first(value))))


def build(kind, ranks):
    from torch.distributed.fsdp import FullyShardedDataParallel, ShardingStrategy
    from torch.distributed.tensor import parallel
    model = Net()
    if kind == "ddp":
        model = torch.nn.parallel.DistributedDataParallel(model)
    elif kind == "fsdp1":
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True)
    elif kind == "fsdp1-hybrid":
        model = FullyShardedDataParallel(model, device_id=torch.device("cpu"), use_orig_params=True, device_mesh=ranks.meshes.grid,
                                         sharding_strategy=ShardingStrategy.HYBRID_SHARD)
    elif kind == "fsdp2":
        torch_states.fsdp.fully_shard(model.first, mesh=ranks.meshes.line)
        torch_states.fsdp.fully_shard(model, mesh=ranks.meshes.line)
    elif kind == "fsdp2-tp":
        parallel.parallelize_module(model.second, ranks.meshes.grid["tp"], parallel.RowwiseParallel(input_layouts=torch_states.Replicate()))
        parallel.parallelize_module(model.first, ranks.meshes.grid["tp"], parallel.ColwiseParallel(output_layouts=torch_states.Replicate()))
        torch_states.fsdp.fully_shard(model, mesh=ranks.meshes.grid["dp"])
    optimizer = torch.optim.Adam(model.parameters(), lr=0.01)
    return model, optimizer


def full(model, optimizer):
    """All state, gathered, so that it compares over layouts; bit for bit since gathering computes nothing."""
    options = torch_state.StateDictOptions(full_state_dict=True)
    return dict(zip(("model", "optimizer"), torch_state.get_state_dict(model, optimizer, options=options)))


KINDS = torch_states.KINDS


def trained(kind, saver, flatten=False):
    def run(ranks):
        model, optimizer = build(kind, ranks)
        train(model, optimizer)
        path, expected = ranks.path("module", kind, saver, flatten), full(model, optimizer)
        if saver == "ours":
            check().save(path, {"model": model, "optimizer": optimizer, "step": 2}, flatten_optimizer=flatten)
        else:
            states = dict(zip(("model", "optimizer"), torch_state.get_state_dict(model, optimizer))) | {"step": 2}
            if saver == "stock":
                dcp.save(states, checkpoint_id=path)
            else:
                future = dcp.async_save(states, storage_writer=check().Writer(path))
                with torch.no_grad():
                    for parameter in model.parameters():
                        parameter.zero_()
                future.result()
        number = KINDS.index(kind)
        for other in (kind, KINDS[(number + 1) % len(KINDS)], KINDS[(number + 3) % len(KINDS)]):
            model, optimizer = build(other, ranks)
            with torch.no_grad():
                for parameter in model.parameters():
                    parameter.zero_()
            whole = {"model": model, "optimizer": optimizer, "step": None}
            check().load(path, whole)
            if whole["step"] != 2:
                return f"{kind} to {other}: step is {whole['step']}"
            differs = ranks.agreed(torch_states.difference(expected, full(model, optimizer)))
            if differs:
                return f"{kind} to {other}: {differs}"
        # And stock PyTorch loads it; but what FSDP1 saves on 4 ranks, where one has no shard of a parameter, PyTorch 2.13
        # takes for a checkpoint of version 2.3, also if dcp.save wrote it.
        if saver == "ours" and (kind, ranks.size) != ("fsdp1", 4):
            model, optimizer = build(kind, ranks)
            options = torch_state.StateDictOptions(flatten_optimizer_state_dict=flatten)
            states = dict(zip(("model", "optimizer"), torch_state.get_state_dict(model, optimizer, options=options)))
            dcp.load(states, checkpoint_id=path)
            torch_state.set_state_dict(model, optimizer, model_state_dict=states["model"], optim_state_dict=states["optimizer"], options=options)
            differs = ranks.agreed(torch_states.difference(expected, full(model, optimizer)))
            if differs:
                return f"{kind} by dcp.load: {differs}"
        return None
    return run


for kind in KINDS[:-1]:
    CASES[f"modules_{kind}"] = trained(kind, "ours")
CASES["modules_flat"] = trained(torch_states.FULLY_SHARDED, "ours", flatten=True)
CASES["modules_stock"] = trained(torch_states.FULLY_SHARDED, "stock")
for kind in torch_states.STAGED:
    CASES[f"modules_writer_async_{kind}"] = trained(kind, "writer_async")


def needs_fsdp1(name):
    """Where PyTorch has no FSDP2 without CUDA, all cases of trained() do: they load into other kinds, too."""
    return name.startswith("modules_") and name != "modules_numbered" and torch_states.FULLY_SHARDED == "fsdp1"


@case
def modules_numbered(ranks):
    """An optimizer's own state dict, which counts its parameters, is what many trainings give to dcp.save. That of FSDP1 is
    of its flat parameters, and no part of a checkpoint."""
    kind = "fsdp2" if torch_states.FULLY_SHARDED == "fsdp2" else "plain"
    for momentum in (0.0, 0.9, None):
        def build_optimizer(model, momentum=momentum):
            return torch.optim.Adam(model.parameters(), lr=0.01) if momentum is None else \
                torch.optim.SGD(model.parameters(), lr=0.5, momentum=momentum)
        model, _ = build(kind, ranks)
        optimizer = build_optimizer(model)
        train(model, optimizer)
        optimizer.zero_grad()  # PyTorch 2.4 refuses an optimizer without state beside gradients
        path, expected = ranks.path("numbered", momentum), full(model, optimizer)
        dcp.save({"model": model.state_dict(), "optimizer": optimizer.state_dict()}, checkpoint_id=path)
        model, _ = build(kind, ranks)
        optimizer = build_optimizer(model)
        optimizer.param_groups[0]["lr"] = 0.25
        check().load(path, {"model": model, "optimizer": optimizer})
        differs = ranks.agreed(torch_states.difference(expected, full(model, optimizer)))
        if differs:
            return f"momentum {momentum}: {differs}"
    return None


@case
def stages(ranks):
    """Each pipeline stage has its own names; loaded by another split of the layers, and by one process's worth of names."""
    def layers(numbers):
        return torch.nn.ModuleDict({str(number): torch.nn.Linear(number + 2, 3) for number in numbers})
    mine = range(ranks.rank * 4 // ranks.size, (ranks.rank + 1) * 4 // ranks.size)
    torch.manual_seed(ranks.rank)
    model = layers(mine)
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.5)
    sum(layer(torch.ones(1, layer.in_features)).sum() for layer in model.values()).backward()
    optimizer.step()
    path, state = ranks.path("stages"), {"model": model, "optimizer": optimizer}
    failed = ranks.agreed(ranks.must_fail("optimizer.param_groups.0.params", lambda: check().save(path, state)))
    if failed:
        return failed
    check().save(path, state, flatten_optimizer=True)
    everyone = torch_states.gather([torch_state.get_model_state_dict(model), optimizer.state_dict()["param_groups"][0]["lr"]])
    whole = layers(range(4))
    updater = torch.optim.AdamW(whole.parameters(), lr=0.1)
    check().load(path, {"model": whole, "optimizer": updater})
    expected = {name: value for states, _ in everyone for name, value in states.items()}
    if updater.param_groups[0]["lr"] != 0.5:
        return "the optimizer's learning rate was not loaded"
    if len(updater.state) != 8 or not all(state["step"] == 1 and state["exp_avg"].any() for state in updater.state.values()):
        return "the optimizer's state was not loaded"
    return torch_states.difference(expected, dict(whole.state_dict()))


class Group(dict):
    """A dict of a kind of its own, as libraries have them: PyTorch stores what is in it."""


@case
def changed_while_it_is_saved(ranks):
    """Values and tensors that training changes before they are written are saved as they were when async_save returned."""
    is_changed = threading.Event()

    class LateWriter(check().Writer):
        def write_data(self, plan, planner):
            is_changed.wait()
            return super().write_data(plan, planner)

    state = {"group": Group(w=torch.ones(3)), "counts": {"seen": [1, 2], "of": bytearray(b"ab")}, "both": (torch.ones(2), 5)}
    path = ranks.path("changed")
    future = dcp.async_save(state, storage_writer=LateWriter(path))
    state["group"]["w"].zero_()
    state["counts"]["seen"].append(3)
    state["counts"]["of"][0] = 0
    state["both"][0].zero_()
    is_changed.set()
    future.result()
    loaded = {"group": {"w": torch.zeros(3)}, "counts": {"seen": [], "of": None}, "both": None}
    check().load(path, loaded)
    both, loaded["both"] = loaded["both"], None
    if both[1] != 5 or not torch.equal(both[0], torch.ones(2)):
        return f"both: {both}"
    return torch_states.difference({"group": {"w": torch.ones(3)}, "counts": {"seen": [1, 2], "of": bytearray(b"ab")}, "both": None}, loaded)


# What is wrong, and how it is said

def small(ranks, rows=8):
    return {"a": torch_states.distribute(torch.arange(rows * 3.0).reshape(rows, 3), ranks.meshes.line, [torch_states.Shard(0)]), "b": torch.ones(4), "n": 5}


@case
def mismatches(ranks):
    path = ranks.path("mismatches")
    check().save(path, small(ranks))
    for changed, words in (({"b": torch.ones(4, dtype=torch.float64)}, "b"), ({"b": torch.ones(5)}, "b: the checkpoint has shape [4], the model [5]"), ({"missing": torch.ones(2)}, "missing"),
                           ({"b": 7}, "b"), ({"absent": 7}, "absent")):
        failed = ranks.agreed(ranks.must_fail(words, lambda: check().load(path, small(ranks) | changed)))
        if failed:
            return f"{changed}: {failed}"
    for name, value in (("missing", torch.ones(2)), ("absent", 7)):  # rank 0 looks for it, all ranks report it
        for words in (f"{name}: not in the checkpoint", f"; strict=False leaves alone what {path} does not contain; it has a, b, n"):
            asked = {name: value} if ranks.rank == 0 else {}
            failed = ranks.agreed(ranks.must_fail(words, lambda: check().load(path, small(ranks) | asked)))
            if failed:
                return failed
    failed = ranks.agreed(ranks.must_fail("nowhere", lambda: check().load(ranks.path("nowhere"), small(ranks))))
    if failed:
        return failed
    state = small(ranks) | {"missing": torch.ones(2), "absent": 7}
    state["b"].zero_()
    left_out = check().load(path, state, strict=False).missing
    if left_out != ["missing", "absent"]:
        return f"left out: {left_out}"
    failed = ranks.agreed(ranks.must_fail(f"{path} has no bb: it has a, b, n", lambda: check().load(path, {"bb": torch.ones(2)}, strict=False)))
    if failed:
        return failed
    return torch_states.difference(small(ranks) | {"missing": torch.ones(2), "absent": 7}, state)


@case
def one_rank_cannot_describe(ranks):
    """A tensor that cannot be stored on one rank fails the save on all, at once and with its reason; the
    next save works."""
    class Mute(Exception):
        def __str__(self):
            raise RuntimeError("it says nothing")

    class Raises:
        def state_dict(self):
            raise Mute

        def load_state_dict(self, state):
            pass

    mute = ranks.agreed(ranks.must_raise("Mute", lambda: check().save(ranks.path("mute"), {"bad": Raises() if ranks.rank == 0 else torch.ones(3)})))
    if mute:
        return mute
    bad = torch.ones(3).to_sparse() if ranks.rank == ranks.size - 1 else torch.ones(3)
    first = ranks.must_fail("layout torch.sparse_coo", lambda: check().save(ranks.path("sparse"), {"bad": bad}))
    second = ranks.must_fail("meta device", lambda: check().save(ranks.path("meta"), {"w": torch.ones(3, device="meta")}))
    class Loud:
        def state_dict(self):
            raise ValueError("two\nlines \033[31m of it")

        def load_state_dict(self, state):
            pass

    def save_loud():
        try:
            check().save(ranks.path("loud"), {"bad": Loud() if ranks.rank == 0 else torch.ones(3)})
        except check().Error as error:
            raise ValueError(f"<{error}>") from None
    third = ranks.must_fail("lines" if ranks.rank == 0 else "(usage): ValueError: two lines [31m of it>", save_loud)
    check().save(ranks.path("described"), small(ranks))
    return first or second or third


@case
def partial_sums(ranks):
    summand = torch_states.DTensor.from_local(torch.ones(4), ranks.meshes.line, [torch_states.dtensors.Partial()])
    return ranks.must_fail("w: a tensor placed as", lambda: check().save(ranks.path("partial"), {"w": summand}))


@case
def values_that_differ(ranks):
    return ranks.must_fail("mine", lambda: check().save(ranks.path("differ"), {"mine": ranks.rank, "b": torch.ones(2)}))


@case
def what_is_no_state(ranks):
    for words, call in (("save(path, state): state is a dict", lambda: check().save(small(ranks), ranks.path("swapped"))),
                        ("load(path, state): state is a dict", lambda: check().load(small(ranks), ranks.path("swapped"))),
                        ("a path has no byte 0", lambda: check().save(f"{ranks.path('swapped')}\0a", small(ranks))),
                        ("hook: a function that cannot be pickled", lambda: check().save(ranks.path("swapped"), {"hook": lambda: 0}))):
        failed = ranks.agreed(ranks.must_fail(words, call))
        if failed:
            return failed
    return None


@case
def a_place_that_is_taken(ranks):
    path = ranks.path("taken")
    check().save(path, {"b": torch.ones(3)})
    failed = ranks.agreed(ranks.must_fail("folder=overwrite replaces it", lambda: check().save(path, {"b": torch.ones(3)})))
    check().save(path, {"b": torch.full((3,), 2.0)}, folder="overwrite")
    state = {"b": torch.zeros(3)}
    dcp.load(state, checkpoint_id=path)
    return failed or torch_states.difference({"b": torch.full((3,), 2.0)}, state)


@case
def unknown_options(ranks):
    failed = ranks.must_fail("io.nonsense", lambda: check().save(ranks.path("options"), small(ranks), io_nonsense=3))
    for storage in (check().Writer, check().Reader):  # as soon as they are made: an option of FileSystemWriter, and a wrong value
        failed = failed or ranks.must_fail("thread.count", lambda: storage(ranks.path("options"), thread_count=4))
        failed = failed or ranks.must_fail("io.depth", lambda: storage(ranks.path("options"), io_depth="many"))
    return failed


# A rank that fails before the ranks have met

@case
def one_rank_cannot_open(ranks):
    """Options that are wrong, or a rank that cannot listen, are told to all ranks; the next save opens new connections."""
    for bad in (0, ranks.size - 1):
        options = {"io_depth": 3, **({"io_blok": "1MiB"} if ranks.rank == bad else {})}
        words = "io.blok" if ranks.rank == bad else f"rank {bad} failed: unknown key 'io.blok'"
        failed = ranks.agreed(ranks.must_fail(words, lambda: check().save(ranks.path("never"), small(ranks), **options)))
        if failed:
            return failed
    with mock.patch.object(check()._library, "listen", side_effect=ValueError("no port\nis left")):
        words = "no port" if ranks.rank == 0 else "rank 0 failed: ValueError: no port is left"
        failed = ranks.agreed(ranks.must_fail(words, lambda: check().save(ranks.path("never"), small(ranks), io_depth=3)))
    check().save(ranks.path("opened"), small(ranks), io_depth=3)
    return failed


@case
def a_handle_of_no_more_use(ranks):
    """After a rank has left, the errors say how to go on, and it works."""
    def save(name):
        check().save(ranks.path(name), {"b": torch.ones(2)}, io_depth=5)
    failed = None
    save("of-use")
    if ranks.rank > 0:
        check().close()
    dist.barrier()
    for name in ("late", "later") if ranks.rank == 0 else ():
        failed = failed or ranks.must_fail("; checkpoint.close() lets the next save or load open new connections", lambda: save(name))
    if ranks.rank == 0:
        check().close()
    save("of-use-again")
    return failed


@case
def one_rank_cannot_open_where_others_have(ranks):
    """The others wait for it on connections that they have: they learn that it has left them."""
    is_wrong = ranks.rank == ranks.size - 1
    check().save(ranks.path("open"), small(ranks))
    words, options = ("io.blok", {"io_blok": 1}) if is_wrong else (f"rank {ranks.size - 1} is gone", {})
    failed = ranks.agreed(ranks.must_fail(words, lambda: check().save(ranks.path("never"), small(ranks), **options)))
    check().close()
    if not is_wrong:  # opening connections again, they are told what it was
        words = f"rank {ranks.size - 1} failed: unknown key 'io.blok'"
        failed = failed or ranks.must_fail(words, lambda: check().save(ranks.path("never"), small(ranks)))
    check().save(ranks.path("opened-again"), small(ranks))
    return failed


@case
def one_rank_calls_wrongly(ranks):
    for path, state, words in ((ranks.path("wrongly"), ["no dict"], "state is a dict"), ("with\0zero", small(ranks), "a path has no byte 0")):
        given = (path, state) if ranks.rank == ranks.size - 1 else (ranks.path("wrongly"), small(ranks))
        failed = ranks.agreed(ranks.must_fail(words, lambda: check().save(*given)), ranks.must_fail(words, lambda: check().load(*given)))
        if failed:
            return failed
    return None


@case
def a_rank_that_does_not_come(ranks):
    """The others wait for it for timeout.op, and then name it."""
    group = dist.new_group(list(range(ranks.size)))
    if ranks.rank == ranks.size - 1:
        return None
    return ranks.must_fail("did not come within timeout.op", lambda: check().save(ranks.path("alone"), {"b": torch.ones(2)}, process_group=group,
                                                                                  timeout_op="2s"))


@case
def a_store_of_torch_that_has_ended(ranks):
    group, server = dist.new_group(list(range(ranks.size))), dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    client = dist.TCPStore("127.0.0.1", server.port)
    del server
    with mock.patch.object(dist.distributed_c10d, "_get_default_store", return_value=client):
        return ranks.must_fail("torch's store, through which ranks find each other, does not answer",
                               lambda: check().save(ranks.path("no-store"), {"b": torch.ones(2)}, process_group=group))


# Asynchronous saves

@case
def a_failed_save_is_told_at_the_next_call(ranks):
    path = f"fault:enospc_after=64KiB:{ranks.path('full')}"  # again and again: what a failed save leaves is replaced
    big = {"w": torch_states.distribute(torch.ones(1024, 1024), ranks.meshes.line, [torch_states.Shard(0)])}
    first = check().save(path, big, async_checkpoint=True)
    failed = ranks.agreed(ranks.must_fail("space", lambda: check().save(ranks.path("after-full"), small(ranks))))
    if failed or os.path.exists(os.path.join(ranks.path("after-full"), ".metadata")):
        return failed or "the save after a failed one was made"
    failed = ranks.must_fail("space", first.result)
    check().save(ranks.path("after-full"), small(ranks))
    second = check().save(path, big, async_checkpoint=True)
    failed = failed or ranks.agreed(ranks.must_fail("space", second.result))
    check().save(ranks.path("after-that"), small(ranks))  # result() has raised it: it is not raised again
    third = check().save(path, big, async_checkpoint=True)
    while ranks.rank == 0 and not third.done():  # one rank knows that it failed
        time.sleep(0.01)
    last = ranks.must_fail("space", lambda: check().save(ranks.path("other"), small(ranks), checksum="none"))
    check().save(ranks.path("full"), small(ranks))
    return failed or last


@case
def options_that_differ_have_one_order(ranks):
    """A load with other options, which has other connections, waits for the save before it."""
    go = ranks.path("order-go")
    check().save(f"fault:until={go}:{ranks.path('order')}", small(ranks), async_checkpoint=True)
    threading.Timer(0.2, lambda: open(go, "w").close()).start()
    state = {"b": torch.zeros(4)}
    check().load(ranks.path("order"), state, broadcast_checkpoint=True)
    return torch_states.difference({"b": torch.ones(4)}, state)


@case
def a_save_in_progress(ranks):
    """done() and result(timeout) of a save that cannot end before a file exists; the next save waits for it."""
    go = ranks.path("go")
    save = check().save(f"fault:until={go}:{ranks.path('slow')}", small(ranks), async_checkpoint=True)
    if save.done() or os.path.exists(os.path.join(ranks.path("slow"), ".metadata")):
        return "a save that cannot have ended is done"
    with contextlib.suppress(TimeoutError):
        save.result(timeout=0.05)
        return "result() did not time out"
    dist.barrier()
    if ranks.rank == 0:
        open(go, "w").close()
    check().save(ranks.path("next"), small(ranks))
    if not save.done():
        return "the next save did not wait"
    return None if save.result().bytes > 0 and save.times.total_s >= save.times.stall_s else f"times: {save.times}"


@case
def the_thread_needs_no_gil(ranks):
    """A save ends while this thread keeps the interpreter's lock: PyDLL does not release it, and nobody may take it."""
    path, interval = ranks.path("gil"), sys.getswitchinterval()
    go = ranks.path("gil-go").encode()
    python = ctypes.PyDLL(None)
    dist.barrier()
    save = check().save(f"fault:until={go.decode()}:{path}", small(ranks), async_checkpoint=True)
    sys.setswitchinterval(1e6)
    try:
        python.close(python.creat(go, 0o600))
        deadline, marker = time.monotonic() + 200, os.path.join(path, ".metadata").encode()
        while python.access(marker, 0) and time.monotonic() < deadline:
            python.usleep(1000)
        found = python.access(marker, 0) == 0
    finally:
        sys.setswitchinterval(interval)
    save.result()
    return None if found else "the save did not end while the lock was held"


@case
def groups(ranks):
    """Two groups of ranks save at the same time, each its own checkpoint; a world of one rank needs no group."""
    half = ranks.size // 2
    both = [dist.new_group(list(range(half))), dist.new_group(list(range(half, ranks.size)))]
    mine = int(ranks.rank >= half)
    path, state = ranks.path("group", mine), {"w": torch.full((5,), float(mine))}
    check().save(path, state, process_group=both[mine])
    differs = None
    if "no_dist" in inspect.signature(dcp.save).parameters:  # releases without it want rank 0 in every group
        dcp.save(state, storage_writer=check().Writer(ranks.path("group-writer", mine), process_group=both[mine]), process_group=both[mine])
        with warnings.catch_warnings():
            warnings.simplefilter("ignore")
            dcp.save(state, storage_writer=check().Writer(ranks.path("alone", ranks.rank)), no_dist=True)
            loaded = {"w": torch.zeros(5)}
            dcp.load(loaded, storage_reader=check().Reader(ranks.path("alone", ranks.rank)), no_dist=True)
        differs = torch_states.difference(state, loaded)
    loaded = {"w": torch.zeros(5)}
    check().load(path, loaded, process_group=both[mine])
    return differs or torch_states.difference(state, loaded)


@case
def a_process_that_ends(ranks):
    """Leaves a save in progress: it is complete when the processes have ended, which the test looks at."""
    check().save(ranks.path("at-exit"), small(ranks), async_checkpoint=True)


def rank_main(rank, ranks, folder, cases):
    dist.init_process_group("gloo", init_method=f"file://{folder}/rendezvous", rank=rank, world_size=ranks,
                            timeout=datetime.timedelta(seconds=int(os.environ.get("CASE_SECONDS", 240))))
    torch.set_num_threads(1)
    everything, found = Ranks(folder), {}
    for name in cases or (name for name in CASES if not needs_fsdp1(name) or ranks != torch_states.NO_FSDP1_RANKS):
        try:
            result = CASES[name](everything) or "ok"
        except (Exception, dcp.CheckpointException):
            result = traceback.format_exc()
        found[name] = max(torch_states.gather(result), key=lambda text: text != "ok")
        if rank == 0 and os.environ.get("VERBOSE"):
            print(name, found[name], file=sys.stderr, flush=True)
    if rank == 0:
        with open(os.path.join(folder, "report"), "w") as file:
            json.dump(found, file)
    torch_states.leave()


def main():
    ranks, folder = int(sys.argv[1]), sys.argv[2]
    os.makedirs(folder, exist_ok=True)
    mp.start_processes(rank_main, (ranks, folder, sys.argv[3:]), nprocs=ranks, start_method="fork")
    print(open(os.path.join(folder, "report")).read())


if __name__ == "__main__":
    main()
