"""Checkpoints in a real S3 server: saved, loaded, verified, compared with those on disk, and nothing left behind."""
import json
import signal
import subprocess
import time

import pytest
from harness import PROGRAM, without_save_id
from s3_harness import call, clean_environment, server, tls_server  # noqa: F401

TINY = ("model=gpt2-tiny", "iterations=1", "warmup=0", "baseline=false", "s3.part_size=5MiB")


class Home:
    def __init__(self, server, folder):
        self.server, self.folder = server, folder
        self.environment = server.environment() | {"AWS_ENDPOINT_URL": server.endpoint, "CKPTBENCH_HOME": str(folder / "home")}

    @property
    def store(self):
        return f"s3://{self.server.bucket}/{self.folder.name}"

    def call(self, *words, code=0, timeout=120, **environment):
        return call(PROGRAM, *words, code=code, timeout=timeout, **(self.environment | environment))

    def run(self, *words, code=0, store=None, **environment):
        return json.loads(self.call("run", "--json", *TINY, f"store={store or self.store}", *words, code=code, **environment).stdout)

    def names(self):
        return self.server.client.keys(self.server.bucket, f"{self.folder.name}/")


@pytest.fixture
def home(server, tmp_path):  # noqa: F811
    return Home(server, tmp_path)


@pytest.mark.parametrize("words", [
    "ranks=2 tp=2", "ranks=2 zero=3", "ranks=2 pp=2 format=raw", "ranks=2 sharding=full s3.checksum=none", "ranks=1 launcher=none io.files=item",
    "ranks=2 tp=2 baseline=true", "ranks=2 workload=raw", "ranks=2 tp=2 folder=overwrite iterations=2", "ranks=2 tp=2 folder=rotate iterations=3"])
def test_what_is_saved_is_loaded_and_every_byte_is_right(home, words):
    document = home.run(*words.split())
    assert document["outcome"] == "pass"
    if "raw" not in words:
        assert document["verified"] == {"iterations": document["verified"]["of"], "of": document["verified"]["of"]}
        assert document["verified"]["of"] > 0
    assert set(home.names()) <= {f"{home.folder.name}/.ckptbench-store"}  # what is not kept is removed
    assert home.server.client.uploads(home.server.bucket, home.folder.name) == []


def test_a_kept_checkpoint_is_verified_and_loaded_by_other_ranks(home):
    home.run("ranks=2", "tp=2", "ops=save", "suffix=kept")
    assert f"{home.folder.name}/kept/iteration-0/.metadata" in home.names()
    said = home.call("verify", f"{home.store}/kept").stdout
    assert "every element of every tensor is there once" in said and "kept/iteration-0" in said
    document = home.run("ranks=2", "tp=2", "ops=load", "suffix=kept", "load.shift=1")
    assert document["outcome"] == "pass"


def test_the_last_checkpoint_is_the_one_meant(home):
    home.run("ranks=1", "launcher=none", "ops=save", "suffix=kept", "iterations=1", "folder=rotate", "seed=1")
    said = home.call("verify", f"{home.store}/kept").stdout
    assert "kept/checkpoint-0" in said


def test_a_kept_checkpoint_in_a_bucket_is_replaced_only_on_request(home):
    words = ("ranks=1", "launcher=none", "ops=save", "suffix=kept", "iterations=1", "folder=overwrite")
    home.run(*words)
    before = home.names()
    assert "--replace-kept" in json.dumps(home.run(*words, code=3))
    assert home.names() == before
    home.run(*words, "keep=false", "--replace-kept")
    assert set(home.names()) == {f"{home.folder.name}/.ckptbench-store"}


@pytest.mark.parametrize("checksum", ["auto", "crc32c"])
def test_a_checksum_that_the_server_does_not_know_is_recorded_as_no_protection(home, checksum):
    run = home.run("ranks=1", "launcher=none", "ops=save", "verify=none", "keep=false", f"s3.checksum={checksum}")
    facts = json.loads(home.call("export", run["run"], "--json").stdout)["facts"]
    assert any("unchecked: the server does not know CRC-32C" in fact for fact in facts if fact.startswith("io.used=")), facts


