/* One compressed item that is looked at as it comes out, and never held: where its payload is, and whether its bytes
 * have the checksum that it ends with. Memory: a step, a header and what zstd's window asks for (ckpt/stored/unpack.h). */
#ifndef CKPT_STORED_UNPACK_ITEM_H
#define CKPT_STORED_UNPACK_ITEM_H

#include "ckpt/format/format.h"

struct unpack_item;

/* `tensor` and `box` are borrowed. */
int unpack_item_new(enum plan_format format, const struct stored_tensor *tensor, const struct box *box,
                    struct unpack_item **item, struct cb_err *err) CB_MUST_CHECK;
void unpack_item_free(struct unpack_item *self);
/* Bytes as they are stored, in order. */
int unpack_item_take(struct unpack_item *self, const void *bytes, size_t len, struct cb_err *err) CB_MUST_CHECK;

struct unpack_result {
    struct stored_payload payload;
    uint32_t crc;    /* of the payload */
    uint32_t stored; /* what the item says that it is; 0: nothing */
};
/* After the last of them. */
int unpack_item_end(struct unpack_item *self, struct unpack_result *result, struct cb_err *err) CB_MUST_CHECK;

#endif
