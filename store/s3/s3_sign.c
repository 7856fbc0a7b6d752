/* Signatures: the canonical request and the string to sign. */
#include "store/s3/s3_sign.h"

#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"

void s3_format_date(uint64_t wall_ns, char date[S3_DATE_BYTES])
{
    time_t seconds = (time_t)(wall_ns / NS_PER_S);
    struct tm utc;
    gmtime_r(&seconds, &utc);
    if (strftime(date, S3_DATE_BYTES, "%Y%m%dT%H%M%SZ", &utc) == 0)
        memcpy(date, "19700101T000000Z", S3_DATE_BYTES);
}

void s3_signing_key(const char *secret, const char *date, const char *region, const char *service,
                    unsigned char key[HASH_SHA256_BYTES])
{
    char first[512];
    int len = snprintf(first, sizeof first, "AWS4%s", secret);
    size_t first_len = len < 0 ? 0 : (size_t)len < sizeof first ? (size_t)len : sizeof first - 1;
    hash_hmac_sha256(first, first_len, date, S3_SCOPE_DATE_BYTES - 1, key);
    hash_hmac_sha256(key, HASH_SHA256_BYTES, region, strlen(region), key);
    hash_hmac_sha256(key, HASH_SHA256_BYTES, service, strlen(service), key);
    hash_hmac_sha256(key, HASH_SHA256_BYTES, "aws4_request", 12, key);
    explicit_bzero(first, sizeof first);
}

/* Values are signed without surrounding white space, and with runs of it collapsed to one space. */
static void append_value(struct buf *out, const char *value)
{
    while (*value == ' ' || *value == '\t')
        value++;
    for (; *value; value++) {
        bool blank = *value == ' ' || *value == '\t';
        if (blank && (value[1] == ' ' || value[1] == '\t' || value[1] == '\0'))
            continue;
        buf_append_char(out, blank ? ' ' : *value);
    }
}

static void append_signed_names(struct buf *out, const struct s3_to_sign *request)
{
    for (size_t i = 0; i < request->header_count; i++) {
        if (i > 0)
            buf_append_char(out, ';');
        buf_append_text(out, request->headers[i].name);
    }
}

static void compose_canonical(const struct s3_to_sign *request, struct buf *out)
{
    buf_clear(out);
    buf_printf(out, "%s\n%s\n%s\n", request->method, request->path, request->query);
    for (size_t i = 0; i < request->header_count; i++) {
        buf_printf(out, "%s:", request->headers[i].name);
        append_value(out, request->headers[i].value);
        buf_append_char(out, '\n');
    }
    buf_append_char(out, '\n');
    append_signed_names(out, request);
    buf_printf(out, "\n%s", request->payload_hash);
}

int s3_sign(const struct s3_to_sign *request, const unsigned char key[HASH_SHA256_BYTES], struct buf *scratch,
            struct buf *authorization, struct cb_err *err)
{
    unsigned char digest[HASH_SHA256_BYTES];
    char hex[2 * HASH_SHA256_BYTES + 1];
    compose_canonical(request, scratch);
    int rc = buf_check(scratch, "a request to sign", err);
    if (rc)
        return rc;
    hash_sha256_hex(scratch->data, scratch->len, hex);
    buf_clear(scratch);
    buf_printf(scratch, "AWS4-HMAC-SHA256\n%s\n%.8s/%s/%s/aws4_request\n%s", request->date, request->date,
               request->region, request->service, hex);
    rc = buf_check(scratch, "a string to sign", err);
    if (rc)
        return rc;
    hash_hmac_sha256(key, HASH_SHA256_BYTES, scratch->data, scratch->len, digest);
    hash_hex(digest, sizeof digest, hex);
    buf_printf(authorization,
               "AWS4-HMAC-SHA256 Credential=%s/%.8s/%s/%s/aws4_request, SignedHeaders=", request->access_key,
               request->date, request->region, request->service);
    append_signed_names(authorization, request);
    buf_printf(authorization, ", Signature=%s", hex);
    return buf_check(authorization, "a signature", err);
}
