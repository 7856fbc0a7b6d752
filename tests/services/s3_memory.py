"""Buckets, objects and multipart uploads in memory, with the rules of S3: no sockets, no signatures.

Every operation takes the lock of the whole; bytes are joined and hashed outside of it. Answers that S3 gives as
errors are raised as Refused.
"""
import bisect
import hashlib
import threading
import time
import uuid

from s3_signature import Refused

MIN_PART, MAX_PARTS = 5 << 20, 10000


def md5(data):
    return hashlib.md5(data, usedforsecurity=False)


class Object:
    """Bytes in the chunks they came in."""

    def __init__(self, chunks, etag, headers=None):
        self.chunks, self.etag, self.headers, self.modified = chunks, etag, headers or {}, time.time()
        self.ends = []
        for chunk in chunks:
            self.ends.append((self.ends[-1] if self.ends else 0) + len(chunk))

    @property
    def size(self):
        return self.ends[-1] if self.ends else 0

    def pieces(self, first, end):
        """Views of bytes [first, end)."""
        index = bisect.bisect_right(self.ends, first)
        while first < end:
            start = self.ends[index] - len(self.chunks[index])
            piece = memoryview(self.chunks[index])[first - start : min(end, self.ends[index]) - start]
            yield piece
            first += len(piece)
            index += 1

    def bytes(self):
        return b"".join(self.chunks)


class Upload:
    def __init__(self, key, headers=None):
        self.key, self.id, self.started, self.parts, self.headers = key, uuid.uuid4().hex, time.time(), {}, headers or {}


class Bucket:
    def __init__(self):
        self.objects, self.names, self.uploads = {}, [], {}

    def put(self, key, item):
        if key not in self.objects:
            bisect.insort(self.names, key)
        self.objects[key] = item

    def remove(self, key):
        if self.objects.pop(key, None) is not None:
            del self.names[bisect.bisect_left(self.names, key)]


