/* Payload: tensor values as a function of (seed, tensor, element), so that every byte read back can be checked
 * without a copy, whichever rank and layout wrote it.
 *
 * `weights` looks like real weights (normal-like exponents, similar compression by zstd), `random` is incompressible,
 * `zero` is zero. Vectorized: >= 5 GiB/s per core on warm memory. Pure functions, thread-safe. */
#ifndef CKPT_PAYLOAD_H
#define CKPT_PAYLOAD_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/dtype.h"
#include "ckpt/region.h"

enum payload_kind { PAYLOAD_WEIGHTS, PAYLOAD_RANDOM, PAYLOAD_ZERO };

struct payload_source {
    enum payload_kind kind;
    enum dtype dtype;
    uint64_t key; /* payload_key() */
};

/* Key of a tensor from the seed and its full name. */
uint64_t payload_key(uint64_t seed, const char *fqn);

/* Fills `count` elements from row-major element `first` of the whole tensor. */
void payload_fill(const struct payload_source *source, uint64_t first, void *memory, uint64_t count);
/* True if all are right; else *wrong is the index (from 0) of the first wrong one. */
bool payload_check(const struct payload_source *source, uint64_t first, const void *memory, uint64_t count,
                   uint64_t *wrong);

/* The same for a region of a tensor of this shape in row-major memory. *wrong is the tensor's element. */
void payload_fill_region(const struct payload_source *source, const uint64_t *shape, const struct region *region,
                         void *memory);
bool payload_check_region(const struct payload_source *source, const uint64_t *shape, const struct region *region,
                          const void *memory, uint64_t *wrong);

#endif