def test_a_missing_object_of_a_checkpoint_is_named(home):
    home.run("ranks=2", "tp=2", "ops=save", "suffix=kept")
    home.server.client.remove(home.server.bucket, f"{home.folder.name}/kept/iteration-0/__1_0.distcp")
    assert "__1_0.distcp" in home.call("verify", f"{home.store}/kept", code=3).stdout
    home.run("ranks=2", "tp=2", "ops=load", "suffix=kept", code=3)


def test_a_place_that_holds_something_else_is_used_and_that_stays(home):
    home.server.client.put(home.server.bucket, f"{home.folder.name}/thesis.tex", b"chapter 1")
    home.run("ranks=1", "launcher=none")
    assert set(home.names()) == {f"{home.folder.name}/thesis.tex", f"{home.folder.name}/.ckptbench-store"}
    assert home.server.client.get(home.server.bucket, f"{home.folder.name}/thesis.tex") == b"chapter 1"


def test_a_suffix_of_another_run_is_refused(home):
    home.run("ranks=1", "launcher=none", "ops=save", "suffix=kept")
    said = home.call("run", *TINY, f"store={home.store}", "ranks=1", "launcher=none", "ops=save", "suffix=kept", code=3)
    assert "kept" in said.stdout + said.stderr and "choose another suffix" in said.stdout + said.stderr


def test_keys_that_need_encoding_work_as_a_prefix(home):
    document = home.run("ranks=1", "launcher=none", store=f"{home.store}/a b+c=d&ü~%")
    assert document["outcome"] == "pass"


def test_disk_and_bucket_stand_side_by_side_in_the_history(home):
    store = home.folder / "disk"
    home.call("run", *TINY, f"store={store},{home.store}", "ranks=2", "tp=2", "repeat=2", "name=both")
    rows = json.loads(home.call("list", "--json", "name=both").stdout)
    assert len(rows) == 4 and {row["outcome"] for row in rows} == {"pass"}
    compared = home.call("compare", "LATEST", "--by", "store", code=None)
    assert compared.returncode in (0, 5, 6) and "s3://" in compared.stdout


def test_over_tls_with_the_bucket_in_the_path_and_in_the_host(tls_server, tmp_path):  # noqa: F811
    home = Home(tls_server, tmp_path)
    words = ["ranks=1", "launcher=none", f"s3.tls.ca={tls_server.authority}"]
    assert home.run(*words, "suffix=path")["outcome"] == "pass"
    by_name = tls_server.endpoint.replace("127.0.0.1", "s3.localhost")
    assert home.run(*words, "suffix=host", "s3.path_style=false", f"s3.endpoint={by_name}")["outcome"] == "pass"
    refused = home.call("run", *TINY, f"store={home.store}", "ranks=1", "launcher=none", "suffix=no", code=None)
    assert refused.returncode != 0 and "certificate" in refused.stdout + refused.stderr


# ---- whatever a folder does ----


@pytest.mark.parametrize("words", ["ranks=2 tp=2 save.async=true iterations=2", "ranks=2 zero=3 load.exchange=split load.zero=1", "ranks=2 dp=2 copies=2",
                                   "ranks=2 tp=2 format=dcp+safetensors state=weights"])
def test_saving_and_loading_work_as_on_a_file_system(home, words):
    document = home.run(*words.split(), "verify=full")
    assert document["outcome"] == "pass" and document["verified"]["of"] == document["verified"]["iterations"] > 0
    assert home.server.client.uploads(home.server.bucket, home.folder.name) == []


