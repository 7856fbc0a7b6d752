"""Other S3 clients as runs: what engine=command starts to save or load one rank's bytes with another client.

usage: s3_peer.py s5cmd|boto3|s3torchconnector OP PATH RANK BYTES
  ckptbench run store=s3://BUCKET/PREFIX engine=command command='python3 s3_peer.py boto3 {op} {path} {rank} {bytes}' …

A save writes BYTES bytes of this rank to the object PATH/rank-RANK, a load reads them back and checks their number
and their ends. Parts have 8 MiB, 8 are in flight. The bytes come from memory, for s5cmd from a file in memory
(/dev/shm), and are made before the clock of io_s starts; what is printed last is for ckptbench. PyTorch DCP through
the S3 connector is engine=torch-dcp with an S3 store.
"""
import hashlib
import io
import json
import os
import resource
import subprocess
import sys
import tempfile
import time

PART_BYTES = 8 << 20
IN_FLIGHT = 8


def payload(rank, count):
    """Bytes that do not compress, the same for the same rank."""
    seed, blocks = hashlib.sha256(str(rank).encode()).digest(), []
    for _ in range(1024):
        seed = hashlib.sha256(seed).digest()
        blocks.append(seed)
    block = b"".join(blocks)
    return (block * (count // len(block) + 1))[:count]


def region():
    return os.environ.get("AWS_REGION") or os.environ.get("AWS_DEFAULT_REGION") or "us-east-1"


def endpoint():
    return os.environ.get("AWS_ENDPOINT_URL_S3") or os.environ.get("AWS_ENDPOINT_URL")


class Boto3:
    def __init__(self, bucket, key):
        import boto3
        from boto3.s3.transfer import TransferConfig
        from botocore.config import Config

        style = {"addressing_style": "path"} if endpoint() else {}
        self.client = boto3.client("s3", endpoint_url=endpoint(), region_name=region(),
                                   config=Config(s3=style, max_pool_connections=2 * IN_FLIGHT))
        self.transfer = TransferConfig(multipart_chunksize=PART_BYTES, max_concurrency=IN_FLIGHT)
        self.bucket, self.key = bucket, key

    def save(self, data):
        self.client.upload_fileobj(io.BytesIO(data), self.bucket, self.key, Config=self.transfer)

    def load(self, count):
        target = io.BytesIO()
        self.client.download_fileobj(self.bucket, self.key, target, Config=self.transfer)
        return target.getbuffer()


class Connector:
    def __init__(self, bucket, key):
        from s3torchconnector import S3ClientConfig
        from s3torchconnector._s3client import S3Client

        config = S3ClientConfig(force_path_style=bool(endpoint()), part_size=PART_BYTES)
        self.client = S3Client(region=region(), endpoint=endpoint(), s3client_config=config)
        self.bucket, self.key = bucket, key

    def save(self, data):
        writer = self.client.put_object(self.bucket, self.key)
        view = memoryview(data)
        for at in range(0, len(view), PART_BYTES):
            writer.write(bytes(view[at : at + PART_BYTES]))
        writer.close()

    def load(self, count):
        return self.client.get_object(self.bucket, self.key).read()


class S5cmd:
    def __init__(self, bucket, key):
        self.uri = f"s3://{bucket}/{key}"
        self.file = tempfile.NamedTemporaryFile(dir="/dev/shm", prefix="ckptbench-peer-")
        self.words = ["s5cmd", "--log", "error"] + (["--endpoint-url", endpoint()] if endpoint() else [])

    def copy(self, source, target):
        size = ["--part-size", str(PART_BYTES >> 20), "--concurrency", str(IN_FLIGHT)]
        subprocess.run([*self.words, "cp", *size, source, target], check=True, stdin=subprocess.DEVNULL,
                       env=dict(os.environ, AWS_REGION=region()))

    def prepare(self, data):
        self.file.write(data)
        self.file.flush()

    def save(self, data):
        self.copy(self.file.name, self.uri)

    def load(self, count):
        self.copy(self.uri, self.file.name)
        with open(self.file.name, "rb") as file:
            return file.read()


CLIENTS = {"boto3": Boto3, "s3torchconnector": Connector, "s5cmd": S5cmd}


def cpu_s():
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)))


def main():
    if len(sys.argv) != 6 or sys.argv[1] not in CLIENTS or sys.argv[2] not in ("save", "load"):
        sys.exit(__doc__)
    name, operation, path, rank, count = sys.argv[1], sys.argv[2], sys.argv[3], sys.argv[4], int(sys.argv[5])
    if not path.startswith("s3://"):
        sys.exit(f"s3_peer: {path} is no S3 place: use store=s3://BUCKET/PREFIX")
    bucket, _, prefix = path.removeprefix("s3://").partition("/")
    client, data = CLIENTS[name](bucket, f"{prefix}/rank-{rank}"), payload(rank, count)
    if operation == "save" and hasattr(client, "prepare"):
        client.prepare(data)
    before, start = cpu_s(), time.monotonic()
    loaded = client.save(data) if operation == "save" else client.load(count)
    seconds, used = time.monotonic() - start, cpu_s() - before
    if operation == "load" and (len(loaded) != count or bytes(loaded[:4096]) != data[:4096] or bytes(loaded[-4096:]) != data[-4096:]):
        sys.exit(f"s3_peer: {name} gave {len(loaded)} bytes that are not the {count} that were saved")
    print(json.dumps({"metrics": {"io_s": seconds, "bytes_moved": count, "cpu_s": used}}))


if __name__ == "__main__":
    main()
