/* The plan as seen by its users: computed from layout and options, with its figures and digest.
 * The other files here compute it; ckpt/plan/plan_items.c reads it. */
#include "ckpt/plan.h"

#include <assert.h>
#include <string.h>

#include "ckpt/format/format.h"
#include "ckpt/format/format_ops.h"
#include "ckpt/plan/plan_internal.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/hash.h"
#include "core/units.h"

/* Bytes items are written by their owners; their load counts from the start. */
static int add_bytes_items(struct planner *planner, const struct plan_options *options, struct cb_err *err)
{
    const struct layout *layout = planner->layout;
    for (size_t i = 0; i < layout->tensor_count; i++) {
        const struct state_tensor *tensor = &layout->tensors[i];
        struct region region = {.dims = 0};
        struct item_frame frame = {0};
        if (tensor->kind != KIND_BYTES)
            continue;
        int code = planner_assign(planner, tensor->owner, (uint32_t)i, &region, 0, err);
        if (!code)
            code = format_item_frame(options->format, tensor, &region, 0, options->payload_alignment, &frame, err);
        if (code)
            return cb_context(err, "planning %s", tensor->fqn);
        planner->loads[tensor->owner] += frame.payload_bytes - planner_bytes(planner, (uint32_t)i, &region);
    }
    return 0;
}

struct keeper {
    struct planner *planner;
    uint32_t rank, coordinate[AXIS_ROLES];
    int code;
    struct cb_err *err;
};

static void keep_local(void *context, const struct cell *cell, const struct local *local, enum state_kind kind,
                       uint32_t tensor, bool expert)
{
    struct keeper *self = context;
    struct planner *planner = self->planner;
    enum placement placement = planner->layout->placement[kind];
    uint64_t row_step = planner_row_step(planner, local, placement, expert);
    struct region regions[BOX_MAX_OF_INTERVAL];
    uint32_t count = layout_shard_at(planner->layout, cell, local, placement, expert, self->coordinate, regions);
    for (uint32_t i = 0; i < count && !self->code; i++)
        self->code = planner_assign(planner, self->rank, tensor, &regions[i], row_step, self->err);
}

/* Every rank writes everything it holds. */
static int keep_all(struct planner *self, struct cb_err *err)
{
    const struct layout *layout = self->layout;
    struct keeper keeper = {.planner = self, .err = err};
    if (layout->boxes)
        return planner_keep_boxes(self, err);
    for (; keeper.rank < layout->mesh.world_size && !keeper.code; keeper.rank++) {
        if (planner_planned(self, keeper.rank) != keeper.rank)
            continue;
        mesh_coordinates(&layout->mesh, keeper.rank, keeper.coordinate);
        layout_each_local(layout, keeper.coordinate, keep_local, &keeper);
    }
    return keeper.code ? keeper.code : planner_keep_rows(self, err);
}

/* A tensor without elements is in no rank's share, but it has a name, a type and a shape, so rank 0 writes it. */
static int keep_empty(struct planner *self, struct cb_err *err)
{
    const struct layout *layout = self->layout;
    bool *seen = calloc(layout->tensor_count + 1, sizeof *seen);
    int code = seen ? 0 : alloc_fail(err, "to plan %zu tensors", layout->tensor_count);
    for (size_t i = 0; i < self->assignment_count && !code; i++)
        seen[self->assignments[i].tensor] = true;
    for (size_t i = 0; i < layout->tensor_count && !code; i++) {
        const struct state_tensor *tensor = &layout->tensors[i];
        struct region whole = region_whole(tensor->dims, tensor->shape);
        if (!seen[i] && region_elements(&whole) == 0)
            code = planner_assign(self, 0, (uint32_t)i, &whole, 0, err);
    }
    free(seen);
    return code;
}

static int distribute(struct planner *planner, const struct plan_options *options, struct cb_err *err)
{
    int code = add_bytes_items(planner, options, err);
    if (!code)
        code = options->dedup == DEDUP_NONE ? keep_all(planner, err) : planner_collect(planner, err);
    if (!code)
        code = planner_find_bound(planner, err);
    if (code || options->dedup == DEDUP_NONE)
        return code;
    if (format_ops_of(options->format)->has_file_headers && !format_ops_of(options->format)->has_parts)
        return planner_give_whole(planner, err);
    /* Each of MLPerf's files of a layer is written by one rank. */
    bool balanced = options->dedup == DEDUP_BALANCED && planner->layout->row_count == 0;
    return balanced ? planner_balance(planner, err) : planner_lowest_rank(planner, err);
}

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

