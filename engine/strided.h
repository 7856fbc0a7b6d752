/* The same as engine/mapping.h for payloads that are stored with arbitrary strides. Parts of a payload can be placed as
 * they arrive, in any order, so no payload is buffered as a whole. Pure. */
#ifndef ENGINE_STRIDED_H
#define ENGINE_STRIDED_H

#include "ckpt/format/format.h"
#include "engine/mapping.h"

/* The elements of one read; dimensions with larger stored strides come first. */
struct strided {
    uint32_t dims; /* at least 1 */
    uint64_t size[CKPT_MAX_DIMS];
    uint64_t from_stride[CKPT_MAX_DIMS], to_stride[CKPT_MAX_DIMS]; /* in bytes */
    uint64_t reach[CKPT_MAX_DIMS + 1]; /* extent in payload bytes of dimension i and those after it */
    uint64_t from, to;                 /* the first element's place in the payload and in memory, in bytes */
    uint64_t element_bytes;
};

/* `stored` is the payload's region, `held` that of the memory, `common` (not empty) the part of both to copy. */
void strided_init(struct strided *self, const struct stored_payload *payload, const struct region *stored,
                  const struct region *held, const struct region *common, size_t element_bytes);

/* The range of payload bytes that contains all needed elements. */
void strided_span(const struct strided *self, uint64_t *begin, uint64_t *end);

/* Calls `each` for the needed rows of payload bytes [begin, begin + len); their bytes_at counts from `begin`. An element
 * that crosses an end of the range is split between two calls. Stops and returns the result if `each` returns non-zero. */
typedef int (*strided_fn)(void *context, const struct mapping_rows *rows, struct cb_err *err);
int strided_each(const struct strided *self, uint64_t begin, uint64_t len, strided_fn each, void *context,
                 struct cb_err *err) CB_MUST_CHECK;

/* Copies the needed part from `bytes`, the address of payload byte `begin`, to memory. Returns the number of bytes
 * copied. */
uint64_t strided_scatter(const struct strided *self, uint64_t begin, const void *bytes, uint64_t len, void *memory);

#endif
