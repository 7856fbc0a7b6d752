/* Items that PyTorch's zstd extension compressed as a whole. CB_ERR_UNSUPPORTED in a build without libzstd. */
#ifndef CKPT_STORED_UNPACK_H
#define CKPT_STORED_UNPACK_H

#include "ckpt/format/format.h"

/* Appends the decompressed `bytes`. The buffer's maximum limits memory, whatever the input. */
int unpack_zstd(const char *fqn, const void *bytes, size_t len, struct buf *out, struct cb_err *err) CB_MUST_CHECK;

/* An item that is decompressed in pieces. zstd's memory is a window of the size that the input requests: at most 128
 * MiB, larger ones are rejected. */
struct unpack_stream {
    void *zstd;
    size_t wanted; /* 0 if the input so far is complete */
};
int unpack_stream_open(struct unpack_stream *self, const char *fqn, struct cb_err *err) CB_MUST_CHECK;
void unpack_stream_close(struct unpack_stream *self);
/* Fills `out` from `bytes` and adds to *used and *made. Call again while it consumed or produced something. `fqn` is
 * for the error message. */
int unpack_stream_take(struct unpack_stream *self, const char *fqn, const void *bytes, size_t len, size_t *used,
                       void *out, size_t room, size_t *made, struct cb_err *err) CB_MUST_CHECK;

/* Inspects one compressed item while it is decompressed, without storing it: where its payload is, and whether its
 * bytes match the checksum at its end. Memory: one step, one header and zstd's. */
struct unpack_item;

/* `tensor` and `region` are borrowed. */
int unpack_item_new(enum plan_format format, const struct stored_tensor *tensor, const struct region *region,
                    struct unpack_item **item, struct cb_err *err) CB_MUST_CHECK;
void unpack_item_free(struct unpack_item *self);
/* Bytes as stored, in order. */
int unpack_item_take(struct unpack_item *self, const void *bytes, size_t len, struct cb_err *err) CB_MUST_CHECK;

struct unpack_result {
    struct stored_payload payload;
    uint32_t crc;    /* of the payload */
    uint32_t stored; /* checksum stored in the item; 0: none */
};
/* Call after the last bytes. */
int unpack_item_end(struct unpack_item *self, struct unpack_result *result, struct cb_err *err) CB_MUST_CHECK;

#endif
