"""What S3 answers: each operation of the API on the buckets in memory, as status, headers and body.

Knows requests and XML, but neither sockets nor signatures.
"""
import base64
import ctypes
import ctypes.util
import functools
import hashlib
import time
import urllib.parse
import xml.etree.ElementTree as ElementTree
import zlib
from email.utils import formatdate
from xml.sax.saxutils import escape

from s3_memory import Memory, md5
from s3_signature import Refused

NAMESPACE = 'xmlns="http://s3.amazonaws.com/doc/2006-03-01/"'


class Request:
    def __init__(self, method, path, pairs, headers):
        self.method, self.path, self.pairs, self.headers = method, path, pairs, headers
        self.query = dict(pairs)
        self.bucket, _, self.key = path.lstrip("/").partition("/")
        self.body = b""
        self.operation = operation_of(self)

    @property
    def part(self):
        return int(self.query.get("partNumber", 0))


class Answer:
    """`body` is a list of chunks; `length` is given where there is no body (HEAD)."""

    def __init__(self, status=200, body=(), headers=None, length=None):
        self.status, self.headers = status, headers or {}
        self.body = [body] if isinstance(body, bytes) else list(body)
        self.length = sum(len(chunk) for chunk in self.body) if length is None else length


def operation_of(request):
    """The API's name of what is asked for."""
    query, method = request.query, request.method
    if not request.bucket:
        return "ListBuckets"
    if not request.key:
        if method == "GET":
            return "ListMultipartUploads" if "uploads" in query else "GetBucketLocation" if "location" in query else "ListObjectsV2"
        return {"PUT": "CreateBucket", "DELETE": "DeleteBucket", "HEAD": "HeadBucket", "POST": "DeleteObjects"}.get(method, "Unknown")
    if method == "POST":
        return "CreateMultipartUpload" if "uploads" in query else "CompleteMultipartUpload" if "uploadId" in query else "Unknown"
    if "uploadId" in query:
        return {"PUT": "UploadPart", "DELETE": "AbortMultipartUpload", "GET": "ListParts"}.get(method, "Unknown")
    if method == "PUT" and "x-amz-copy-source" in request.headers:
        return "CopyObject"
    return {"PUT": "PutObject", "GET": "GetObject", "HEAD": "HeadObject", "DELETE": "DeleteObject"}.get(method, "Unknown")


def stamp(seconds):
    return time.strftime("%Y-%m-%dT%H:%M:%S.000Z", time.gmtime(seconds))


def document(root, *fields):
    """XML of a root with fields (name, text), or (name, None, inner XML)."""
    inner = "".join(f"<{name}>{more[1] if len(more) > 1 else escape(str(more[0]))}</{name}>" for name, *more in fields)
    return f'<?xml version="1.0" encoding="UTF-8"?>\n<{root} {NAMESPACE}>{inner}</{root}>'.encode()


def error_answer(refused, request, request_id):
    fields = "".join(f"<{name}>{escape(str(value))}</{name}>" for name, value in refused.more.items())
    body = (f'<?xml version="1.0" encoding="UTF-8"?>\n<Error><Code>{refused.code}</Code><Message>{escape(refused.message)}</Message>{fields}'
            f"<Resource>{escape(request.path)}</Resource><RequestId>{request_id}</RequestId></Error>").encode()
    return Answer(refused.status, body if request.method != "HEAD" else b"", {"content-type": "application/xml"})


@functools.cache
def isal():
    """The library that the program uses: a byte at a time in Python would take seconds a part."""
    library = ctypes.CDLL(ctypes.util.find_library("isal"))
    library.crc32_iscsi.restype = ctypes.c_uint32
    return library


def crc32c(data):
    view = (ctypes.c_char * len(data)).from_buffer(data if isinstance(data, bytearray) else bytearray(data))
    return isal().crc32_iscsi(view, len(data), 0xFFFFFFFF) ^ 0xFFFFFFFF


CHECKSUMS = {
    "x-amz-checksum-crc32": lambda data: zlib.crc32(data).to_bytes(4, "big"),
    "x-amz-checksum-crc32c": lambda data: crc32c(data).to_bytes(4, "big"),
    "x-amz-checksum-sha256": lambda data: hashlib.sha256(data).digest(),
    "content-md5": lambda data: md5(data).digest(),
}


def check_body(request):
    """Refuses a body that is not what its headers say."""
    claimed = request.headers.get("x-amz-content-sha256", "")
    if len(claimed) == 64 and hashlib.sha256(request.body).hexdigest() != claimed:
        raise Refused(400, "XAmzContentSHA256Mismatch", "The provided 'x-amz-content-sha256' header does not match what was computed.")
    for name, compute in CHECKSUMS.items():
        if name in request.headers and base64.b64encode(compute(request.body)).decode() != request.headers[name]:
            raise Refused(400, "BadDigest", f"The {name} you specified did not match the calculated checksum.")


