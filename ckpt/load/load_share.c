/* Finds groups and regions: which of a rank's pieces other ranks need as well. ckpt/load/load_share_blocks.c cuts
 * regions into parts and blocks. */
#include "ckpt/load/load_share.h"

#include <assert.h>
#include <string.h>

#include "ckpt/layout/layout_internal.h"
#include "ckpt/load/load_share_internal.h"
#include "core/alloc.h"

/* A longer row would not fit into one message. */
#define ROW_MAX_BYTES (UINT64_C(1) << 30)

/* The key of a group, in addition to the coordinates that all of its ranks share. Every rank has the groups in this
 * order. */
struct signature {
    uint32_t
        list; /* of a layout from parts: where its list of ranks begins, + 1; the members below are not used then */
    uint32_t classes, tp_first, tp_count;
    unsigned roles; /* the ranks replicate over these */
    bool expert;
};

/* Position of a region in the checkpoint, for reading in that order. Small regions come last, together. */
struct region_order {
    bool is_small;
    uint32_t file;
    uint64_t offset;
    size_t number;
};

struct sharer {
    const struct layout *layout;
    const struct piece *pieces;
    const struct stored_checkpoint *checkpoint;
    const struct share_options *options;
    uint32_t holder, coordinate[AXIS_ROLES];
    uint32_t next_piece;
    uint32_t last_tensor, repetition; /* of one tensor's locals: the parts of a fused tensor */
    uint8_t *list_codes;              /* of a layout from parts: the code of the list that begins there */
    struct load_share *share;
    struct signature *signatures; /* one per group */
    struct region_order *order;   /* one per region */
    int code;
    struct cb_err *err;
};

static void no_memory(struct sharer *self)
{
    if (!self->code)
        self->code = alloc_fail(self->err, "to share a load among ranks");
}

/* --- groups --- */

static int compare_signatures(const struct signature *a, const struct signature *b)
{
    if (a->list != b->list)
        return a->list < b->list ? -1 : 1;
    if (a->classes != b->classes)
        return a->classes < b->classes ? -1 : 1;
    if (a->tp_first != b->tp_first)
        return a->tp_first < b->tp_first ? -1 : 1;
    if (a->tp_count != b->tp_count)
        return a->tp_count < b->tp_count ? -1 : 1;
    if (a->roles != b->roles)
        return a->roles < b->roles ? -1 : 1;
    return (int)a->expert - (int)b->expert;
}

/* A number for each signature that a layout can have: tensor-parallel groups are all ranks, one, or as many
 * as hold the same key-value heads. */
static uint32_t code_of(const struct sharer *self, const struct signature *signature)
{
    uint32_t tp = self->layout->mesh.size[AXIS_TP];
    uint32_t columns = signature->classes > 1, roles = 0;
    uint32_t count = columns                     ? signature->classes != tp
                     : signature->tp_count == 1  ? 0
                     : signature->tp_count == tp ? 1
                                                 : 2;
    static const enum axis_role data[] = {AXIS_DP, AXIS_FSDP, AXIS_EP};
    for (uint32_t i = 0; i < 3; i++)
        roles |= (signature->roles >> data[i] & 1u) << i;
    return columns | (uint32_t)signature->expert << 1 | roles << 2 | count << 5;
}

static void list_members(struct sharer *self, const struct signature *signature, struct share_group *group)
{
    const struct mesh *mesh = &self->layout->mesh;
    for (uint32_t i = 0; signature->list && i < group->replicas; i++) {
        group->members[i] = self->layout->holders[signature->list - 1 + i];
        if (group->members[i] == self->holder)
            group->mine = i;
    }
    if (signature->list)
        return;
    uint32_t data = mesh_extent(mesh, signature->roles), next = 0;
    uint32_t coordinate[AXIS_ROLES];
    memcpy(coordinate, self->coordinate, sizeof coordinate);
    for (uint32_t tp = 0; tp < signature->tp_count; tp++) {
        coordinate[AXIS_TP] = signature->tp_first + tp;
        for (uint32_t i = 0; i < data; i++) {
            mesh_from_index(mesh, signature->roles, i, coordinate);
            group->members[next] = mesh_rank(mesh, coordinate);
            if (group->members[next] == self->holder)
                group->mine = next;
            next++;
        }
    }
}

