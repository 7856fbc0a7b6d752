"""The SSH transport against real servers, with a proxy of our own between that counts, delays and cuts connections."""
import base64
import contextlib
import hashlib
import json
import os
import pwd
import socket
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest
from ssh_proxy import Proxy

from harness import BUILD

ROOT = Path(__file__).resolve().parents[2]
SSHD = os.environ.get("CKPTBENCH_TEST_SSHD")
pytestmark = pytest.mark.skipif(not SSHD, reason="no sshd (CKPTBENCH_TEST_SSHD, see tests/services/sshd.py)")
HERE = Path(SSHD or "/nowhere")
HOSTILE = "$(touch {mark}) `touch {mark}` '; touch {mark} #\n\"\\ * ? ! ~ | & < > %s \\n \t ü"


def port_of(folder):
    return int((Path(folder) / "port").read_text())


@pytest.fixture
def proxy():
    made = []

    def make(*args, **keys):
        made.append(Proxy(port_of(HERE), *args, **keys))
        return made[-1]

    yield make
    for one in made:
        one.close()


def config_of(tmp_path, **changes):
    """A configuration for "target"; a value None leaves the keyword out."""
    keywords = {"HostName": "127.0.0.1", "Port": port_of(HERE), "User": pwd.getpwuid(os.geteuid()).pw_name,
                "HostKeyAlias": "ckptbench-test", "IdentityFile": HERE / "id_ed25519", "IdentitiesOnly": "yes",
                "UserKnownHostsFile": HERE / "known_hosts", "GlobalKnownHostsFile": "none", **changes}
    path = tmp_path / f"config-{os.urandom(3).hex()}"
    path.write_text("Host target\n" + "".join(f"  {key} {value}\n" for key, value in keywords.items() if value is not None))
    return path


class Drill:
    def __init__(self, result):
        self.answers = [json.loads(line) for line in result.stdout.splitlines()]
        for answer in self.answers:
            for key in ("out", "errors", "message", "note"):
                if key in answer:
                    answer[key] = base64.b64decode(answer[key])
        self.first = self.answers[0]
        self.last = self.answers[-1]

    def codes(self):
        return [answer["code"] for answer in self.answers]

    def message(self):
        return self.first.get("message", b"").decode()


def environment(**more):
    kept = {name: value for name, value in os.environ.items() if name != "SSH_AUTH_SOCK"}
    return dict(kept, **{name: str(value) for name, value in more.items()})


def drill(config, *words, destination="target", settings=(), timeout=120, env=None, **keys):
    command = [BUILD / "tests/ssh_drill", destination, f"config={config}", *settings, *words]
    result = subprocess.run([str(word) for word in command], capture_output=True, text=True, timeout=timeout, env=env or environment(), **keys)
    assert result.returncode in (0, 1), result
    done = Drill(result)
    if "no libssh2" in done.message():
        pytest.skip(done.message())
    return done


def run(tmp_path, *words, **keys):
    return drill(config_of(tmp_path), "run", *words, **keys)


def wait_for(condition, seconds=200):
    deadline = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < deadline, "it did not happen in time"
        time.sleep(0.05)


# ---- commands ----

def test_words_reach_the_command_and_no_shell(tmp_path):
    mark = tmp_path / "mark"
    words = [HOSTILE.format(mark=mark), "", "-x", "'" * 50, "x" * 10_000, "a\nb\n", "\x01\x7f\xc3"]
    script = 'import sys, json; json.dump([w.encode("utf-8", "surrogateescape").hex() for w in sys.argv[1:]], sys.stdout)'
    answer = run(tmp_path, "--", sys.executable, "-c", script, *words).first
    assert (answer["code"], answer["status"], answer["errors"]) == ("ok", 0, b"")
    assert json.loads(answer["out"]) == [os.fsencode(word).hex() for word in words]
    assert not mark.exists()


