/* An object of the S3 backend: one that is being read, or written as one PUT or as parts of an upload.
 *
 * Opened to read, and closed, by blocking calls; all other requests are described here and run by s3.c: the one that
 * begins an upload, too, so that nothing waits for it but the parts of that upload. */
#ifndef STORE_S3_S3_OBJECT_H
#define STORE_S3_S3_OBJECT_H

#include "store/backend.h"
#include "store/s3/s3_client.h"
#include "store/s3/s3_list.h"

struct s3_part {
    char etag[S3_ETAG_BYTES]; /* "": not yet there */
    char crc32c[12];
};

struct s3_object {
    struct backend_object base;
    char *name;
    bool writable, is_upload, begun, finished; /* begun: a PUT was sent; finished: nothing is left to abort */
    bool beginning;                            /* the upload's id is being asked for */
    bool unsure;                               /* the server may have begun an upload whose id never came */
    struct s3_call *waiting;                   /* parts that need the id, by `next` */
    char etag[S3_ETAG_BYTES];                  /* of one that is read: all of its ranges are of the same object */
    char upload_id[S3_TOKEN_BYTES];
    uint64_t part_bytes;
    uint32_t part_count;
    struct s3_part *parts; /* of an upload */
    struct buf document;   /* the list of parts */
    struct iovec document_segment;
};

#ifdef HAVE_CURL

/* Asks nothing of the server yet. */
int s3_object_create(const char *name, uint64_t length, uint64_t part_bytes, struct s3_object **object,
                     struct cb_err *err) CB_MUST_CHECK;
int s3_object_open(struct s3_client *client, const char *name, struct s3_object **object,
                   struct cb_err *err) CB_MUST_CHECK;
/* Aborts an upload that is not finished, as far as the server lets it soon. */
void s3_object_close(struct s3_client *client, struct s3_object *self);

/* Whether writes need an upload that has not begun; the request for its id, and what came of it: a code with its
 * sentence in call->detail where it has none. */
bool s3_object_needs_upload(const struct s3_object *self);
int s3_object_ask_begin(struct s3_object *self, struct s3_call *call, struct cb_err *err) CB_MUST_CHECK;
int s3_object_take_begin(struct s3_object *self, struct s3_call *call) CB_MUST_CHECK;
/* The request for a write, a read; `call` then goes to a loop. */
int s3_object_ask_write(struct s3_object *self, struct s3_call *call, const struct backend_request *request,
                        struct cb_err *err) CB_MUST_CHECK;
int s3_object_ask_read(struct s3_object *self, struct s3_call *call, const struct backend_request *request,
                       uint64_t bytes, struct cb_err *err) CB_MUST_CHECK;
/* A write is done: keeps what the end of the upload needs. */
void s3_object_take_write(struct s3_object *self, const struct s3_call *call, uint64_t offset);

/* The requests that finish an object, one after the other: what comes next after the one that is done (or at the
 * start, with `call` idle). *more is false when nothing is left; a code with its sentence in call->detail where the
 * object is not what it should be. */
enum s3_finish { S3_FINISH_START, S3_FINISH_PUT, S3_FINISH_COMPLETE, S3_FINISH_LOOK };
int s3_object_next_finish(struct s3_object *self, struct s3_call *call, enum s3_finish *step, bool *more);

#endif
#endif
