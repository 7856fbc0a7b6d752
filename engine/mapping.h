/* Maps the bytes of a stored payload to memory, and copies between the two.
 *
 * `stored` is a region of a tensor in a file, `held` another region of the same tensor in memory, both row-major. `common`
 * is the part of the stored region to copy. It consists of runs, each contiguous in the payload and in memory. Pure. */
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
    uint64_t run_bytes; /* bytes of one run */
};

void mapping_init(struct mapping *self, const struct region *stored, const struct region *held,
                  const struct region *common, size_t element_bytes);
/* Where run `index` starts in the payload and in memory. In the payload, starts ascend with the index. */
void mapping_run(const struct mapping *self, uint64_t index, uint64_t *payload_byte, uint64_t *memory_byte);
/* The range of payload bytes that contains all runs. */
void mapping_span(const struct mapping *self, uint64_t *begin, uint64_t *end);

/* `rows` rows of `row_bytes`, at constant strides on both sides. */
struct mapping_rows {
    uint64_t bytes_at, bytes_stride;   /* from payload byte `begin` */
    uint64_t memory_at, memory_stride; /* in the held memory */
    uint64_t row_bytes, rows;
};
/* Iterates over the needed parts of payload bytes [begin, begin + len), joined to as few groups of rows as possible. Start
 * with *run = mapping_first_run(self, begin). False at the end. */
uint64_t mapping_first_run(const struct mapping *self, uint64_t begin);
bool mapping_next_rows(const struct mapping *self, uint64_t *run, uint64_t begin, uint64_t len,
                       struct mapping_rows *rows);

/* Copies the needed part of payload bytes [begin, begin + len) from memory to `bytes` (gather) or back (scatter). `bytes`
 * is the address of payload byte `begin`. Returns the number of bytes copied. */
uint64_t mapping_gather(const struct mapping *self, uint64_t begin, void *bytes, uint64_t len, const void *memory);
uint64_t mapping_scatter(const struct mapping *self, uint64_t begin, const void *bytes, uint64_t len, void *memory);

#endif
