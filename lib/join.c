#include "lib/join.h"

#include <string.h>

#include "ckpt/dtype.h"
#include "ckpt/format/literal.h"
#include "core/alloc.h"

#define LITERAL_MOST_BYTES (UINT64_C(1) << 20)

struct joiner {
    const struct join_options *options;
    const struct joined_rank *ranks;
    struct described_table *tables;
    size_t table_count;
    struct described **sorted; /* all entries, by name and rank */
    size_t count;
    struct state_tensor *tensors;
    size_t tensor_count;
    uint32_t *holders; /* of each tensor of the layout */
};

static int compare_entries(const void *a, const void *b)
{
    const struct described *x = *(const struct described *const *)a, *y = *(const struct described *const *)b;
    int order = strcmp(x->fqn, y->fqn);
    if (order)
        return order;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return (int)x->is_value - (int)y->is_value;
}

static int sort_entries(struct joiner *self, struct cb_err *err)
{
    for (size_t table = 0; table < self->table_count; table++)
        self->count += self->tables[table].entry_count;
    self->sorted = malloc((self->count + 1) * sizeof(struct described *));
    self->tensors = calloc(self->count + 1, sizeof *self->tensors);
    self->holders = calloc(self->count + 1, sizeof *self->holders);
    if (!self->sorted || !self->tensors || !self->holders)
        return alloc_fail(err, "for %zu tensors and values of all ranks", self->count);
    size_t used = 0;
    for (size_t table = 0; table < self->table_count; table++) {
        for (size_t i = 0; i < self->tables[table].entry_count; i++)
            self->sorted[used++] = &self->tables[table].entries[i];
    }
    qsort(self->sorted, used, sizeof *self->sorted, compare_entries);
    return 0;
}

/* Whether two ranks mean the same by a name. */
static int check_same(const struct joiner *self, const struct described *a, const struct described *b,
                      struct cb_err *err)
{
    const char *differs = NULL;
    if (a->is_value != b->is_value)
        differs = "have a tensor and a value of this name";
    else if (!a->is_value && a->dtype != b->dtype)
        differs = "have different types";
    else if (!a->is_value && (a->dims != b->dims || memcmp(a->shape, b->shape, a->dims * sizeof *a->shape) != 0))
        differs = "have different shapes";
    else if (a->is_value && self->options->saves && !self->options->allows_different_values &&
             (a->length != b->length || a->hash != b->hash))
        differs = "have different values";
    return differs ? cb_fail(err, CB_ERR_USAGE, "%s: ranks %u and %u %s", a->fqn, a->rank, b->rank, differs) : 0;
}

/* The given path, or "('NAME',)". */
static int write_path(const struct described *entry, struct buf *out, struct cb_err *err)
{
    struct buf pickle;
    buf_append_text(out, *entry->path ? entry->path : "('");
    for (const char *at = entry->fqn; *at && !*entry->path; at++) {
        if (*at == '\\' || *at == '\'')
            buf_append_char(out, '\\');
        buf_append_char(out, *at);
    }
    buf_append_text(out, *entry->path ? "" : "',)");
    int rc = buf_check(out, entry->fqn, err);
    if (rc)
        return rc;
    buf_init(&pickle, LITERAL_MOST_BYTES);
    if (*out->data != '(' || literal_to_pickle(out->data, &pickle, NULL))
        rc = cb_fail(err, CB_ERR_USAGE, "%s: its path %s is no Python tuple", entry->fqn, out->data);
    buf_release(&pickle);
    return rc;
}

/* Adds the tensor or value of a group of entries, which begins at its lowest rank. */
static int add_group(struct joiner *self, size_t first, size_t end, struct cb_err *err)
{
    const struct described *entry = self->sorted[first];
    struct state_tensor *tensor = &self->tensors[self->tensor_count];
    struct buf path;
    buf_init(&path, LITERAL_MOST_BYTES);
    int rc = write_path(entry, &path, err);
    if (rc) {
        buf_release(&path);
        return rc;
    }
    *tensor = (struct state_tensor){.fqn = strdup(entry->fqn),
                                    .model_tensor = UINT32_MAX,
                                    .kind = entry->is_value ? KIND_BYTES : KIND_WEIGHT,
                                    .dtype = entry->is_value ? DTYPE_U8 : (enum dtype)entry->dtype,
                                    .dims = (uint32_t)entry->dims,
                                    .blob_bytes = entry->length,
                                    .path = buf_take(&path),
                                    .owner = entry->rank};
    memcpy(tensor->shape, entry->shape, entry->dims * sizeof *tensor->shape);
    buf_release(&path);
    for (size_t i = first; i < end; i++) {
        self->holders[self->tensor_count] += self->sorted[i]->holders;
        self->sorted[i]->index = (uint32_t)self->tensor_count;
    }
    self->tensor_count++;
    return tensor->fqn && tensor->path ? 0 : alloc_fail(err, "for the names of the state");
}

/* Tensors come first, then values, each by name. */
static int add_groups(struct joiner *self, bool values, struct cb_err *err)
{
    int rc = 0;
    for (size_t first = 0, end; first < self->count && !rc; first = end) {
        end = first + 1;
        while (end < self->count && strcmp(self->sorted[end]->fqn, self->sorted[first]->fqn) == 0)
            end++;
        for (size_t i = first + 1; i < end && !rc; i++) {
            if (self->sorted[i]->rank == self->sorted[i - 1]->rank)
                rc = cb_fail(err, CB_ERR_USAGE, "%s: rank %u has two entries of this name", self->sorted[i]->fqn,
                             self->sorted[i]->rank);
        }
        for (size_t i = first + 1; i < end && !rc; i++)
            rc = check_same(self, self->sorted[first], self->sorted[i], err);
        if (!rc && self->sorted[first]->is_value == values)
            rc = add_group(self, first, end, err);
    }
    return rc;
}