def test_variables_reach_the_command_and_those_of_slurm_do_not(tmp_path):
    value = HOSTILE.format(mark=tmp_path / "mark") + "y" * 10_000
    script = 'import os, sys; sys.stdout.write("\\0".join(os.environ.get(n, "-") for n in ("OURS", "SLURM_NTASKS", "SBATCH_X", "SLURM_CONF")))'
    assert run(tmp_path, f"env=OURS={value}", "--", sys.executable, "-c", script).first["out"].decode().split("\0")[0] == value
    assert not (tmp_path / "mark").exists()
    with_slurm = config_of(tmp_path, IdentityFile=HERE / "id_slurm")
    found = drill(with_slurm, "run", "--", sys.executable, "-c", script, ",", "run", "scrub=yes", "--", sys.executable, "-c", script)
    assert found.answers[0]["out"].split(b"\0") == [b"-", b"64", b"1", b"/x"]
    assert found.answers[1]["out"].split(b"\0") == [b"-", b"-", b"-", b"/x"]


def test_a_variable_that_no_shell_can_set_is_refused(tmp_path):
    assert run(tmp_path, "env=a b=1", "--", "true").codes()[0] == "usage"


def test_a_mebibyte_goes_through_and_comes_back(tmp_path):
    data = os.urandom(1 << 20)
    (tmp_path / "input").write_bytes(data)
    answer = run(tmp_path, f"input={tmp_path}/input", "--", "sh", "-c", "tee /dev/stderr").first
    assert hashlib.sha256(answer["out"]).digest() == hashlib.sha256(data).digest()
    assert answer["errors"] == data


def test_input_that_nobody_reads_does_not_hold_up_the_answer(tmp_path):
    (tmp_path / "input").write_bytes(bytes(8 << 20))
    answers = run(tmp_path, f"input={tmp_path}/input", "--", "echo", "done", ",", "run", "--", "echo", "again").answers
    assert [answer["out"] for answer in answers[:2]] == [b"done\n", b"again\n"]


def test_status_and_signal_and_what_is_missing(tmp_path):
    answers = run(tmp_path, "--", "sh", "-c", "exit 3", ",", "run", "--", "sh", "-c", "kill -TERM $$", ",", "run", "--", "/no/such").answers
    assert [answer["code"] for answer in answers] == ["ok", "ok", "not_found", "ok"]
    assert [answer["status"] for answer in answers[:2]] == [3, 128 + 15]
    assert b"/no/such" in answers[2]["message"]
    assert answers[-1]["connections"] == 1


def test_output_beyond_the_bound_ends_the_command(tmp_path):
    pid_file = tmp_path / "pid"
    answers = run(tmp_path, "max=10000", "--", "sh", "-c", f"echo $$ > {pid_file}; exec yes", ",", "run", "max=4", "--", "echo", "12345",
                  ",", "run", "max=6", "--", "echo", "12345").answers
    assert [answer["code"] for answer in answers[:3]] == ["memory", "memory", "ok"]
    wait_for(lambda: not Path(f"/proc/{int(pid_file.read_text())}").exists())


def test_a_time_out_ends_the_whole_group_there(tmp_path):
    pids = tmp_path / "pids"
    answers = run(tmp_path, "time_ms=5000", "--", "sh", "-c", f"sleep 300 & echo $! $$ > {pids}; trap '' TERM; wait; sleep 300",
                  ",", "run", "--", "echo", "again").answers
    assert answers[0]["code"] == "timeout" and b"target" in answers[0]["message"]
    assert b"could not be ended" not in answers[0]["message"]
    assert answers[1]["out"] == b"again\n"
    for pid in pids.read_text().split():
        wait_for(lambda pid=pid: not Path(f"/proc/{pid}").exists())


def test_a_command_that_has_not_begun_at_its_time_out_never_does(tmp_path):
    (HERE / "slow-done").unlink(missing_ok=True)
    config = config_of(tmp_path, IdentityFile=HERE / "id_slow")
    done = drill(config, "run", "time_ms=1000", "--", "touch", tmp_path / "mark", ",", "line", stdin=subprocess.DEVNULL)
    assert done.codes()[0] == "timeout" and "begun" in done.message()
    wait_for((HERE / "slow-done").exists)  # its shell has come to our line
    time.sleep(0.5)
    assert not (tmp_path / "mark").exists()


