/* AWS Signature Version 4: the Authorization header of a request. Pure except for OpenSSL. */
#ifndef STORE_S3_S3_SIGN_H
#define STORE_S3_S3_SIGN_H

#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/err.h"
#include "core/hash.h"

#define S3_EMPTY_HASH "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855"
#define S3_UNSIGNED_PAYLOAD "UNSIGNED-PAYLOAD"
#define S3_DATE_BYTES 17 /* "20130524T000000Z" */
#define S3_SCOPE_DATE_BYTES 9

struct s3_header {
    const char *name; /* lower case */
    const char *value;
};

struct s3_to_sign {
    const char *method;
    const char *path;                /* encoded */
    const char *query;               /* encoded, sorted by name, "name=" without a value; "" for none */
    const struct s3_header *headers; /* the signed ones, sorted by name */
    size_t header_count;
    const char *payload_hash; /* hex, or S3_UNSIGNED_PAYLOAD */
    const char *date;         /* from s3_format_date */
    const char *region, *service, *access_key;
};

void s3_format_date(uint64_t wall_ns, char date[S3_DATE_BYTES]);

/* The key for a day. It costs four HMACs, so callers cache it. `date`: only its first eight digits count. */
void s3_signing_key(const char *secret, const char *date, const char *region, const char *service,
                    unsigned char key[HASH_SHA256_BYTES]);

/* Appends the value of the Authorization header. `scratch` is cleared and used; both buffers keep their memory, so
 * that callers can reuse them without allocation. */
int s3_sign(const struct s3_to_sign *request, const unsigned char key[HASH_SHA256_BYTES], struct buf *scratch,
            struct buf *authorization, struct cb_err *err) CB_MUST_CHECK;

#endif
