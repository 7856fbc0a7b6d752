"""A bucket between PyTorch and us: what it saved through the S3 connector is verified and loaded straight from the
bucket, and what we saved there it loads through the connector. The server is moto's. And the benchmarks' way to let the
connector put to Ceph RGW."""
import json
import os
import subprocess
import sys
import time
import uuid
from pathlib import Path
from types import SimpleNamespace

import boto3
import pytest
import torch
import torch.distributed.checkpoint as dcp
from s3torchconnector import S3ClientConfig
from s3torchconnector._s3client import S3Client
from s3torchconnector.dcp import S3StorageReader, S3StorageWriter
from s3torchconnectorclient._mountpoint_s3_client import S3Exception
from torch.distributed.checkpoint.default_planner import _EmptyStateDictLoadPlanner
from torch.distributed.checkpoint.format_utils import dcp_to_torch_save
from torch.distributed.checkpoint.state_dict_loader import _load_state_dict

from harness import BUILD
from conftest import Place, call

TESTS = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(TESTS / "services"))
sys.path.append(str(TESTS / "bench"))
import s3_peers  # noqa: E402
from ports import free_ports  # noqa: E402
from s3_client import Client  # noqa: E402

KEYS = {"AWS_ACCESS_KEY_ID": "interop", "AWS_SECRET_ACCESS_KEY": "interop-secret", "AWS_REGION": "us-east-1", "AWS_DEFAULT_REGION": "us-east-1"}


@pytest.fixture(scope="module")
def endpoint():
    (port,) = free_ports(1)
    address = f"http://127.0.0.1:{port}"
    server = subprocess.Popen([sys.executable, "-m", "moto.server", "-H", "127.0.0.1", "-p", str(port)], stdout=subprocess.DEVNULL,
                              stderr=subprocess.DEVNULL)
    saved = {key: os.environ.get(key) for key in [*KEYS, "AWS_ENDPOINT_URL"]}
    os.environ.update(KEYS, AWS_ENDPOINT_URL=address)
    try:
        for _ in range(300):
            try:
                boto3.client("s3").create_bucket(Bucket="interop")
                break
            except Exception:
                assert server.poll() is None
                time.sleep(0.1)
        yield address
    finally:
        server.kill()
        server.wait()
        for key, value in saved.items():
            os.environ.pop(key, None) if value is None else os.environ.update({key: value})


@pytest.fixture(scope="module")
def bed(endpoint, tmp_path_factory):
    """Runs into the bucket, and the state that a run with the same seed saved on disk, as PyTorch reads it."""
    place = Place(tmp_path_factory.mktemp("place"))
    folder = place.save("ranks=2 tp=2", "disk")
    dcp_to_torch_save(folder, place.folder / "state.pt")
    place.bucket = "s3://interop/bench"
    place.run("ops=save suffix=ours ranks=2 tp=2", store=place.bucket)
    return place, torch.load(place.folder / "state.pt", weights_only=False)


def config():
    return S3ClientConfig(force_path_style=True)


def flat(state, path=""):
    if isinstance(state, dict):
        return {key: value for name, part in state.items() for key, value in flat(part, f"{path}.{name}").items()}
    return {path: state}


def same(first, second):
    first, second = flat(first), flat(second)
    assert first.keys() == second.keys()
    for key, value in first.items():
        if torch.is_tensor(value):
            assert torch.equal(value, second[key]), key
        else:
            assert value == second[key], key


def test_ours_is_loaded_by_torch_through_the_connector(bed):
    place, state = bed
    loaded = {}
    reader = S3StorageReader(region="us-east-1", path=f"{place.bucket}/ours/iteration-0", s3client_config=config())
    _load_state_dict(loaded, storage_reader=reader, planner=_EmptyStateDictLoadPlanner(), no_dist=True)
    same(loaded, state)


