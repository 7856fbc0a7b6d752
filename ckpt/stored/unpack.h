/* Items that PyTorch's zstd extension compressed as a whole. */
#ifndef CKPT_STORED_UNPACK_H
#define CKPT_STORED_UNPACK_H

#include <stdbool.h>
#include <stddef.h>

#include "core/buf.h"
#include "core/err.h"

/* Appends the decompressed `bytes`. The buffer's maximum limits memory, whatever the input. CB_ERR_UNSUPPORTED in a
 * build without libzstd. */
int unpack_zstd(const char *fqn, const void *bytes, size_t len, struct buf *out, struct cb_err *err) CB_MUST_CHECK;

/* An item that is decompressed in pieces. Its memory is zstd's window, as requested by the input: at most 128 MiB,
 * more is rejected. */
struct unpack_stream;

int unpack_stream_new(const char *fqn, struct unpack_stream **stream, struct cb_err *err) CB_MUST_CHECK;
void unpack_stream_free(struct unpack_stream *self);
/* Fills `out` from `bytes` and adds to *used and *made. Call again while it consumed or produced something. `fqn` is
 * for the error message. */
int unpack_stream_take(struct unpack_stream *self, const char *fqn, const void *bytes, size_t len, size_t *used,
                       void *out, size_t room, size_t *made, struct cb_err *err) CB_MUST_CHECK;
/* Whether the input so far is complete. */
bool unpack_stream_is_whole(const struct unpack_stream *self);

#endif