# ---- shells that talk ----

def test_banners_and_profiles_that_print_are_no_output(tmp_path):
    config = config_of(tmp_path, IdentityFile=HERE / "id_noisy")
    answers = drill(config, "run", "--", "sh", "-c", "echo out; echo errors >&2", ",", "run", "--", "printf", "no line feed").answers
    assert [answer["out"] for answer in answers[:2]] == [b"out\n", b"no line feed"]
    assert [answer["errors"] for answer in answers[:2]] == [b"errors\n", b""]
    plain = subprocess.run([HERE / "bin/ssh", "-i", HERE / "id_noisy", "-o", "IdentityFile=none", "node-a", "echo out"], capture_output=True, timeout=120)
    assert b"Welcome" in plain.stdout, "the profile of this test prints nothing"


def test_path_of_a_login_and_paths_that_are_given(tmp_path):
    config = config_of(tmp_path, IdentityFile=HERE / "id_noisy")
    assert drill(config, "run", "--", "only-after-login").first["code"] == "not_found"
    assert drill(config, "run", "--", "only-after-login", settings=["login_path=yes"]).first["out"] == b"here\n"
    tool = tmp_path / "it's $HOME/only-here"
    tool.parent.mkdir()
    tool.write_text("#!/bin/sh\necho found\n")
    tool.chmod(0o755)
    answers = drill(config, "run", "--", "only-here", ",", "run", "--", "ls", "/", settings=[f"path={tool.parent}"]).answers
    assert answers[0]["out"] == b"found\n" and answers[1]["status"] == 0


def test_an_account_that_runs_nothing_is_said(tmp_path):
    answer = drill(config_of(tmp_path, IdentityFile=HERE / "id_closed"), "run", "--", "true").first
    assert answer["code"] == "system" and b"closed for today" in answer["message"]


# ---- files ----

def test_files_arrive_whole_with_parents_and_replace_others(tmp_path):
    source, target = tmp_path / "source", tmp_path / "new" / HOSTILE.format(mark="m").replace("/", "") / "file"
    source.write_bytes(os.urandom(3_000_000))
    source.chmod(0o750)
    back = tmp_path / "other/back"
    answers = drill(config_of(tmp_path), "put", source, target, ",", "get", target, back, ",", "stat", target, ",", "read", target, 10, 20,
                    ",", "read", target, 3_000_000, 5, ",", "stat", target.parent, ",", "stat", tmp_path / "none",
                    ",", "put", __file__, target).answers
    assert [answer["code"] for answer in answers] == ["ok"] * 6 + ["not_found", "ok", "ok"]
    assert back.read_bytes() == source.read_bytes() and back.stat().st_mode & 0o777 == 0o750
    assert answers[2]["bytes"] == 3_000_000 and not answers[2]["is_folder"] and answers[5]["is_folder"]
    assert abs(answers[2]["modified_s"] - time.time()) < 600
    assert answers[3]["out"] == source.read_bytes()[10:30] and answers[4]["out"] == b""
    assert target.read_bytes() == Path(__file__).read_bytes()
    assert [path.name for path in target.parent.iterdir()] == ["file"]


def test_what_cannot_be_written_or_read_leaves_nothing(tmp_path):
    (tmp_path / "folder").mkdir()
    (tmp_path / "file").write_text("x")
    answers = drill(config_of(tmp_path), "put", tmp_path / "file", tmp_path / "folder", ",", "put", tmp_path / "file", tmp_path / "file/below",
                    ",", "put", tmp_path / "none", tmp_path / "x", ",", "get", tmp_path / "none", tmp_path / "y",
                    ",", "get", tmp_path / "folder", tmp_path / "z", ",", "read", tmp_path / "none", 0, 1).answers
    assert all(answer["code"] != "ok" for answer in answers[:-1]), answers
    assert "folder" in answers[0]["message"].decode() and answers[3]["code"] == "not_found"
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("config")) == ["file", "folder"]
    assert list((tmp_path / "folder").iterdir()) == []


