/* Layouts as seen by their users: built from their options, queried for a rank's pieces.
 * ckpt/layout/layout_cells.c and ckpt/layout/layout_state.c build cells and state. */
#include "ckpt/layout/layout.h"

#include <assert.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/layout/layout_internal.h"
#include "core/alloc.h"
#include "core/buf.h"

/* "dp2 tp2 zero1"; axes of one rank are left out. */
static int describe(struct layout *self, struct cb_err *err)
{
    struct buf text;
    buf_init(&text, 4096);
    for (size_t i = 0; i < self->mesh.count; i++) {
        const struct mesh_axis *axis = &self->mesh.axes[i];
        if (axis->size > 1 || (self->mesh.world_size == 1 && i == 0))
            buf_printf(&text, "%s%s%u", text.len ? " " : "", axis->name, axis->size);
    }
    if (self->mesh.zero)
        buf_printf(&text, " zero%u", self->mesh.zero);
    int code = buf_check(&text, "the layout's description", err);
    if (!code)
        self->description = buf_take(&text);
    buf_release(&text);
    return code;
}

static bool is_mlperf(const struct model *model, const struct layout_options *options)
{
    return strcmp(strcmp(options->state, "auto") == 0 ? model->default_state : options->state, "mlperf") == 0;
}

/* MLPerf's stages are even, without counting embedding and head. */
static const char *split_of(const struct model *model, const struct layout_options *options)
{
    return is_mlperf(model, options) && strcmp(options->pp_split, "balanced") == 0 ? "even" : options->pp_split;
}

int layout_new_training(const struct model *model, const struct layout_options *options,
                        const struct layout_training *training, struct layout **layout, struct cb_err *err)
{
    struct layout *self = calloc(1, sizeof *self);
    uint32_t *stage_of = malloc((model->layers + 1) * sizeof *stage_of);
    int code;
    if (!self || !stage_of) {
        code = alloc_fail(err, "for a layout");
        goto out;
    }
    self->training = training;
    code = mesh_read(&self->mesh, model, options, is_mlperf(model, options) && model->mlperf_tp, err);
    if (!code)
        code = pipeline_split(model, self->mesh.size[AXIS_PP], split_of(model, options), stage_of, err);
    if (!code)
        code = layout_build_state(self, model, options, err);
    if (!code)
        code = layout_build_cells(self, model, stage_of, err);
    if (!code)
        code = describe(self, err);
    if (code)
        goto out;
    self->training = NULL;
    *layout = self;
    self = NULL;
out:
    free(stage_of);
    layout_free(self);
    return code;
}

int layout_new(const struct model *model, const struct layout_options *options, struct layout **layout,
               struct cb_err *err)
{
    return layout_new_training(model, options, NULL, layout, err);
}

static void free_cells(struct cell *cells, size_t count)
{
    for (size_t i = 0; cells && i < count; i++)
        free(cells[i].locals);
    free(cells);
}

void layout_free_tensors(struct state_tensor *tensors, size_t count)
{
    for (size_t i = 0; i < count; i++) {
        free((char *)tensors[i].fqn);
        free((char *)tensors[i].literal);
        free((char *)tensors[i].path);
        free((void *)tensors[i].blob);
    }
    free(tensors);
}

void layout_free(struct layout *layout)
{
    if (!layout)
        return;
    size_t dense = (size_t)layout->mesh.size[AXIS_PP] * layout->mesh.size[AXIS_TP];
    free_cells(layout->dense, dense);
    free_cells(layout->experts, dense * layout->mesh.size[AXIS_EP]);
    layout_free_tensors(layout->tensors, layout->tensor_count);
    for (int kind = 0; kind < LAYOUT_KINDS; kind++)
        free(layout->state_of[kind]);
    free(layout->boxes);
    free(layout->holders);
    free(layout->description);
    free(layout);
}

uint32_t layout_world_size(const struct layout *layout)
{
    return layout->mesh.world_size;
}

size_t layout_tensor_count(const struct layout *layout)
{
    return layout->tensor_count;
}

