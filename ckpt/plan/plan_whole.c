/* Assigns tensors that must stay whole (format=safetensors): the largest first, each to the least loaded of the ranks
 * that hold it. */
#include <stdbool.h>
#include <string.h>

#include "ckpt/plan/plan_internal.h"
#include "core/alloc.h"

struct weighed {
    uint32_t unit;
    uint64_t bytes;
};

static int compare_weights(const void *a, const void *b)
{
    const struct weighed *x = a, *y = b;
    if (x->bytes != y->bytes)
        return x->bytes > y->bytes ? -1 : 1;
    return x->unit < y->unit ? -1 : x->unit > y->unit;
}

/* A tensor of no elements is in no rank's share, but it has a name, a type and a shape: rank 0 writes it. */
int planner_keep_empty(struct planner *self, struct cb_err *err)
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

/* State held by a single rank has been assigned before; it, too, must consist of whole tensors. */
static int check_whole(const struct planner *self, uint32_t tensor, const struct region *region, struct cb_err *err)
{
    const struct state_tensor *whole = &self->layout->tensors[tensor];
    struct region all = region_whole(whole->dims, whole->shape);
    if (whole->kind == KIND_BYTES || region_equal(&all, region))
        return 0;
    return cb_fail(err, CB_ERR_USAGE,
                   "format=safetensors has each tensor whole in one file, and in this layout a rank holds only part of "
                   "%s: give format=dcp+safetensors, or save and `ckptbench convert`",
                   whole->fqn);
}

static int give(struct planner *self, const struct unit *unit, uint32_t *ranks, struct cb_err *err)
{
    const struct line *line = &self->lines[unit->line];
    planner_line_ranks(self, line, ranks);
    uint32_t least = ranks[0];
    for (uint32_t i = 1; i < line->holder_count; i++) {
        if (self->loads[ranks[i]] < self->loads[least])
            least = ranks[i];
    }
    return planner_assign(self, least, unit->tensor, &unit->region, err);
}

int planner_give_whole(struct planner *self, struct cb_err *err)
{
    struct weighed *order = malloc((self->unit_count + 1) * sizeof *order);
    uint32_t *ranks = malloc(self->layout->mesh.world_size * sizeof *ranks);
    int code = order && ranks ? 0 : alloc_fail(err, "to plan %zu tensors", self->unit_count);
    for (size_t i = 0; i < self->assignment_count && !code; i++)
        code = check_whole(self, self->assignments[i].tensor, &self->assignments[i].region, err);
    for (size_t i = 0; i < self->unit_count && !code; i++) {
        order[i] = (struct weighed){(uint32_t)i, planner_bytes(self, self->units[i].tensor, &self->units[i].region)};
        code = check_whole(self, self->units[i].tensor, &self->units[i].region, err);
    }
    if (!code && self->unit_count > 0)
        qsort(order, self->unit_count, sizeof *order, compare_weights);
    for (size_t i = 0; i < self->unit_count && !code; i++)
        code = give(self, &self->units[order[i].unit], ranks, err);
    free(order);
    free(ranks);
    return code;
}