static int summarize(struct plan *plan, const struct planner *planner, struct cb_err *err)
{
    uint32_t ranks = plan->world_size;
    uint64_t *loads = malloc(ranks * sizeof *loads);
    if (!loads)
        return alloc_fail(err, "to plan for %u ranks", ranks);
    for (uint32_t rank = 0; rank < ranks; rank++)
        loads[rank] = planner->loads[plan->patterns[plan->ranks[rank].pattern].rank];
    qsort(loads, ranks, sizeof *loads, compare_u64);
    plan->rank_bytes_min = loads[0];
    plan->rank_bytes_median = loads[ranks / 2];
    plan->rank_bytes_max = loads[ranks - 1];
    plan->bound_bytes = planner->bound_bytes;
    double mean = (double)plan->payload_bytes / ranks;
    plan->imbalance = mean > 0 ? (double)plan->rank_bytes_max / mean : 1;
    plan->imbalance_vs_bound = plan->bound_bytes > 0 ? (double)plan->rank_bytes_max / (double)plan->bound_bytes : 1;
    free(loads);
    return 0;
}

static uint64_t mix(uint64_t state, uint64_t value)
{
    state = (state ^ value) * UINT64_C(0xff51afd7ed558ccd);
    return state ^ (state >> 32);
}

static uint64_t mix_names(uint64_t digest, const struct plan_options *options)
{
    digest = mix(mix(digest, options->format), options->files);
    digest = mix(mix(digest, options->fanout), options->prefix);
    return mix(digest, hash_u64(options->prefixes, strlen(options->prefixes)));
}

static uint64_t digest_of(const struct plan *plan)
{
    uint64_t digest = mix_names(mix(plan->world_size, plan->item_count), &plan->options);
    for (size_t i = 0; i < plan->patterns[plan->pattern_count].first_item; i++) {
        const struct plan_item *item = &plan->items[i];
        digest = mix(mix(digest, item->tensor), item->file);
        digest = mix(mix(mix(digest, item->offset), item->length), item->payload_offset);
        digest = mix(mix(mix(digest, item->payload_bytes), item->row_step), item->region.dims);
        for (uint32_t d = 0; d < item->region.dims; d++)
            digest = mix(mix(digest, item->region.offset[d]), item->region.size[d]);
    }
    for (size_t i = 0; i <= plan->pattern_count; i++) {
        const struct plan_pattern *pattern = &plan->patterns[i];
        digest = mix(mix(mix(digest, pattern->rank), pattern->first_item), pattern->first_length);
    }
    for (size_t i = 0; i < plan->patterns[plan->pattern_count].first_length; i++)
        digest = mix(digest, plan->lengths[i]);
    for (uint32_t rank = 0; rank <= plan->world_size; rank++) {
        const struct plan_rank *place = &plan->ranks[rank];
        digest = mix(mix(mix(digest, place->pattern), place->first_file), place->first_byte);
    }
    return digest;
}

int planner_run(const struct layout *layout, const struct plan_options *options, bool whole, struct plan **plan,
                struct cb_err *err)
{
    uint32_t alignment = options->payload_alignment;
    assert(alignment > 0 && (alignment & (alignment - 1)) == 0);
    const struct format_ops *format = format_ops_of(options->format);
    uint64_t started_ns = clock_monotonic_ns();
    struct planner planner = {.layout = layout};
    struct plan *self = calloc(1, sizeof *self);
    planner.loads = calloc(layout->mesh.world_size, sizeof *planner.loads);
    int code;
    if (!self || !planner.loads) {
        code = alloc_fail(err, "to plan for %u ranks", layout->mesh.world_size);
        goto out;
    }
    self->world_size = layout->mesh.world_size;
    self->options = *options;
    self->suffix = format->suffix;
    self->has_parts = format->has_parts;
    /* The header of a file contains the rows of its items, so its length differs between slices. */
    code = planner_find_slices(&planner, whole || format->has_file_headers, err);
    if (!code)
        code = distribute(&planner, options, err);
    if (!code)
        code = keep_empty(&planner, err);
    if (!code)
        code = plan_place(&planner, options, self, err);
    if (!code)
        code = summarize(self, &planner, err);
    if (code)
        goto out;
    self->digest = digest_of(self);
    self->compute_ns = clock_monotonic_ns() - started_ns;
    *plan = self;
    self = NULL;
out:
    free(planner.slices.starts);
    free(planner.slices.first);
    free(planner.units);
    free(planner.lines);
    free(planner.table);
    free(planner.lists);
    free(planner.assignments);
    free(planner.loads);
    plan_free(self);
    return code;
}

int plan_compute(const struct layout *layout, const struct plan_options *options, struct plan **plan,
                 struct cb_err *err)
{
    return planner_run(layout, options, false, plan, err);
}

void plan_free(struct plan *plan)
{
    if (!plan)
        return;
    free(plan->items);
    free(plan->patterns);
    free(plan->lengths);
    free(plan->ranks);
    free(plan);
}