/* The group of this signature; created at its first use. */
static uint32_t find_group(struct sharer *self, const struct signature *signature, uint32_t members)
{
    struct load_share *share = self->share;
    for (uint32_t i = 0; i < share->group_count; i++) {
        if (compare_signatures(&self->signatures[i], signature) == 0)
            return i;
    }
    if (!self->code)
        self->code = alloc_grow(&share->groups, share->group_count, sizeof *share->groups, self->err);
    if (!self->code)
        self->code = alloc_grow(&self->signatures, share->group_count, sizeof *self->signatures, self->err);
    if (self->code)
        return 0;
    struct share_group *group = &share->groups[share->group_count];
    *group = (struct share_group){.classes = signature->classes, .replicas = members / signature->classes};
    group->members = malloc(members * sizeof *group->members);
    if (!group->members) {
        no_memory(self);
        return 0;
    }
    group->code = signature->list ? self->list_codes[signature->list - 1] : code_of(self, signature);
    assert(group->code < SHARE_CODES);
    self->signatures[share->group_count] = *signature;
    list_members(self, signature, group);
    return (uint32_t)share->group_count++;
}

/* --- regions --- */

static void add_alone(struct sharer *self, uint32_t piece)
{
    self->share->alone[self->share->alone_count++] = piece; /* it has room for all */
}

static struct region_order place_of(const struct sharer *self, const struct share_region *region)
{
    const struct state_tensor *tensor = layout_tensor(self->layout, region->tensor);
    const struct stored_tensor *stored = stored_checkpoint_find(self->checkpoint, tensor->fqn);
    struct region_order order = {.file = UINT32_MAX, .offset = UINT64_MAX, .number = self->share->region_count};
    order.is_small = region_elements(&region->extent) * dtype_bytes(tensor->dtype) < self->options->block_bytes / 4;
    struct region first = region->extent, common;
    for (uint32_t i = 0; i < first.dims; i++)
        first.size[i] = 1;
    for (uint32_t i = 0; stored && i < stored->chunk_count; i++) {
        const struct stored_chunk *chunk = &self->checkpoint->chunks[stored->first_chunk + i];
        if (chunk->region.dims != first.dims || !region_intersect(&chunk->region, &first, &common))
            continue;
        order.file = chunk->file;
        order.offset = chunk->offset;
        break;
    }
    return order;
}

static void add_region(struct sharer *self, const struct share_region *region)
{
    struct load_share *share = self->share;
    if (!self->code)
        self->code = alloc_grow(&share->regions, share->region_count, sizeof *share->regions, self->err);
    if (!self->code)
        self->code = alloc_grow(&self->order, share->region_count, sizeof *self->order, self->err);
    if (self->code) {
        free(region->spans);
        return;
    }
    self->order[share->region_count] = place_of(self, region);
    share->regions[share->region_count++] = *region;
}

/* --- columns, which are read by whole rows --- */

/* An extent of a rank's local, and the dimension in which tensor parallelism splits the local's tensor. */
struct cut {
    const struct local *local;
    enum placement placement;
    bool expert;
    uint32_t dim;   /* of the columns */
    uint32_t index; /* of the extent among the local's extents */
    uint32_t count; /* of the local's extents */
};

/* The same local, and so the same part of the same tensor, of another tensor-parallel rank. */
static const struct local *find_sibling(const struct sharer *self, const struct cut *cut, uint32_t tp,
                                        const struct cell **cell)
{
    const struct layout *layout = self->layout;
    *cell = cut->expert ? layout_experts(layout, self->coordinate[AXIS_PP], tp, self->coordinate[AXIS_EP])
                        : layout_dense(layout, self->coordinate[AXIS_PP], tp);
    size_t i = layout_find_local(*cell, cut->local->tensor) + self->repetition;
    return i < (*cell)->count && (*cell)->locals[i].tensor == cut->local->tensor ? &(*cell)->locals[i] : NULL;
}

