/* Divides state that several ranks hold among them. Each group of ranks has a line of units, which is cut so that the
 * least loaded ranks are filled up to a common level. Where tensors must stay whole, tensors are assigned whole, the
 * largest first, each to the least loaded of the ranks that hold it. */
#include <assert.h>
#include <string.h>

#include "ckpt/plan/plan_internal.h"
#include "core/alloc.h"

/* A rank's share of a line may miss the level by the mean load divided by this number, so that cuts can fall between
 * tensors and no rank gets a tiny piece of a small line. */
#define SLACK_PARTS 256

/* Smaller tensors are never cut. What ranks have under one name may differ, as a BatchNorm's running mean does: then all of
 * it is one rank's, as PyTorch stores it. */
#define WHOLE_BYTES (16u << 10)

/* The line's ranks, ascending; `ranks` holds line->holder_count. */
static void line_ranks(const struct planner *self, const struct line *line, uint32_t *ranks)
{
    if (line->list_count) {
        memcpy(ranks, &self->lists[line->list_first], line->list_count * sizeof *ranks);
        return;
    }
    const struct mesh *mesh = &self->layout->mesh;
    uint32_t coordinate[AXIS_ROLES];
    memcpy(coordinate, line->set.begin, sizeof coordinate);
    for (uint32_t i = 0; i < line->holder_count; i++) {
        ranks[i] = mesh_rank(mesh, coordinate);
        for (size_t a = mesh->count; a-- > 0;) {
            enum axis_role role = mesh->roles[a];
            if (++coordinate[role] < line->set.begin[role] + line->set.count[role])
                break;
            coordinate[role] = line->set.begin[role];
        }
    }
}

/* The greatest mean load of a group of ranks, counting only state that no rank outside of the group holds. */
static int bound_of_groups(const struct planner *self, unsigned roles, uint64_t *bound, struct cb_err *err)
{
    const struct mesh *mesh = &self->layout->mesh;
    uint32_t groups = mesh_extent(mesh, roles), members = mesh->world_size / groups;
    assert(members > 0);
    uint64_t *bytes = calloc(groups, sizeof *bytes);
    if (!bytes)
        return alloc_fail(err, "to plan %u groups of ranks", groups);
    for (uint32_t rank = 0; rank < mesh->world_size; rank++) {
        uint32_t coordinate[AXIS_ROLES];
        mesh_coordinates(mesh, rank, coordinate);
        bytes[mesh_index(mesh, roles, coordinate)] += self->loads[planner_planned(self, rank)];
    }
    for (size_t i = 0; i < self->line_count; i++) {
        const struct line *line = &self->lines[i];
        bool leaves = false; /* the line's ranks are in several groups */
        for (unsigned role = 0; role < AXIS_ROLES; role++)
            leaves |= (roles & (1u << role)) && mesh->size[role] > 1 && line->set.count[role] > 1;
        uint32_t begin[AXIS_ROLES], alike = leaves ? 0 : planner_alike(self, line->set.begin);
        memcpy(begin, line->set.begin, sizeof begin);
        for (uint32_t k = 0; k < alike; k++, begin[AXIS_FSDP]++)
            bytes[mesh_index(mesh, roles, begin)] += line->bytes;
    }
    for (uint32_t i = 0; i < groups; i++) {
        uint64_t mean = (bytes[i] + members - 1) / members;
        if (mean > *bound)
            *bound = mean;
    }
    free(bytes);
    return 0;
}

int planner_find_bound(struct planner *self, struct cb_err *err)
{
    const unsigned pp = 1u << AXIS_PP, tp = 1u << AXIS_TP, dp = 1u << AXIS_DP, fsdp = 1u << AXIS_FSDP,
                   ep = 1u << AXIS_EP;
    const unsigned groupings[] = {
        0, pp, pp | tp, pp | tp | ep, pp | tp | fsdp, pp | tp | fsdp | ep, pp | tp | dp | fsdp | ep};
    uint64_t bound = 0;
    int code = 0;
    for (size_t i = 0; i < sizeof groupings / sizeof *groupings && !code; i++)
        code = bound_of_groups(self, groupings[i], &bound, err);
    if (!code)
        self->bound_bytes = bound;
    return code;
}

/* Units in the order of their lines; starts[i] is line i's first in `order`. */
static int sort_units(const struct planner *self, uint32_t **order, size_t **starts, struct cb_err *err)
{
    uint32_t *sorted = malloc((self->unit_count + 1) * sizeof *sorted);
    size_t *first = calloc(self->line_count + 2, sizeof *first);
    if (!sorted || !first) {
        free(sorted);
        free(first);
        return alloc_fail(err, "to plan %zu shared boxes", self->unit_count);
    }
    for (size_t i = 0; i < self->unit_count; i++)
        first[self->units[i].line + 2]++;
    for (size_t i = 1; i < self->line_count; i++)
        first[i + 1] += first[i];
    for (size_t i = 0; i < self->unit_count; i++)
        sorted[first[self->units[i].line + 1]++] = (uint32_t)i;
    *order = sorted;
    *starts = first;
    return 0;
}

