"""A small S3 client for tests: signs, sends one request, gives the whole answer. Retries nothing.

usage: tests/services/s3_client.py make-bucket NAME     at the server that CKPTBENCH_TEST_S3… name
"""
import hashlib
import http.client
import os
import ssl
import sys
import urllib.parse
import xml.etree.ElementTree as ElementTree

from s3_signature import canonical_query, encode, sign


class Answer:
    def __init__(self, status, headers, body):
        self.status, self.headers, self.body = status, headers, body

    def xml(self):
        """The body as a tree without name spaces."""
        root = ElementTree.fromstring(self.body)
        for element in root.iter():
            element.tag = element.tag.partition("}")[2] or element.tag
        return root

    @property
    def code(self):
        """The code of an error's body."""
        return self.xml().findtext("Code") if self.body else ""


class Client:
    def __init__(self, endpoint, access_key, secret_key, region="us-east-1", token=None, authority=None, timeout=60):
        self.endpoint = urllib.parse.urlsplit(endpoint)
        self.credentials = {"access_key": access_key, "secret_key": secret_key, "region": region, "token": token}
        self.authority, self.timeout = authority, timeout

    def connect(self):
        if self.endpoint.scheme == "https":
            context = ssl.create_default_context(cafile=self.authority)
            return http.client.HTTPSConnection(self.endpoint.hostname, self.endpoint.port, timeout=self.timeout, context=context)
        return http.client.HTTPConnection(self.endpoint.hostname, self.endpoint.port, timeout=self.timeout)

    def request(self, method, bucket="", key="", query=(), headers=None, body=b"", payload=None, now=None):
        """`payload` is what to sign in place of the body's hash."""
        path = f"/{bucket}/{key}" if key else f"/{bucket}"
        pairs = list(dict(query).items())
        given = dict(headers or {}, host=self.endpoint.netloc)
        signed = sign(method, path, pairs, given, payload or hashlib.sha256(body).hexdigest(), now=now, **self.credentials)
        target = encode(path, "/") + ("?" + canonical_query(pairs) if pairs else "")
        connection = self.connect()
        try:
            connection.request(method, target, body=body or None, headers=signed)
            response = connection.getresponse()
            return Answer(response.status, {name.lower(): value for name, value in response.getheaders()}, response.read())
        finally:
            connection.close()

    def must(self, *words, **named):
        answer = self.request(*words, **named)
        if answer.status >= 300:
            raise AssertionError(f"{words}: {answer.status} {answer.body[:500]!r}")
        return answer

    def make_bucket(self, bucket):
        self.must("PUT", bucket)

    def put(self, bucket, key, body):
        self.must("PUT", bucket, key, body=body)

    def get(self, bucket, key):
        return self.must("GET", bucket, key).body

    def remove(self, bucket, key):
        self.must("DELETE", bucket, key)

    def keys(self, bucket, prefix=""):
        """Every key under a prefix and its size."""
        found, token = {}, None
        while True:
            query = {"list-type": "2", "prefix": prefix} | ({"continuation-token": token} if token else {})
            root = self.must("GET", bucket, query=query).xml()
            found.update((entry.findtext("Key"), int(entry.findtext("Size"))) for entry in root.iter("Contents"))
            if root.findtext("IsTruncated") != "true":
                return found
            token = root.findtext("NextContinuationToken")

    def begin_upload(self, bucket, key):
        return self.must("POST", bucket, key, query={"uploads": ""}).xml().findtext("UploadId")

    def uploads(self, bucket, prefix=""):
        """(key, id) of every multipart upload that is open."""
        root = self.must("GET", bucket, query={"uploads": "", "prefix": prefix}).xml()
        return [(entry.findtext("Key"), entry.findtext("UploadId")) for entry in root.iter("Upload")]


def main():
    if len(sys.argv) != 3 or sys.argv[1] != "make-bucket":
        sys.exit(__doc__)
    variable = "CKPTBENCH_TEST_S3"
    Client(os.environ[variable], os.environ[variable + "_ACCESS_KEY"], os.environ[variable + "_SECRET_KEY"]).make_bucket(sys.argv[2])


if __name__ == "__main__":
    main()
