/* Finds which ranks could write which state. Visits each cell of the layout once, so that the cost depends on the
 * number of regions, not on ranks x tensors. */
#include <assert.h>
#include <string.h>

#include "ckpt/plan/plan_internal.h"
#include "core/alloc.h"
#include "core/hash.h"

uint64_t planner_bytes(const struct planner *self, uint32_t tensor, const struct region *region)
{
    return region_elements(region) * dtype_bytes(self->layout->tensors[tensor].dtype);
}

int planner_assign(struct planner *self, uint32_t rank, uint32_t tensor, const struct region *region, uint64_t row_step,
                   struct cb_err *err)
{
    int code = alloc_grow(&self->assignments, self->assignment_count, sizeof *self->assignments, err);
    if (code)
        return code;
    self->assignments[self->assignment_count++] =
        (struct assignment){.rank = rank, .tensor = tensor, .region = *region, .row_step = row_step};
    self->loads[rank] += planner_bytes(self, tensor, region);
    return 0;
}

static uint32_t set_size(const struct holders *set)
{
    uint32_t size = 1;
    for (int role = 0; role < AXIS_ROLES; role++)
        size *= set->count[role];
    return size;
}

static int grow_table(struct planner *self, struct cb_err *err)
{
    size_t size = self->table_size ? 2 * self->table_size : 1024;
    uint32_t *table = calloc(size, sizeof *table);
    if (!table)
        return alloc_fail(err, "to plan %zu groups of ranks", self->line_count);
    for (size_t i = 0; i < self->line_count; i++) {
        if (self->lines[i].list_count)
            continue;
        size_t slot = hash_u64(&self->lines[i].set, sizeof self->lines[i].set) & (size - 1);
        while (table[slot])
            slot = (slot + 1) & (size - 1);
        table[slot] = (uint32_t)i + 1;
    }
    free(self->table);
    self->table = table;
    self->table_size = size;
    return 0;
}

static int add_line(struct planner *self, const struct line *line, struct cb_err *err)
{
    int code = alloc_grow(&self->lines, self->line_count, sizeof *self->lines, err);
    if (!code)
        self->lines[self->line_count++] = *line;
    return code;
}

/* The line of these ranks; creates it if it is new. */
static int find_line(struct planner *self, const struct holders *set, uint32_t *index, struct cb_err *err)
{
    int code = 2 * (self->line_count + 1) > self->table_size ? grow_table(self, err) : 0;
    if (code)
        return code;
    size_t slot = hash_u64(set, sizeof *set) & (self->table_size - 1);
    for (; self->table[slot]; slot = (slot + 1) & (self->table_size - 1)) {
        *index = self->table[slot] - 1;
        if (memcmp(&self->lines[*index].set, set, sizeof *set) == 0)
            return 0;
    }
    *index = (uint32_t)self->line_count;
    code = add_line(self, &(struct line){.set = *set, .holder_count = set_size(set)}, err);
    if (!code)
        self->table[slot] = *index + 1;
    return code;
}

static int add_unit(struct planner *self, uint32_t line, uint32_t tensor, const struct region *region,
                    uint64_t row_step, struct cb_err *err)
{
    int code = alloc_grow(&self->units, self->unit_count, sizeof *self->units, err);
    if (code)
        return code;
    self->units[self->unit_count++] =
        (struct unit){.tensor = tensor, .line = line, .region = *region, .row_step = row_step};
    self->lines[line].bytes += planner_bytes(self, tensor, region);
    return 0;
}

/* Regions that all ranks of a set hold: assigned immediately if the set is a single rank. */
static int add_regions(struct planner *self, const struct holders *set, uint32_t tensor, const struct region *regions,
                       uint32_t count, uint64_t row_step, struct cb_err *err)
{
    int code = 0;
    if (count == 0)
        return 0;
    if (set_size(set) == 1) {
        uint32_t rank = mesh_rank(&self->layout->mesh, set->begin);
        for (uint32_t i = 0; i < count && !code; i++)
            code = planner_assign(self, rank, tensor, &regions[i], row_step, err);
        return code;
    }
    uint32_t line = 0;
    code = find_line(self, set, &line, err);
    for (uint32_t i = 0; i < count && !code; i++)
        code = add_unit(self, line, tensor, &regions[i], row_step, err);
    return code;
}

/* A cell while it is visited. */
struct walk {
    const struct cell *cell;
    bool expert;
    uint32_t coordinate[AXIS_ROLES]; /* pp, tp and, for experts, ep */
};

