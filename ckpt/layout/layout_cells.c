/* Divides the model into cells by tensor, pipeline and expert parallelism, and a cell's regions over its data-parallel
 * ranks. */
#include <assert.h>
#include <string.h>

#include "ckpt/layout/layout_internal.h"
#include "core/alloc.h"

unsigned layout_shard_roles(enum placement placement, bool expert)
{
    unsigned experts_apart = expert ? 0 : 1u << AXIS_EP;
    switch (placement) {
    case PLACE_CHUNK:
    case PLACE_RANGES:
        return 1u << AXIS_FSDP | experts_apart;
    case PLACE_FLAT:
        return 1u << AXIS_DP | experts_apart;
    case PLACE_REPLICATE:
        break;
    }
    return 0;
}

/* [begin, end) of part `index` when `total` is cut in `parts` as torch.chunk does. */
static void chunk(uint64_t total, uint64_t parts, uint64_t index, uint64_t *begin, uint64_t *end)
{
    uint64_t size = (total + parts - 1) / parts;
    *begin = index * size < total ? index * size : total;
    *end = *begin + size < total ? *begin + size : total;
}

static uint32_t shard_rows(const struct local *local, uint32_t shards, uint32_t index, struct region *regions)
{
    uint64_t begin, end;
    if (local->region.dims == 0) {
        regions[0] = local->region; /* a scalar has no rows: every rank holds it */
        return 1;
    }
    chunk(local->rows, shards, index, &begin, &end);
    uint64_t local_end = local->row_begin + local->region.size[0];
    begin = begin > local->row_begin ? begin : local->row_begin;
    end = end < local_end ? end : local_end;
    if (begin >= end)
        return 0;
    regions[0] = local->region;
    regions[0].offset[0] += begin - local->row_begin;
    regions[0].size[0] = end - begin;
    return 1;
}

/* The part of a local, which begins at `local_begin` of a flat buffer of `elements`, that belongs to part `index` of
 * the buffer. */
static uint32_t shard_flat(uint64_t elements, uint64_t local_begin, const struct local *local, uint32_t shards,
                           uint32_t index, struct region *regions)
{
    uint64_t begin, end;
    if (local->region.dims == 0 && elements == 0) {
        regions[0] = local->region; /* a scalar next to the buffers, which all ranks hold */
        return 1;
    }
    chunk(elements, shards, index, &begin, &end);
    begin = begin > local_begin ? begin - local_begin : 0;
    end = end > local_begin ? end - local_begin : 0;
    if (end > local->elements)
        end = local->elements;
    return region_of_interval(&local->region, begin, end, regions);
}

uint32_t layout_shard(const struct cell *cell, const struct local *local, enum placement placement, uint32_t shards,
                      uint32_t index, struct region *regions)
{
    switch (placement) {
    case PLACE_CHUNK:
        return shard_rows(local, shards, index, regions);
    case PLACE_FLAT:
        return shard_flat(cell->elements, local->begin, local, shards, index, regions);
    case PLACE_RANGES:
        return shard_flat(local->range.elements, local->range.begin, local, shards, index, regions);
    case PLACE_REPLICATE:
        break;
    }
    regions[0] = local->region;
    return 1;
}

uint32_t layout_shard_at(const struct layout *self, const struct cell *cell, const struct local *local,
                         enum placement placement, bool expert, const uint32_t coordinate[AXIS_ROLES],
                         struct region *regions)
{
    unsigned roles = layout_shard_roles(placement, expert);
    return layout_shard(cell, local, placement, mesh_extent(&self->mesh, roles),
                        mesh_index(&self->mesh, roles, coordinate), regions);
}

size_t layout_find_local(const struct cell *cell, uint32_t tensor)
{
    size_t low = 0, high = cell->count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (cell->locals[middle].tensor < tensor)
            low = middle + 1;
        else
            high = middle;
    }
    return low;
}

/* How tensor parallelism splits one tensor. */
struct split {
    int32_t dim; /* -1: replicated */
    uint64_t unit, part_rows;
    uint32_t parts;
    uint32_t repeat; /* this many neighbours hold the same shard (key-value heads fewer than tp) */
};

static int split_of(const struct layout *self, const struct model *model, const struct model_tensor *tensor,
                    struct split *split, struct cb_err *err)
{
    uint32_t tp = self->mesh.size[AXIS_TP];
    bool mlperf_norm = self->row_count > 0 && tensor->dims == 1;
    *split = (struct split){.dim = mlperf_norm ? 0 : tensor->tp_dim, .unit = 1, .parts = 1, .repeat = 1};
    if (mlperf_norm) {
        split->part_rows = tp;
        return 0;
    }
    if (tp == 1)
        split->dim = -1;
    if (split->dim < 0) {
        split->repeat = tp;
        return 0;
    }
    split->parts = tensor->tp_parts;
    split->part_rows = tensor->shape[split->dim] / split->parts;
    split->unit = tensor->tp_unit;
    uint64_t units = split->part_rows / split->unit;
    if (split->unit > 1 && units % tp != 0) {
        if (tp % units != 0)
            return cb_fail(err, CB_ERR_USAGE,
                           "tp=%u cannot split %s of %s: its %llu heads are neither a multiple nor a divisor of tp", tp,
                           tensor->fqn, model->name, (unsigned long long)units);
        split->repeat = (uint32_t)(tp / units);
    }
    return 0;
}

