/* S3 for those who want more of it than a store has: uploads that were left behind, what a connection really uses.
 *
 * A client belongs to one thread at a time; every call blocks until it is done or given up (s3.deadline). Messages say
 * what was asked, what the server said and with which request id; secrets are in none of them. */
#ifndef STORE_S3_S3_H
#define STORE_S3_S3_H

#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/err.h"
#include "store/s3/s3_options.h"
#include "store/store.h"

struct s3_client;

/* `rank`: of the caller, 0 where there are none. `options` NULL: every s3.* key at its default. Fails without credentials and where the endpoint has no address. */
int s3_client_open(const char *uri, const struct s3_options *options, uint32_t rank, struct s3_client **client,
                   struct cb_err *err) CB_MUST_CHECK;
void s3_client_free(struct s3_client *self);

/* What was decided and last answered; valid until the client is used again. */
struct s3_facts {
    const char *bucket, *prefix, *region;
    const char *endpoint;           /* "http://127.0.0.1:7480" */
    const char *endpoint_source;    /* "s3.endpoint", "AWS_ENDPOINT_URL", "profile", "AWS" */
    const char *credentials_source; /* "environment" */
    uint64_t credentials_expire_ns; /* wall clock; 0: never */
    const char *const *addresses;   /* of the endpoint: "::ADDRESS:PORT" */
    size_t address_count;           /* 0: a proxy's business */
    int64_t clock_offset_ns;        /* what the server's clock is ahead, by the last answer; to a second */
    long status;                    /* of the last answer; 0: none came */
    const char *code;               /* S3's own of an error ("AccessDenied"), or "" */
};
void s3_client_facts(const struct s3_client *self, struct s3_facts *facts);

/* Names are relative to the URI's prefix, as in store.h. */
int s3_client_put(struct s3_client *self, const char *name, const void *bytes, size_t len,
                  struct cb_err *err) CB_MUST_CHECK;
int s3_client_get(struct s3_client *self, const char *name, struct buf *out, struct cb_err *err) CB_MUST_CHECK;
int s3_client_stat(struct s3_client *self, const char *name, uint64_t *length, struct cb_err *err) CB_MUST_CHECK;
/* When it was last written, by the server's clock and to the second. */
int s3_client_modified(struct s3_client *self, const char *name, uint64_t *wall_ns, struct cb_err *err) CB_MUST_CHECK;
/* As store_list. */
int s3_client_list(struct s3_client *self, const char *folder, store_list_fn each, void *context,
                   struct cb_err *err) CB_MUST_CHECK;
/* Up to 1,000 a request; what is not there is fine. */
int s3_client_remove(struct s3_client *self, const char *const *names, size_t count, struct cb_err *err) CB_MUST_CHECK;

/* A multipart upload that was begun and neither completed nor aborted. */
struct s3_upload {
    const char *key; /* as the bucket has it */
    const char *id;
    uint64_t begun_ns; /* wall clock; 0 where the server does not say */
};
typedef int (*s3_upload_fn)(void *context, const struct s3_upload *upload, struct cb_err *err);
/* Those under the URI's prefix and `folder` ("" for all). `each` must not use the client. */
int s3_client_list_uploads(struct s3_client *self, const char *folder, s3_upload_fn each, void *context,
                           struct cb_err *err) CB_MUST_CHECK;
/* Fine if it is gone. */
int s3_client_abort_upload(struct s3_client *self, const char *key, const char *id, struct cb_err *err) CB_MUST_CHECK;
/* Aborts all of them under a folder; *count says how many. What an agent does after its ranks were killed. */
int s3_client_abort_uploads(struct s3_client *self, const char *folder, uint64_t *count,
                            struct cb_err *err) CB_MUST_CHECK;
/* Whether the bucket can be reached with these credentials (HEAD of the bucket). */
int s3_client_check_bucket(struct s3_client *self, struct cb_err *err) CB_MUST_CHECK;

#endif
