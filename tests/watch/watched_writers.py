"""Saves of two ranks by the writers of Megatron-Core or NVRx, for test_watch_writers.py; without a GPU.

usage: watched_writers.py FOLDER megatron|nvrx STEP…   each STEP is KIND:NAME, KIND one of sync, fork, spawn, forget"""
import importlib
import sys

import torch
import torch.distributed as dist

# The writers wait for a GPU, and agree through one. Processes that are spawned read this, too.
torch.cuda.synchronize = lambda *_: None
torch.cuda.current_device = lambda: "cpu"
torch.cuda.device_count = lambda: 1
torch.cuda.set_device = lambda *_: None

PACKAGES = {"megatron": ("megatron.core.dist_checkpointing.strategies", "async_utils"),
            "nvrx": ("nvidia_resiliency_ext.checkpointing.async_ckpt", "core")}


def main(folder, package, *steps):
    import inspect

    place, calls = PACKAGES[package]
    saver = importlib.import_module(f"{place}.state_dict_saver")
    files = importlib.import_module(f"{place}.filesystem_async")
    calls = importlib.import_module(f"{place}.{calls}")
    assert len(inspect.signature(files.FileSystemWriterAsync.write_preloaded_data).parameters) > 5
    assert "process_group" in inspect.signature(saver.save_state_dict_async_plan).parameters
    dist.init_process_group("gloo")
    rank = dist.get_rank()
    state = {f"weight-{rank}-{part}": torch.full((64, 1024), float(rank)) for part in range(4)}
    state["step"] = 7
    queues = {"fork": calls.AsyncCallsQueue(persistent=False), "spawn": calls.AsyncCallsQueue(persistent=True)}
    for step in steps:
        kind, name = step.split(":")
        writer = files.FileSystemWriterAsync(f"{folder}/{name}", thread_count=2)
        planned = saver.save_state_dict_async_plan(state, writer, None, 0)
        save, preload, arguments = writer.get_save_function_and_args()

        def finalize(planned=planned[0] if package == "megatron" else planned):
            saver.save_state_dict_async_finalize(*planned)

        request = calls.AsyncRequest(save, arguments, [finalize], preload_fn=preload)
        if kind == "sync":
            request.execute_sync()
        else:
            queue = queues["fork" if kind == "forget" else kind]
            queue.schedule_async_request(request)
            if kind == "forget":
                queue.async_calls[0].async_caller.process.join()
            else:
                queue.maybe_finalize_async_calls(blocking=True)
    queues["spawn"].close()
    dist.barrier()
    dist.destroy_process_group()


if __name__ == "__main__":
    main(*sys.argv[1:])