static struct holders holders_of(const struct planner *self, const struct walk *walk, const struct local *local)
{
    const struct mesh *mesh = &self->layout->mesh;
    struct holders set = {.begin = {0}};
    for (int role = 0; role < AXIS_ROLES; role++)
        set.count[role] = mesh->size[role];
    set.begin[AXIS_PP] = walk->coordinate[AXIS_PP];
    set.count[AXIS_PP] = 1;
    set.begin[AXIS_TP] = local->tp_first;
    set.count[AXIS_TP] = local->tp_count;
    if (walk->expert) {
        set.begin[AXIS_EP] = walk->coordinate[AXIS_EP];
        set.count[AXIS_EP] = 1;
    }
    return set;
}

static void fix_shard(const struct planner *self, unsigned roles, uint32_t index, struct holders *set)
{
    mesh_from_index(&self->layout->mesh, roles, index, set->begin);
    for (int role = 0; role < AXIS_ROLES; role++) {
        if (roles & (1u << role))
            set->count[role] = 1;
    }
}

/* One shard of a local, with the ranks that hold it. */
static int walk_shard(struct planner *self, const struct walk *walk, const struct local *local, uint32_t tensor,
                      enum placement placement, uint32_t index, struct cb_err *err)
{
    unsigned roles = layout_shard_roles(placement, walk->expert);
    uint32_t shards = mesh_extent(&self->layout->mesh, roles);
    struct holders set = holders_of(self, walk, local);
    struct region regions[BOX_MAX_OF_INTERVAL];
    uint32_t count = layout_shard(walk->cell, local, placement, shards, index, regions);
    if (roles)
        fix_shard(self, roles, index, &set);
    return add_regions(self, &set, tensor, regions, count, planner_row_step(self, local, placement, walk->expert), err);
}

static int walk_shards(struct planner *self, const struct walk *walk, const struct local *local, uint32_t tensor,
                       enum placement placement, uint32_t first, uint32_t end, struct cb_err *err)
{
    int code = 0;
    for (uint32_t index = first; index < end && !code; index++)
        code = walk_shard(self, walk, local, tensor, placement, index, err);
    return code;
}

/* The shards of the slices that are planned. */
static int walk_slices(struct planner *self, const struct walk *walk, const struct local *local, uint32_t tensor,
                       struct cb_err *err)
{
    const struct mesh *mesh = &self->layout->mesh;
    unsigned roles = layout_shard_roles(PLACE_CHUNK, walk->expert);
    uint32_t at[AXIS_ROLES], end = walk->expert ? walk->coordinate[AXIS_EP] + 1 : mesh->size[AXIS_EP];
    int code = 0;
    memcpy(at, walk->coordinate, sizeof at);
    for (; at[AXIS_EP] < end && !code; at[AXIS_EP]++) {
        size_t count;
        const uint32_t *starts = planner_starts(self, at[AXIS_PP], at[AXIS_EP], &count);
        for (size_t i = 0; i < count && !code; i++) {
            at[AXIS_FSDP] = starts[i];
            code = walk_shard(self, walk, local, tensor, PLACE_CHUNK, mesh_index(mesh, roles, at), err);
        }
    }
    return code;
}

/* A region that several tp ranks hold in flat shards: each has it at a different offset of its own buffer. */
struct repeated {
    const struct local *local;
    uint32_t repeats, shards;
    const uint64_t *begin; /* of the region in each buffer */
    const uint64_t *size;  /* of a shard of each buffer */
};

static int compare_u64(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return x < y ? -1 : x > y;
}

/* The points of the region at which any of the buffers passes from one shard to the next; sorted, with 0 and the
 * end. */
static int find_breaks(const struct repeated *repeated, uint64_t **breaks, size_t *count, struct cb_err *err)
{
    size_t used = 0;
    int code = 0;
    for (uint32_t i = 0; i < repeated->repeats && !code; i++) {
        uint64_t end = repeated->begin[i] + repeated->local->elements, size = repeated->size[i];
        for (uint64_t at = repeated->begin[i]; at < end && !code; at = (at / size + 1) * size) {
            code = alloc_grow(breaks, used, sizeof **breaks, err);
            if (!code)
                (*breaks)[used++] = at - repeated->begin[i];
        }
    }
    if (!code)
        code = alloc_grow(breaks, used, sizeof **breaks, err);
    if (code)
        return code;
    uint64_t *found = *breaks;
    found[used++] = repeated->local->elements;
    qsort(found, used, sizeof *found, compare_u64);
    *count = 0;
    for (size_t i = 0; i < used; i++) {
        if (i == 0 || found[i] != found[i - 1])
            found[(*count)++] = found[i];
    }
    return 0;
}

