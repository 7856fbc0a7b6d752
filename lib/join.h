/* Joins what all ranks describe into one layout, and finds out which of its pieces are this rank's. */
#ifndef LIB_JOIN_H
#define LIB_JOIN_H

#include "ckpt/layout/layout.h"
#include "lib/description.h"

/* Where one rank's state is in the layout. */
struct joined {
    struct layout *layout;
    struct piece *pieces; /* of this rank, as layout_pieces lists them */
    uint32_t *region_of;  /* of each piece: the index of its region in the description */
    size_t piece_count;
    uint32_t *value_at; /* of each of this rank's values: its index in the layout, */
    uint32_t *holders;  /* and the number of ranks that have it */
    size_t value_count;
};

struct join_options {
    uint32_t rank, rank_count;
    bool saves;                   /* the parts must make up whole tensors, and values must be equal on all ranks */
    bool allows_different_values; /* the lowest rank's value counts */
};

/* What a rank has: a table, which ranks may share, and its own factors. */
struct joined_rank {
    struct described_table *table; /* NULL: nothing */
    struct description_factors factors;
};

/* `ranks` has all ranks, or for a load may have this one alone, and `tables` each table once. CB_ERR_USAGE, with the name
 * and the ranks, if they contradict each other. A pure function: ranks with the same tables get the same layout. */
int join_descriptions(const struct joined_rank *ranks, struct described_table *tables, size_t table_count,
                      const struct ckptbench_state *state, const struct join_options *options, struct joined *joined,
                      struct cb_err *err) CB_MUST_CHECK;
void joined_release(struct joined *joined);

#endif
