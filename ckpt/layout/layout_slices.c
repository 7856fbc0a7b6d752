/* Finds where the shards of FSDP change their numbers of rows. */
#include "ckpt/layout/layout_internal.h"

/* Shard numbers of a cell along fsdp: base + fsdp coordinate * stride. */
struct numbering {
    uint32_t base, stride, shards;
};

static struct numbering numbering_of(const struct mesh *mesh, bool expert, uint32_t ep)
{
    unsigned roles = layout_shard_roles(PLACE_CHUNK, expert);
    uint32_t coordinate[AXIS_ROLES] = {[AXIS_EP] = ep};
    struct numbering made = {.base = mesh_index(mesh, roles, coordinate), .shards = mesh_extent(mesh, roles)};
    coordinate[AXIS_FSDP] = 1;
    made.stride = mesh_index(mesh, roles, coordinate) - made.base;
    return made;
}

uint64_t layout_row_step(const struct layout *self, const struct local *local, bool expert)
{
    struct numbering shards = numbering_of(&self->mesh, expert, 0);
    return (local->rows + shards.shards - 1) / shards.shards * shards.stride;
}

/* Marks the first slice with shard `number` or a later shard: it differs from the slice before it. */
static void mark(bool *starts, uint32_t extent, const struct numbering *shards, uint64_t number)
{
    uint64_t at = number > shards->base ? (number - shards->base + shards->stride - 1) / shards->stride : 0;
    if (at < extent)
        starts[at] = true;
}

/* Marks where the numbers of rows change: at the first and last shards of each local. */
static void mark_cell(const struct cell *cell, const struct numbering *shards, uint32_t extent, bool *starts)
{
    for (size_t i = 0; i < cell->count; i++) {
        const struct local *local = &cell->locals[i];
        uint64_t begin = local->row_begin, end = begin + local->region.size[0];
        uint64_t size = (local->rows + shards->shards - 1) / shards->shards;
        if (begin == end)
            continue;
        mark(starts, extent, shards, begin / size);
        if (begin % size > 0)
            mark(starts, extent, shards, begin / size + 1);
        if (end % size > 0)
            mark(starts, extent, shards, end / size);
        mark(starts, extent, shards, (end + size - 1) / size);
    }
}

void layout_mark_slices(const struct layout *layout, uint32_t pp, uint32_t ep, bool *starts)
{
    const struct mesh *mesh = &layout->mesh;
    struct numbering dense = numbering_of(mesh, false, ep), experts = numbering_of(mesh, true, ep);
    uint32_t extent = mesh->size[AXIS_FSDP];
    starts[0] = true;
    for (uint32_t tp = 0; tp < mesh->size[AXIS_TP]; tp++) {
        mark_cell(layout_dense(layout, pp, tp), &dense, extent, starts);
        if (layout->experts)
            mark_cell(layout_experts(layout, pp, tp, ep), &experts, extent, starts);
    }
}