/* A line whose ranks do not form a set: for each repeat, the rank whose shard has element `at`. */
static int add_list_line(struct planner *self, const struct walk *walk, const struct repeated *repeated, uint64_t at,
                         uint32_t *line, struct cb_err *err)
{
    unsigned roles = layout_shard_roles(PLACE_FLAT, walk->expert);
    struct line added = {.set = holders_of(self, walk, repeated->local),
                         .list_first = (uint32_t)self->list_count,
                         .list_count = repeated->repeats,
                         .holder_count = repeated->repeats};
    struct holders place = added.set;
    for (uint32_t i = 0; i < repeated->repeats; i++) {
        int code = alloc_grow(&self->lists, self->list_count, sizeof *self->lists, err);
        if (code)
            return code;
        mesh_from_index(&self->layout->mesh, roles, (uint32_t)((repeated->begin[i] + at) / repeated->size[i]),
                        place.begin);
        place.begin[AXIS_TP] = repeated->local->tp_first + i;
        self->lists[self->list_count++] = mesh_rank(&self->layout->mesh, place.begin);
    }
    *line = (uint32_t)self->line_count;
    return add_line(self, &added, err);
}

/* Elements [at, end) of the region, between two neighbouring breaks. */
static int add_between(struct planner *self, const struct walk *walk, const struct repeated *repeated, uint32_t tensor,
                       uint64_t at, uint64_t end, struct cb_err *err)
{
    struct region regions[BOX_MAX_OF_INTERVAL];
    uint32_t count = region_of_interval(&repeated->local->region, at, end, regions), line = 0;
    uint32_t shard = (uint32_t)((repeated->begin[0] + at) / repeated->size[0]);
    bool same = true;
    for (uint32_t i = 1; i < repeated->repeats; i++)
        same = same && (repeated->begin[i] + at) / repeated->size[i] == shard;
    if (same) {
        struct holders set = holders_of(self, walk, repeated->local);
        fix_shard(self, layout_shard_roles(PLACE_FLAT, walk->expert), shard, &set);
        return add_regions(self, &set, tensor, regions, count, 0, err);
    }
    int code = add_list_line(self, walk, repeated, at, &line, err);
    for (uint32_t i = 0; i < count && !code; i++)
        code = add_unit(self, line, tensor, &regions[i], 0, err);
    return code;
}

/* Position of the region in the buffer of another tp rank that holds it, too. */
static uint64_t find_begin(const struct cell *cell, const struct local *local)
{
    size_t i = layout_find_local(cell, local->tensor);
    while (!region_equal(&cell->locals[i].region, &local->region))
        i++;
    assert(i < cell->count && cell->locals[i].tensor == local->tensor);
    return cell->locals[i].begin;
}

static int walk_repeated(struct planner *self, const struct walk *walk, const struct local *local, uint32_t tensor,
                         struct cb_err *err)
{
    const struct layout *layout = self->layout;
    const uint32_t *at = walk->coordinate;
    uint32_t shards = mesh_extent(&layout->mesh, layout_shard_roles(PLACE_FLAT, walk->expert));
    uint64_t *numbers = malloc(2 * (size_t)local->tp_count * sizeof *numbers), *breaks = NULL;
    size_t count = 0;
    if (!numbers)
        return alloc_fail(err, "to plan a tensor held %u times", local->tp_count);
    for (uint32_t i = 0; i < local->tp_count; i++) {
        uint32_t tp = local->tp_first + i;
        const struct cell *cell =
            walk->expert ? layout_experts(layout, at[AXIS_PP], tp, at[AXIS_EP]) : layout_dense(layout, at[AXIS_PP], tp);
        numbers[i] = find_begin(cell, local);
        numbers[local->tp_count + i] = (cell->elements + shards - 1) / shards;
    }
    struct repeated repeated = {.local = local,
                                .repeats = local->tp_count,
                                .shards = shards,
                                .begin = numbers,
                                .size = numbers + local->tp_count};
    int code = find_breaks(&repeated, &breaks, &count, err);
    for (size_t i = 0; !code && i + 1 < count; i++)
        code = add_between(self, walk, &repeated, tensor, breaks[i], breaks[i + 1], err);
    free(breaks);
    free(numbers);
    return code;
}

static int walk_local(struct planner *self, const struct walk *walk, const struct local *local, enum state_kind kind,
                      struct cb_err *err)
{
    const struct layout *layout = self->layout;
    uint32_t tensor = layout->state_of[kind][local->tensor];
    enum placement placement = layout->placement[kind];
    if (tensor == LAYOUT_ABSENT || walk->coordinate[AXIS_TP] != local->tp_first)
        return 0; /* state shared by tp ranks is planned at the first of them */
    unsigned roles = layout_shard_roles(placement, walk->expert);
    uint32_t shards = mesh_extent(&layout->mesh, roles);
    if ((placement == PLACE_CHUNK || placement == PLACE_RANGES) && local->region.dims == 0) {
        struct holders set = holders_of(self, walk, local); /* a scalar has no rows: replicated */
        return add_regions(self, &set, tensor, &local->region, 1, 0, err);
    }
    if (placement == PLACE_CHUNK)
        return walk_slices(self, walk, local, tensor, err);
    if (placement != PLACE_FLAT)
        return walk_shards(self, walk, local, tensor, placement, 0, shards, err);
    if (local->tp_count > 1)
        return walk_repeated(self, walk, local, tensor, err);
    uint64_t size = (walk->cell->elements + shards - 1) / shards;
    uint32_t first = (uint32_t)(local->begin / size);
    uint32_t end = (uint32_t)((local->begin + local->elements + size - 1) / size);
    return walk_shards(self, walk, local, tensor, placement, first, end, err);
}

