/* Groups the units of a model into wraps, and plans in which order a step visits them. Pure. */
#ifndef TRAIN_FSDP_UNITS_H
#define TRAIN_FSDP_UNITS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "setup/training.h"
#include "train/train_model.h"

/* One flat buffer that holds its units one after the other. */
struct fsdp_unit {
    size_t first_unit, unit_count;
    uint64_t elements; /* without padding */
    uint64_t share;    /* per rank that shards it, including padding */
    uint64_t begin;    /* offset of the share among the shares of all wraps */
    bool root;         /* has the unit of the first and the last stage: stays gathered from one to the other */
};

/* Consecutive stages that use the same wrap. */
struct visit {
    size_t wrap, first_stage, stage_count; /* in execution order: in backward from first_stage downwards */
    bool backward, last;                   /* the last visit that adds to the wrap's gradients */
};

struct fsdp_units {
    struct fsdp_unit *items;
    size_t count;
    size_t *wrap_of;      /* unit -> wrap */
    uint64_t *offset_of;  /* unit -> its first element in the wrap */
    uint64_t share;       /* of all wraps */
    uint64_t largest;     /* padded elements of the largest wrap except the root's */
    uint64_t root_padded; /* of the root's wrap, 0 if there is none */
    struct visit *visits;
    size_t visit_count, forward_count; /* number of forward visits, which come first */
};

/* `units` sizes in order; `stage_unit` contains the unit of each stage, or is NULL to plan wraps without visits. */
int fsdp_units_init(struct fsdp_units *self, const struct training *training, const uint64_t *units, size_t unit_count,
                    const size_t *stage_unit, size_t stage_count, struct cb_err *err) CB_MUST_CHECK;
void fsdp_units_release(struct fsdp_units *self);

/* The next visit after `visit` whose wrap is not the root's; visit_count if there is none. */
size_t fsdp_units_next(const struct fsdp_units *self, size_t visit);

#endif
