"""Ranks on this machine with the environment of torchrun's, forked from a process that has imported what they need.

Importing PyTorch and a framework costs seconds of CPU; forked ranks of several trainings pay for it once."""
import multiprocessing
import os

import torch
import torch.distributed as dist


def _serve_store(parent, pipe):
    parent.close()
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    pipe.send(store.port)
    try:
        pipe.recv()
    except EOFError:
        pass  # the ranks have ended


def _rank(rank, count, port, function, arguments):
    os.environ.update({
        "RANK": str(rank), "LOCAL_RANK": str(rank), "GROUP_RANK": "0", "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port), "TORCHELASTIC_RUN_ID": "none", "TORCHELASTIC_RESTART_COUNT": "0",
        "TORCHELASTIC_MAX_RESTARTS": "0", "TORCHELASTIC_USE_AGENT_STORE": "True"})
    torch.set_num_threads(1)
    function(*arguments)


def run_ranks(count, function, *arguments):
    """Calls function(*arguments) in `count` ranks. Raises the exception of the first that fails, and ends the others."""
    fork = multiprocessing.get_context("fork")
    here, there = fork.Pipe()
    server = fork.Process(target=_serve_store, args=(here, there))  # this process must have no threads when it forks
    server.start()
    there.close()
    try:
        torch.multiprocessing.start_processes(_rank, (count, here.recv(), function, arguments), nprocs=count, start_method="fork")
    finally:
        here.close()
        server.join()
