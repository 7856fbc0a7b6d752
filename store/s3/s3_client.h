/* Inside the S3 backend: the client's parts, which s3.c uses for data. */
#ifndef STORE_S3_S3_CLIENT_H
#define STORE_S3_S3_CLIENT_H

#include "store/s3/s3.h"
#include "store/s3/s3_call.h"
#include "store/s3/s3_loop.h"
#include "store/s3/s3_session.h"

struct s3_client {
    struct s3_session session;
    struct s3_loop *loop;
    struct s3_call call;        /* of the blocking operations, one at a time */
    struct buf document;        /* for their requests */
    bool plain_etags;           /* this server compares ETags in conditional writes without their quotes */
    bool in_a_hurry;            /* clean-up after a failure must not take long */
    uint64_t cleanup_failed_ns; /* when a clean-up last failed; 0: never */
    char endpoint_url[S3_HOST_BYTES + 16];
};

/* `capacity`: concurrent calls besides the client's own. */
int s3_client_new(const char *uri, const struct s3_options *options, uint32_t rank, uint32_t capacity,
                  struct s3_client **client, struct cb_err *err) CB_MUST_CHECK;

/* Runs self->call. */
int s3_client_run(struct s3_client *self, struct cb_err *err) CB_MUST_CHECK;

/* Length and ETag of an object. */
int s3_client_head(struct s3_client *self, const char *name, uint64_t *length, char etag[S3_ETAG_BYTES],
                   struct cb_err *err) CB_MUST_CHECK;

/* The first aborts one upload of an object by its id, and succeeds if it is gone; the second aborts all its uploads. */
int s3_client_abort_upload_of(struct s3_client *self, const char *name, const char *id,
                              struct cb_err *err) CB_MUST_CHECK;
int s3_client_abort_uploads_of(struct s3_client *self, const char *name, struct cb_err *err) CB_MUST_CHECK;

/* Appends text escaped for XML; fails for characters that XML 1.0 cannot represent. */
int s3_append_xml(struct buf *out, const char *text, struct cb_err *err) CB_MUST_CHECK;

/* The key without the session's prefix; NULL if it does not begin with it. */
const char *s3_name_of_key(const struct s3_session *session, const char *key);
/* "PREFIX/FOLDER/", "FOLDER/", "PREFIX/" or "". */
int s3_folder_key(const struct s3_session *session, const char *folder, char key[S3_KEY_BYTES + 8],
                  struct cb_err *err) CB_MUST_CHECK;

#endif