# ---- connections that break ----

@pytest.mark.parametrize("way", ["put", "get"])
@pytest.mark.parametrize("cuts", [1, 3])
def test_a_file_goes_on_where_the_connection_was_cut(tmp_path, proxy, way, cuts):
    size, cut = 4_000_000, 1_000_000
    (tmp_path / "a").write_bytes(os.urandom(size))
    between = proxy(cut=("up" if way == "put" else "down", cut), cuts=cuts)
    done = drill(config_of(tmp_path, Port=between.port), way, tmp_path / "a", tmp_path / "b", ",", "run", "--", "true")
    assert done.codes() == ["ok", "ok", "ok"], done.answers
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()
    assert between.accepted == done.last["connections"] == cuts + 1
    assert sorted(path.name for path in tmp_path.iterdir() if not path.name.startswith("config")) == ["a", "b"]


def test_a_server_that_always_cuts_is_given_up(tmp_path, proxy):
    (tmp_path / "a").write_bytes(os.urandom(1_000_000))
    between = proxy(cut=("up", 6000), cuts=1000)
    done = drill(config_of(tmp_path, Port=between.port), "put", tmp_path / "a", tmp_path / "b")
    assert done.codes()[0] == "system" and not (tmp_path / "b").exists()
    assert between.accepted < 20


