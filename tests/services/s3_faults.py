"""An S3 server that misbehaves on demand: buckets in memory, real signatures, real TLS, scripted failures.

usage: tests/services/s3_faults.py [--tls KIND] [--client-certificates] [--folder DIR]
Prints one line of JSON with its addresses and ends when its standard input does, so that nothing outlives who
started it. Tests use the class FaultServer below, which starts it and talks to its control address.

What it may be told (POST /control on the control address, a JSON object; `rules` and each setting replace what was):
  rules      a list; the first that matches a request and is due happens. Matching: operation (a name of the API or
             a list), method, key (a regular expression), part, range (of the header, a regular expression),
             headers_sent ({name: regular expression}, each of which one of the request matches).
             Due: after=N matches that pass first, times=N (default 1; 0: always), percent=P of the matches.
             What happens is `fault`:
    error    status, code, message, and headers; early=true answers before the body is read and closes
    reset    the connection is reset after request_bytes of the body, or response_bytes of the answer, or at once
    close    the same with an orderly end
    stall    the same, but nothing happens any more for seconds (3600)
    drip     answers (or reads) at bytes_per_s
    delay    waits seconds, then serves
    corrupt  flips a bit of the answer's body at byte `at`
    damage   flips a bit of the request's body at byte `at`, before it is compared with what its headers say
    store_corrupt  flips a bit of what is stored
    truncate answers with response_bytes alone and a length that says so
    wrong_etag, lose_part (part: n of a completion goes missing), ok_error (200, then an error in the body),
    garbage (200 and a body that is no XML), redirect (to another region: 301 with x-amz-bucket-region),
    ignore_range (200 and all of the object), ignore_conditions (of a write), plain_etags (without
    quotes in the conditions of a write, as Ceph RGW 16 has it), answer (status, headers, body as given)
  bandwidth_bytes_per_s (shared by all), latency_s, clock_offset_s (of the server), region (another in a signature
  is refused), credentials ({access key: {secret, token, expires}}), metadata ({role, access_key, secret_key,
  token, expires_s, status}), seed, fill ({bucket, prefix, count}: so many objects of one byte are there).
GET /control/log lists the requests so far, POST /control/clear forgets them, GET /control/uploads the open uploads.
The same address answers as the metadata of an instance (IMDSv2) and of a container (/container).
"""
import argparse
import json
import os
import random
import re
import socket
import ssl
import struct
import subprocess
import sys
import tempfile
import threading
import time
import urllib.parse
import urllib.request
from datetime import datetime, timedelta, timezone
from email.utils import format_datetime
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parent))

from certificates import make_authority, make_certificate  # noqa: E402
from s3_answers import Answer, Answers, Request, check_body, error_answer  # noqa: E402
from s3_signature import Refused, check  # noqa: E402

ACCESS_KEY, SECRET_KEY = "faultyaccess", "faulty-secret-key"
MAX_HEAD = 64 << 10
PIECE = 256 << 10
REASONS = {200: "OK", 204: "No Content", 206: "Partial Content", 301: "Moved Permanently", 307: "Temporary Redirect", 400: "Bad Request",
           403: "Forbidden", 404: "Not Found", 405: "Method Not Allowed", 409: "Conflict", 412: "Precondition Failed",
           416: "Requested Range Not Satisfiable", 429: "Too Many Requests", 500: "Internal Server Error", 501: "Not Implemented",
           503: "Slow Down"}


class Gone(Exception):
    """The connection is over; `reset` says how it ends."""

    def __init__(self, reset=False):
        self.reset = reset


class Bandwidth:
    """Bytes a second shared by all connections; 0 is no limit."""

    def __init__(self):
        self.lock, self.rate, self.free_at = threading.Lock(), 0, 0.0

    def take(self, count):
        if not self.rate:
            return
        with self.lock:
            now = time.monotonic()
            self.free_at = max(self.free_at, now) + count / self.rate
            wait = self.free_at - now
        if wait > 0.002:
            time.sleep(wait)


