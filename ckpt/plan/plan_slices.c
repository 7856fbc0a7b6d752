/* Finds the ranks whose items follow from those of another rank: neighbours along fsdp whose shards have the same
 * numbers of rows. */
#include <string.h>

#include "ckpt/plan/plan_internal.h"
#include "core/alloc.h"

uint64_t planner_row_step(const struct planner *self, const struct local *local, enum placement placement, bool expert)
{
    if (placement != PLACE_CHUNK || local->region.dims == 0)
        return 0;
    return layout_row_step(self->layout, local, expert);
}

/* All ranks hold scalars, so who writes them depends on the loads of all. */
static bool has_scalars(const struct layout *layout)
{
    for (size_t i = 0; i < layout->tensor_count; i++) {
        if (layout->tensors[i].kind != KIND_BYTES && layout->tensors[i].dims == 0)
            return true;
    }
    return false;
}

int planner_find_slices(struct planner *self, bool all, struct cb_err *err)
{
    const struct mesh *mesh = &self->layout->mesh;
    uint32_t extent = mesh->size[AXIS_FSDP], eps = mesh->size[AXIS_EP];
    size_t groups = (size_t)mesh->size[AXIS_PP] * eps, used = 0;
    if (self->layout->placement[KIND_WEIGHT] != PLACE_CHUNK)
        return 0;
    bool *starts = malloc(extent);
    self->slices.first = calloc(groups + 1, sizeof *self->slices.first);
    int code = starts && self->slices.first ? 0 : alloc_fail(err, "to plan for %u shards", extent);
    all = all || has_scalars(self->layout);
    for (size_t i = 0; i < groups && !code; i++) {
        memset(starts, all, extent);
        layout_mark_slices(self->layout, (uint32_t)(i / eps), (uint32_t)(i % eps), starts);
        starts[1] = starts[1] || i == 0; /* rank 0 also writes values */
        for (uint32_t at = 0; at < extent && !code; at++) {
            code = starts[at] ? alloc_grow(&self->slices.starts, used, sizeof *self->slices.starts, err) : 0;
            if (!code && starts[at])
                self->slices.starts[used++] = at;
        }
        self->slices.first[i + 1] = used;
    }
    free(starts);
    return code;
}

const uint32_t *planner_starts(const struct planner *self, uint32_t pp, uint32_t ep, size_t *count)
{
    const size_t *first = &self->slices.first[(size_t)pp * self->layout->mesh.size[AXIS_EP] + ep];
    *count = first[1] - first[0];
    return self->slices.starts + first[0];
}

/* The last planned coordinate that is not above this one, as an index into the starts. */
static size_t find_start(const uint32_t *starts, size_t count, uint32_t fsdp)
{
    size_t low = 0, high = count;
    while (high - low > 1) {
        size_t middle = low + (high - low) / 2;
        if (starts[middle] <= fsdp)
            low = middle;
        else
            high = middle;
    }
    return low;
}

uint32_t planner_planned(const struct planner *self, uint32_t rank)
{
    const struct mesh *mesh = &self->layout->mesh;
    uint32_t at[AXIS_ROLES];
    size_t count;
    if (!self->slices.starts)
        return rank;
    mesh_coordinates(mesh, rank, at);
    const uint32_t *starts = planner_starts(self, at[AXIS_PP], at[AXIS_EP], &count);
    return rank - (at[AXIS_FSDP] - starts[find_start(starts, count, at[AXIS_FSDP])]) * mesh->stride[AXIS_FSDP];
}

uint32_t planner_alike(const struct planner *self, const uint32_t coordinate[AXIS_ROLES])
{
    size_t count;
    if (!self->slices.starts)
        return 1;
    const uint32_t *starts = planner_starts(self, coordinate[AXIS_PP], coordinate[AXIS_EP], &count);
    size_t at = find_start(starts, count, coordinate[AXIS_FSDP]);
    return (at + 1 < count ? starts[at + 1] : self->layout->mesh.size[AXIS_FSDP]) - starts[at];
}
