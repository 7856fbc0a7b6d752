/* How the bytes of a payload that is stored with any strides lie in memory: what mapping.h is for payloads that are
 * stored row-major. Whatever part of the payload arrives is placed by itself, in any order, so that a payload is never
 * held. Pure. */
#ifndef ENGINE_STRIDED_H
#define ENGINE_STRIDED_H

#include "ckpt/format/format.h"
#include "engine/mapping.h"

/* Elements of one read, by dimensions of which those with the larger stored strides come first. */
struct strided {
    uint32_t dims; /* at least 1 */
    uint64_t size[CKPT_MAX_DIMS];
    uint64_t from_stride[CKPT_MAX_DIMS], to_stride[CKPT_MAX_DIMS]; /* in bytes */
    uint64_t reach[CKPT_MAX_DIMS + 1]; /* bytes from the first to behind the last byte of dimensions i and inward */
    uint64_t from, to;                 /* where the first element is: byte of the payload, of the held memory */
    uint64_t element_bytes;
};

/* `stored` is the region of the payload, `held` that of the memory, `common` (not empty) what of both is wanted. */
void strided_init(struct strided *self, const struct stored_payload *payload, const struct region *stored,
                  const struct region *held, const struct region *common, size_t element_bytes);

/* Payload bytes [*begin, *end) have all that is wanted. */
void strided_span(const struct strided *self, uint64_t *begin, uint64_t *end);

/* What of payload bytes [begin, begin + len) is wanted, as rows; places of bytes count from `begin`. Elements that lie
 * across an end come in two parts, of two calls. Ends early where `each` returns other than 0, which is returned. */
typedef int (*strided_fn)(void *context, const struct mapping_rows *rows, struct cb_err *err);
int strided_each(const struct strided *self, uint64_t begin, uint64_t len, strided_fn each, void *context,
                 struct cb_err *err) CB_MUST_CHECK;

/* Copies it from `bytes` (which holds just those) to the held memory. Returns the number of bytes copied. */
uint64_t strided_scatter(const struct strided *self, uint64_t begin, const void *bytes, uint64_t len, void *memory);

#endif