class Rule:
    def __init__(self, words):
        self.words, self.seen, self.done = words, 0, 0
        self.fault = words["fault"]

    def get(self, name, default=None):
        return self.words.get(name, default)

    def matches(self, request):
        operations = self.get("operation", request.operation)
        return (request.operation in ([operations] if isinstance(operations, str) else operations)
                and self.get("method", request.method) == request.method
                and re.search(self.get("key", ""), request.key) is not None
                and (self.fault == "lose_part" or self.get("part", request.part) == request.part)
                and re.search(self.get("range", ""), request.headers.get("range", "")) is not None
                and all(re.search(pattern, request.headers.get(name, "")) for name, pattern in self.get("headers_sent", {}).items()))

    def is_due(self, generator):
        self.seen += 1
        if self.seen <= self.get("after", 0) or generator.random() * 100 >= self.get("percent", 100):
            return False
        times = self.get("times", 0 if "percent" in self.words else 1)
        self.done += 1
        return times == 0 or self.done <= times


class State:
    """What all connections share."""

    def __init__(self):
        self.lock, self.answers, self.bandwidth = threading.Lock(), Answers(), Bandwidth()
        self.rules, self.log, self.settings = [], [], {}
        self.generator, self.over = random.Random(1), threading.Event()
        self.connections = 0
        self.credentials = {ACCESS_KEY: {"secret": SECRET_KEY}}
        self.tokens, self.metadata_requests = set(), []

    def configure(self, words):
        with self.lock:
            if "rules" in words:
                self.rules = [Rule(rule) for rule in words.pop("rules")]
            if "seed" in words:
                self.generator = random.Random(words.pop("seed"))
            if "credentials" in words:
                self.credentials = words.pop("credentials")
            if "fill" in words:
                self.fill(**words.pop("fill"))
            self.settings.update(words)
            self.bandwidth.rate = self.settings.get("bandwidth_bytes_per_s", 0)

    def fill(self, bucket, prefix, count):
        """Many small objects at once."""
        memory = self.answers.memory
        if bucket not in memory.buckets:
            memory.make_bucket(bucket)
        for index in range(count):
            memory.put(bucket, f"{prefix}{index:08d}", b"x")

    def rule_for(self, request):
        with self.lock:
            for rule in self.rules:
                if rule.matches(request) and rule.is_due(self.generator):
                    return rule
        return None

    def now(self):
        return datetime.now(timezone.utc) + timedelta(seconds=self.settings.get("clock_offset_s", 0))