def test_ranks_verify_a_kept_checkpoint_and_it_is_converted_from_the_bucket(home):
    home.run("ranks=2", "tp=2", "ops=save", "suffix=kept")
    found = json.loads(home.call("run", "--json", "workload=verify", "ranks=2", f"store={home.store}", "suffix=kept").stdout)
    assert found["outcome"] == "pass" and found["metrics"]["problems"]["median"] == 0
    source = f"{home.store}/kept/iteration-0"
    assert json.loads(home.call("inspect", "--json", source).stdout)["format"] == "dcp"
    home.call("convert", source, home.folder / "converted", "format=safetensors")
    assert list((home.folder / "converted").glob("*.safetensors"))


# ---- conversions into a bucket ----


class Conversion:
    """24 MiB of weights as DCP of two ranks on the disk and in the bucket, and what becomes of it on the disk: one file of three parts."""

    WORDS = ("format=safetensors",)

    def __init__(self, home):
        self.home, self.target = home, f"{home.store}/converted"
        model = home.folder / "model.yaml"
        model.write_text("- {name: w, shape: 3072x4096, tp_dim: 1}\n- {name: b, shape: 33}\n")
        self.disk = home.folder / "disk"
        self.disk.mkdir()
        for store in (self.disk, home.store):
            home.call("run", "--json", f"model={model}", "state=weights", "ranks=2", "tp=2", "ops=save", "suffix=kept", "iterations=1", "warmup=0",
                      "baseline=false", f"store={store}")
        self.sources = {"disk": f"{self.disk}/kept/iteration-0", "bucket": f"{home.store}/kept/iteration-0"}
        home.call("convert", self.sources["disk"], home.folder / "expected", *self.WORDS)

    def begin(self, source):
        return subprocess.Popen([str(PROGRAM), "convert", source, self.target, *self.WORDS], stderr=subprocess.PIPE, text=True,
                                env=clean_environment() | {"AWS_EC2_METADATA_DISABLED": "true"} | self.home.environment)

    def uploads(self):
        return self.home.server.client.uploads(self.home.server.bucket, self.home.folder.name)

    def names(self):
        begin = f"{self.home.folder.name}/converted/"
        return {name.removeprefix(begin) for name in self.home.names() if name.startswith(begin)}

    def check(self):
        """Every object is what the same conversion made on the disk; it is inspected and verified where it is."""
        expected = {path.name: without_save_id(path.read_bytes()) for path in (self.home.folder / "expected").iterdir()}
        assert len(expected) == 2 and self.names() == set(expected) and self.uploads() == []
        for name, content in expected.items():
            assert without_save_id(self.home.server.client.get(self.home.server.bucket, f"{self.home.folder.name}/converted/{name}")) == content, name
        found = json.loads(self.home.call("inspect", "--json", self.target).stdout)
        assert found["format"] == "safetensors"
        assert "every element of every tensor is there once" in self.home.call("verify", self.target).stdout


@pytest.mark.parametrize("source", ["disk", "bucket"])
def test_a_checkpoint_is_converted_into_a_bucket(home, source):
    conversion = Conversion(home)
    home.call("convert", conversion.sources[source], conversion.target, *conversion.WORDS)
    conversion.check()
    assert "already" in home.call("convert", conversion.sources[source], conversion.target, *conversion.WORDS, code=2).stderr


@pytest.mark.parametrize("how", [signal.SIGINT, signal.SIGKILL])
def test_a_stopped_conversion_into_a_bucket_is_no_checkpoint_and_goes_on(home, how):
    conversion = Conversion(home)
    process = conversion.begin(f"fault:bandwidth=2MiB/s+ops=read:{conversion.sources['disk']}")
    deadline, uploads = time.monotonic() + 200, []  # the first part goes after 4 s, the last after 12
    while not uploads and process.poll() is None and time.monotonic() < deadline:
        uploads = conversion.uploads()
        time.sleep(0.05)
    process.send_signal(how)
    assert uploads, "it was to be stopped while it sends"
    said = process.communicate(timeout=120)[1]
    assert conversion.names() == {".ckptbench-convert"}
    assert home.call("verify", conversion.target, code=3).stdout
    if how == signal.SIGINT:
        assert process.returncode == 4 and "no checkpoint yet" in said and conversion.uploads() == []
    client, bucket, below = home.server.client, home.server.bucket, f"{home.folder.name}/converted/optim/__0_0.distcp"
    upload = client.begin_upload(bucket, below)  # of another program
    home.call("convert", conversion.sources["disk"], conversion.target, *conversion.WORDS)
    assert conversion.uploads() == [(below, upload)]
    client.must("DELETE", bucket, below, query={"uploadId": upload})
    conversion.check()


