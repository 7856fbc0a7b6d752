"""What ends a training or a suite early: Ctrl-C, a rank that dies, memory that is short, data that is not what it should be."""
import json
import os
import signal
import struct
import subprocess
import time
from pathlib import Path

import pytest

from harness import BUILD, ckptbench, environment
from train_harness import SMALL, batch, facts, losses, train, values

FOR_EVER = ("train.steps=100000", "train.checkpoint_every=3", "suffix=a")
SUITE = ("workload=suite", "suite.message_bytes=64", "suite.only=net", "iterations=100000", "warmup=0")
MINUTES = 180  # of waiting for what takes a second, on machines that are slow and busy


def start(place, *words, wrapped=()):
    return subprocess.Popen([*wrapped, BUILD / "ckptbench", "run", "--json", *words], cwd=place, env=environment(place), stdout=subprocess.PIPE,
                            stderr=subprocess.PIPE, text=True, start_new_session=True)


def await_(condition, process):
    end = time.monotonic() + MINUTES
    while not (found := condition()):
        assert process.poll() is None, process.communicate()
        assert time.monotonic() < end
        time.sleep(0.02)
    return found


def finish(process, code):
    out, err = process.communicate(timeout=MINUTES)
    assert process.returncode == code, out + err
    return json.loads(out)


def committed(place):
    return max([int(marker.parent.name.split("-")[1]) for marker in (place / "store/a").glob("iteration-*/.metadata")], default=-1)


def iteration(place):
    """What the agent says of the run under way, 0 before."""
    try:
        return max(json.loads(path.read_text())["iteration"] for path in (place / "home/runs").glob("*/attempts/1/progress.json"))
    except (OSError, ValueError):
        return 0


def workers(place, program=b"ckptbench-worker"):
    """Ranks of the runs whose home is there; or their agents."""
    found = []
    for folder in Path("/proc").glob("[0-9]*"):
        try:
            words = (folder / "cmdline").read_bytes().split(b"\0")
        except OSError:
            continue
        if words[0].endswith(program) and any(bytes(place / "home") in word for word in words):
            found.append(int(folder.name))
    return found


@pytest.mark.parametrize("words", [(), ("save.async=true",)], ids=["sync", "async"])
def test_ctrl_c_ends_a_training_after_its_step_with_a_checkpoint_of_it(tmp_path, words):
    process = start(tmp_path, *SMALL, *batch(2), *FOR_EVER, *words, f"store={tmp_path}/store")
    await_(lambda: committed(tmp_path) >= 3, process)
    process.send_signal(signal.SIGINT)
    document = finish(process, 4)
    last = max(losses(tmp_path))
    assert (document["outcome"], document["message"]) == ("cancelled", f"stopped on request after step {last + 1} of 100000")
    assert facts(tmp_path)["stopped"] == f"after step {last + 1} of 100000"
    assert committed(tmp_path) == last + 1  # what was done is kept
    train(tmp_path, *batch(2), f"train.steps={last + 3}", "suffix=a", "train.resume=latest", store=tmp_path / "store")
    assert sorted(losses(tmp_path)) == [last + 1, last + 2]


def test_a_time_limit_that_comes_near_ends_a_training_with_a_checkpoint(tmp_path):
    """What Slurm sends a minute before it, to the agent."""
    process = start(tmp_path, *SMALL, *batch(2), *FOR_EVER[::2], "train.checkpoint_every=100000", f"store={tmp_path}/store")
    await_(lambda: iteration(tmp_path) > 3, process)
    os.kill(workers(tmp_path, b"ckptbench-agent")[0], signal.SIGUSR1)
    document = finish(process, 4)
    last = max(losses(tmp_path)) + 1
    assert (document["outcome"], document["message"]) == ("timeout", f"the job's time limit came near after step {last} of 100000")
    assert committed(tmp_path) == last


def test_timeout_run_ends_a_training_with_a_checkpoint(tmp_path):
    process = start(tmp_path, *SMALL, *batch(2), *FOR_EVER[::2], "train.checkpoint_every=100000", "timeout.run=40s", f"store={tmp_path}/store")
    document = finish(process, 4)
    last = max(losses(tmp_path)) + 1
    assert (document["outcome"], document["message"]) == ("timeout", f"timeout.run came near after step {last} of 100000")
    assert committed(tmp_path) == last