class Connection:
    def __init__(self, state, stream, number):
        self.state, self.stream, self.number, self.pending = state, stream, number, b""

    def read_some(self, limit):
        if self.pending:
            piece, self.pending = self.pending[:limit], self.pending[limit:]
            return piece
        return self.stream.recv(limit)

    def read_head(self):
        """The first line and the headers; None at an orderly end between requests."""
        head = b""
        while b"\r\n\r\n" not in head:
            piece = self.read_some(PIECE)
            if not piece or len(head) > MAX_HEAD:
                if head:
                    raise Gone
                return None
            head += piece
        head, self.pending = head.split(b"\r\n\r\n", 1)[0], head.split(b"\r\n\r\n", 1)[1] + self.pending
        first, *lines = head.decode("latin-1").split("\r\n")
        method, target, _ = first.split(" ")
        headers = {}
        for line in lines:
            name, _, value = line.partition(":")
            headers[name.strip().lower()] = value.strip()
        raw_path, _, raw_query = target.partition("?")
        pairs = [tuple(map(urllib.parse.unquote, word.partition("=")[::2])) for word in raw_query.split("&") if word]
        return Request(method, self.path_of(raw_path, headers), pairs, headers), raw_path

    @staticmethod
    def path_of(raw_path, headers):
        """The bucket in the host name is put in front of the path."""
        path, host = urllib.parse.unquote(raw_path), headers.get("host", "").rpartition(":")[0] or headers.get("host", "")
        return f"/{host.removesuffix('.localhost')}{path}" if host.endswith(".localhost") else path

    def wait(self, seconds):
        self.state.over.wait(seconds)

    def disturb(self, rule, kind):
        """The end of a connection as a rule has it."""
        if kind == "stall":
            self.wait(rule.get("seconds", 3600))
        raise Gone(reset=kind == "reset")

    def read_exactly(self, count, rule):
        """A body's bytes, as fast as the settings and a rule allow."""
        data, view, done = bytearray(count), None, 0
        view = memoryview(data)
        stop = rule.get("request_bytes") if rule and rule.fault in ("reset", "close", "stall") else None
        rate = rule.get("bytes_per_s") if rule and rule.fault == "drip" and rule.get("request", False) else None
        limit = PIECE if not rate else max(int(rate / 20), 1)
        while done < count:
            if stop is not None and done >= stop:
                self.disturb(rule, rule.fault)
            room = min(count - done, limit, stop - done if stop is not None else count)
            if self.pending:
                piece = self.read_some(room)
                view[done : done + len(piece)] = piece
                got = len(piece)
            else:
                got = self.stream.recv_into(view[done : done + room])
            if not got:
                raise Gone
            done += got
            self.state.bandwidth.take(got)
            if rate:
                self.wait(got / rate)
        if stop is not None and count <= stop:
            self.disturb(rule, rule.fault)
        return data

    def read_line(self):
        line = b""
        while not line.endswith(b"\r\n"):
            piece = self.read_some(1)
            if not piece:
                raise Gone
            line += piece
        return line[:-2]

    def read_body(self, request, rule):
        headers = request.headers
        if headers.get("expect", "").lower() == "100-continue":
            self.stream.sendall(b"HTTP/1.1 100 Continue\r\n\r\n")
        if headers.get("transfer-encoding", "").lower() == "chunked":
            body = bytearray()
            while count := int(self.read_line().split(b";")[0], 16):
                body += self.read_exactly(count, rule)
                self.read_line()
            while self.read_line():
                pass
        else:
            body = self.read_exactly(int(headers.get("content-length", 0)), rule)
        if "aws-chunked" in headers.get("content-encoding", ""):
            body = decode_aws_chunks(bytes(body), headers)
        request.body = body

    def write(self, answer, request, rule, keep, row):
        """The answer, with what a rule does to it."""
        fault = rule.fault if rule else ""
        chunks, length = answer.body, answer.length
        stop = rule.get("response_bytes") if rule else None
        if fault == "truncate":
            whole = b"".join(bytes(chunk) for chunk in chunks)[: stop or 0]
            chunks, length, stop = [whole], len(whole), None
        if fault == "corrupt":
            whole = bytearray(b"".join(bytes(chunk) for chunk in chunks))
            if whole:
                whole[rule.get("at", 0) % len(whole)] ^= 1
            chunks = [whole]
        named = {"server": "faults", "date": format_datetime(self.state.now(), usegmt=True), "x-amz-request-id": self.request_id,
                 "connection": "keep-alive" if keep else "close"} | answer.headers
        if answer.status != 204:
            named["content-length"] = str(length)
        head = f"HTTP/1.1 {answer.status} {REASONS.get(answer.status, 'Status')}\r\n"
        self.stream.sendall((head + "".join(f"{name}: {value}\r\n" for name, value in named.items()) + "\r\n").encode())
        if request.method != "HEAD":
            self.write_body(chunks, rule, stop, row)

    def write_body(self, chunks, rule, stop, row):
        """A row counts bytes before they go: who has them all finds them in the log."""
        rate = rule.get("bytes_per_s") if rule and rule.fault == "drip" and not rule.get("request", False) else None
        limit, done = PIECE if not rate else max(int(rate / 20), 1), 0
        for chunk in chunks:
            view = memoryview(chunk)
            while len(view):
                if stop is not None and done >= stop:
                    self.disturb(rule, rule.fault)
                piece = view[: min(limit, stop - done if stop is not None else limit)]
                self.state.bandwidth.take(len(piece))
                done, view = done + len(piece), view[len(piece) :]
                row["sent"] = done
                self.stream.sendall(piece)
                if rate:
                    self.wait(len(piece) / rate)
        if stop is not None:
            self.disturb(rule, rule.fault)

    def answer(self, request, rule, raw_path):
        """What S3 would say, or a rule instead of it."""
        fault, state = rule.fault if rule else "", self.state
        if fault == "error":
            raise Refused(rule.get("status", 503), rule.get("code", "SlowDown"), rule.get("message", "Please reduce your request rate."))
        if fault == "redirect":
            refused = Refused(301, "PermanentRedirect", "The bucket you are attempting to access must be addressed using the specified endpoint.",
                              Endpoint=rule.get("endpoint", "s3.eu-west-3.amazonaws.com"), Bucket=request.bucket)
            answer = error_answer(refused, request, self.request_id)
            answer.headers["x-amz-bucket-region"] = rule.get("region", "eu-west-3")
            return answer
        if fault == "garbage":
            return Answer(200, rule.get("body", "<<garbage & no XML\x01").encode(), {"content-type": "application/xml"})
        if fault == "answer":
            return Answer(rule.get("status", 200), rule.get("body", "").encode(), rule.get("headers", {}))
        path = urllib.parse.unquote(raw_path)
        check(request.method, path, request.pairs, request.headers, state.credentials, state.now(), state.settings.get("region"))
        if fault == "damage":
            request.body[rule.get("at", 0) % len(request.body)] ^= 1
        check_body(request)
        if fault == "ok_error":
            return Answer(200, b"   " + error_answer(Refused(200, rule.get("code", "InternalError"), rule.get("message", "We encountered an "
                          "internal error. Please try again.")), request, self.request_id).body[0], {"content-type": "application/xml"})
        if fault == "store_corrupt":
            request.body[rule.get("at", 0) % len(request.body)] ^= 1
        if fault == "ignore_range":
            request.headers.pop("range", None)
        if fault == "plain_etags" and "if-match" in request.headers:
            request.headers["if-match"] = f'"{request.headers["if-match"]}"'
        if fault == "ignore_conditions":
            request.headers.pop("if-match", None)
            request.headers.pop("if-none-match", None)
        if fault == "lose_part":
            return state.answers.CompleteMultipartUpload(request, lose=rule.get("part", 1))
        answer = state.answers.answer(request)
        if fault == "wrong_etag":
            answer.headers["etag"] = '"00000000000000000000000000000000"'
        return answer

    def serve_one(self):
        """One request and its answer; False when the connection is to end."""
        found = self.read_head()
        if found is None:
            return False
        request, raw_path = found
        rule = self.state.rule_for(request)
        fault = rule.fault if rule else ""
        self.request_id = f"REQ{len(self.state.log):012d}"
        row = {"id": self.request_id, "connection": self.number, "method": request.method, "operation": request.operation, "bucket": request.bucket,
               "key": request.key, "part": request.part, "range": request.headers.get("range", ""), "fault": fault, "status": 0,
               "received": 0, "sent": 0, "at": time.time(), "query": sorted(request.query),
               "checksums": sorted(name for name in request.headers if name.startswith("x-amz-checksum-")),
               "payload": request.headers.get("x-amz-content-sha256", "")[:32], "scheme": self.scheme(),
               "host": request.headers.get("host", ""),
               "payer": request.headers.get("x-amz-request-payer", ""), "address": self.stream.getsockname()[0],
               "peer": self.stream.getpeername()[0]}
        with self.state.lock:
            self.state.log.append(row)
        early = fault == "error" and rule.get("early", False)
        if fault in ("reset", "close", "stall") and "request_bytes" not in rule.words and "response_bytes" not in rule.words:
            self.disturb(rule, fault)
        if not early:
            self.read_body(request, rule)
            row["received"] = len(request.body)
        self.wait_as_told(rule)
        try:
            answer = self.answer(request, rule, raw_path)
        except Refused as refused:
            answer = error_answer(refused, request, self.request_id)
            answer.headers |= rule.get("headers", {}) if rule else {}
            answer.headers |= {"x-amz-bucket-region": refused.more["Region"]} if "Region" in refused.more else {}
        row["status"] = answer.status
        keep = not early and request.headers.get("connection", "").lower() != "close"
        self.write(answer, request, rule, keep, row)
        return keep

    def scheme(self):
        return "https" if isinstance(self.stream, ssl.SSLSocket) else "http"

    def wait_as_told(self, rule):
        seconds = self.state.settings.get("latency_s", 0) + (rule.get("seconds", 1) if rule and rule.fault == "delay" else 0)
        if seconds:
            self.wait(seconds)

    def run(self):
        reset = False
        try:
            while self.serve_one():
                pass
        except Gone as gone:
            reset = gone.reset
        except (OSError, ValueError):
            pass  # the client went away, or said what is no HTTP
        finally:
            end(self.stream, reset)


