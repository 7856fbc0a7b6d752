/* Where the metadata of a plan goes, piece by piece: it can be longer than what fits into memory. */
#ifndef CKPT_FORMAT_METADATA_SINK_H
#define CKPT_FORMAT_METADATA_SINK_H

#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/err.h"

#define METADATA_MOST_BYTES ((size_t)64 << 30) /* of formats that are composed as a whole */

struct metadata_sink {
    int (*write)(void *context, const void *bytes, size_t len, struct cb_err *err); /* NULL: only measures */
    void *context;
    uint64_t bytes; /* so far */
};

/* Appends to `out`. */
static inline int metadata_sink_append(void *out, const void *bytes, size_t len, struct cb_err *err)
{
    buf_append(out, bytes, len);
    return buf_check(out, "the metadata of the checkpoint", err);
}

static inline struct metadata_sink metadata_sink_to(struct buf *out)
{
    return (struct metadata_sink){.write = metadata_sink_append, .context = out};
}

static inline int metadata_sink_put(struct metadata_sink *self, const void *bytes, size_t len, struct cb_err *err)
{
    self->bytes += len;
    return self->write ? self->write(self->context, bytes, len, err) : 0;
}

#endif