def test_ctrl_c_ends_a_suite_after_its_repetition_and_keeps_what_was_measured(tmp_path):
    process = start(tmp_path, *SUITE, "ranks=2", "store=null:")
    await_(lambda: iteration(tmp_path) > 2, process)
    process.send_signal(signal.SIGINT)
    document = finish(process, 4)
    assert document["outcome"] == "cancelled" and "stopped on request" in document["message"]
    assert document["metrics"]["suite.all_reduce_latency_s"]["n"] >= 2


def test_a_rank_that_dies_in_the_suite_ends_it_by_name(tmp_path):
    process = start(tmp_path, *SUITE, "ranks=2", "store=null:")
    await_(lambda: iteration(tmp_path) > 1, process)
    os.kill(workers(tmp_path)[0], signal.SIGKILL)
    document = finish(process, 4)
    assert document["outcome"] == "infrastructure"
    assert "was killed by signal 9 (SIGKILL) in suite" in document["message"] and document["message"].startswith("rank ")
    assert document["metrics"]["suite.all_reduce_latency_s"]["n"] >= 1
    assert not workers(tmp_path)


def test_a_rank_that_dies_in_a_step_is_named_with_the_step(tmp_path):
    process = start(tmp_path, *SMALL, *batch(2), *FOR_EVER, f"store={tmp_path}/store")
    await_(lambda: committed(tmp_path) >= 3, process)
    os.kill(workers(tmp_path)[1], signal.SIGKILL)
    document = finish(process, 4)
    assert document["outcome"] == "infrastructure" and "was killed by signal 9 (SIGKILL) in" in document["message"]
    assert "memory" not in document["message"]  # nobody else than this test has killed it
    assert committed(tmp_path) >= 3 and values(tmp_path, "loss")


# ---- memory ----

@pytest.mark.without_sanitizers
def test_a_limit_of_memory_is_told_before_it_is_reached(tmp_path):
    """What an ordinary user may do: ulimit -v, of each process."""
    words = (*SMALL, "ranks=1", "launcher=none", "train.batch_size=3000", "train.seq_length=128", "store=null:", "layers=0")
    process = start(tmp_path, *words, wrapped=("sh", "-c", 'ulimit -v 3000000; exec "$@"', "sh"))
    document = finish(process, 3)
    message = document["message"]
    assert "training needs" in message and "(ulimit -v) leaves" in message and message.count("iB") >= 4, message
    for word in ("train.batch_size=3000", "train.seq_length=128", "less of either"):
        assert word in message


# A file in the place of /proc/vmstat, in a mount name space, which ordinary users may have, too.
KILLED_BY_THE_KERNEL = """
mount --bind vmstat /proc/vmstat || exit 99
exec "$@"
"""


def test_a_rank_that_the_kernel_kills_for_want_of_memory_says_what_it_needs(tmp_path):
    (tmp_path / "vmstat").write_text("pgfault 1\noom_kill 7\n")
    space = ("unshare", "--mount", *(() if os.geteuid() == 0 else ("--user", "--map-root-user")), "sh", "-c", KILLED_BY_THE_KERNEL, "sh")
    process = start(tmp_path, *SMALL, *batch(2), *FOR_EVER, f"store={tmp_path}/store", wrapped=space)
    await_(lambda: committed(tmp_path) >= 3, process)
    with open(tmp_path / "vmstat", "r+") as vmstat:
        vmstat.write("pgfault 1\noom_kill 8\n")
    os.kill(workers(tmp_path)[0], signal.SIGKILL)
    document = finish(process, 3)
    message = document["message"]
    assert "when the kernel had no memory left" in message and "for itself" in message and "were free before" in message
    assert "train.batch_size" in message and "train.seq_length" in message
    assert committed(tmp_path) >= 3


# ---- data ----

def token_file(path, tokens, magic=20240520, version=1, count=None):
    header = struct.pack("<256i", magic, version, len(tokens) if count is None else count, *[0] * 253)
    path.write_bytes(header + struct.pack(f"<{len(tokens)}H", *tokens))
    return path