static int make_layout(struct joiner *self, struct layout **layout, struct cb_err *err)
{
    size_t count = 0, most = 0, used = 0;
    for (uint32_t rank = 0; rank < self->options->rank_count; rank++) {
        const struct described_table *table = self->ranks[rank].table;
        count += table ? table->region_count : 0;
        most = table && table->region_count > most ? table->region_count : most;
    }
    struct layout_part *parts = malloc((count + 1) * sizeof *parts);
    struct described_part *own = malloc((most + 1) * sizeof *own);
    if (!parts || !own) {
        free(parts);
        free(own);
        return alloc_fail(err, "for %zu regions of all ranks", count);
    }
    int rc = 0;
    for (uint32_t rank = 0; rank < self->options->rank_count && !rc; rank++) {
        const struct joined_rank *from = &self->ranks[rank];
        size_t own_count = 0;
        rc = from->table ? description_parts(from->table, &from->factors, rank, own, &own_count, err) : 0;
        for (size_t i = 0; i < own_count; i++)
            parts[used++] = (struct layout_part){
                .tensor = from->table->entries[own[i].entry].index, .rank = rank, .region = own[i].box};
    }
    free(own);
    if (rc) {
        free(parts);
        return rc;
    }
    struct state_tensor *tensors = self->tensors;
    self->tensors = NULL;
    rc = layout_from_parts(self->options->rank_count, tensors, self->tensor_count, parts, used, self->options->saves,
                           layout, err);
    free(parts);
    return rc;
}

/* --- this rank's part --- */

struct own_region {
    uint32_t tensor, region;
    struct region box;
};

static int compare_own(const void *a, const void *b)
{
    const struct own_region *x = a, *y = b;
    if (x->tensor != y->tensor)
        return x->tensor < y->tensor ? -1 : 1;
    int order = region_compare(&x->box, &y->box);
    return order ? order : (x->region < y->region ? -1 : x->region > y->region);
}

static int match_pieces(const struct described_table *own, const struct ckptbench_state *state, struct joined *joined,
                        uint32_t rank, struct cb_err *err)
{
    struct own_region *regions = malloc((state->region_count + 1) * sizeof *regions);
    size_t count = 0;
    int rc = regions ? layout_pieces(joined->layout, rank, &joined->pieces, &joined->piece_count, err)
                     : alloc_fail(err, "for %zu regions", state->region_count);
    for (size_t i = 0; i < state->region_count && !rc; i++) {
        struct region box = description_box(state, &state->regions[i]);
        if (region_elements(&box) > 0)
            regions[count++] = (struct own_region){
                .tensor = own->entries[state->regions[i].tensor].index, .region = (uint32_t)i, .box = box};
    }
    if (!rc) {
        qsort(regions, count, sizeof *regions, compare_own);
        joined->region_of = malloc((count + 1) * sizeof *joined->region_of);
        rc = joined->region_of ? 0 : alloc_fail(err, "for %zu regions", count);
    }
    for (size_t i = 0; i < count && !rc; i++) {
        joined->region_of[i] = regions[i].region;
        if (i >= joined->piece_count || joined->pieces[i].tensor != regions[i].tensor ||
            !region_equal(&joined->pieces[i].region, &regions[i].box))
            rc = cb_fail(err, CB_ERR_USAGE, "%s: rank %u describes a region twice",
                         layout_tensor(joined->layout, regions[i].tensor)->fqn, rank);
    }
    free(regions);
    return rc;
}

static int match_values(const struct joiner *self, const struct described_table *own, struct joined *joined,
                        struct cb_err *err)
{
    joined->value_count = own->entry_count - own->tensor_count;
    joined->value_at = malloc((joined->value_count + 1) * sizeof *joined->value_at);
    joined->holders = malloc((joined->value_count + 1) * sizeof *joined->holders);
    if (!joined->value_at || !joined->holders)
        return alloc_fail(err, "for %zu values", joined->value_count);
    for (size_t i = 0; i < joined->value_count; i++) {
        joined->value_at[i] = own->entries[own->tensor_count + i].index;
        joined->holders[i] = self->holders[joined->value_at[i]];
    }
    return 0;
}

int join_descriptions(const struct joined_rank *ranks, struct described_table *tables, size_t table_count,
                      const struct ckptbench_state *state, const struct join_options *options, struct joined *joined,
                      struct cb_err *err)
{
    struct joiner self = {.options = options, .ranks = ranks, .tables = tables, .table_count = table_count};
    const struct described_table *own = ranks[options->rank].table;
    struct joined made = {0};
    int rc = sort_entries(&self, err);
    if (!rc)
        rc = add_groups(&self, false, err);
    if (!rc)
        rc = add_groups(&self, true, err);
    if (!rc)
        rc = make_layout(&self, &made.layout, err);
    if (!rc)
        rc = match_pieces(own, state, &made, options->rank, err);
    if (!rc)
        rc = match_values(&self, own, &made, err);
    if (self.tensors)
        layout_free_tensors(self.tensors, self.tensor_count);
    free(self.sorted);
    free(self.holders);
    if (rc)
        joined_release(&made);
    else
        *joined = made;
    return rc;
}

void joined_release(struct joined *joined)
{
    layout_free(joined->layout);
    free(joined->pieces);
    free(joined->region_of);
    free(joined->value_at);
    free(joined->holders);
    *joined = (struct joined){0};
}