class Memory:
    def __init__(self):
        self.lock, self.buckets = threading.RLock(), {}

    def bucket(self, name):
        found = self.buckets.get(name)
        if found is None:
            raise Refused(404, "NoSuchBucket", "The specified bucket does not exist", BucketName=name)
        return found

    def make_bucket(self, name):
        with self.lock:
            if name in self.buckets:
                raise Refused(409, "BucketAlreadyOwnedByYou", "Your previous request to create the named bucket succeeded and you already own it.")
            self.buckets[name] = Bucket()

    def remove_bucket(self, name):
        with self.lock:
            if self.bucket(name).objects:
                raise Refused(409, "BucketNotEmpty", "The bucket you tried to delete is not empty")
            del self.buckets[name]

    def object(self, bucket, key):
        with self.lock:
            found = self.bucket(bucket).objects.get(key)
        if found is None:
            raise Refused(404, "NoSuchKey", "The specified key does not exist.", Key=key)
        return found

    def put(self, bucket, key, data, headers=None, only_if_absent=False, only_if=None):
        item = Object([data] if len(data) else [], f'"{md5(data).hexdigest()}"', headers)
        with self.lock:
            place = self.bucket(bucket)
            if only_if_absent and key in place.objects:
                raise Refused(412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold", Condition="If-None-Match")
            if only_if and key not in place.objects:
                raise Refused(404, "NoSuchKey", "The specified key does not exist.", Key=key)
            if only_if and only_if != place.objects[key].etag:
                raise Refused(412, "PreconditionFailed", "At least one of the pre-conditions you specified did not hold", Condition="If-Match")
            place.put(key, item)
        return item

    def copy(self, bucket, key, source_bucket, source_key):
        source = self.object(source_bucket, source_key)
        item = Object(source.chunks, source.etag, source.headers)
        with self.lock:
            self.bucket(bucket).put(key, item)
        return item

    def remove(self, bucket, key):
        with self.lock:
            self.bucket(bucket).remove(key)

    # ---- multipart ----

    def begin(self, bucket, key, headers=None):
        upload = Upload(key, headers)
        with self.lock:
            self.bucket(bucket).uploads[upload.id] = upload
        return upload

    def upload(self, bucket, key, upload_id):
        with self.lock:
            found = self.bucket(bucket).uploads.get(upload_id)
        if found is None or found.key != key:
            raise Refused(404, "NoSuchUpload", "The specified upload does not exist. The upload ID may be invalid, or the upload "
                          "may have been aborted or completed.", UploadId=upload_id)
        return found

    def put_part(self, bucket, key, upload_id, number, data):
        upload = self.upload(bucket, key, upload_id)
        if not 1 <= number <= MAX_PARTS:
            raise Refused(400, "InvalidArgument", f"Part number must be an integer between 1 and {MAX_PARTS}, inclusive")
        etag = f'"{md5(data).hexdigest()}"'
        with self.lock:
            upload.parts[number] = (etag, data)
        return etag

    def complete(self, bucket, key, upload_id, wanted, lose=0):
        """`wanted` are (number, etag); `lose` is a part that silently goes missing: a fault."""
        upload = self.upload(bucket, key, upload_id)
        if not wanted:
            raise Refused(400, "MalformedXML", "The XML you provided was not well-formed or did not validate against our published schema")
        if [number for number, _ in wanted] != sorted({number for number, _ in wanted}):
            raise Refused(400, "InvalidPartOrder", "The list of parts was not in ascending order.")
        chunks, digests = [], b""
        for number, etag in wanted:
            if number not in upload.parts or upload.parts[number][0].strip('"') != etag.strip('"'):
                raise Refused(400, "InvalidPart", "One or more of the specified parts could not be found.", PartNumber=str(number))
        for index, (number, _) in enumerate(wanted):
            there = upload.parts[number]
            if index + 1 < len(wanted) and len(there[1]) < MIN_PART:
                raise Refused(400, "EntityTooSmall", "Your proposed upload is smaller than the minimum allowed size",
                              PartNumber=str(number), ProposedSize=str(len(there[1])), MinSizeAllowed=str(MIN_PART))
            digests += bytes.fromhex(there[0].strip('"'))
            if number != lose:
                chunks.append(there[1])
        item = Object([chunk for chunk in chunks if len(chunk)], f'"{md5(digests).hexdigest()}-{len(wanted)}"', upload.headers)
        with self.lock:
            place = self.bucket(bucket)
            place.put(key, item)
            place.uploads.pop(upload_id, None)
        return item

    def abort(self, bucket, key, upload_id):
        self.upload(bucket, key, upload_id)
        with self.lock:
            self.bucket(bucket).uploads.pop(upload_id, None)

    # ---- lists ----

    def list(self, bucket, prefix, after, limit, delimiter=""):
        """Up to `limit` entries past `after`: (name, object or None for a common prefix), and whether more follow."""
        found = []
        with self.lock:
            place = self.bucket(bucket)
            index = max(bisect.bisect_left(place.names, prefix), bisect.bisect_right(place.names, after) if after else 0)
            while index < len(place.names) and place.names[index].startswith(prefix):
                name = place.names[index]
                cut = name.find(delimiter, len(prefix)) if delimiter else -1
                if cut >= 0:
                    name = name[: cut + len(delimiter)]
                    index = bisect.bisect_left(place.names, name + "\U0010ffff")
                    if after and name <= after:
                        continue
                    entry = (name, None)
                else:
                    entry = (name, place.objects[name])
                    index += 1
                if len(found) == limit:
                    return found, True
                found.append(entry)
        return found, False

    def list_uploads(self, bucket, prefix, key_marker, id_marker, limit):
        with self.lock:
            uploads = sorted((upload for upload in self.bucket(bucket).uploads.values() if upload.key.startswith(prefix)),
                             key=lambda upload: (upload.key, upload.id))
        if key_marker:
            uploads = [one for one in uploads if (one.key, one.id) > (key_marker, id_marker or "\U0010ffff")]
        return uploads[:limit], len(uploads) > limit
