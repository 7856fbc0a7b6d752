/* A rank's description of its state, checked, and as a table that other ranks can read. */
#ifndef LIB_DESCRIPTION_H
#define LIB_DESCRIPTION_H

#include "ckpt/region.h"
#include "core/buf.h"
#include "core/err.h"
#include "include/ckptbench.h"

#define DESCRIPTION_MAX_BYTES (UINT64_C(1) << 30)

/* CB_ERR_USAGE, with the name of the tensor or value, for a state that `rank` of `rank_count` cannot hold. With `saves`
 * values need bytes. */
int description_check(const struct ckptbench_state *state, uint32_t rank, uint32_t rank_count, bool saves,
                      struct cb_err *err) CB_MUST_CHECK;

/* The box of a region in its tensor. */
struct region description_box(const struct ckptbench_state *state, const struct ckptbench_region *region);

/* The numbers in which the tables of ranks that divide their tensors alike differ: with FSDP, a rank's number. A region
 * whose offset in some dimension is a multiple of its size there, and that has no split there, refers to the factor. */
#define DESCRIPTION_FACTORS 64
struct description_factors {
    uint64_t count, factor[DESCRIPTION_FACTORS];
};

/* Appends everything that a plan depends on: equal tables and factors of all ranks mean equal plans. A table without factors
 * tells what every rank holds that has the same table. The content of values is not in it. */
int description_write(const struct ckptbench_state *state, uint32_t rank_count, struct buf *table,
                      struct description_factors *factors, struct cb_err *err) CB_MUST_CHECK;

/* A tensor or value, as read from a table. Texts point into the table. */
struct described {
    const char *fqn, *path; /* path "": none given */
    bool is_value;
    uint32_t rank, holders; /* the lowest of the ranks with this table, and how many there are */
    uint64_t dtype, dims, shape[CKPTBENCH_MOST_DIMS];
    uint64_t length, hash; /* of a value */
    uint32_t index;        /* in the layout, once it is made */
};
struct described_part {
    uint64_t entry; /* index into the entries of the table */
    struct region box;
};

/* A table: first its tensors, then its values, each in the order of the description. */
struct described_table {
    struct described *entries;
    size_t tensor_count, entry_count, region_count, split_count;
    uint32_t rank_count;
    const char *splits, *regions, *end; /* where they are in the table */
};
/* Reads the table of `holders` of `rank_count` ranks, of which `rank` is the lowest; `hashes` has one number a value, not
 * aligned. The result borrows the table. */
int description_read(const struct buf *table, const char *hashes, size_t hash_count, uint32_t rank, uint32_t holders,
                     uint32_t rank_count, struct described_table *described, struct cb_err *err) CB_MUST_CHECK;
void description_release(struct described_table *described);

/* The regions of `rank`, which has this table, without those that have no elements; there is room for region_count.
 * CB_ERR_FORMAT if the table ends before them or goes on behind them, or refers to what is not there. */
int description_parts(const struct described_table *table, const struct description_factors *factors, uint32_t rank,
                      struct described_part *parts, size_t *count, struct cb_err *err) CB_MUST_CHECK;

#endif