@pytest.mark.parametrize("words", ["", "save.async=true"])
def test_a_training_goes_on_from_the_bucket_bitwise(home, words):
    train = ("workload=train", "model=gpt2-tiny", "layers=2", "train.seq_length=32", "train.schedule=constant", "warmup=0", "ranks=2", "train.batch_size=2",
             "train.checkpoint_every=2", "train.resume=latest", *words.split())
    for suffix, steps in (("straight", (6,)), ("resumed", (4, 6))):
        for count in steps:
            home.call("run", *train, f"train.steps={count}", f"suffix={suffix}", f"store={home.store}")
    last = {suffix: [without_save_id(home.server.client.get(home.server.bucket, f"{home.folder.name}/{suffix}/iteration-6/__{rank}_0.distcp")) for rank in (0, 1)]
            for suffix in ("straight", "resumed")}
    assert last["straight"] == last["resumed"]


# ---- what dead jobs left ----


def test_clean_lists_what_is_stale_and_aborts_it_only_when_told(home):
    key = f"{home.folder.name}/dead job/x"
    home.server.client.begin_upload(home.server.bucket, key)
    other = home.server.client.begin_upload(home.server.bucket, f"elsewhere-{home.folder.name}")
    listed = lambda: home.server.client.uploads(home.server.bucket, home.folder.name)  # noqa: E731
    assert "1d" in home.call("s3", "clean", home.store).stdout
    said = home.call("s3", "clean", home.store, "--older-than", "0s")
    assert "dead job/x" in said.stdout and "--yes" in said.stderr and len(listed()) == 1
    document = json.loads(home.call("s3", "clean", home.store, "--older-than", "0s", "--yes", "--json").stdout)
    assert [(row["key"], row["aborted"]) for row in document["uploads"]] == [(key, True)] and listed() == []
    assert other in [upload for _, upload in home.server.client.uploads(home.server.bucket, "elsewhere")]


def test_clean_says_what_it_takes(home):
    assert "s3 clean" in home.call("s3", "sweep", code=2).stderr
    assert "s3.endpoint" in home.call("s3", "clean", home.store, "model=gpt2", code=2).stderr
    assert "--older-than" in home.call("s3", "clean", home.store, "--older-than", "soon", code=2).stderr


# ---- doctor ----


def checks(home, *words, code=0, **environment):
    out = home.call("doctor", "--json", f"store={home.store}", *words, code=code, **environment).stdout
    return {row["name"]: row for row in json.loads(out)["checks"]}


def test_doctor_says_what_may_be_done_in_a_bucket(home):
    found = checks(home)
    for name in ("credentials", "endpoint", "addresses", "bucket", "clock", "list", "write", "read", "remove", "uploads", "abort"):
        assert found[f"s3 {name}"]["status"] == "ok", found[f"s3 {name}"]
    assert "environment" in found["s3 credentials"]["found"] and home.server.endpoint in found["s3 endpoint"]["found"]
    assert home.names() == {}


def test_doctor_says_what_to_do_about_a_bucket_that_cannot_be_used(home):
    found = checks(home, code=4, AWS_SECRET_ACCESS_KEY="not-the-secret")
    assert "SignatureDoesNotMatch" in found["s3 bucket"]["found"] or "403" in found["s3 bucket"]["found"], found["s3 bucket"]
    assert "credentials" in found["s3 bucket"]["do"]
    found = checks(home, "s3.endpoint=http://127.0.0.1:1", "s3.deadline=2s", code=4)
    assert any(row["status"] == "missing" and row["do"] for name, row in found.items() if name.startswith("s3"))
