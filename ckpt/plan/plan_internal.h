/* Shared by the parts of the planner: which ranks are planned, so that the others follow from them (plan_slices.c),
 * which ranks could write which state (plan_holders.c), which rank does (plan_balance.c), and where in which file
 * (plan_files.c). Private to ckpt/plan/. */
#ifndef CKPT_PLAN_PLAN_INTERNAL_H
#define CKPT_PLAN_PLAN_INTERNAL_H

#include "ckpt/layout/layout_internal.h"
#include "ckpt/plan.h"

/* Ranks with coordinates [begin, begin + count) on every axis. */
struct holders {
    uint32_t begin[AXIS_ROLES], count[AXIS_ROLES];
};

/* State held by the same ranks: units in a row, to be divided among them. */
struct line {
    struct holders set;
    uint32_t list_first, list_count; /* into lists: the ranks, if they do not form a set; `set` then has all of them */
    uint32_t holder_count;
    uint64_t bytes;
};

struct unit {
    uint32_t tensor, line;
    struct region region;
    uint64_t row_step; /* see struct plan_pattern */
};

struct assignment {
    uint32_t rank, tensor;
    struct region region;
    uint64_t row_step;
};

/* A slice is the ranks with the same pp, fsdp and ep coordinate. With FSDP only scalars are held by ranks of
 * several slices, so each slice can be planned by itself. Of neighbours along fsdp that differ only in rows, only the
 * first is planned. */
struct slices {
    uint32_t *
        starts; /* NULL if all ranks are planned; else by pp and ep: the fsdp coordinates that are planned, ascending */
    size_t *first; /* [pp][ep] -> into starts, and the end */
};

struct planner {
    const struct layout *layout;
    struct slices slices;
    struct unit *units;
    size_t unit_count;
    struct line *lines;
    size_t line_count;
    uint32_t *table; /* hash of a set -> line + 1; table_size is a power of two */
    size_t table_size;
    uint32_t *lists;
    size_t list_count;
    struct assignment *assignments;
    size_t assignment_count;
    uint64_t *loads;      /* bytes assigned, by rank */
    uint64_t bound_bytes; /* see plan.h */
};

/* Finds the slices to plan: all of them, if items of a rank depend on more than the sizes of its shards. */
int planner_find_slices(struct planner *self, bool all, struct cb_err *err) CB_MUST_CHECK;
/* The fsdp coordinates planned at a pp and ep coordinate. */
const uint32_t *planner_starts(const struct planner *self, uint32_t pp, uint32_t ep, size_t *count);
/* The rank that is planned for this one; itself if it is planned. */
uint32_t planner_planned(const struct planner *self, uint32_t rank);
/* The number of slices along fsdp that share one plan with the slice at these coordinates, including it. */
uint32_t planner_alike(const struct planner *self, const uint32_t coordinate[AXIS_ROLES]);
/* Rows from a local's shard to its shard in the next slice. */
uint64_t planner_row_step(const struct planner *self, const struct local *local, enum placement placement, bool expert);

int planner_assign(struct planner *self, uint32_t rank, uint32_t tensor, const struct region *region, uint64_t row_step,
                   struct cb_err *err) CB_MUST_CHECK;
uint64_t planner_bytes(const struct planner *self, uint32_t tensor, const struct region *region);

/* Assigns what only one rank holds; collects the rest in units and lines. */
int planner_collect(struct planner *self, struct cb_err *err) CB_MUST_CHECK;
/* Assigns each box to all of its ranks (layouts from parts). */
int planner_keep_boxes(struct planner *self, struct cb_err *err) CB_MUST_CHECK;
/* Assigns its row to each rank (state=mlperf). */
int planner_keep_rows(struct planner *self, struct cb_err *err) CB_MUST_CHECK;

/* A lower bound of the maximum, from the fixed loads so far and the lines that can be divided. */
int planner_find_bound(struct planner *self, struct cb_err *err) CB_MUST_CHECK;
/* Assigns all units: divided among the holders so that their loads are even, or to the lowest rank. */
int planner_balance(struct planner *self, struct cb_err *err) CB_MUST_CHECK;
int planner_lowest_rank(struct planner *self, struct cb_err *err) CB_MUST_CHECK;
/* For formats that cannot split a tensor: each unit whole to the least loaded of its ranks. Fails, naming the tensor,
 * if a rank holds only part of one. */
int planner_give_whole(struct planner *self, struct cb_err *err) CB_MUST_CHECK;
/* The folder of a rank's files with its slash; "" if none. */
#define PLAN_PREFIX_BYTES (PLAN_PREFIXES_BYTES + 2)
void plan_prefix(const struct plan_options *options, uint32_t rank, uint32_t ranks, char folder[PLAN_PREFIX_BYTES]);

/* plan_compute; with `whole` no rank's items are derived from another's. */
int planner_run(const struct layout *layout, const struct plan_options *options, bool whole, struct plan **plan,
                struct cb_err *err) CB_MUST_CHECK;

/* Items in order with their files and offsets, from the assignments. */
int plan_place(const struct planner *planner, const struct plan_options *options, struct plan *plan,
               struct cb_err *err) CB_MUST_CHECK;

#endif
