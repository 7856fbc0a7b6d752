"""One S3 client's put or get of the files f0 … f3 of a folder: what it cost, as a line of JSON.

usage: s3_peers.py s5cmd|boto3|s3torchconnector put|get ENDPOINT BUCKET FOLDER
Time and CPU are those of the transfers alone for libraries (not of starting Python), of the process for s5cmd.
"""
import functools
import json
import os
import resource
import subprocess
import sys
import threading
import time

COUNT, PART_BYTES = 4, 8 << 20


def s5cmd(operation, endpoint, bucket, folder):
    words = ["s5cmd", "--log", "error", "--endpoint-url", endpoint, "cp", "--part-size", "8"]
    places = [f"{folder}/f*", f"s3://{bucket}/s5cmd/"] if operation == "put" else [f"s3://{bucket}/s5cmd/*", f"{folder}/out/"]
    return lambda: subprocess.run([*words, *places], check=True, stdin=subprocess.DEVNULL)


def boto3(operation, endpoint, bucket, folder):
    import boto3 as library
    from boto3.s3.transfer import TransferConfig
    from botocore.config import Config

    client = library.client("s3", endpoint_url=endpoint, config=Config(s3={"addressing_style": "path"}, max_pool_connections=32))
    how = TransferConfig(multipart_chunksize=PART_BYTES, max_concurrency=8)

    def move(index):
        if operation == "put":
            client.upload_file(f"{folder}/f{index}", bucket, f"boto3/{index}", Config=how)
        else:
            client.download_file(bucket, f"boto3/{index}", f"{folder}/g{index}", Config=how)

    return lambda: in_threads(move)


@functools.cache
def accept_empty_etags():
    """Lets the S3 connector put to Ceph RGW 16, whose reply to CompleteMultipartUpload has an empty <ETag>. The connector
    raises for that after everything is done: the reply was a 200, and the object is complete. So that one error counts as
    success if HEAD then shows an object of the length that was written. Nothing else of the connector changes."""
    from s3torchconnector._s3client import S3Client
    from s3torchconnectorclient._mountpoint_s3_client import S3Exception

    put_object = S3Client.put_object

    def put_and_check(client, bucket, key, *more):
        writer = put_object(client, bucket, key, *more)
        close = writer.close

        def close_and_check():
            try:
                close()
            except S3Exception as failure:
                if 'Header "ETag" not found' not in str(failure) or client.head_object(bucket, key).size != writer.tell():
                    raise

        writer.close = close_and_check
        return writer

    S3Client.put_object = put_and_check


def s3torchconnector(operation, endpoint, bucket, folder):
    from s3torchconnector import S3ClientConfig
    from s3torchconnector._s3client import S3Client

    accept_empty_etags()
    client = S3Client(region="us-east-1", endpoint=endpoint, s3client_config=S3ClientConfig(force_path_style=True))

    def move(index):
        if operation == "get":
            client.get_object(bucket, f"boto3/{index}").read()
            return
        writer = client.put_object(bucket, f"connector/{index}")
        with open(f"{folder}/f{index}", "rb") as file:
            while block := file.read(PART_BYTES):
                writer.write(block)
        writer.close()

    return lambda: in_threads(move)


def in_threads(move):
    failures = []

    def guarded(index):
        try:
            move(index)
        except BaseException as failure:
            failures.append(failure)

    threads = [threading.Thread(target=guarded, args=(index,)) for index in range(COUNT)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    if failures:
        raise failures[0]


def used():
    kinds = (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)
    return sum(usage.ru_utime + usage.ru_stime for usage in map(resource.getrusage, kinds))


def main():
    name, operation, endpoint, bucket, folder = sys.argv[1:]
    if operation == "get":
        os.makedirs(f"{folder}/out", exist_ok=True)
    run = globals()[name](operation, endpoint, bucket, folder)
    before, start = used(), time.monotonic()
    run()
    print(json.dumps({"wall_s": time.monotonic() - start, "cpu_s": used() - before}))


if __name__ == "__main__":
    main()