const struct state_tensor *layout_tensor(const struct layout *layout, size_t index)
{
    assert(index < layout->tensor_count);
    return &layout->tensors[index];
}

const char *layout_describe(const struct layout *layout)
{
    return layout->description;
}

const char *layout_state_name(const struct layout *layout)
{
    return layout->state_name;
}

#define MOST_SIZES (1u << 20) /* 8 MiB */

/* Where a rank's pieces go: they are counted, summed or stored. */
struct sink {
    const struct layout *layout;
    uint32_t coordinate[AXIS_ROLES];
    struct piece *pieces; /* NULL: only count */
    size_t count;
    uint64_t bytes;
};

static void sink_add(struct sink *self, uint32_t tensor, const struct region *regions, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++) {
        if (self->pieces)
            self->pieces[self->count] = (struct piece){.tensor = tensor, .region = regions[i]};
        self->count++;
        self->bytes += region_elements(&regions[i]) * dtype_bytes(self->layout->tensors[tensor].dtype);
    }
}

static void sink_local(void *context, const struct cell *cell, const struct local *local, enum state_kind kind,
                       uint32_t tensor, bool expert)
{
    struct sink *self = context;
    struct region regions[BOX_MAX_OF_INTERVAL];
    uint32_t count =
        layout_shard_at(self->layout, cell, local, self->layout->placement[kind], expert, self->coordinate, regions);
    sink_add(self, tensor, regions, count);
}

void layout_each_local(const struct layout *self, const uint32_t coordinate[AXIS_ROLES], layout_local_fn each,
                       void *context)
{
    const struct cell *dense = layout_dense(self, coordinate[AXIS_PP], coordinate[AXIS_TP]);
    const struct cell *experts =
        self->experts ? layout_experts(self, coordinate[AXIS_PP], coordinate[AXIS_TP], coordinate[AXIS_EP]) : NULL;
    size_t expert_count = experts ? experts->count : 0;
    for (int kind = 0; kind < LAYOUT_KINDS; kind++) {
        for (size_t d = 0, e = 0; d < dense->count || e < expert_count;) { /* merged in the model's order */
            bool expert =
                d == dense->count || (e < expert_count && experts->locals[e].tensor < dense->locals[d].tensor);
            const struct local *local = expert ? &experts->locals[e++] : &dense->locals[d++];
            uint32_t tensor = self->state_of[kind][local->tensor];
            if (tensor != LAYOUT_ABSENT)
                each(context, expert ? experts : dense, local, (enum state_kind)kind, tensor, expert);
        }
    }
}

static bool holds_box(const struct layout *self, const struct box *box, uint32_t rank)
{
    uint32_t low = 0, high = box->holder_count;
    const uint32_t *list = &self->holders[box->first_holder];
    while (low < high) {
        uint32_t middle = low + (high - low) / 2;
        if (list[middle] < rank)
            low = middle + 1;
        else
            high = middle;
    }
    return low < box->holder_count && list[low] == rank;
}

static void sink_rank(struct sink *self, uint32_t rank)
{
    const struct layout *layout = self->layout;
    for (size_t i = 0; i < layout->box_count; i++) {
        if (holds_box(layout, &layout->boxes[i], rank))
            sink_add(self, layout->boxes[i].tensor, &layout->boxes[i].region, 1);
    }
    if (layout->boxes)
        return;
    mesh_coordinates(&layout->mesh, rank, self->coordinate);
    layout_each_local(layout, self->coordinate, sink_local, self);
    for (uint32_t k = 0; k < layout->row_count; k++) {
        struct region row = {2, {rank, 0}, {1, layout->row_elements}};
        sink_add(self, layout->row_first + k, &row, 1);
    }
}

int layout_pieces(const struct layout *layout, uint32_t rank, struct piece **pieces, size_t *count, struct cb_err *err)
{
    assert(rank < layout->mesh.world_size);
    struct sink sink = {.layout = layout};
    sink_rank(&sink, rank);
    struct piece *stored = calloc(sink.count ? sink.count : 1, sizeof *stored);
    if (!stored)
        return alloc_fail(err, "for the %zu pieces of rank %u", sink.count, rank);
    sink = (struct sink){.layout = layout, .pieces = stored};
    sink_rank(&sink, rank);
    *pieces = stored;
    *count = sink.count;
    return 0;
}