/* The columns of rank `tp` in the rows of `extent`; false if that rank holds other rows. */
static bool find_columns(const struct sharer *self, const struct cut *cut, const struct region *extent, uint32_t tp,
                         struct share_span *span)
{
    const struct cell *cell;
    const struct local *sibling = find_sibling(self, cut, tp, &cell);
    if (!sibling)
        return false;
    struct region extents[BOX_MAX_OF_INTERVAL];
    uint32_t count =
        layout_shard_at(self->layout, cell, sibling, cut->placement, cut->expert, self->coordinate, extents);
    if (count != cut->count)
        return false;
    const struct region *other = &extents[cut->index];
    for (uint32_t i = 0; i < extent->dims; i++) {
        bool same = other->offset[i] == extent->offset[i] && other->size[i] == extent->size[i];
        if (i != cut->dim && !same)
            return false;
    }
    *span = (struct share_span){other->offset[cut->dim], other->size[cut->dim]};
    return other->size[cut->dim] == sibling->region.size[cut->dim];
}

/* Creates the region of all tensor-parallel ranks' columns. False if there is none. */
static bool join_columns(struct sharer *self, const struct cut *cut, const struct region *extent,
                         struct share_region *region)
{
    uint32_t repeat = cut->local->tp_count, classes = self->layout->mesh.size[AXIS_TP] / repeat;
    if (classes < 2)
        return false;
    struct share_span *spans = calloc(classes, sizeof *spans);
    if (!spans) {
        no_memory(self);
        return false;
    }
    bool whole = true;
    uint64_t end = 0;
    for (uint32_t c = 0; c < classes && whole; c++) {
        whole = find_columns(self, cut, extent, c * repeat, &spans[c]) && (c == 0 || spans[c].offset == end);
        end = spans[c].offset + spans[c].size;
    }
    if (!whole) {
        free(spans);
        return false;
    }
    region->spans = spans;
    region->split_dim = cut->dim;
    region->extent.offset[cut->dim] = spans[0].offset;
    region->extent.size[cut->dim] = end - spans[0].offset;
    return true;
}

/* The first dimension in which the local is smaller than the tensor; 0 if it is the whole tensor. */
static uint32_t cut_dimension(const struct region *extent, const struct state_tensor *tensor)
{
    for (uint32_t i = 0; i < extent->dims; i++) {
        if (extent->size[i] != tensor->shape[i])
            return i;
    }
    return 0;
}

static void share_region(struct sharer *self, const struct cut *cut, const struct region *extent, uint32_t tensor)
{
    const struct state_tensor *wanted = layout_tensor(self->layout, tensor);
    uint32_t piece = self->next_piece++;
    struct share_region region = {.tensor = tensor, .piece = piece, .extent = *extent};
    unsigned data = 1u << AXIS_DP | 1u << AXIS_FSDP | (cut->expert ? 0 : 1u << AXIS_EP);
    struct signature signature = {.expert = cut->expert, .classes = 1};
    assert(region_equal(extent, &self->pieces[piece].region));
    signature.roles = data & ~layout_shard_roles(cut->placement, cut->expert);
    bool columns = self->options->mode == SHARE_SPLIT && cut->dim > 0 && join_columns(self, cut, extent, &region);
    if (columns) {
        signature.classes = self->layout->mesh.size[AXIS_TP] / cut->local->tp_count;
        signature.tp_count = self->layout->mesh.size[AXIS_TP];
    } else if (cut->placement == PLACE_FLAT) { /* the same interval may belong to other tensors elsewhere */
        signature.tp_first = self->coordinate[AXIS_TP];
        signature.tp_count = 1;
    } else {
        signature.tp_first = cut->local->tp_first;
        signature.tp_count = cut->local->tp_count;
    }
    uint64_t rows = region.extent.dims ? region.extent.size[region_row_dim(&region.extent)] : 1;
    uint32_t members = signature.tp_count * mesh_extent(&self->layout->mesh, signature.roles);
    if (self->code || members == 1 || region_elements(extent) == 0 ||
        region_elements(&region.extent) / rows * dtype_bytes(wanted->dtype) > ROW_MAX_BYTES) {
        free(region.spans);
        add_alone(self, piece);
        return;
    }
    region.group = find_group(self, &signature, members);
    add_region(self, &region);
}