static int walk_cell(struct planner *self, const struct walk *walk, struct cb_err *err)
{
    int code = 0;
    for (int kind = 0; kind < LAYOUT_KINDS && !code; kind++) {
        for (size_t i = 0; i < walk->cell->count && !code; i++)
            code = walk_local(self, walk, &walk->cell->locals[i], (enum state_kind)kind, err);
    }
    return code;
}

/* The cells of a pp and tp coordinate: dense tensors, then each part of the experts. */
static int walk_place(struct planner *self, uint32_t pp, uint32_t tp, struct cb_err *err)
{
    const struct layout *layout = self->layout;
    struct walk walk = {.cell = layout_dense(layout, pp, tp), .coordinate = {[AXIS_PP] = pp, [AXIS_TP] = tp}};
    int code = walk_cell(self, &walk, err);
    walk.expert = true;
    for (uint32_t ep = 0; layout->experts && ep < layout->mesh.size[AXIS_EP] && !code; ep++) {
        walk.coordinate[AXIS_EP] = ep;
        walk.cell = layout_experts(layout, pp, tp, ep);
        code = walk_cell(self, &walk, err);
    }
    return code;
}

int planner_keep_rows(struct planner *self, struct cb_err *err)
{
    const struct layout *layout = self->layout;
    int code = 0;
    for (uint32_t k = 0; k < layout->row_count; k++) {
        for (uint32_t rank = 0; rank < layout->mesh.world_size && !code; rank++) {
            struct region row = {2, {rank, 0}, {1, layout->row_elements}};
            code = planner_assign(self, rank, layout->row_first + k, &row, 0, err);
        }
    }
    return code;
}

int planner_keep_boxes(struct planner *self, struct cb_err *err)
{
    const struct layout *layout = self->layout;
    int code = 0;
    for (size_t i = 0; i < layout->box_count; i++) {
        const struct box *box = &layout->boxes[i];
        for (uint32_t k = 0; k < box->holder_count && !code; k++)
            code = planner_assign(self, layout->holders[box->first_holder + k], box->tensor, &box->region, 0, err);
    }
    return code;
}

/* A line for each list of ranks. The planner takes over the layout's lists. */
static int collect_boxes(struct planner *self, struct cb_err *err)
{
    const struct layout *layout = self->layout;
    uint32_t *line_of = calloc(layout->holder_count + 1, sizeof *line_of); /* of the list that begins there; + 1 */
    self->lists = malloc((layout->holder_count + 1) * sizeof *self->lists);
    int code = line_of && self->lists ? 0 : alloc_fail(err, "to plan %zu boxes", layout->box_count);
    if (!code) {
        memcpy(self->lists, layout->holders, layout->holder_count * sizeof *self->lists);
        self->list_count = layout->holder_count;
    }
    for (size_t i = 0; i < layout->box_count && !code; i++) {
        const struct box *box = &layout->boxes[i];
        if (box->holder_count == 1) {
            code = planner_assign(self, layout->holders[box->first_holder], box->tensor, &box->region, 0, err);
            continue;
        }
        uint32_t *line = &line_of[box->first_holder];
        struct line added = {.set = {.count = {1, layout->mesh.world_size, 1, 1, 1}},
                             .list_first = box->first_holder,
                             .list_count = box->holder_count,
                             .holder_count = box->holder_count};
        if (*line == 0) {
            *line = (uint32_t)self->line_count + 1;
            code = add_line(self, &added, err);
        }
        if (!code)
            code = add_unit(self, *line - 1, box->tensor, &box->region, 0, err);
    }
    free(line_of);
    return code;
}

int planner_collect(struct planner *self, struct cb_err *err)
{
    const struct layout *layout = self->layout;
    int code = 0;
    if (layout->boxes)
        return collect_boxes(self, err);
    for (uint32_t pp = 0; pp < layout->mesh.size[AXIS_PP] && !code; pp++) {
        for (uint32_t tp = 0; tp < layout->mesh.size[AXIS_TP] && !code; tp++)
            code = walk_place(self, pp, tp, err);
    }
    return code ? code : planner_keep_rows(self, err);
}