def test_what_torch_saved_through_the_connector_is_verified_and_loaded_from_the_bucket(bed):
    place, state = bed
    writer = S3StorageWriter(region="us-east-1", path=f"{place.bucket}/torch", s3client_config=config())
    dcp.save(state, storage_writer=writer, no_dist=True)
    said = call(BUILD / "ckptbench", "verify", f"{place.bucket}/torch")
    assert said.returncode == 0 and "every element of every tensor is there once" in said.stdout, said.stdout + said.stderr
    document = place.run("ops=load suffix=torch ranks=2 tp=2 verify=full", store=place.bucket)
    assert document["outcome"] == "pass" and document["verified"]["iterations"] == 1


def test_what_torch_saved_through_the_connector_is_inspected_and_converted_from_the_bucket(bed):
    place, state = bed
    source, folder = f"{place.bucket}/convert", place.folder / "converted"
    writer = S3StorageWriter(region="us-east-1", path=source, s3client_config=config())
    dcp.save(state, storage_writer=writer, no_dist=True)
    seen = call(BUILD / "ckptbench", "inspect", "--json", "--tensors", source)
    assert seen.returncode == 0, seen.stderr
    tensors = {row["name"]: row["shape"] for row in json.loads(seen.stdout)["all_tensors"] if row["dtype"]}
    expected = {path.removeprefix("."): list(value.shape) for path, value in flat(state).items() if torch.is_tensor(value)}
    assert tensors == expected
    said = call(BUILD / "ckptbench", "convert", source, folder, "format=dcp", "ranks=2", "tp=2")
    assert said.returncode == 0, said.stderr
    dcp_to_torch_save(folder, place.folder / "converted.pt")
    same(torch.load(place.folder / "converted.pt", weights_only=False), state)


