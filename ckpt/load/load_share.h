/* Who reads what of a load, where ranks exchange: what several ranks need is read once, by one of them.
 *
 * A group is the ranks that need the same bytes. Its regions are boxes of tensors, read in the order in
 * which they are stored and cut into parts (whole rows) and blocks (parts that travel together). A group
 * is made of classes, each of some replicas: the ranks of a class hold the same box of each region.
 *  - broadcast: a group is one class, and its first rank reads.
 *  - split: each rank of the group reads an equal share, cut between regions where that is within 1/32 of
 *    a share, else between rows. Where tensor parallelism cuts columns, whose bytes lie interleaved in the
 *    store, the group is all tensor-parallel ranks: whole rows are read, and each class gets its columns.
 * All ranks of a group compute the same blocks in the same order, and a rank's blocks are in an order in
 * which no two ranks disagree. Pure functions of layout, checkpoint and mode. */
#ifndef CKPT_LOAD_LOAD_SHARE_H
#define CKPT_LOAD_LOAD_SHARE_H

#include <stddef.h>
#include <stdint.h>

#include "ckpt/format/format.h"
#include "ckpt/layout/layout.h"
#include "core/err.h"

enum share_mode { SHARE_BROADCAST, SHARE_SPLIT };

struct share_span {
    uint64_t offset, size; /* in dimension `split_dim` of the tensor */
};

struct share_region {
    uint32_t group;
    uint32_t tensor; /* of the state */
    uint32_t piece;  /* of this rank: all of the region, or with several classes its columns of it */
    uint32_t split_dim;
    struct box box;
    struct share_span *spans; /* one a class; NULL with one class */
};

struct share_group {
    uint32_t *members; /* holders of the layout; class c has members c * replicas … */
    uint32_t classes, replicas;
    uint32_t mine; /* index of this rank */
    uint32_t code; /* below SHARE_CODES: the same on all of its ranks, and another for each group of a rank */
};
#define SHARE_CODES 128

struct share_part {
    uint32_t region;
    struct box box;
};

struct share_block {
    uint32_t group;
    uint32_t reader; /* index into the group's members */
    uint32_t stage;
    uint32_t number; /* in its group, from 0, the same on all of its ranks */
    size_t first_part, part_count;
    uint64_t bytes; /* of its parts */
};

/* What one rank takes part in. Stage 0 has all groups of one class, which are read straight into place;
 * later stages have blocks that pass through memory of `transit_bytes` at most a rank and stage (more
 * only where one row is longer). */
struct load_share {
    struct share_group *groups;
    size_t group_count;
    struct share_region *regions;
    size_t region_count;
    struct share_part *parts;
    size_t part_count;
    struct share_block *blocks; /* by stage, then in the order in which they travel */
    size_t block_count;
    uint32_t stage_count; /* at least 1 */
    uint32_t *alone;      /* pieces that this rank reads for itself */
    size_t alone_count;
    uint64_t transit_most; /* bytes that this rank has in transit in any stage */
};

struct share_options {
    enum share_mode mode;
    uint64_t block_bytes;   /* a block has no more, but for a row that is longer */
    uint64_t transit_bytes; /* see above */
    bool all_in_transit;    /* groups of one class, too: the state is where a store cannot read to */
};

/* `pieces` are those of `holder`. A holder that the layout does not have gets an empty share. */
int load_share_compute(const struct layout *layout, uint32_t holder, const struct piece *pieces, size_t piece_count,
                       const struct stored_checkpoint *checkpoint, const struct share_options *options,
                       struct load_share **share, struct cb_err *err) CB_MUST_CHECK;
void load_share_free(struct load_share *share);

/* What of a part the ranks of a class get; false where nothing. */
bool load_share_of_class(const struct load_share *share, const struct share_part *part, uint32_t class_index,
                         struct box *box);

#endif
