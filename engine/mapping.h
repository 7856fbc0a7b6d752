/* How the bytes of a stored payload lie in memory, and copying between the two.
 *
 * Stored: a region of a tensor, row-major, in a file. Held: another region of the same tensor, row-major,
 * in memory. Common: what of the stored region is wanted. It falls into runs that are contiguous on both
 * sides; a run's position is a byte of the stored payload and a byte of the held memory. Pure. */
#ifndef ENGINE_MAPPING_H
#define ENGINE_MAPPING_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/region.h"

struct mapping {
    struct region stored, held, common;
    uint64_t element_bytes;
    uint64_t stored_run_elements, held_run_elements; /* contiguous elements of `common` on each side */
    uint64_t run_count;
    uint64_t run_bytes; /* of the runs that are contiguous on both sides */
};

void mapping_init(struct mapping *self, const struct region *stored, const struct region *held,
                  const struct region *common, size_t element_bytes);
/* Where run `index` starts on either side. Ascending with the index in the payload. */
void mapping_run(const struct mapping *self, uint64_t index, uint64_t *payload_byte, uint64_t *memory_byte);
/* First and last-plus-one payload byte that is wanted. */
void mapping_span(const struct mapping *self, uint64_t *begin, uint64_t *end);

/* Rows that are alike: `rows` of `row_bytes`, at constant strides on both sides. */
struct mapping_rows {
    uint64_t bytes_at, bytes_stride;   /* from payload byte `begin` */
    uint64_t memory_at, memory_stride; /* in the held memory */
    uint64_t row_bytes, rows;
};
/* What of payload bytes [begin, begin + len) is wanted, as few such rows as its order allows: `*run` is
 * mapping_first_run(self, begin) at first. False at the end. */
uint64_t mapping_first_run(const struct mapping *self, uint64_t begin);
bool mapping_next_rows(const struct mapping *self, uint64_t *run, uint64_t begin, uint64_t len,
                       struct mapping_rows *rows);

/* Copies what of payload bytes [begin, begin + len) is wanted between `bytes` (which holds just those)
 * and the held memory. Returns the number of bytes copied. */
uint64_t mapping_gather(const struct mapping *self, uint64_t begin, void *bytes, uint64_t len, const void *memory);
uint64_t mapping_scatter(const struct mapping *self, uint64_t begin, const void *bytes, uint64_t len, void *memory);

#endif