def checksum_headers(request):
    return {name: value for name, value in request.headers.items() if name.startswith("x-amz-checksum-") and name in CHECKSUMS}


class Answers:
    """The operations; each takes a request whose body was read and checked."""

    def __init__(self):
        self.memory = Memory()

    def answer(self, request):
        operation = getattr(self, request.operation, None)
        if operation is None:
            raise Refused(405, "MethodNotAllowed", "The specified method is not allowed against this resource.")
        return operation(request)

    def ListBuckets(self, _):
        rows = "".join(f"<Bucket><Name>{escape(name)}</Name></Bucket>" for name in sorted(self.memory.buckets))
        return Answer(200, document("ListAllMyBucketsResult", ("Buckets", None, rows)))

    def CreateBucket(self, request):
        self.memory.make_bucket(request.bucket)
        return Answer(200, headers={"location": f"/{request.bucket}"})

    def DeleteBucket(self, request):
        self.memory.remove_bucket(request.bucket)
        return Answer(204)

    def HeadBucket(self, request):
        self.memory.bucket(request.bucket)
        return Answer(200)

    def GetBucketLocation(self, request):
        self.memory.bucket(request.bucket)
        return Answer(200, document("LocationConstraint"))

    def ListObjectsV2(self, request):
        query = request.query
        if query.get("list-type") != "2":
            raise Refused(501, "NotImplemented", "This server lists with list-type=2 alone.")
        limit = min(int(query.get("max-keys") or 1000), 1000)
        after = base64.b64decode(query["continuation-token"]).decode() if "continuation-token" in query else query.get("start-after", "")
        prefix, delimiter = query.get("prefix", ""), query.get("delimiter", "")
        found, more = self.memory.list(request.bucket, prefix, after, limit, delimiter)
        shown = (lambda text: urllib.parse.quote(text, safe="/-_.~*")) if query.get("encoding-type") == "url" else escape
        rows = [f"<CommonPrefixes><Prefix>{shown(name)}</Prefix></CommonPrefixes>" if item is None else
                f"<Contents><Key>{shown(name)}</Key><LastModified>{stamp(item.modified)}</LastModified><ETag>{escape(item.etag)}</ETag>"
                f"<Size>{item.size}</Size><StorageClass>STANDARD</StorageClass></Contents>" for name, item in found]
        token = f"<NextContinuationToken>{base64.b64encode(found[-1][0].encode()).decode()}</NextContinuationToken>" if more else ""
        coded = "<EncodingType>url</EncodingType>" if query.get("encoding-type") == "url" else ""
        body = (f'<?xml version="1.0" encoding="UTF-8"?>\n<ListBucketResult {NAMESPACE}><Name>{request.bucket}</Name><Prefix>{shown(prefix)}</Prefix>'
                f"<KeyCount>{len(found)}</KeyCount><MaxKeys>{limit}</MaxKeys>{coded}<IsTruncated>{'true' if more else 'false'}</IsTruncated>"
                f"{''.join(rows)}{token}</ListBucketResult>")
        return Answer(200, body.encode(), {"content-type": "application/xml"})

    def DeleteObjects(self, request):
        if "delete" not in request.query:
            raise Refused(405, "MethodNotAllowed", "The specified method is not allowed against this resource.")
        if not any(name in request.headers for name in CHECKSUMS):
            raise Refused(400, "InvalidRequest", "Missing required header for this request: Content-MD5")
        root = ElementTree.fromstring(request.body)
        keys = [element.text for element in root.iter() if element.tag.rpartition("}")[2] == "Key"]
        if len(keys) > 1000:
            raise Refused(400, "MalformedXML", "The XML you provided was not well-formed or did not validate against our published schema")
        for key in keys:
            self.memory.remove(request.bucket, key)
        return Answer(200, document("DeleteResult", *[("Deleted", None, f"<Key>{escape(key)}</Key>") for key in keys]))

    def PutObject(self, request):
        item = self.memory.put(request.bucket, request.key, request.body, checksum_headers(request), "if-none-match" in request.headers,
                               request.headers.get("if-match"))
        return Answer(200, headers={"etag": item.etag} | item.headers)

    def CopyObject(self, request):
        source = urllib.parse.unquote(request.headers["x-amz-copy-source"]).lstrip("/").partition("/")
        item = self.memory.copy(request.bucket, request.key, source[0], source[2])
        return Answer(200, document("CopyObjectResult", ("ETag", item.etag), ("LastModified", stamp(item.modified))))

    def object_headers(self, item):
        return {"etag": item.etag, "last-modified": formatdate(item.modified, usegmt=True), "accept-ranges": "bytes",
                "content-type": "binary/octet-stream"} | item.headers

    def HeadObject(self, request):
        item = self.memory.object(request.bucket, request.key)
        return Answer(200, headers=self.object_headers(item), length=item.size)

    def GetObject(self, request):
        item = self.memory.object(request.bucket, request.key)
        headers, wanted = self.object_headers(item), request.headers.get("range", "")
        if "if-match" in request.headers and request.headers["if-match"] != item.etag:
            raise Refused(412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold", Condition="If-Match")
        if not wanted.startswith("bytes="):
            return Answer(200, item.pieces(0, item.size), headers)
        first, _, last = wanted.removeprefix("bytes=").partition("-")
        if not first:
            first, end = max(item.size - int(last), 0), item.size
        else:
            first, end = int(first), min(int(last) + 1, item.size) if last else item.size
        if first >= item.size:
            raise Refused(416, "InvalidRange", "The requested range is not satisfiable", ActualObjectSize=str(item.size))
        for name in [name for name in headers if name.startswith("x-amz-checksum-")]:
            del headers[name]  # of the whole object
        return Answer(206, item.pieces(first, end), headers | {"content-range": f"bytes {first}-{end - 1}/{item.size}"})

    def DeleteObject(self, request):
        self.memory.remove(request.bucket, request.key)
        return Answer(204)

    def CreateMultipartUpload(self, request):
        metadata = {name: value for name, value in request.headers.items() if name.startswith("x-amz-meta-")}
        upload = self.memory.begin(request.bucket, request.key, metadata)
        upload.algorithm = request.headers.get("x-amz-checksum-algorithm", "").lower()
        return Answer(200, document("InitiateMultipartUploadResult", ("Bucket", request.bucket), ("Key", request.key), ("UploadId", upload.id)))

    def UploadPart(self, request):
        algorithm = self.memory.upload(request.bucket, request.key, request.query["uploadId"]).algorithm
        if algorithm and f"x-amz-checksum-{algorithm}" not in request.headers:
            raise Refused(400, "InvalidRequest", f"Checksum Type mismatch occurred, expected checksum Type: {algorithm}, actual checksum Type: null")
        etag = self.memory.put_part(request.bucket, request.key, request.query["uploadId"], request.part, request.body)
        return Answer(200, headers={"etag": etag} | checksum_headers(request))

    def CompleteMultipartUpload(self, request, lose=0):
        try:
            root = ElementTree.fromstring(request.body)
        except ElementTree.ParseError:
            raise Refused(400, "MalformedXML", "The XML you provided was not well-formed") from None
        wanted = []
        for part in [element for element in root.iter() if element.tag.rpartition("}")[2] == "Part"]:
            fields = {element.tag.rpartition("}")[2]: element.text for element in part}
            wanted.append((int(fields["PartNumber"]), fields["ETag"]))
        item = self.memory.complete(request.bucket, request.key, request.query["uploadId"], wanted, lose)
        return Answer(200, document("CompleteMultipartUploadResult", ("Location", request.path), ("Bucket", request.bucket),
                                    ("Key", request.key), ("ETag", item.etag)))

    def AbortMultipartUpload(self, request):
        self.memory.abort(request.bucket, request.key, request.query["uploadId"])
        return Answer(204)

    def ListParts(self, request):
        upload = self.memory.upload(request.bucket, request.key, request.query["uploadId"])
        rows = [("Part", None, f"<PartNumber>{number}</PartNumber><ETag>{escape(etag)}</ETag><Size>{len(data)}</Size>")
                for number, (etag, data) in sorted(upload.parts.items())]
        return Answer(200, document("ListPartsResult", ("UploadId", upload.id), ("IsTruncated", "false"), *rows))

    def ListMultipartUploads(self, request):
        query = request.query
        limit = min(int(query.get("max-uploads") or 1000), 1000)
        found, more = self.memory.list_uploads(request.bucket, query.get("prefix", ""), query.get("key-marker", ""),
                                               query.get("upload-id-marker", ""), limit)
        rows = [("Upload", None, f"<Key>{escape(one.key)}</Key><UploadId>{one.id}</UploadId><Initiated>{stamp(one.started)}</Initiated>")
                for one in found]
        last = [("NextKeyMarker", found[-1].key), ("NextUploadIdMarker", found[-1].id)] if more else []
        return Answer(200, document("ListMultipartUploadsResult", ("Bucket", request.bucket), ("IsTruncated", "true" if more else "false"),
                                    *last, *rows))