/* A place to cut: before row `row` of unit `unit` of the line. */
struct cut {
    size_t unit;
    uint64_t row;
};

/* A line that is being cut. */
struct cutter {
    struct planner *planner;
    const uint32_t *order; /* the line's units */
    size_t count;
    size_t unit;     /* the unit that the last cut fell into … */
    uint64_t before; /* … and the line's bytes before it */
    uint64_t slack;
};

static uint64_t row_count(const struct region *region)
{
    return region->dims ? region->size[region_row_dim(region)] : 1;
}

/* The position nearest to `target` bytes of the line: between two units if one is near enough, else between two rows.
 * Targets come in ascending order. */
static struct cut cut_at(struct cutter *self, uint64_t target)
{
    uint64_t bytes = 0;
    const struct unit *unit = NULL;
    for (; self->unit < self->count; self->unit++) {
        unit = &self->planner->units[self->order[self->unit]];
        bytes = planner_bytes(self->planner, unit->tensor, &unit->region);
        if (target < self->before + bytes)
            break;
        self->before += bytes;
    }
    if (self->unit == self->count)
        return (struct cut){self->count, 0};
    uint64_t past = target - self->before, left = bytes - past;
    if (past <= self->slack / 2 && past <= left)
        return (struct cut){self->unit, 0};
    if (left <= self->slack / 2)
        return (struct cut){self->unit + 1, 0};
    if (bytes <= WHOLE_BYTES)
        return (struct cut){self->unit + (past <= left ? 0 : 1), 0};
    uint64_t rows = row_count(&unit->region), row_bytes = bytes / rows;
    uint64_t row = (past + row_bytes / 2) / row_bytes;
    return row == rows ? (struct cut){self->unit + 1, 0} : (struct cut){self->unit, row};
}

/* Assigns everything between two cuts to a rank. */
static int assign_between(const struct cutter *self, struct cut from, struct cut to, uint32_t rank, struct cb_err *err)
{
    int code = 0;
    for (size_t i = from.unit; i < self->count && !code && (i < to.unit || (i == to.unit && to.row > 0)); i++) {
        const struct unit *unit = &self->planner->units[self->order[i]];
        uint64_t begin = i == from.unit ? from.row : 0, end = i == to.unit ? to.row : row_count(&unit->region);
        struct region region = unit->region;
        if (begin >= end)
            continue;
        if (region.dims) {
            uint32_t dim = region_row_dim(&region);
            region.offset[dim] += begin;
            region.size[dim] = end - begin;
        }
        code = planner_assign(self->planner, rank, unit->tensor, &region, unit->row_step, err);
    }
    return code;
}

struct share {
    uint64_t load, quota;
    uint32_t rank;
};

