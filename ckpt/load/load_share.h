/* Which rank reads what in a load with exchange: data needed by several ranks is read once, by one of them.
 *
 * A group is the ranks that need the same bytes. Its regions are extents of tensors, read in storage order and cut into
 * parts (whole rows) and blocks (parts that are sent together). A group consists of classes, each of several
 * replicas: the ranks of a class hold the same extent of each region.
 * - broadcast: a group is one class, and its first rank reads.
 * - split: each rank of the group reads an equal share, cut between regions if that is within 1/32 of a share, else
 * between rows. If tensor parallelism splits columns, whose bytes are interleaved in the store, the group is all
 * tensor-parallel ranks: whole rows are read, and each class gets its columns.
 * All ranks of a group compute the same blocks in the same order, and any two ranks agree on the order of their
 * common blocks. Pure functions of layout, checkpoint and mode. */
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
    uint32_t piece;  /* this rank's extent: the whole region, or with several classes its columns */
    uint32_t split_dim;
    struct region extent;
    struct share_span *spans; /* one per class; NULL with one class */
};

struct share_group {
    uint32_t *members; /* holders of the layout; class c has members c * replicas … */
    uint32_t classes, replicas;
    uint32_t mine; /* index of this rank */
    uint32_t code; /* below SHARE_CODES: the same on all ranks of a group, different for each group of a rank */
};
#define SHARE_CODES 128

struct share_part {
    uint32_t region;
    struct region extent;
};

struct share_block {
    uint32_t group;
    uint32_t reader; /* index into the group's members */
    uint32_t stage;
    uint32_t number; /* in its group, from 0, the same on all ranks of the group */
    size_t first_part, part_count;
    uint64_t bytes; /* of its parts */
};

/* The groups of one rank. Stage 0 contains all groups of one class, which are read straight into place; blocks of
 * later stages pass through a buffer of at most `transit_bytes` per rank and stage (more only for a longer row). */
struct load_share {
    struct share_group *groups;
    size_t group_count;
    struct share_region *regions;
    size_t region_count;
    struct share_part *parts;
    size_t part_count;
    struct share_block *blocks; /* by stage, then in the order of sending */
    size_t block_count;
    uint32_t stage_count; /* at least 1 */
    uint32_t *alone;      /* pieces that this rank reads for itself */
    size_t alone_count;
    uint64_t transit_most; /* peak bytes of this rank in transit in any stage */
};

struct share_options {
    enum share_mode mode;
    uint64_t block_bytes;   /* maximum of a block, except for longer rows */
    uint64_t transit_bytes; /* see above */
    bool all_in_transit;    /* also buffer groups of one class: the store cannot read into the state */
};

/* `pieces` are those of `holder`. A holder outside the layout gets an empty share. */
int load_share_compute(const struct layout *layout, uint32_t holder, const struct piece *pieces, size_t piece_count,
                       const struct stored_checkpoint *checkpoint, const struct share_options *options,
                       struct load_share **share, struct cb_err *err) CB_MUST_CHECK;
void load_share_free(struct load_share *share);

/* The part's bytes that the ranks of a class need; false if they need nothing. */
bool load_share_of_class(const struct load_share *share, const struct share_part *part, uint32_t class_index,
                         struct region *extent);

#endif