@pytest.mark.parametrize("wrong,said", [
    (dict(version=2), "version 2"), (dict(count=5000), "cut off or damaged"), (dict(magic=20240801), "Llama 3"), (dict(magic=12345), "tokens.bin"),
    (dict(tokens=[7] * 2000 + [60000] + [7] * 2000), "vocabulary"), (dict(tokens=[7] * 20), "too few")],
    ids=["version", "short", "llama", "magic", "vocabulary", "few"])
def test_a_token_file_that_is_not_what_it_should_be_is_refused_by_name(tmp_path, wrong, said):
    good = token_file(tmp_path / "tokens.bin", [token % 250 for token in range(4001)])
    assert train(tmp_path, *batch(2), "train.steps=2", f"train.data={good}")["outcome"] == "pass"
    wrong = {"tokens": [7] * 4001, **wrong}
    token_file(good, **wrong)
    document = train(tmp_path, *batch(2), "train.steps=2", f"train.data={good}", code=3)
    assert said in document["message"] and "tokens.bin" in document["message"] and document["outcome"] == "benchmark_failed"
    if said == "vocabulary":
        assert "60000" in document["message"] and "another tokenizer" in document["message"]


def test_byte_pairs_that_the_model_has_no_room_for_are_refused(tmp_path):
    (tmp_path / "vocab.json").write_text(json.dumps({**{chr(33 + i): i for i in range(90)}, "zz": 70000}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\n")
    (tmp_path / "text.txt").write_text("ab" * 4000)
    document = train(tmp_path, "ranks=1", "train.batch_size=2", "train.steps=2", f"train.data={tmp_path}/text.txt", f"train.vocab={tmp_path}/vocab.json",
                     f"train.merges={tmp_path}/merges.txt", code=3)
    assert "vocab" in document["message"]


def test_a_text_is_trained_on_in_byte_pairs_where_their_files_are_given(tmp_path):
    """A vocabulary of all bytes and one pair, "he", as GPT-2 writes its own: a byte that does not print is a character from U+0100 on."""
    prints = [*range(33, 127), *range(161, 173), *range(174, 256)]
    others = [byte for byte in range(256) if byte not in prints]
    tokens = [chr(byte) if byte in prints else chr(256 + others.index(byte)) for byte in range(256)] + ["he"]
    (tmp_path / "vocab.json").write_text(json.dumps({token: number for number, token in enumerate(tokens)}))
    (tmp_path / "merges.txt").write_text("#version: 0.2\nh e\n")
    (tmp_path / "text.txt").write_text("the ether\n" * 500)
    words = (f"train.data={tmp_path}/text.txt", f"train.vocab={tmp_path}/vocab.json", f"train.merges={tmp_path}/merges.txt")
    train(tmp_path, *batch(2), "train.steps=30", *words)
    assert facts(tmp_path)["train.data"].startswith("byte pairs, 4000 of ")  # ten bytes a line, of which two pairs
    assert losses(tmp_path)[29] < losses(tmp_path)[0] - 1


def test_what_is_no_file_to_train_on_is_refused_and_not_waited_for(tmp_path):
    os.mkfifo(tmp_path / "pipe")
    for name, said in (("pipe", "is no file"), (".", "is no file"), ("nowhere", "nowhere")):
        assert said in train(tmp_path, *batch(2), "train.steps=2", f"train.data={tmp_path / name}", code=3)["message"]


def test_a_checkpoint_of_a_model_of_another_width_is_refused_with_the_shapes(tmp_path):
    def stack(width):
        model = tmp_path / f"{width}.yaml"
        model.write_text("".join(f"- {{name: layers.{i}.weight, shape: {width}x{width}, dtype: fp32, layer: {i}}}\n"
                                 f"- {{name: layers.{i}.bias, shape: {width}, dtype: fp32, layer: {i}}}\n" for i in range(2)))
        return ("workload=train", f"model={model}", "ranks=1", "train.batch_size=2", "train.checkpoint_every=2", "suffix=a", "warmup=0",
                f"store={tmp_path}/store")
    ckptbench(tmp_path, "run", *stack(16), "train.steps=2")
    out = ckptbench(tmp_path, "run", "--json", *stack(24), "train.steps=4", "train.resume=latest", code=3).stdout
    assert "layers.0" in json.loads(out)["message"] and committed(tmp_path) == 2
