"""AWS Signature Version 4 for S3, both sides: signing requests of tests, checking those of clients.

The rules of S3: the path is encoded once, each byte but unreserved ones and "/"; query words are encoded and
sorted; the payload's hash stands in x-amz-content-sha256. Times are UTC.
"""
import hashlib
import hmac
import re
import urllib.parse
from datetime import datetime, timezone

ALGORITHM = "AWS4-HMAC-SHA256"
UNSIGNED = "UNSIGNED-PAYLOAD"
FORM = re.compile(rf"{ALGORITHM} +Credential=([^/,]+)/(\d{{8}})/([^/,]+)/([^/,]+)/aws4_request, *SignedHeaders=([^,]+), *Signature=([0-9a-f]{{64}})$")


class Refused(Exception):
    """What a server answers to a request that it does not take: status, code, message."""

    def __init__(self, status, code, message, **more):
        super().__init__(f"{code}: {message}")
        self.status, self.code, self.message, self.more = status, code, message, more


def encode(text, safe=""):
    return urllib.parse.quote(text, safe=safe + "-_.~")


def canonical_query(pairs):
    return "&".join(f"{name}={value}" for name, value in sorted((encode(name), encode(value)) for name, value in pairs))


def canonical_request(method, path, pairs, headers, signed, payload_hash):
    lines = "".join(f"{name}:{' '.join(headers.get(name, '').split())}\n" for name in signed)
    return "\n".join([method, encode(path, "/"), canonical_query(pairs), lines, ";".join(signed), payload_hash])


def signature(secret, date, region, service, stamp, request):
    def step(key, text):
        return hmac.new(key, text.encode(), hashlib.sha256).digest()

    key = step(step(step(step(f"AWS4{secret}".encode(), date), region), service), "aws4_request")
    text = "\n".join([ALGORITHM, stamp, f"{date}/{region}/{service}/aws4_request", hashlib.sha256(request.encode()).hexdigest()])
    return hmac.new(key, text.encode(), hashlib.sha256).hexdigest()


def sign(method, path, pairs, headers, payload_hash, access_key, secret_key, region="us-east-1", token=None, now=None):
    """The headers with those that sign the request added; `headers` must have the host."""
    stamp = (now or datetime.now(timezone.utc)).strftime("%Y%m%dT%H%M%SZ")
    headers = {name.lower(): value for name, value in headers.items()}
    headers |= {"x-amz-date": stamp, "x-amz-content-sha256": payload_hash}
    if token:
        headers["x-amz-security-token"] = token
    signed = sorted(headers)
    request = canonical_request(method, path, pairs, headers, signed, payload_hash)
    made = signature(secret_key, stamp[:8], region, "s3", stamp, request)
    headers["authorization"] = (f"{ALGORITHM} Credential={access_key}/{stamp[:8]}/{region}/s3/aws4_request, "
                                f"SignedHeaders={';'.join(signed)}, Signature={made}")
    return headers


def check_time(stamp, now, tolerance_s=900):
    try:
        sent = datetime.strptime(stamp, "%Y%m%dT%H%M%SZ").replace(tzinfo=timezone.utc)
    except ValueError:
        raise Refused(403, "AccessDenied", "AWS authentication requires a valid Date or x-amz-date header") from None
    if abs((now - sent).total_seconds()) > tolerance_s:
        raise Refused(403, "RequestTimeTooSkewed", "The difference between the request time and the current time is too large.",
                      RequestTime=stamp, ServerTime=now.strftime("%Y-%m-%dT%H:%M:%SZ"), MaxAllowedSkewMilliseconds=str(tolerance_s * 1000))


def check_token(known, given, now):
    if known.get("token") is not None and given != known["token"] or known.get("token") is None and given is not None:
        raise Refused(400, "InvalidToken", "The provided token is malformed or otherwise invalid.")
    if known.get("expires") is not None and now.timestamp() >= known["expires"]:
        raise Refused(400, "ExpiredToken", "The provided token has expired.")


def check(method, path, pairs, headers, credentials, now, region=None):
    """Refuses a request whose signature is not right; gives the access key. `headers` have lower-case names."""
    found = FORM.match(headers.get("authorization", ""))
    if not found:
        raise Refused(403, "AccessDenied", "Access Denied." if "authorization" not in headers else "The authorization header is malformed.")
    access_key, date, scope_region, service, signed, given = found.groups()
    known = credentials.get(access_key)
    if known is None:
        raise Refused(403, "InvalidAccessKeyId", "The AWS Access Key Id you provided does not exist in our records.")
    stamp = headers.get("x-amz-date", "")
    check_time(stamp, now)
    if service != "s3" or date != stamp[:8]:
        raise Refused(400, "AuthorizationHeaderMalformed", "The authorization header is malformed; the scope is wrong.")
    if region and scope_region != region:
        raise Refused(400, "AuthorizationHeaderMalformed",
                      f"The authorization header is malformed; the region '{scope_region}' is wrong; expecting '{region}'", Region=region)
    names = signed.split(";")
    amazon = {name for name in headers if name.startswith("x-amz-")}
    if "host" not in names or not amazon <= set(names) or names != sorted(names):
        raise Refused(403, "AccessDenied", "There were headers present in the request which were not signed")
    payload_hash = headers.get("x-amz-content-sha256")
    if payload_hash is None:
        raise Refused(400, "InvalidRequest", "Missing required header for this request: x-amz-content-sha256")
    request = canonical_request(method, path, pairs, headers, names, payload_hash)
    if not hmac.compare_digest(signature(known["secret"], date, scope_region, service, stamp, request), given):
        raise Refused(403, "SignatureDoesNotMatch", "The request signature we calculated does not match the signature you provided. "
                      "Check your key and signing method.", CanonicalRequest=request)
    check_token(known, headers.get("x-amz-security-token"), now)
    return access_key
