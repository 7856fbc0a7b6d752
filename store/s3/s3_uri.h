/* Names of S3: URIs, endpoints, and the percent-encoding that signatures require. Pure. */
#ifndef STORE_S3_S3_URI_H
#define STORE_S3_S3_URI_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

#define S3_BUCKET_BYTES 256
#define S3_KEY_BYTES 1025 /* S3's limit and a NUL */
#define S3_HOST_BYTES 512
#define S3_PATH_BYTES (3 * (S3_KEY_BYTES + S3_BUCKET_BYTES) + 8) /* encoded */

/* Cuts "s3://BUCKET/PREFIX"; the prefix has no slash at either end and may be empty. */
int s3_uri_parse(const char *uri, char bucket[S3_BUCKET_BYTES], char prefix[S3_KEY_BYTES],
                 struct cb_err *err) CB_MUST_CHECK;

/* Where requests go. */
struct s3_endpoint {
    bool tls;
    uint16_t port;
    char name[S3_HOST_BYTES]; /* to resolve: a name or an address, without brackets */
    char host[S3_HOST_BYTES]; /* as in a URL and the Host header: brackets, and the port unless it is the scheme's */
    char base[S3_BUCKET_BYTES + 2]; /* prefix of paths: "/BUCKET" in path style, else "" */
};

/* Copies the URL that `rank` uses from "URL+URL…" to `one`; ranks use the URLs in turn. If there are several URLs, all
 * are checked. `one` may be the buffer of `urls`. */
int s3_endpoint_of_rank(const char *urls, uint32_t rank, char *one, size_t room, uint32_t *count,
                        struct cb_err *err) CB_MUST_CHECK;

/* The endpoint of AWS in a region, for a bucket, or an explicit one ("http://127.0.0.1:7480"; NULL or "" is AWS).
 * `path_style`: 1 or 0, or -1 to choose: bucket.host for AWS if TLS allows it, paths elsewhere. */
int s3_endpoint_make(const char *url, const char *region, const char *bucket, int path_style,
                     struct s3_endpoint *endpoint, struct cb_err *err) CB_MUST_CHECK;

/* Percent-encodes all but A-Z a-z 0-9 - . _ ~ (and '/' if kept). Returns the length, or SIZE_MAX if it does not fit
 * in `room` with its NUL. */
size_t s3_encode(const char *text, bool keep_slash, char *out, size_t room);

#endif
