"""Hostile and unlucky surroundings: whatever happens, no hang, no half result, nothing of others touched."""
import json
import os
import subprocess
import time

import pytest

from harness import PROGRAM

TINY = ("run", "model=gpt2-tiny", "iterations=1", "warmup=0", "baseline=false")


def environment(place, **changes):
    return dict(os.environ, CKPTBENCH_HOME=str(place / "home")) | changes


def ckptbench(place, *words, code=0, before="", timeout=120, **changes):
    """`before` is shell that runs in front of the program, as a limit or a redirection."""
    result = subprocess.run(["/bin/bash", "-c", f'{before} exec "$0" "$@"', PROGRAM, *words], cwd=place, text=True,
                            capture_output=True, env=environment(place, **changes), timeout=timeout)
    assert result.returncode == code, f"{words}: {result.returncode}\n{result.stdout}\n{result.stderr}"
    return result


def command_run(place, command, *words, **keys):
    return ckptbench(place, *TINY, "store=store", "ops=save", "engine=command", f"command={command}", *words, **keys)


def start(place, *words):
    return subprocess.Popen([PROGRAM, *TINY, *words], cwd=place, env=environment(place), stdout=subprocess.PIPE,
                            stderr=subprocess.STDOUT, text=True)


# ---- engine=command ----

@pytest.mark.parametrize("stream", ["1", "2"])
def test_a_command_that_never_stops_writing_is_ended_before_it_fills_the_memory(tmp_path, stream):
    out = command_run(tmp_path, f"cat /dev/zero >&{stream}", "timeout.op=50s", code=3).stdout
    assert "more than 16 MiB of output" in out


@pytest.mark.parametrize("value", ["-1", "1e300"])
def test_a_command_that_reports_an_impossible_value_is_told_so(tmp_path, value):
    report = json.dumps({"metrics": {"requests": float(value)}})
    out = command_run(tmp_path, f"echo x > {{path}}/f; echo '{report}'", code=3).stdout
    assert "expected 0 … 1e+18" in out


def test_a_save_that_failed_is_not_called_kept(tmp_path):
    out = command_run(tmp_path, "echo half > {path}/f; exit 9", "keep=true", code=3).stdout
    assert "exit status 9" in out and "kept" not in out and "ops=load" not in out


def test_a_command_that_puts_a_link_in_its_place_leads_nothing_astray(tmp_path):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "theirs/file").write_text("precious")
    link = f"rmdir {{path}} && ln -s {tmp_path}/theirs {{path}}"
    out = command_run(tmp_path, link, "keep=false", code=3).stdout
    assert "holds no bytes" in out
    out = command_run(tmp_path, f"ln -s {tmp_path}/theirs {{path}}/link; echo x > {{path}}/f", "keep=false", code=3).stdout
    assert "it is not empty" in out
    assert (tmp_path / "theirs/file").read_text() == "precious"


@pytest.mark.parametrize("suffix", ["link", "link/below"])
def test_a_folder_behind_a_link_is_refused_before_anything_is_saved(tmp_path, suffix):
    (tmp_path / "theirs").mkdir()
    (tmp_path / "store").mkdir()
    (tmp_path / "store/link").symlink_to(tmp_path / "theirs")
    refused = ckptbench(tmp_path, *TINY, "store=store", f"suffix={suffix}", "ops=save", code=3).stdout
    assert "making folder link in store" in refused and "a symbolic link has that name" in refused
    assert not list((tmp_path / "theirs").iterdir())


# ---- things of others ----

@pytest.mark.parametrize("folder", ["per_iteration", "overwrite", "rotate"])
def test_what_others_put_into_the_folder_of_a_run_is_left_alone(tmp_path, folder):
    run = start(tmp_path, "store=store", "iterations=100000", "timeout.run=200s", "suffix=mine",
                f"folder={folder}")
    theirs = [tmp_path / "store/mine" / name for name in ("file", "folder/file", "iteration-x/file", "checkpoints")]
    deadline = time.monotonic() + 200
    while not (tmp_path / "store/mine/.ckptbench-run").exists():
        assert time.monotonic() < deadline and run.poll() is None, run.communicate()
        time.sleep(0.01)
    for path in theirs:
        path.parent.mkdir(exist_ok=True)
        path.write_text("precious")
    time.sleep(0.5)
    run.terminate()
    run.communicate(timeout=120)
    assert all(path.read_text() == "precious" for path in theirs)
    left = [path for path in (tmp_path / "store/mine").rglob("*") if path.is_file()]
    assert set(left) == {*theirs, tmp_path / "store/mine/.ckptbench-run"}
    ckptbench(tmp_path, *TINY, "store=store", "suffix=mine", "folder=overwrite")
    assert all(path.read_text() == "precious" for path in theirs)