def test_a_command_whose_answer_was_lost_is_not_run_again(tmp_path, proxy):
    between = proxy()
    count = tmp_path / "count"
    command = [BUILD / "tests/ssh_drill", "target", f"config={config_of(tmp_path, Port=between.port)}",
               "run", "--", "sh", "-c", f"echo one >> {count}; sleep 10; echo two >> {count}.late", ",", "run", "--", "echo", "again"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        wait_for(count.exists)
        between.cut_now()
        out, _ = process.communicate(timeout=120)
    done = Drill(subprocess.CompletedProcess(command, 0, out, ""))
    assert done.codes() == ["system", "ok", "ok"]
    assert "nobody knows" in done.message() and "not run again" in done.message()
    assert done.answers[1]["out"] == b"again\n" and between.accepted == 2
    assert count.read_text() == "one\n"


def test_a_connection_that_died_between_commands_is_no_loss(tmp_path, proxy):
    between = proxy()
    command = [BUILD / "tests/ssh_drill", "target", f"config={config_of(tmp_path, Port=between.port)}",
               "run", "--", "echo", "one", ",", "line", ",", "run", "--", "echo", "two", ",", "stat", "/"]
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        first = process.stdout.readline()
        between.cut_now()
        out, _ = process.communicate("\n", timeout=120)
    done = Drill(subprocess.CompletedProcess(command, 0, first + out, ""))
    assert done.codes() == ["ok"] * 4 and between.accepted == 2
    assert done.answers[1]["out"] == b"two\n"


def test_twenty_milliseconds_of_delay_and_still_one_connection(tmp_path, proxy):
    between = proxy(delay_s=0.01)
    (tmp_path / "a").write_bytes(os.urandom(100_000))
    done = drill(config_of(tmp_path, Port=between.port), "run", "times=4", "--", "true", ",", "put", tmp_path / "a", tmp_path / "b", ",", "stat", tmp_path / "b")
    assert done.codes() == ["ok"] * 7 and done.last["connections"] == between.accepted == 1


def make_folders(parent, count, files):
    """What a login node holds of runs: folders with files in folders."""
    for number in range(count):
        for name in range(files):
            path = parent / f"run-{number:02}/attempts/1/file-{name}"
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(os.urandom(1000 * name))
    return [f"run-{number:02}" for number in range(count)]


def files_of(folder):
    return {str(path.relative_to(folder)): path.read_bytes() if path.is_file() else None for path in folder.rglob("*")}


def test_many_folders_come_in_one_stream(tmp_path, proxy):
    names = make_folders(tmp_path / "there", 40, 10)
    between = proxy(delay_s=0.01)
    config = config_of(tmp_path, Port=between.port)
    done = drill(config, "get_folders", tmp_path / "there", tmp_path / "one", names[0])
    turns_of_one = between.turns
    done = drill(config, "get_folders", tmp_path / "there", tmp_path / "here", *names)
    assert done.codes() == ["ok", "ok"] and done.last["connections"] == 1, done.answers
    assert between.turns - turns_of_one < turns_of_one + len(names), "each folder waited for a round trip of its own"
    assert files_of(tmp_path / "here") == files_of(tmp_path / "there")


def without_tar(folder, script):
    """Settings with which that runs in its place."""
    fake = folder / "fake/tar"
    fake.parent.mkdir()
    fake.write_text(f"#!/bin/sh\n{script}\n")
    fake.chmod(0o755)
    return [f"path={fake.parent}"]


@pytest.mark.parametrize("tar", ["tar", "exit 2"], ids=["stream", "file by file"])
def test_hostile_names_links_and_long_paths_come(tmp_path, tar):
    source, run = tmp_path / "there", "-rf run 'x'"
    for name in (HOSTILE.format(mark="mark").replace("/", "_"), "-rf", "x" * 240, "a\nb", "deep/" * 9 + "y" * 200, "empty/"):
        path = source / run / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.mkdir() if name.endswith("/") else path.write_text(f"of {name}")
    (source / run / "link").symlink_to("/etc/passwd")
    done = drill(config_of(tmp_path), "get_folders", source, tmp_path / "here", run, settings=without_tar(tmp_path, tar) if tar != "tar" else ())
    assert done.codes() == ["ok", "ok"], done.answers
    (source / run / "link").unlink()
    assert files_of(tmp_path / "here") == files_of(source)
    assert not (tmp_path / "mark").exists()


def test_a_stream_that_is_cut_is_asked_for_again(tmp_path, proxy):
    names = make_folders(tmp_path / "there", 5, 20)
    between = proxy(cut=("down", 300_000))
    done = drill(config_of(tmp_path, Port=between.port), "get_folders", tmp_path / "there", tmp_path / "here", *names)
    assert done.codes() == ["ok", "ok"] and between.accepted == 2, done.answers
    assert files_of(tmp_path / "here") == files_of(tmp_path / "there")


@pytest.mark.parametrize("tar", ["exit 2", "echo nonsense", "head -c 1024 /dev/zero", "head -c 40000000 /dev/zero"])
def test_folders_come_file_by_file_where_tar_does_not_work(tmp_path, tar):
    names = make_folders(tmp_path / "there", 3, 3)
    answers = drill(config_of(tmp_path), "get_folders", tmp_path / "there", tmp_path / "here", *names, settings=without_tar(tmp_path, tar)).answers
    assert [answer["code"] for answer in answers] == ["ok", "ok"], answers
    assert files_of(tmp_path / "here") == files_of(tmp_path / "there")


def test_one_folder_of_many_that_is_missing_is_named(tmp_path):
    names = make_folders(tmp_path / "there", 3, 2)
    done = drill(config_of(tmp_path), "get_folders", tmp_path / "there", tmp_path / "here", *names, "run-99")
    assert done.codes() == ["not_found", "ok"] and "run-99" in done.message()


ALIVE = {"ServerAliveInterval": 2, "ServerAliveCountMax": 1}


def test_a_file_goes_on_when_the_other_side_falls_silent(tmp_path, proxy):
    (tmp_path / "a").write_bytes(os.urandom(3_000_000))
    between = proxy(cut=("up", 1_000_000), stall=True)
    done = drill(config_of(tmp_path, Port=between.port, **ALIVE), "put", tmp_path / "a", tmp_path / "b")
    assert done.codes() == ["ok", "ok"] and between.accepted == 2, done.answers
    assert (tmp_path / "b").read_bytes() == (tmp_path / "a").read_bytes()


def test_a_command_is_given_up_when_the_other_side_falls_silent_and_not_when_it_only_takes_long(tmp_path, proxy):
    between, mark = proxy(), tmp_path / "mark"
    command = [BUILD / "tests/ssh_drill", "target", f"config={config_of(tmp_path, Port=between.port, **ALIVE)}",
               "run", "--", "sleep", "6", ",", "run", "time_ms=120000", "--", "sh", "-c", f"echo $$ > {mark}; exec sleep 100"]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment()) as process:
        wait_for(mark.exists, 60)
        between.stalled = True
        out, _ = process.communicate(timeout=120)
    done = Drill(subprocess.CompletedProcess(command, 0, out, ""))
    assert done.codes() == ["ok", "system", "ok"] and "nobody knows" in done.answers[1]["message"].decode()
    os.kill(int(mark.read_text()), 9)  # what runs there is not ended with its connection


