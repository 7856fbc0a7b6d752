/* S3 operations beyond a store: unfinished uploads, and the settings that a connection really uses.
 *
 * A client belongs to one thread at a time; every call blocks until it is done or given up (s3.deadline). Error
 * messages contain the request, the server's message and its request id, but no secrets. */
#ifndef STORE_S3_S3_H
#define STORE_S3_S3_H

#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/err.h"
#include "store/s3/s3_options.h"
#include "store/store.h"

struct s3_client;

/* `rank` is the caller's, or 0 if there are no ranks. `options` NULL: the default of every s3.* key. Fails without
 * credentials, and if the endpoint has no address. */
int s3_client_open(const char *uri, const struct s3_options *options, uint32_t rank, struct s3_client **client,
                   struct cb_err *err) CB_MUST_CHECK;
void s3_client_free(struct s3_client *self);

/* The settings in effect and the last reply; valid until the client is used again. */
struct s3_facts {
    const char *bucket, *prefix, *region;
    const char *endpoint;           /* "http://127.0.0.1:7480" */
    const char *endpoint_source;    /* "s3.endpoint", "AWS_ENDPOINT_URL", "profile", "AWS" */
    const char *credentials_source; /* "environment" */
    uint64_t credentials_expire_ns; /* wall clock; 0: never */
    const char *protection;         /* of bodies: s3_session_protection */
    const char *const *addresses;   /* of the endpoint: "::ADDRESS:PORT" */
    size_t address_count;           /* 0: resolved by a proxy */
    int64_t clock_offset_ns;        /* server clock minus ours, from the last reply; to a second */
    long status;                    /* of the last reply; 0 if there was none */
    const char *code;               /* S3's error code ("AccessDenied"), or "" */
};
void s3_client_facts(const struct s3_client *self, struct s3_facts *facts);

/* Names are relative to the URI's prefix, as in store.h. */
int s3_client_put(struct s3_client *self, const char *name, const void *bytes, size_t len,
                  struct cb_err *err) CB_MUST_CHECK;
/* s3_swap.c: see store_swap. */
int s3_client_swap(struct s3_client *self, const char *name, const char *before, const char *after, bool *guarded,
                   struct cb_err *err) CB_MUST_CHECK;
int s3_client_get(struct s3_client *self, const char *name, struct buf *out, struct cb_err *err) CB_MUST_CHECK;
int s3_client_stat(struct s3_client *self, const char *name, uint64_t *length, struct cb_err *err) CB_MUST_CHECK;
/* Last modification, on the server's clock, to a second. */
int s3_client_modified(struct s3_client *self, const char *name, uint64_t *wall_ns, struct cb_err *err) CB_MUST_CHECK;
/* Like store_list. */
int s3_client_list(struct s3_client *self, const char *folder, store_list_fn each, void *context,
                   struct cb_err *err) CB_MUST_CHECK;
/* Up to 1,000 per request; missing objects are not an error. */
int s3_client_remove(struct s3_client *self, const char *const *names, size_t count, struct cb_err *err) CB_MUST_CHECK;

/* A multipart upload that was begun and neither completed nor aborted. */
struct s3_upload {
    const char *key; /* full key in the bucket */
    const char *id;
    uint64_t begun_ns; /* wall clock; 0 if the server does not report it */
};
typedef int (*s3_upload_fn)(void *context, const struct s3_upload *upload, struct cb_err *err);
/* Uploads under the URI's prefix and `folder` ("" for all). `each` must not use the client. */
int s3_client_list_uploads(struct s3_client *self, const char *folder, s3_upload_fn each, void *context,
                           struct cb_err *err) CB_MUST_CHECK;
/* Succeeds if the upload is gone. */
int s3_client_abort_upload(struct s3_client *self, const char *key, const char *id, struct cb_err *err) CB_MUST_CHECK;
/* Aborts uploads under a folder, and counts them in *count: those for which `is_theirs` is true, which is asked about the
 * name relative to the folder. NULL: all. Agents call this after killing their ranks. */
int s3_client_abort_uploads(struct s3_client *self, const char *folder, bool (*is_theirs)(const char *name),
                            uint64_t *count, struct cb_err *err) CB_MUST_CHECK;
/* Whether the bucket is accessible with these credentials (HEAD of the bucket). */
int s3_client_check_bucket(struct s3_client *self, struct cb_err *err) CB_MUST_CHECK;

#endif
