/* Plan of a load: the items for the targets, one for each stored chunk to read, and small values. */
#include <assert.h>

#include "core/alloc.h"
#include "engine/load/load_stages.h"

static int make_mappings(struct native_load *self, struct cb_err *err)
{
    self->plan.mappings = malloc((self->plan.wanted->read_count + 1) * sizeof *self->plan.mappings);
    if (!self->plan.mappings)
        return alloc_fail(err, "for %zu reads", self->plan.wanted->read_count);
    for (size_t i = 0; i < self->plan.wanted->read_count; i++) {
        const struct load_read *read = &self->plan.wanted->reads[i];
        const struct stored_chunk *chunk = &self->plan.checkpoint->chunks[read->chunk];
        mapping_init(&self->plan.mappings[i], &chunk->region, &self->plan.pieces[read->piece].region, &read->common,
                     dtype_bytes(self->plan.checkpoint->tensors[chunk->tensor].dtype));
    }
    return 0;
}

static void init_item(struct native_load *self, struct load_item *item)
{
    const struct stored_chunk *chunk = native_load_chunk(self, item);
    item->state = ITEM_KNOWN;
    if (chunk->compressed)
        return; /* its header is read when it is decompressed */
    bool expected = format_expect_payload(self->plan.checkpoint->format, native_load_tensor(self, item), &chunk->region,
                                          chunk->length, &item->payload);
    expected = expected && item->payload.offset <= ITEM_MAX_HEADER &&
               (item->payload.offset == 0 || (chunk->offset + item->payload.offset) % PLAN_LEAST_ALIGNMENT == 0);
    item->state = expected ? ITEM_EXPECTED : ITEM_PROBE;
    item->probe_bytes = chunk->length < LOAD_FIRST_PROBE_BYTES ? chunk->length : LOAD_FIRST_PROBE_BYTES;
}

/* Allocates nothing for a value that is too long; refuse_item reports it. */
static int add_value(struct native_load *self, const struct stored_tensor *stored, struct cb_err *err)
{
    struct load_item *item = &self->plan.items[self->plan.item_count++];
    *item = (struct load_item){.chunk = stored->first_chunk, .state = ITEM_KNOWN};
    uint64_t length = native_load_chunk(self, item)->length;
    if (length > LOAD_VALUE_MAX_BYTES)
        return 0;
    item->value = malloc(length + 1);
    return item->value ? 0 : alloc_fail(err, "for the value of %s", stored->fqn);
}

/* The values that are not tensors; each rank needs all of them. */
static int add_values(struct native_load *self, struct cb_err *err)
{
    int rc = 0;
    const struct layout *layout = self->operation->state->layout;
    for (size_t i = 0; i < layout_tensor_count(layout) && !rc; i++) {
        const struct state_tensor *wanted = layout_tensor(layout, i);
        if (wanted->kind != KIND_BYTES)
            continue;
        const struct stored_tensor *stored = stored_checkpoint_find(self->plan.checkpoint, wanted->fqn);
        assert(stored);       /* else there is no plan */
        if (!stored->literal) /* else the metadata itself contains it */
            rc = add_value(self, stored, err);
    }
    return rc;
}

static int compare_items(const void *a, const void *b, void *context)
{
    const struct native_load *self = context;
    const struct stored_chunk *x = native_load_chunk(self, a), *y = native_load_chunk(self, b);
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* Makes one item for each chunk to read; reads of one chunk are adjacent in the plan. */
int native_load_make_items(struct native_load *self, struct cb_err *err)
{
    const struct load_plan *plan = self->plan.wanted;
    size_t capacity = plan->read_count + layout_tensor_count(self->operation->state->layout) + 1;
    int rc = make_mappings(self, err);
    if (rc)
        return rc;
    self->plan.items = calloc(capacity, sizeof *self->plan.items);
    if (!self->plan.items)
        return alloc_fail(err, "for %zu items", capacity);
    for (uint32_t i = 0; i < plan->read_count;) {
        struct load_item *item = &self->plan.items[self->plan.item_count++];
        *item = (struct load_item){.chunk = plan->reads[i].chunk, .first_read = i};
        while (i < plan->read_count && plan->reads[i].chunk == item->chunk)
            i++;
        item->read_count = i - item->first_read;
        init_item(self, item);
    }
    rc = self->plan.wants_values ? add_values(self, err) : 0;
    if (!rc)
        rc = native_load_choose_gaps(self, err);
    qsort_r(self->plan.items, self->plan.item_count, sizeof *self->plan.items, compare_items, self);
    return rc;
}

void native_load_forget_items(struct native_load *self)
{
    for (size_t i = 0; i < self->plan.item_count; i++)
        free(self->plan.items[i].value);
    free(self->plan.items);
    free(self->plan.mappings);
    free(self->plan.in_one);
    load_plan_free(self->plan.wanted);
    self->plan.items = NULL;
    self->plan.item_count = 0;
    self->plan.mappings = NULL;
    self->plan.in_one = NULL;
    self->plan.wanted = NULL;
}