# ---- limits and streams ----

def test_a_file_size_limit_is_an_error_and_not_a_death(tmp_path):
    ckptbench(tmp_path, *TINY, "store=store")
    result = ckptbench(tmp_path, *TINY, "store=store", before="ulimit -f 1000;", code=3)
    assert "File too large" in result.stdout and "signal" not in result.stdout


@pytest.mark.parametrize("closed", ["exec >&-;", "exec 2>&-;", "exec <&- >&- 2>&-;"])
def test_closed_streams_put_no_message_into_a_file(tmp_path, closed):
    subprocess.run(["/bin/bash", "-c", f'{closed} exec "$0" "$@"', PROGRAM, "-v", *TINY, "store=store", "layers=nine"],
                   cwd=tmp_path, env=environment(tmp_path), timeout=120)
    subprocess.run(["/bin/bash", "-c", f'{closed} exec "$0" "$@"', PROGRAM, "-v", *TINY, "store=store"],
                   cwd=tmp_path, env=environment(tmp_path), timeout=120)
    for path in (tmp_path / "home").rglob("*"):
        assert not path.is_file() or b"ckptbench: " not in path.read_bytes(), path
    ckptbench(tmp_path, "list")


# ---- names ----

def test_a_label_cannot_speak_to_the_terminal(tmp_path):
    ckptbench(tmp_path, *TINY, "store=store", "label.note=a\x1b[2Jb\nc\u009bd")
    rows = ckptbench(tmp_path, "list").stdout
    assert "\x1b" not in rows and "\u009b" not in rows and len(rows.splitlines()) == 2
    assert json.loads(ckptbench(tmp_path, "list", "--json").stdout)[0]["labels"] == {"note": "a\x1b[2Jb\nc\u009bd"}


def test_a_relative_home_is_the_same_from_everywhere(tmp_path):
    (tmp_path / "elsewhere").mkdir()
    run = json.loads(ckptbench(tmp_path, *TINY, "store=store", "--json", CKPTBENCH_HOME="odd home").stdout)
    assert run["folder"] == str(tmp_path / "odd home/runs" / run["run"])
    ckptbench(tmp_path / "elsewhere", "show", run["run"], CKPTBENCH_HOME="../odd home")


@pytest.mark.parametrize("suffix", ["it's \"quoted\"", "$(touch broken)", "a\nb", "-rf", "é☃"])
def test_names_reach_no_shell(tmp_path, suffix):
    ckptbench(tmp_path, *TINY, f"store=store {suffix}".replace("\n", " "), f"suffix={suffix}", "ranks=2")
    assert not list(tmp_path.rglob("broken"))


# ---- several at once ----

def test_runs_that_make_one_store_at_once_share_it(tmp_path):
    for attempt in range(3):
        runs = [start(tmp_path, f"store=store{attempt}") for _ in range(4)]
        for run in runs:
            out = run.communicate(timeout=120)[0]
            assert run.returncode == 0, out


def test_of_runs_that_want_one_name_at_once_only_one_gets_it(tmp_path):
    for attempt in range(3):
        runs = [start(tmp_path, "store=store", "iterations=5", f"suffix=name{attempt}", "keep=true") for _ in range(4)]
        outs = [(run.communicate(timeout=120)[0], run.returncode) for run in runs]
        assert sorted(code for _, code in outs) == [0, 3, 3, 3], outs
        kept = list((tmp_path / f"store/name{attempt}").rglob(".metadata"))
        assert len(kept) == 1
        ckptbench(tmp_path, "verify", str(kept[0].parent))


# ---- a checkpoint from elsewhere ----

@pytest.mark.parametrize("verb, code", [("inspect", 3), ("verify", 3)])
def test_names_in_foreign_metadata_do_not_steer_the_terminal(tmp_path, verb, code):
    (tmp_path / "foreign").mkdir()
    name = b"evil\x1b]0;owned\x07\xff\xe2\x80\xae"
    (tmp_path / "foreign/.metadata").write_bytes(b"\x80\x02c" + name + b"\nName\x1b[2J\n)\x81.")
    result = subprocess.run([PROGRAM, verb, "foreign"], cwd=tmp_path, capture_output=True, env=environment(tmp_path), timeout=120)
    said = (result.stdout + result.stderr).decode()  # fails where it is no UTF-8
    assert result.returncode == code and all(letter.isprintable() or letter == "\n" for letter in said)
    assert r"evil\u001b]0;owned\u0007\xff\u202e.Name\u001b[2J" in said