uint64_t layout_rank_bytes(const struct layout *layout, uint32_t rank)
{
    assert(rank < layout->mesh.world_size);
    struct sink sink = {.layout = layout};
    sink_rank(&sink, rank);
    return sink.bytes;
}

#define SLICE_ROLES (1u << AXIS_PP | 1u << AXIS_EP | 1u << AXIS_FSDP)

static size_t slice_index(const struct layout *layout, const uint32_t coordinate[AXIS_ROLES])
{
    const uint32_t *size = layout->mesh.size;
    return ((size_t)coordinate[AXIS_PP] * size[AXIS_EP] + coordinate[AXIS_EP]) * size[AXIS_FSDP] +
           coordinate[AXIS_FSDP];
}

void layout_sizes_init(struct layout_sizes *self, const struct layout *layout)
{
    unsigned roles = 1u << AXIS_PP | 1u << AXIS_TP | 1u << AXIS_EP;
    for (int kind = 0; kind < LAYOUT_KINDS; kind++)
        roles |= layout_shard_roles(layout->placement[kind], false) | layout_shard_roles(layout->placement[kind], true);
    uint32_t extent = mesh_extent(&layout->mesh, roles);
    *self = (struct layout_sizes){.layout = layout, .roles = roles};
    if (extent <= MOST_SIZES)
        self->known = calloc(extent, sizeof *self->known);
    if (layout->placement[KIND_WEIGHT] == PLACE_CHUNK)
        self->starts = calloc(mesh_extent(&layout->mesh, SLICE_ROLES), sizeof *self->starts);
    for (uint32_t pp = 0; self->starts && pp < layout->mesh.size[AXIS_PP]; pp++) {
        for (uint32_t ep = 0; ep < layout->mesh.size[AXIS_EP]; ep++)
            layout_mark_slices(layout, pp, ep,
                               self->starts +
                                   slice_index(layout, (uint32_t[AXIS_ROLES]){[AXIS_PP] = pp, [AXIS_EP] = ep}));
    }
}

void layout_sizes_release(struct layout_sizes *self)
{
    free(self->known);
    free(self->starts);
    *self = (struct layout_sizes){0};
}

uint64_t layout_sizes_of(struct layout_sizes *self, uint32_t rank)
{
    const struct mesh *mesh = &self->layout->mesh;
    uint32_t coordinate[AXIS_ROLES];
    if (!self->known)
        return layout_rank_bytes(self->layout, rank);
    mesh_coordinates(mesh, rank, coordinate);
    uint64_t *known = &self->known[mesh_index(mesh, self->roles, coordinate)];
    if (*known > 0)
        return *known;
    bool alike = self->starts && !self->starts[slice_index(self->layout, coordinate)];
    uint32_t from = rank;
    while (alike && *known == 0) {
        coordinate[AXIS_FSDP]--;
        from -= mesh->stride[AXIS_FSDP];
        *known = self->known[mesh_index(mesh, self->roles, coordinate)];
        alike = !self->starts[slice_index(self->layout, coordinate)];
    }
    if (*known == 0)
        *known = layout_rank_bytes(self->layout, from);
    return *known;
}

uint64_t layout_kind_bytes(const struct layout *layout, enum state_kind kind)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < layout->tensor_count && kind != KIND_BYTES; i++) {
        const struct state_tensor *tensor = &layout->tensors[i];
        struct region whole = region_whole(tensor->dims, tensor->shape);
        if (tensor->kind == kind)
            bytes += region_elements(&whole) * dtype_bytes(tensor->dtype);
    }
    return bytes;
}

uint64_t layout_total_bytes(const struct layout *layout)
{
    uint64_t bytes = 0;
    for (int kind = 0; kind < LAYOUT_KINDS; kind++)
        bytes += layout_kind_bytes(layout, (enum state_kind)kind);
    return bytes;
}
