/* The plan as seen by its users: computed from layout and options, with its figures and digest.
 * ckpt/plan/plan_holders.c, ckpt/plan/plan_balance.c and ckpt/plan/plan_files.c compute it. */
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

/* Bytes items are known to all and written by rank 0; their load counts from the start. */
static int add_bytes_items(struct planner *planner, const struct plan_options *options, struct cb_err *err)
{
    const struct layout *layout = planner->layout;
    for (size_t i = 0; i < layout->tensor_count; i++) {
        const struct state_tensor *tensor = &layout->tensors[i];
        struct region region = {.dims = 0};
        struct item_frame frame = {0};
        if (tensor->kind != KIND_BYTES)
            continue;
        int code = planner_assign(planner, 0, (uint32_t)i, &region, err);
        if (!code)
            code = format_item_frame(options->format, tensor, &region, 0, options->payload_alignment, &frame, err);
        if (code)
            return cb_context(err, "planning %s", tensor->fqn);
        planner->loads[0] += frame.payload_bytes - planner_bytes(planner, (uint32_t)i, &region);
    }
    return 0;
}

/* Every rank writes everything it holds. */
static int keep_all(struct planner *self, struct cb_err *err)
{
    int code = 0;
    for (uint32_t rank = 0; rank < self->layout->mesh.world_size && !code; rank++) {
        struct piece *pieces;
        size_t count;
        code = layout_pieces(self->layout, rank, &pieces, &count, err);
        if (code)
            return code;
        for (size_t i = 0; i < count && !code; i++)
            code = planner_assign(self, rank, pieces[i].tensor, &pieces[i].region, err);
        free(pieces);
    }
    return code;
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
            code = planner_assign(self, 0, (uint32_t)i, &whole, err);
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

/* Sorts the loads in place: the planner no longer needs them. */
static void summarize(struct plan *plan, struct planner *planner)
{
    uint32_t ranks = plan->world_size;
    qsort(planner->loads, ranks, sizeof *planner->loads, compare_u64);
    plan->rank_bytes_min = planner->loads[0];
    plan->rank_bytes_median = planner->loads[ranks / 2];
    plan->rank_bytes_max = planner->loads[ranks - 1];
    plan->bound_bytes = planner->bound_bytes;
    double mean = (double)plan->payload_bytes / ranks;
    plan->imbalance = mean > 0 ? (double)plan->rank_bytes_max / mean : 1;
    plan->imbalance_vs_bound = plan->bound_bytes > 0 ? (double)plan->rank_bytes_max / (double)plan->bound_bytes : 1;
}

static uint64_t mix(uint64_t state, uint64_t value)
{
    state = (state ^ value) * UINT64_C(0xff51afd7ed558ccd);
    return state ^ (state >> 32);
}

static uint64_t digest_of(const struct plan *plan)
{
    uint64_t digest = mix(plan->world_size, plan->item_count);
    for (size_t i = 0; i < plan->item_count; i++) {
        const struct plan_item *item = &plan->items[i];
        digest = mix(mix(digest, item->tensor), item->file);
        digest = mix(mix(mix(digest, item->offset), item->length), item->payload_offset);
        digest = mix(mix(digest, item->payload_bytes), item->region.dims);
        for (uint32_t d = 0; d < item->region.dims; d++)
            digest = mix(mix(digest, item->region.offset[d]), item->region.size[d]);
    }
    for (uint32_t rank = 0; rank <= plan->world_size; rank++)
        digest = mix(digest, plan->first_item[rank]);
    for (size_t i = 0; i < plan->file_count; i++) {
        const struct plan_file *file = &plan->files[i];
        digest = mix(mix(digest, hash_u64(file->name, strlen(file->name))), file->length);
        digest = mix(digest, file->rank);
    }
    return digest;
}

int plan_compute(const struct layout *layout, const struct plan_options *options, struct plan **plan,
                 struct cb_err *err)
{
    uint32_t alignment = options->payload_alignment;
    assert(alignment > 0 && (alignment & (alignment - 1)) == 0);
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
    self->payload_alignment = alignment;
    code = distribute(&planner, options, err);
    if (!code)
        code = keep_empty(&planner, err);
    if (!code)
        code = plan_place(&planner, options, self, err);
    if (code)
        goto out;
    summarize(self, &planner);
    self->digest = digest_of(self);
    self->compute_ns = clock_monotonic_ns() - started_ns;
    *plan = self;
    self = NULL;
out:
    free(planner.units);
    free(planner.lines);
    free(planner.table);
    free(planner.lists);
    free(planner.assignments);
    free(planner.loads);
    plan_free(self);
    return code;
}

void plan_free(struct plan *plan)
{
    if (!plan)
        return;
    for (size_t i = 0; i < plan->file_count; i++)
        free(plan->files[i].name);
    free(plan->files);
    free(plan->items);
    free(plan->first_item);
    free(plan);
}
