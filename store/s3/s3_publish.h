/* Publishing an object of unknown length. */
#ifndef STORE_S3_S3_PUBLISH_H
#define STORE_S3_S3_PUBLISH_H

#include "store/backend.h"
#include "store/s3/s3_client.h"

/* See store_publish_pieces. One PUT if the object fits into a part of s3.part_size, at most 32 MiB; else an upload, whose
 * parts are sent while the next one is filled. At most 128 MiB are kept. Nothing of the backend may be in flight. */
int s3_publish_pieces(struct backend *backend, struct s3_client *client, const char *name, store_pass_fn pass,
                      void *context, struct cb_err *err) CB_MUST_CHECK;

#endif