def test_nobody_listening_and_nobody_answering_end_in_time(tmp_path):
    with socket.create_server(("127.0.0.1", 0)) as silent:
        port = silent.getsockname()[1]
        done = drill(config_of(tmp_path, Port=port), "stat", "/", settings=["connect_s=1"], timeout=120)
        assert done.codes() == ["timeout"] and str(port) in done.message()
    done = drill(config_of(tmp_path, Port=port), "stat", "/", timeout=120)
    assert done.codes() == ["system"] and "refused" in done.message()


# ---- host keys ----

def known_hosts(tmp_path, text):
    path = tmp_path / f"known-{os.urandom(3).hex()}"
    path.write_text(text)
    return path


def host_key(kind="ed25519"):
    return (HERE / f"host_{kind}.pub").read_text().rsplit(" ", 1)[0]


def fingerprint(path):
    return subprocess.run(["ssh-keygen", "-lf", path], capture_output=True, text=True, check=True, timeout=120).stdout.split()[1]


def test_a_host_that_is_not_known_is_refused_with_its_fingerprint_and_the_way_to_add_it(tmp_path):
    empty = known_hosts(tmp_path, "")
    config = config_of(tmp_path, HostKeyAlias=None, UserKnownHostsFile=empty)
    done = drill(config, "run", "--", "true")
    assert done.codes() == ["usage"]
    assert fingerprint(HERE / "host_ed25519.pub") in done.message()
    command = done.message().split("add it with: ")[1]
    subprocess.run(command, shell=True, check=True, capture_output=True, timeout=120)
    assert drill(config, "run", "--", "true").codes() == ["ok", "ok"]


def test_known_hosts_by_name_port_pattern_and_hash(tmp_path):
    name = f"[127.0.0.1]:{port_of(HERE)}"
    hashed = known_hosts(tmp_path, f"{name} {host_key()}\n")
    subprocess.run(["ssh-keygen", "-H", "-f", hashed], check=True, capture_output=True, timeout=120)
    assert name not in hashed.read_text()
    for line in (f"other,{name} {host_key('ecdsa')} comment\n", f"127.0.0.1 {host_key()}\n", f"[127.0.*]:* {host_key()}\n", hashed.read_text()):
        path = known_hosts(tmp_path, "# comment\n\ngarbage\n@cert-authority * ssh-ed25519 AAAA\n" + line)
        assert drill(config_of(tmp_path, HostKeyAlias=None, UserKnownHostsFile=path), "run", "--", "true").codes() == ["ok", "ok"], line


def test_a_host_key_that_changed_is_refused_loudly(tmp_path):
    stranger = (HERE / "id_stranger.pub").read_text()
    path = known_hosts(tmp_path, f"# one\n[127.0.0.1]:{port_of(HERE)} {stranger}")
    done = drill(config_of(tmp_path, HostKeyAlias=None, UserKnownHostsFile=path, StrictHostKeyChecking="no"), "run", "--", "true")
    assert done.codes() == ["corrupt"] and "HAS CHANGED" in done.message()
    assert fingerprint(HERE / "id_stranger.pub") in done.message() and fingerprint(HERE / "host_ed25519.pub") in done.message()
    assert f"{path}:2" in done.message() and "ssh-keygen -R" in done.message()