def test_a_flipped_bit_of_what_torch_saved_is_named_from_the_bucket(bed):
    place, state = bed
    writer = S3StorageWriter(region="us-east-1", path=f"{place.bucket}/bad", s3client_config=config())
    dcp.save(state, storage_writer=writer, no_dist=True)
    s3 = boto3.client("s3")
    body = bytearray(s3.get_object(Bucket="interop", Key="bench/bad/__0_0.distcp")["Body"].read())
    body[len(body) // 2] ^= 1
    s3.put_object(Bucket="interop", Key="bench/bad/__0_0.distcp", Body=bytes(body))
    said = call(BUILD / "ckptbench", "verify", "--json", f"{place.bucket}/bad")
    assert said.returncode == 3 and any(problem["file"] == "__0_0.distcp" for problem in json.loads(said.stdout)["problems"])


def test_torch_dcp_through_the_connector_is_an_engine_beside_ours(bed):
    """The same state and place, saved and loaded by PyTorch; ours then loads what PyTorch left."""
    place, _ = bed
    document = place.run("engine=torch-dcp ranks=2 tp=2", store=place.bucket)
    assert document["outcome"] == "pass" and document["metrics"]["save.io_s"]["median"] > 0
    place.run("engine=torch-dcp ops=save suffix=engine ranks=2 tp=2", store=place.bucket)
    assert place.run("ops=load suffix=engine ranks=2 tp=2 verify=full", store=place.bucket)["verified"] == {"iterations": 1, "of": 1}


def test_the_package_inside_pytorch_is_an_engine_in_a_bucket(bed):
    place, _ = bed
    document = place.run("engine=torch-native ranks=2 tp=2 verify=full", store=place.bucket)
    assert document["verified"] == {"iterations": 1, "of": 1} and document["metrics"]["save.io_s"]["median"] > 0


PACKAGE_IN_A_BUCKET = """
import sys
import torch
import torch.distributed.checkpoint as dcp
from s3torchconnector import S3ClientConfig
from s3torchconnector.dcp import S3StorageReader, S3StorageWriter
import ckptbench.checkpoint as checkpoint

endpoint, bucket = sys.argv[1:]
config = S3ClientConfig(force_path_style=True)
options = {"s3_endpoint": endpoint, "s3_path_style": True}
def state(value):
    return {"model": {"w": torch.full((300, 70), value), "b": torch.full((5,), value, dtype=torch.bfloat16)}, "step": value}
def same(loaded):
    assert torch.equal(loaded["model"]["w"], state(2.5)["model"]["w"]) and torch.equal(loaded["model"]["b"], state(2.5)["model"]["b"])
    assert loaded["step"] == 2.5, loaded
    return state(0.0)

loaded = state(0.0)
checkpoint.save(f"{bucket}/ours", state(2.5), async_checkpoint=True, **options).result()
dcp.load(loaded, storage_reader=S3StorageReader("us-east-1", f"{bucket}/ours", s3client_config=config), no_dist=True)
loaded = same(loaded)
dcp.save(state(2.5), storage_writer=S3StorageWriter("us-east-1", f"{bucket}/connector", s3client_config=config), no_dist=True)
checkpoint.load(f"{bucket}/connector", loaded, **options)
loaded = same(loaded)
dcp.save(state(2.5), storage_writer=checkpoint.Writer(f"{bucket}/writer", **options), no_dist=True)
dcp.load(loaded, storage_reader=checkpoint.Reader(f"{bucket}/writer", **options), no_dist=True)
same(loaded)
"""


def test_the_python_package_saves_to_a_bucket_and_loads_from_it(endpoint):
    result = call(sys.executable, "-c", PACKAGE_IN_A_BUCKET, endpoint, "s3://interop/package", CKPTBENCH_LIBRARY=str(BUILD / "libckptbench.so"),
                  PYTHONPATH=str(Path(__file__).resolve().parents[2] / "python"))
    assert result.returncode == 0, result.stderr


# --- what benchmarks do about Ceph RGW 16, whose reply to CompleteMultipartUpload has an empty <ETag> ---


@pytest.fixture
def accepting(monkeypatch):
    """Lets a test call accept_empty_etags() without an effect on other tests."""
    monkeypatch.setattr(S3Client, "put_object", S3Client.put_object)
    s3_peers.accept_empty_etags.cache_clear()


def test_the_connector_of_benchmarks_puts_to_ceph_rgw(tmp_path, monkeypatch, accepting):
    server = "CKPTBENCH_TEST_S3"
    if server not in os.environ:
        pytest.skip(f"{server} is not set: Ceph RGW is missing (tests/services/rgw.py)")
    endpoint, keys = os.environ[server], (os.environ[server + "_ACCESS_KEY"], os.environ[server + "_SECRET_KEY"])
    client, bucket = Client(endpoint, *keys), f"test-{uuid.uuid4().hex[:20]}"
    client.make_bucket(bucket)
    contents = [os.urandom(size) for size in (1, 1000, 100000, 9 << 20)]  # the last has two parts
    for index, content in enumerate(contents):
        (tmp_path / f"f{index}").write_bytes(content)
    monkeypatch.setenv("AWS_ACCESS_KEY_ID", keys[0])
    monkeypatch.setenv("AWS_SECRET_ACCESS_KEY", keys[1])
    monkeypatch.delenv("AWS_ENDPOINT_URL", raising=False)
    s3_peers.s3torchconnector("put", endpoint, bucket, tmp_path)()
    assert [client.get(bucket, f"connector/{index}") for index in range(len(contents))] == contents
    assert client.uploads(bucket) == []
    for key in client.keys(bucket):
        client.remove(bucket, key)
    client.must("DELETE", bucket)


@pytest.mark.parametrize("failure, length, is_put", [('Header "ETag" not found', 10, True), ('Header "ETag" not found', 9, False),
                                                     ("Connection reset", 10, False)])
def test_only_a_missing_etag_of_a_complete_object_is_accepted(monkeypatch, accepting, failure, length, is_put):
    def fail():
        raise S3Exception(failure)

    monkeypatch.setattr(S3Client, "put_object", lambda *_: SimpleNamespace(close=fail, tell=lambda: 10))
    monkeypatch.setattr(S3Client, "head_object", lambda *_: SimpleNamespace(size=length))
    s3_peers.accept_empty_etags()
    writer = S3Client("us-east-1").put_object("bucket", "key")
    if is_put:
        writer.close()
    else:
        with pytest.raises(S3Exception, match=failure):
            writer.close()