/* --- layouts from parts --- */

/* A code for each list of ranks, such that no rank is in two lists of the same code. A list gets CODE_NONE if its ranks are
 * in too many. All ranks compute the same codes. */
#define CODE_NONE SHARE_CODES
static void number_lists(struct sharer *self)
{
    const struct layout *layout = self->layout;
    struct taken {
        bool codes[SHARE_CODES];
    } *ranks = calloc(layout->mesh.world_size, sizeof *ranks);
    bool *numbered = calloc(layout->holder_count + 1, sizeof *numbered);
    self->list_codes = calloc(layout->holder_count + 1, sizeof *self->list_codes);
    if (!ranks || !numbered || !self->list_codes)
        no_memory(self);
    for (size_t i = 0; i < layout->box_count && !self->code; i++) {
        const struct box *box = &layout->boxes[i];
        const uint32_t *list = &layout->holders[box->first_holder];
        uint8_t code = 0;
        if (numbered[box->first_holder] || box->holder_count == 1)
            continue;
        for (uint32_t k = 0; k < box->holder_count && code < CODE_NONE;) { /* from the start after each collision */
            bool is_taken = ranks[list[k]].codes[code];
            code += is_taken;
            k = is_taken ? 0 : k + 1;
        }
        for (uint32_t k = 0; k < box->holder_count && code < CODE_NONE; k++)
            ranks[list[k]].codes[code] = true;
        numbered[box->first_holder] = true;
        self->list_codes[box->first_holder] = code;
    }
    free(ranks);
    free(numbered);
}

/* The boxes of this rank are its pieces, in the same order. */
static void share_boxes(struct sharer *self, size_t piece_count)
{
    const struct layout *layout = self->layout;
    number_lists(self);
    for (size_t i = 0; i < layout->box_count && self->next_piece < piece_count && !self->code; i++) {
        const struct box *box = &layout->boxes[i];
        const struct piece *piece = &self->pieces[self->next_piece];
        if (box->tensor != piece->tensor || !region_equal(&box->region, &piece->region))
            continue;
        struct share_region region = {.tensor = box->tensor, .piece = self->next_piece++, .extent = box->region};
        struct signature signature = {.list = box->first_holder + 1, .classes = 1};
        uint64_t rows = box->region.dims ? box->region.size[region_row_dim(&box->region)] : 1;
        uint64_t row_bytes =
            region_elements(&box->region) / rows * dtype_bytes(layout_tensor(layout, box->tensor)->dtype);
        if (box->holder_count == 1 || self->list_codes[box->first_holder] == CODE_NONE || row_bytes > ROW_MAX_BYTES) {
            add_alone(self, region.piece);
            continue;
        }
        region.group = find_group(self, &signature, box->holder_count);
        add_region(self, &region);
    }
}

static void share_local(void *context, const struct cell *cell, const struct local *local, enum state_kind kind,
                        uint32_t tensor, bool expert)
{
    struct sharer *self = context;
    struct region extents[BOX_MAX_OF_INTERVAL];
    self->repetition = tensor == self->last_tensor ? self->repetition + 1 : 0;
    self->last_tensor = tensor;
    struct cut cut = {.local = local, .placement = self->layout->placement[kind], .expert = expert};
    cut.dim = cut_dimension(&local->region, layout_tensor(self->layout, tensor));
    cut.count = layout_shard_at(self->layout, cell, local, cut.placement, expert, self->coordinate, extents);
    for (cut.index = 0; cut.index < cut.count; cut.index++)
        share_region(self, &cut, &extents[cut.index], tensor);
}

