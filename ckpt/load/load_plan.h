/* The load plan: what a rank must read of a stored checkpoint to fill its pieces.
 *
 * Reads are in order of file and offset, reads of one chunk are adjacent, and each element comes from exactly one
 * read, even if stored chunks overlap. All problems are reported, not only the first: missing tensors and values,
 * elements without a chunk, different types and shapes. Every rank needs every value of the layout. Additional tensors
 * in the checkpoint are counted and are not a failure. A pure function: no collective, no I/O, thread-safe. */
#ifndef CKPT_LOAD_LOAD_PLAN_H
#define CKPT_LOAD_LOAD_PLAN_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/format/format.h"
#include "ckpt/layout/layout.h"
#include "core/err.h"

/* A part of one stored chunk that goes to one piece. region_runs(&chunk->region, &common, …) gives its runs in the
 * chunk's payload, region_runs(&piece->region, &common, …) those in the piece's memory. */
struct load_read {
    uint32_t chunk; /* index into the checkpoint's chunks */
    uint32_t piece; /* index into the pieces given */
    struct region common;
    /* The contiguous range of the chunk's row-major payload that contains the part, in bytes from the payload's start
     * (the whole payload if the item is stored with other strides). */
    uint64_t payload_first, payload_bytes;
};

struct load_plan {
    struct load_read *reads;
    size_t read_count;
    uint64_t needed_bytes; /* of the parts: the bytes copied to the pieces */
    uint64_t span_bytes;   /* sum of payload_bytes: the bytes to read, including gaps within ranges */
    size_t extra_tensors;  /* in the checkpoint, but not in a tensor of the layout */
};

/* A sentence that names the tensor. */
typedef void (*load_problem_fn)(void *context, const char *problem);

/* `report` (may be NULL) is called for each problem; a tensor that is missing or of another type or shape is reported
 * once, not for each piece. If there are problems, no plan is made and the error is CB_ERR_CORRUPT with their number
 * and the first of them. */
int load_plan_compute(const struct stored_checkpoint *checkpoint, const struct layout *layout,
                      const struct piece *pieces, size_t piece_count, load_problem_fn report, void *context,
                      struct load_plan **plan, struct cb_err *err) CB_MUST_CHECK;
void load_plan_free(struct load_plan *plan);

/* "36 keys of the checkpoint are not loaded: a, b, c, …": tensors beyond the layout's, the first of them by name.
 * Returns their number; the text is "" if there are none. */
size_t load_plan_describe_extra(const struct stored_checkpoint *checkpoint, const struct layout *layout, char *text,
                                size_t size);

#endif