def test_a_revoked_host_key_is_refused(tmp_path):
    path = known_hosts(tmp_path, f"ckptbench-test {host_key()}\n@revoked * {host_key()}\n")
    done = drill(config_of(tmp_path, UserKnownHostsFile=path), "run", "--", "true")
    assert done.codes() == ["corrupt"] and "revoked" in done.message()


# ---- the user's keys ----

def test_ecdsa_keys_log_in(tmp_path):
    assert drill(config_of(tmp_path, IdentityFile=HERE / "id_ecdsa"), "run", "--", "true").codes() == ["ok", "ok"]


def test_a_key_that_the_server_does_not_take_is_named(tmp_path):
    done = drill(config_of(tmp_path, IdentityFile=HERE / "id_stranger"), "run", "--", "true")
    assert done.codes() == ["usage"]
    assert f"{HERE}/id_stranger was refused" in done.message() and "ssh-copy-id" in done.message()


def test_an_rsa_key_works_or_its_refusal_says_why(tmp_path):
    done = drill(config_of(tmp_path, IdentityFile=HERE / "id_rsa"), "run", "--", "true")
    if done.codes() != ["ok", "ok"]:  # libssh2 from 1.11 on signs with SHA-2
        assert done.codes() == ["usage"] and "SHA-1" in done.message() and "Ed25519" in done.message()


def test_a_key_with_a_passphrase_asks_for_the_agent_and_works_with_it(tmp_path):
    config = config_of(tmp_path, IdentityFile=HERE / "id_locked")
    done = drill(config, "run", "--", "true")
    assert done.codes() == ["usage"] and f"{HERE}/id_locked has a passphrase" in done.message() and "ssh-add" in done.message()
    with agent(tmp_path, "id_stranger", "id_locked") as sock:
        assert drill(config, "run", "--", "true", env=environment(SSH_AUTH_SOCK=sock)).codes() == ["ok", "ok"]


def test_a_key_that_others_can_read_is_not_used(tmp_path):
    key = tmp_path / "key"
    key.write_bytes((HERE / "id_ed25519").read_bytes())
    key.chmod(0o644)
    done = drill(config_of(tmp_path, IdentityFile=key), "run", "--", "true")
    assert done.codes() == ["usage"] and "chmod 600" in done.message()


@contextlib.contextmanager
def agent(tmp_path, *keys):
    sock = tmp_path / "agent"
    ask = tmp_path / "ask"
    ask.write_text("#!/bin/sh\necho open\n")
    ask.chmod(0o755)
    with subprocess.Popen(["ssh-agent", "-D", "-a", sock], stdout=subprocess.DEVNULL) as process:
        try:
            wait_for(sock.exists)
            env = environment(SSH_AUTH_SOCK=sock, SSH_ASKPASS=ask, SSH_ASKPASS_REQUIRE="force", DISPLAY="none")
            for key in keys:
                subprocess.run(["ssh-add", "-q", HERE / key], env=env, check=True, stdin=subprocess.DEVNULL, timeout=120)
            yield sock
        finally:
            process.terminate()


@pytest.mark.parametrize("key", ["id_ed25519", "id_ecdsa"])
def test_keys_of_the_agent_log_in_and_only_those_named_where_only_those_are_wanted(tmp_path, key):
    with agent(tmp_path, "id_rsa", key) as sock:
        env = environment(SSH_AUTH_SOCK=sock, HOME=tmp_path)
        assert drill(config_of(tmp_path, IdentityFile=None, IdentitiesOnly=None), "run", "--", "true", env=env).codes() == ["ok", "ok"]
        assert drill(config_of(tmp_path, IdentityFile=HERE / "id_stranger"), "run", "--", "true", env=env).codes() == ["usage"]
        by_config = config_of(tmp_path, IdentityFile=None, IdentitiesOnly=None, IdentityAgent=sock)
        assert drill(by_config, "run", "--", "true", env=environment(HOME=tmp_path)).codes() == ["ok", "ok"]