static int compare_regions(const void *a, const void *b, void *context)
{
    const struct sharer *self = context;
    size_t i = *(const size_t *)a, j = *(const size_t *)b;
    uint32_t g = self->share->regions[i].group, h = self->share->regions[j].group;
    if (g != h)
        return compare_signatures(&self->signatures[g], &self->signatures[h]);
    const struct region_order *x = &self->order[i], *y = &self->order[j];
    if (x->is_small != y->is_small)
        return (int)x->is_small - (int)y->is_small;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    if (x->offset != y->offset)
        return x->offset < y->offset ? -1 : 1;
    return x->number < y->number ? -1 : x->number > y->number;
}

static void sort_regions(struct sharer *self)
{
    struct load_share *share = self->share;
    size_t *numbers = malloc((share->region_count + 1) * sizeof *numbers);
    struct share_region *sorted = malloc((share->region_count + 1) * sizeof *sorted);
    if (numbers && sorted) {
        for (size_t i = 0; i < share->region_count; i++)
            numbers[i] = i;
        qsort_r(numbers, share->region_count, sizeof *numbers, compare_regions, self);
        for (size_t i = 0; i < share->region_count; i++)
            sorted[i] = share->regions[numbers[i]];
        memcpy(share->regions, sorted, share->region_count * sizeof *sorted);
    } else {
        no_memory(self);
    }
    free(numbers);
    free(sorted);
}

int load_share_compute(const struct layout *layout, uint32_t holder, const struct piece *pieces, size_t piece_count,
                       const struct stored_checkpoint *checkpoint, const struct share_options *options,
                       struct load_share **share, struct cb_err *err)
{
    struct sharer self = {.layout = layout,
                          .pieces = pieces,
                          .checkpoint = checkpoint,
                          .options = options,
                          .holder = holder,
                          .last_tensor = UINT32_MAX,
                          .err = err};
    self.share = calloc(1, sizeof *self.share);
    if (!self.share)
        return alloc_fail(err, "to share a load among ranks");
    self.share->stage_count = 1;
    self.share->alone = malloc((piece_count + 1) * sizeof *self.share->alone);
    if (!self.share->alone)
        no_memory(&self);
    if (!self.code && holder < layout_world_size(layout)) {
        mesh_coordinates(&layout->mesh, holder, self.coordinate);
        if (layout->boxes)
            share_boxes(&self, piece_count);
        else
            layout_each_local(layout, self.coordinate, share_local, &self);
        while (!self.code && self.next_piece < piece_count) /* own rows: no other rank has them */
            add_alone(&self, self.next_piece++);
    }
    if (!self.code && self.share->region_count > 0)
        sort_regions(&self);
    if (!self.code)
        self.code = load_share_make_blocks(self.share, layout, options, err);
    free(self.signatures);
    free(self.order);
    free(self.list_codes);
    if (self.code)
        load_share_free(self.share);
    else
        *share = self.share;
    return self.code;
}

void load_share_free(struct load_share *share)
{
    if (!share)
        return;
    for (size_t i = 0; i < share->group_count; i++)
        free(share->groups[i].members);
    for (size_t i = 0; i < share->region_count; i++)
        free(share->regions[i].spans);
    free(share->groups);
    free(share->regions);
    free(share->parts);
    free(share->blocks);
    free(share->alone);
    free(share);
}

bool load_share_of_class(const struct load_share *share, const struct share_part *part, uint32_t class_index,
                         struct region *extent)
{
    const struct share_region *region = &share->regions[part->region];
    *extent = part->extent;
    if (region->spans) { /* a part of a single row may itself be cut by columns */
        const struct share_span *span = &region->spans[class_index];
        uint32_t dim = region->split_dim;
        uint64_t begin = part->extent.offset[dim], end = begin + part->extent.size[dim];
        begin = begin > span->offset ? begin : span->offset;
        end = end < span->offset + span->size ? end : span->offset + span->size;
        extent->offset[dim] = begin;
        extent->size[dim] = end > begin ? end - begin : 0;
    }
    return region_elements(extent) > 0;
}
