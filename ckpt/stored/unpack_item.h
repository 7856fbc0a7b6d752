/* Inspects one compressed item while it is decompressed, without holding it: where its payload is, and whether its
 * bytes match the checksum at its end. Memory: a step, a header and zstd's window (ckpt/stored/unpack.h). */
#ifndef CKPT_STORED_UNPACK_ITEM_H
#define CKPT_STORED_UNPACK_ITEM_H

#include "ckpt/format/format.h"

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
