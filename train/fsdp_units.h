/* Units of a model put together to wraps, and the order in which a step visits them. Pure; for parallel.c and its
 * tests. */
#ifndef TRAIN_FSDP_UNITS_H
#define TRAIN_FSDP_UNITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "setup/training.h"
#include "train/train_model.h"

/* One flat buffer; its units follow each other in it. */
struct wrap {
    size_t first_unit, unit_count;
    uint64_t elements; /* without padding */
    uint64_t share;    /* of each rank that shards it, padding included */
    uint64_t begin;    /* of the share among the shares of all wraps */
    bool root;         /* has what the first and the last stage use: stays gathered between them */
};

/* Stages that follow each other and use the same wrap. */
struct visit {
    size_t wrap, first_stage, stage_count; /* in the order of running: backward from first_stage downwards */
    bool backward, last;                   /* last: no later visit adds to the wrap's gradients */
};

struct wraps {
    struct wrap *items;
    size_t count;
    size_t *wrap_of;      /* unit -> wrap */
    uint64_t *offset_of;  /* unit -> element of its wrap where it begins */
    uint64_t share;       /* of all wraps */
    uint64_t largest;     /* padded elements of the largest wrap that is not the root's */
    uint64_t root_padded; /* of the root's wrap, 0 where there is none */
    struct visit *visits;
    size_t visit_count, forward_count; /* the first so many are forward's */
};

/* `units` sizes in order; `stage_unit` which of them each stage uses, or NULL for wraps without visits. */
int wraps_init(struct wraps *self, const struct training *training, const uint64_t *units, size_t unit_count,
               const size_t *stage_unit, size_t stage_count, struct cb_err *err) CB_MUST_CHECK;
void wraps_release(struct wraps *self);

/* The next visit after `visit` whose wrap is not the root's; visit_count where there is none. */
size_t wraps_next(const struct wraps *self, size_t visit);

#endif