def test_an_agent_that_talks_nonsense_is_passed_over(tmp_path):
    path = tmp_path / "agent"
    with socket.socket(socket.AF_UNIX) as fake:
        fake.bind(str(path))
        fake.listen()

        def answer():
            with contextlib.suppress(OSError):
                while True:
                    one, _ = fake.accept()
                    one.recv(100)
                    one.sendall(b"\0\0\0\x09\x0c\0\0\0\x02\xff\xff\xff\xff")

        threading.Thread(target=answer, daemon=True).start()
        env = environment(SSH_AUTH_SOCK=path)
        assert drill(config_of(tmp_path), "run", "--", "true", env=env).codes() == ["ok", "ok"]


# ---- several machines, and the configuration ----

def test_proxy_jump_goes_through_other_machines(tmp_path):
    sys.path.insert(0, str(ROOT / "tests"))
    from services import sshd
    second = tmp_path / "second"
    sshd.start(second)
    try:
        path = tmp_path / "config"
        path.write_text(f"""\
Host far
  HostName 127.0.0.1
  Port {port_of(second)}
  IdentityFile {second}/id_ed25519
  UserKnownHostsFile {second}/known_hosts
  ProxyJump near,again
Host near again
  Port {port_of(HERE)}
  HostName 127.0.0.1
  IdentityFile {HERE}/id_ed25519
  UserKnownHostsFile {HERE}/known_hosts
Host loop
  ProxyJump loop
Match user nobody
  User nobody
""")
        data = os.urandom(600_000)
        (tmp_path / "a").write_bytes(data)
        done = drill(path, "run", "--", "sh", "-c", "echo $SSH_CONNECTION", ",", "run", f"input={tmp_path}/a", "--", "cat",
                     ",", "put", tmp_path / "a", tmp_path / "b", ",", "get", tmp_path / "b", tmp_path / "c", destination="far")
        assert done.codes() == ["ok"] * 5, done.answers
        assert done.first["out"].split()[-1] == str(port_of(second)).encode()
        assert done.answers[1]["out"] == data and (tmp_path / "c").read_bytes() == data
        assert f"{path}:14".encode() in done.last["note"] and b"Match" in done.last["note"]
        looped = drill(path, "run", "--", "true", destination="loop")
        assert looped.codes() == ["usage"] and "ProxyJump" in looped.message()
        (second / "known_hosts").write_text("")
        stranger = drill(path, "run", "--", "true", destination="far")
        assert stranger.codes() == ["usage"] and stranger.message().endswith("ssh far true")
    finally:
        sshd.stop(second)


def test_the_configuration_of_ssh_is_read_where_ssh_reads_it(tmp_path):
    folder = tmp_path / ".ssh"
    (folder / "conf.d").mkdir(parents=True)
    (folder / "config").write_text("Include conf.d/*\nHost *\n  IdentitiesOnly yes\n")
    (folder / "conf.d/site").write_text(f"Host=login\n\tHostname \"127.0.0.1\"\n\tPORT={port_of(HERE)}\n\tHostKeyAlias ckptbench-test\n"
                                        f"\tIdentityFile %d/.ssh/key\n\tUserKnownHostsFile {HERE}/known_hosts\n")
    (folder / "key").symlink_to(HERE / "id_ed25519")
    result = subprocess.run([BUILD / "tests/ssh_drill", "login", "run", "--", "echo", "in"], env=environment(HOME=tmp_path), capture_output=True, text=True, timeout=120)
    assert Drill(result).first["out"] == b"in\n"


def test_a_proxy_command_is_not_run_and_said(tmp_path):
    done = drill(config_of(tmp_path, ProxyCommand=f"touch {tmp_path}/mark"), "run", "--", "true")
    assert done.codes() == ["unsupported"] and "ProxyJump" in done.message() and not (tmp_path / "mark").exists()


@pytest.mark.parametrize("destination", ["", "-oProxyCommand=x", "a b", "user@", "host:0", "host:99999", "$(touch mark)", "h\nost", "x" * 1000])
def test_destinations_that_are_none_are_refused(tmp_path, destination):
    assert drill(config_of(tmp_path), "run", "--", "true", destination=destination).codes() == ["usage"]