static int compare_loads(const void *a, const void *b)
{
    const struct share *x = a, *y = b;
    if (x->load != y->load)
        return x->load < y->load ? -1 : 1;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

static int compare_ranks(const void *a, const void *b)
{
    const struct share *x = a, *y = b;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* Distributes `bytes` over shares, least loaded first, up to one level. Returns how many shares get some. */
static size_t fill_quotas(struct share *shares, size_t count, uint64_t bytes)
{
    assert(count > 0);
    uint64_t loads = shares[0].load;
    size_t used = 1;
    while (used < count && shares[used].load <= (loads + bytes - 1) / used)
        loads += shares[used++].load;
    uint64_t level = (loads + bytes) / used, extra = (loads + bytes) % used;
    for (size_t i = 0; i < used; i++)
        shares[i].quota = level - shares[i].load + (i < extra ? 1 : 0);
    return used;
}

static int cut_line(struct planner *self, const struct line *line, const uint32_t *order, size_t count,
                    struct share *shares, uint32_t *ranks, struct cb_err *err)
{
    uint64_t loads = 0;
    assert(line->holder_count > 0 && line->bytes > 0);
    line_ranks(self, line, ranks);
    for (uint32_t i = 0; i < line->holder_count; i++) {
        shares[i] = (struct share){.load = self->loads[ranks[i]], .rank = ranks[i]};
        loads += shares[i].load;
    }
    qsort(shares, line->holder_count, sizeof *shares, compare_loads);
    uint64_t slack = (loads + line->bytes) / line->holder_count / SLACK_PARTS;
    uint64_t wanted = line->bytes / (slack ? slack : 1) + 1;
    size_t used = fill_quotas(shares, wanted < line->holder_count ? wanted : line->holder_count, line->bytes);
    qsort(shares, used, sizeof *shares, compare_ranks);
    struct cutter cutter = {.planner = self, .order = order, .count = count, .slack = slack};
    struct cut from = {0, 0};
    uint64_t target = 0;
    int code = 0;
    for (size_t i = 0; i < used && !code; i++) {
        target += shares[i].quota;
        struct cut to = i + 1 == used ? (struct cut){count, 0} : cut_at(&cutter, target);
        code = assign_between(&cutter, from, to, shares[i].rank, err);
        from = to;
    }
    return code;
}

/* Lines or units in the order of their assignment. */
struct queued {
    uint64_t key;
    uint32_t index;
};

static int compare_queued(const void *a, const void *b)
{
    const struct queued *x = a, *y = b;
    if (x->key != y->key)
        return x->key < y->key ? -1 : 1;
    return x->index < y->index ? -1 : x->index > y->index;
}

int planner_balance(struct planner *self, struct cb_err *err)
{
    uint32_t *order = NULL;
    size_t *starts = NULL;
    int code = sort_units(self, &order, &starts, err);
    if (code)
        return code;
    struct queued *queue = malloc((self->line_count + 1) * sizeof *queue);
    struct share *shares = malloc(self->layout->mesh.world_size * sizeof *shares);
    uint32_t *ranks = malloc(self->layout->mesh.world_size * sizeof *ranks);
    if (!queue || !shares || !ranks)
        code = alloc_fail(err, "to plan for %u ranks", self->layout->mesh.world_size);
    for (size_t i = 0; i < self->line_count && !code; i++) /* few ranks first: more can still even out the loads */
        queue[i] = (struct queued){self->lines[i].holder_count, (uint32_t)i};
    if (!code)
        qsort(queue, self->line_count, sizeof *queue, compare_queued);
    for (size_t i = 0; i < self->line_count && !code; i++) {
        size_t index = queue[i].index;
        code = cut_line(self, &self->lines[index], order + starts[index], starts[index + 1] - starts[index], shares,
                        ranks, err);
    }
    free(queue);
    free(shares);
    free(ranks);
    free(order);
    free(starts);
    return code;
}

int planner_lowest_rank(struct planner *self, struct cb_err *err)
{
    int code = 0;
    for (size_t i = 0; i < self->unit_count && !code; i++) {
        const struct unit *unit = &self->units[i];
        const struct line *line = &self->lines[unit->line];
        uint32_t rank = mesh_rank(&self->layout->mesh, line->set.begin);
        if (line->list_count) {
            rank = UINT32_MAX;
            for (uint32_t k = 0; k < line->list_count; k++) {
                uint32_t holder = self->lists[line->list_first + k];
                rank = holder < rank ? holder : rank;
            }
        }
        code = planner_assign(self, rank, unit->tensor, &unit->region, unit->row_step, err);
    }
    return code;
}

/* State held by a single rank was assigned earlier; it, too, must consist of whole tensors. */
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
    assert(line->holder_count > 0);
    line_ranks(self, line, ranks);
    uint32_t least = ranks[0];
    for (uint32_t i = 1; i < line->holder_count; i++) {
        if (self->loads[ranks[i]] < self->loads[least])
            least = ranks[i];
    }
    return planner_assign(self, least, unit->tensor, &unit->region, unit->row_step, err);
}

int planner_give_whole(struct planner *self, struct cb_err *err)
{
    struct queued *order = malloc((self->unit_count + 1) * sizeof *order);
    uint32_t *ranks = malloc(self->layout->mesh.world_size * sizeof *ranks);
    int code = order && ranks ? 0 : alloc_fail(err, "to plan %zu tensors", self->unit_count);
    for (size_t i = 0; i < self->assignment_count && !code; i++)
        code = check_whole(self, self->assignments[i].tensor, &self->assignments[i].region, err);
    for (size_t i = 0; i < self->unit_count && !code; i++) {
        const struct unit *unit = &self->units[i];
        order[i] =
            (struct queued){~planner_bytes(self, unit->tensor, &unit->region), (uint32_t)i}; /* large ones first */
        code = check_whole(self, unit->tensor, &unit->region, err);
    }
    if (!code && self->unit_count > 0)
        qsort(order, self->unit_count, sizeof *order, compare_queued);
    for (size_t i = 0; i < self->unit_count && !code; i++)
        code = give(self, &self->units[order[i].index], ranks, err);
    free(order);
    free(ranks);
    return code;
}
