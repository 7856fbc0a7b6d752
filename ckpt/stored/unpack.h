/* Items that were compressed as a whole by PyTorch's zstd extension. */
#ifndef CKPT_STORED_UNPACK_H
#define CKPT_STORED_UNPACK_H

#include <stdbool.h>
#include <stddef.h>

#include "core/buf.h"
#include "core/err.h"

/* Appends what `bytes` decompress to. Memory is bounded by the buffer's maximum, whatever the bytes say.
 * CB_ERR_UNSUPPORTED in a build without libzstd. */
int unpack_zstd(const char *fqn, const void *bytes, size_t len, struct buf *out, struct cb_err *err) CB_MUST_CHECK;

/* An item that comes in pieces and goes in pieces. Its memory is what zstd needs for the window that the bytes ask for:
 * 128 MiB at most, more is refused. */
struct unpack_stream;

int unpack_stream_new(const char *fqn, struct unpack_stream **stream, struct cb_err *err) CB_MUST_CHECK;
void unpack_stream_free(struct unpack_stream *self);
/* Fills `out` from `bytes` and adds to *used of them and to *made. Call again while it used or made something.
 * `fqn` is for the message. */
int unpack_stream_take(struct unpack_stream *self, const char *fqn, const void *bytes, size_t len, size_t *used,
                       void *out, size_t room, size_t *made, struct cb_err *err) CB_MUST_CHECK;
/* Whether what came so far is whole. */
bool unpack_stream_is_whole(const struct unpack_stream *self);

#endif
