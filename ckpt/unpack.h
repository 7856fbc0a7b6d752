/* Items that were compressed as a whole by PyTorch's zstd extension. */
#ifndef CKPT_UNPACK_H
#define CKPT_UNPACK_H

#include <stddef.h>

#include "core/buf.h"
#include "core/err.h"

/* Appends what `bytes` decompress to. Memory is bounded by the buffer's maximum, whatever the bytes say.
 * CB_ERR_UNSUPPORTED in a build without libzstd. */
int unpack_zstd(const char *fqn, const void *bytes, size_t len, struct buf *out, struct cb_err *err) CB_MUST_CHECK;

#endif