def end(stream, reset):
    """Closes a connection: with RST where it is to be reset, else in order."""
    try:
        if reset:
            stream.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            if isinstance(stream, ssl.SSLSocket):
                os.close(stream.detach())
        else:
            stream.shutdown(socket.SHUT_WR)
    except OSError:
        pass
    stream.close()


def decode_aws_chunks(body, headers):
    """Of Content-Encoding aws-chunked: the bytes; a trailer's checksum joins the headers."""
    out, at = bytearray(), 0
    while True:
        stop = body.index(b"\r\n", at)
        count = int(body[at:stop].split(b";")[0], 16)
        at = stop + 2
        if not count:
            break
        out += body[at : at + count]
        at += count + 2
    for line in body[at:].decode().split("\r\n"):
        name, _, value = line.partition(":")
        if name.startswith("x-amz-checksum-"):
            headers[name] = value
    return out


# ---- what is beside the S3 address: control, and the metadata of an instance and of a container ----


class Beside(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    state = None

    def log_message(self, *_):
        pass

    def reply(self, status, body=b"", content="application/json"):
        body = body if isinstance(body, bytes) else json.dumps(body).encode()
        self.send_response(status)
        self.send_header("Content-Type", content)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def do_POST(self):
        body = self.rfile.read(int(self.headers.get("Content-Length", 0)))
        if self.path == "/control":
            self.state.configure(json.loads(body))
        elif self.path == "/control/clear":
            with self.state.lock:
                self.state.log.clear()
                self.state.metadata_requests.clear()
        else:
            return self.reply(404)
        self.reply(200, {})

    def do_PUT(self):
        if self.path != "/latest/api/token" or "X-aws-ec2-metadata-token-ttl-seconds" not in self.headers:
            return self.reply(400)
        self.state.metadata_requests.append("token")
        token = f"session-{len(self.state.tokens)}"
        self.state.tokens.add(token)
        self.reply(200, token.encode(), "text/plain")

    def do_GET(self):
        if self.path == "/control/log":
            return self.reply(200, self.state.log)
        if self.path == "/control/metadata":
            return self.reply(200, self.state.metadata_requests)
        if self.path == "/control/uploads":
            with self.state.lock:
                return self.reply(200, [upload.key for bucket in self.state.answers.memory.buckets.values() for upload in bucket.uploads.values()])
        metadata = self.state.settings.get("metadata")
        if metadata is None:
            return self.reply(404)
        if self.path.startswith("/latest/") and self.headers.get("X-aws-ec2-metadata-token") not in self.state.tokens:
            return self.reply(401)
        if self.path == "/container" and self.headers.get("Authorization") != metadata.get("authorization"):
            return self.reply(401)
        self.state.metadata_requests.append(self.path)
        if metadata.get("status", 200) != 200:
            return self.reply(metadata["status"])
        if self.path == "/latest/meta-data/iam/security-credentials/":
            return self.reply(200, metadata.get("role", "tester").encode(), "text/plain")
        expires = datetime.now(timezone.utc) + timedelta(seconds=metadata.get("expires_s", 3600))
        self.reply(200, {"Code": "Success", "Type": "AWS-HMAC", "AccessKeyId": metadata["access_key"], "SecretAccessKey": metadata["secret_key"],
                         "Token": metadata.get("token", ""), "Expiration": expires.strftime("%Y-%m-%dT%H:%M:%SZ")})


# ---- the server ----

KINDS = {  # of certificates: names, addresses, days, whether the CA that clients are given signed it
    "good": (["localhost", "*.localhost"], ["127.0.0.1"], "30", True),
    "wrong-name": (["storage.example"], [], "30", True),
    "stranger": (["localhost"], ["127.0.0.1"], "30", False),
}


def make_tls(folder, kind, client_certificates):
    names, addresses, days, known = KINDS[kind]
    authority = make_authority(folder, "ckptbench test CA")
    signer = authority
    if not known:
        (folder / "stranger").mkdir()
        signer = make_authority(folder / "stranger", "a stranger")
    base = make_certificate(signer, folder / "server", names, addresses, days)
    make_certificate(authority, folder / "client", ["tester"], client=True)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(f"{base}.pem", f"{base}.key")
    if client_certificates:
        context.verify_mode = ssl.CERT_REQUIRED
        context.load_verify_locations(f"{authority}.pem")
    return context


def listen():
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    listener.bind(("127.0.0.1", 0))
    listener.listen(512)
    return listener


def handle(state, stream, context, number):
    try:
        stream.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        if context:
            stream.settimeout(30)
            stream = context.wrap_socket(stream, server_side=True)
            stream.settimeout(None)
    except OSError:
        stream.close()
        return
    Connection(state, stream, number).run()


def accept(state, listener, context):
    while True:
        stream, _ = listener.accept()
        with state.lock:
            state.connections += 1
            number = state.connections
        threading.Thread(target=handle, args=(state, stream, context, number), daemon=True).start()


def serve(arguments):
    state = State()
    folder = Path(arguments.folder)
    listeners = {"http": (listen(), None)}
    if arguments.tls:
        listeners["https"] = (listen(), make_tls(folder, arguments.tls, arguments.client_certificates))
    for listener, context in listeners.values():
        threading.Thread(target=accept, args=(state, listener, context), daemon=True).start()
    control = ThreadingHTTPServer(("127.0.0.1", 0), type("Control", (Beside,), {"state": state}))
    control.daemon_threads = True
    threading.Thread(target=control.serve_forever, daemon=True).start()
    ports = {name: listener.getsockname()[1] for name, (listener, _) in listeners.items()}
    print(json.dumps({"ports": ports, "control": f"http://127.0.0.1:{control.server_address[1]}"}), flush=True)
    sys.stdin.buffer.read()
    state.over.set()


class FaultServer:
    """The server in a process of its own, for a `with` statement; its addresses, and what it can be told and asked."""

    def __init__(self, tls="", client_certificates=False, **settings):
        self.words = ["--tls", tls] if tls else []
        self.words += ["--client-certificates"] if client_certificates else []
        self.settings = settings
        self.access_key, self.secret_key = ACCESS_KEY, SECRET_KEY

    def __enter__(self):
        self.folder = tempfile.TemporaryDirectory(prefix="ckptbench-faults-")
        self.process = subprocess.Popen([sys.executable, __file__, "--folder", self.folder.name, *self.words], stdin=subprocess.PIPE,
                                        stdout=subprocess.PIPE, text=True)
        line = self.process.stdout.readline()
        if not line:
            self.__exit__()
            raise RuntimeError("the server did not start")
        told = json.loads(line)
        self.control = told["control"]
        self.endpoint = f"http://127.0.0.1:{told['ports']['http']}"
        self.tls_endpoint = f"https://localhost:{told['ports']['https']}" if "https" in told["ports"] else None
        self.authority = str(Path(self.folder.name) / "ca.pem")
        self.client_certificate = str(Path(self.folder.name) / "client.pem")
        self.client_key = str(Path(self.folder.name) / "client.key")
        if self.settings:
            self.tell(**self.settings)
        return self

    def __exit__(self, *_):
        self.process.stdin.close()
        try:
            self.process.wait(timeout=10)
        except subprocess.TimeoutExpired:
            self.process.kill()
            self.process.wait()
        self.process.stdout.close()
        self.folder.cleanup()

    def ask(self, path, body=None):
        data = None if body is None else json.dumps(body).encode()
        with urllib.request.urlopen(self.control + path, data=data, timeout=30) as answer:
            return json.loads(answer.read() or b"null")

    def tell(self, **words):
        self.ask("/control", words)

    def fail(self, *rules):
        """Replaces the rules."""
        self.tell(rules=list(rules))

    def clear(self):
        self.ask("/control/clear", {})

    def log(self, operation=None):
        return [row for row in self.ask("/control/log") if operation in (None, row["operation"])]

    def uploads(self):
        return self.ask("/control/uploads")


def main():
    parser = argparse.ArgumentParser()
    parser.add_argument("--tls", choices=KINDS, default="")
    parser.add_argument("--client-certificates", action="store_true")
    parser.add_argument("--folder", default="")
    arguments = parser.parse_args()
    if arguments.folder:
        serve(arguments)
    else:
        with tempfile.TemporaryDirectory(prefix="ckptbench-faults-") as arguments.folder:
            serve(arguments)


if __name__ == "__main__":
    main()