/* The regions of a tensor that tp coordinate `tp` holds, appended to the cell. The array has room. */
static void add_locals(const struct layout *self, const struct state_tensor *tensor, const struct split *split,
                       uint32_t tp, struct cell *cell)
{
    struct local local = {.tensor = tensor->model_tensor, .region = region_whole(tensor->dims, tensor->shape)};
    local.tp_first = tp / split->repeat * split->repeat;
    local.tp_count = split->repeat;
    uint64_t begin = 0, end = 0;
    if (split->dim >= 0) {
        uint64_t units = split->part_rows / split->unit;
        chunk(units, self->mesh.size[AXIS_TP] / split->repeat, tp / split->repeat, &begin, &end);
        begin *= split->unit;
        end *= split->unit;
        if (begin == end)
            return;
    }
    bool rows_in_parts = split->dim == 0;
    for (uint32_t part = 0; part < split->parts; part++) {
        if (split->dim >= 0) {
            local.region.offset[split->dim] = part * split->part_rows + begin;
            local.region.size[split->dim] = end - begin;
        }
        local.rows = tensor->dims ? local.region.size[0] * (rows_in_parts ? split->parts : 1) : 1;
        local.row_begin = rows_in_parts ? part * (end - begin) : 0;
        local.elements = region_elements(&local.region);
        local.begin = cell->elements;
        if (self->training)
            local.range = self->training->ranges[tensor->model_tensor];
        cell->elements += local.elements;
        cell->locals[cell->count++] = local;
    }
}

static size_t cell_index(const struct layout *self, const struct model *model, const struct model_tensor *tensor,
                         uint32_t stage, uint32_t tp)
{
    uint32_t tps = self->mesh.size[AXIS_TP], eps = self->mesh.size[AXIS_EP];
    size_t index = (size_t)stage * tps + tp;
    if (tensor->expert < 0)
        return index;
    assert(eps > 0 && model->experts >= eps); /* the mesh has checked the sizes */
    return index * eps + (uint32_t)tensor->expert / (model->experts / eps);
}

/* Runs twice: first counts the locals of each cell, then adds them. */
static int visit_locals(struct layout *self, const struct model *model, const uint32_t *stage_of, bool adds,
                        struct cb_err *err)
{
    for (size_t i = 0; i < model->count; i++) {
        const struct model_tensor *tensor = &model->tensors[i];
        struct split split;
        int code = split_of(self, model, tensor, &split, err);
        if (code)
            return code;
        uint32_t stage = tensor->layer >= 0                   ? stage_of[tensor->layer]
                         : tensor->layer == MODEL_LAYER_FIRST ? 0
                                                              : self->mesh.size[AXIS_PP] - 1;
        struct cell *cells = tensor->expert >= 0 ? self->experts : self->dense;
        assert(cells);
        for (uint32_t tp = 0; tp < self->mesh.size[AXIS_TP]; tp++) {
            struct cell *cell = &cells[cell_index(self, model, tensor, stage, tp)];
            if (adds)
                add_locals(self, &self->tensors[self->state_of[KIND_WEIGHT][i]], &split, tp, cell);
            else
                cell->count += split.parts;
        }
    }
    return 0;
}

static int allocate_locals(struct cell *cells, size_t count, struct cb_err *err)
{
    for (size_t i = 0; i < count; i++) {
        cells[i].locals = malloc((cells[i].count + 1) * sizeof *cells[i].locals);
        if (!cells[i].locals)
            return alloc_fail(err, "for the layout of %zu mesh cells", count);
        cells[i].count = 0;
    }
    return 0;
}

int layout_build_cells(struct layout *self, const struct model *model, const uint32_t *stage_of, struct cb_err *err)
{
    size_t dense = (size_t)self->mesh.size[AXIS_PP] * self->mesh.size[AXIS_TP];
    size_t experts = model->experts ? dense * self->mesh.size[AXIS_EP] : 0;
    self->dense = calloc(dense, sizeof *self->dense);
    self->experts = experts ? calloc(experts, sizeof *self->experts) : NULL;
    if (!self->dense || (experts && !self->experts))
        return alloc_fail(err, "for the layout of %zu mesh cells", dense);
    int code = visit_locals(self, model, stage_of, false, err);
    if (!code)
        code = allocate_locals(self->dense, dense, err);
    if (!code)
        code = allocate_locals(self->experts, experts, err);
    return code ? code : visit_locals(self, model, stage_of, true, err);
}
