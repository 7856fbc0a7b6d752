/* A rank's description of its state, checked, and as a table that other ranks can read. */
#ifndef LIB_DESCRIPTION_H
#define LIB_DESCRIPTION_H

#include "ckpt/region.h"
#include "core/buf.h"
#include "core/err.h"
#include "include/ckptbench.h"

#define DESCRIPTION_MAX_BYTES (UINT64_C(1) << 30)

/* CB_ERR_USAGE, with the name of the tensor or value, for a state that no rank can hold. With `saves` values need
 * bytes. */
int description_check(const struct ckptbench_state *state, bool saves, struct cb_err *err) CB_MUST_CHECK;

/* The box of a region in its tensor. */
struct region description_box(const struct ckptbench_state *state, const struct ckptbench_region *region);

/* Appends everything that a plan depends on: equal tables of all ranks mean equal plans. The content of values is not in
 * it. */
int description_write(const struct ckptbench_state *state, struct buf *table, struct cb_err *err) CB_MUST_CHECK;

/* A tensor or value of some rank, as read from its table. Texts point into the table. */
struct described {
    const char *fqn, *path; /* path "": none given */
    bool is_value;
    uint32_t rank;
    uint64_t dtype, dims, shape[CKPTBENCH_MOST_DIMS];
    uint64_t length, hash; /* of a value */
    uint32_t index;        /* in the layout, once it is made */
};
struct described_part {
    uint64_t entry; /* index into the entries of its rank */
    struct region box;
};

/* Everything that one rank has: first its tensors, then its values, each in the order of its description. */
struct described_rank {
    struct described *entries;
    size_t tensor_count, entry_count;
    struct described_part *parts; /* without those that have no elements */
    size_t part_count;
};
/* Reads a table; `hashes` has one number a value. The result borrows the table. */
int description_read(const struct buf *table, const uint64_t *hashes, size_t hash_count, uint32_t rank,
                     struct described_rank *described, struct cb_err *err) CB_MUST_CHECK;
void description_release(struct described_rank *described);

#endif
