/* An object of the S3 backend: being read, or written as one PUT or as parts of an upload.
 *
 * Opening to read and closing block. All other requests are composed here and run by store/s3/s3.c, including the one
 * that starts an upload, so that only the upload's own parts wait for it. */
#ifndef STORE_S3_S3_OBJECT_H
#define STORE_S3_S3_OBJECT_H

#include "store/backend.h"
#include "store/s3/s3_client.h"
#include "store/s3/s3_list.h"

struct s3_part {
    char etag[S3_ETAG_BYTES]; /* "" if unknown */
    char crc32c[12];
};

struct s3_object {
    struct backend_object base;
    char *name;
    bool writable, is_upload, begun, finished; /* begun: a PUT was sent; finished: nothing is left to abort */
    bool beginning;                            /* the request for the upload's id is in flight */
    bool unsure;                               /* the server may have started an upload whose id never arrived */
    struct s3_call *waiting;                   /* parts that wait for the id, by `next` */
    char etag[S3_ETAG_BYTES];                  /* version being read: all ranges come from the same object */
    char upload_id[S3_TOKEN_BYTES];
    char mark[S3_MARK_BYTES]; /* random, per upload: distinguishes its object from another one with the same name */
    bool was_gone;            /* completing found no such upload: an earlier attempt may have completed it */
    bool with_crc;            /* the upload was begun with the algorithm of a checksum */
    uint64_t part_bytes;
    uint32_t part_count;
    struct s3_part *parts; /* of an upload */
    struct buf document;   /* the list of parts */
    struct iovec document_segment;
};

#ifdef HAVE_CURL

/* Sends no request yet. */
int s3_object_create(const char *name, uint64_t length, uint64_t part_bytes, struct s3_object **object,
                     struct cb_err *err) CB_MUST_CHECK;
int s3_object_open(struct s3_client *client, const char *name, struct s3_object **object,
                   struct cb_err *err) CB_MUST_CHECK;
/* Sets the length of an upload that was created with more; its parts have been written. */
void s3_object_end(struct s3_object *self, uint64_t length);
/* Aborts an unfinished upload, if the server replies soon. */
void s3_object_close(struct s3_client *client, struct s3_object *self);

/* Whether writes require an upload that has not begun; the request for its id; and its result: without an id, a code
 * with its message in call->detail. */
bool s3_object_needs_upload(const struct s3_object *self);
int s3_object_ask_begin(struct s3_object *self, struct s3_call *call, struct cb_err *err) CB_MUST_CHECK;
int s3_object_take_begin(struct s3_object *self, struct s3_call *call) CB_MUST_CHECK;
/* Composes the request of a write or a read; `call` then goes to a loop. */
int s3_object_ask_write(struct s3_object *self, struct s3_call *call, const struct backend_request *request,
                        struct cb_err *err) CB_MUST_CHECK;
int s3_object_ask_read(struct s3_object *self, struct s3_call *call, const struct backend_request *request,
                       uint64_t bytes, struct cb_err *err) CB_MUST_CHECK;
/* A write is done: keeps what is required to complete the upload. */
void s3_object_take_write(struct s3_object *self, const struct s3_call *call, uint64_t offset);

/* The requests that complete an object, one after the other: composes the next one after the finished one (at the
 * start `call` is idle). *more is false when nothing is left; if the object is wrong, a code with its message in
 * call->detail. */
enum s3_finish { S3_FINISH_START, S3_FINISH_PUT, S3_FINISH_COMPLETE, S3_FINISH_LOOK };
int s3_object_next_finish(struct s3_object *self, struct s3_call *call, enum s3_finish *step, bool *more);

#endif
#endif
