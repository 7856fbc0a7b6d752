/* Builds a layout from what each rank holds: equal regions become one box with the list of its ranks. */
#include <string.h>

#include "ckpt/layout/layout_internal.h"
#include "ckpt/stored.h"
#include "core/alloc.h"
#include "core/hash.h"

#define TABLE_LEAST 64

static int compare_parts(const void *a, const void *b)
{
    const struct layout_part *x = a, *y = b;
    if (x->tensor != y->tensor)
        return x->tensor < y->tensor ? -1 : 1;
    int order = region_compare(&x->region, &y->region);
    if (order)
        return order;
    return x->rank < y->rank ? -1 : x->rank > y->rank;
}

/* Finds lists of ranks that are there already, as most boxes have the same ranks as another box. */
struct rank_lists {
    struct layout *layout;
    uint32_t *slots; /* index of a box + 1; `size` is a power of two */
    size_t size;
};

/* The box's list is the last one in holders. If an earlier box has the same list, takes that. */
static void share_list(struct rank_lists *self, size_t index)
{
    struct layout *layout = self->layout;
    struct box *box = &layout->boxes[index];
    const uint32_t *list = &layout->holders[box->first_holder];
    size_t bytes = box->holder_count * sizeof *list, slot = hash_u64(list, bytes) & (self->size - 1);
    for (; self->slots[slot]; slot = (slot + 1) & (self->size - 1)) {
        const struct box *other = &layout->boxes[self->slots[slot] - 1];
        if (other->holder_count != box->holder_count || memcmp(&layout->holders[other->first_holder], list, bytes) != 0)
            continue;
        layout->holder_count = box->first_holder;
        box->first_holder = other->first_holder;
        return;
    }
    self->slots[slot] = (uint32_t)index + 1;
}

static int make_boxes(struct layout *self, struct layout_part *parts, size_t count, struct cb_err *err)
{
    struct rank_lists lists = {.layout = self, .size = TABLE_LEAST};
    while (lists.size < 2 * count)
        lists.size *= 2;
    lists.slots = calloc(lists.size, sizeof *lists.slots);
    self->boxes = malloc((count + 1) * sizeof *self->boxes);
    self->holders = malloc((count + 1) * sizeof *self->holders);
    if (!lists.slots || !self->boxes || !self->holders) {
        free(lists.slots);
        return alloc_fail(err, "for a layout of %zu parts", count);
    }
    if (count > 0)
        qsort(parts, count, sizeof *parts, compare_parts);
    for (size_t i = 0; i < count;) {
        const struct layout_part *first = &parts[i];
        if (region_elements(&first->region) == 0) {
            i++;
            continue;
        }
        struct box *box = &self->boxes[self->box_count++];
        *box = (struct box){
            .tensor = first->tensor, .region = first->region, .first_holder = (uint32_t)self->holder_count};
        for (; i < count && parts[i].tensor == first->tensor && region_equal(&parts[i].region, &first->region); i++) {
            if (box->holder_count == 0 || self->holders[self->holder_count - 1] != parts[i].rank) {
                self->holders[self->holder_count++] = parts[i].rank;
                box->holder_count++;
            }
        }
        share_list(&lists, self->box_count - 1);
    }
    free(lists.slots);
    return 0;
}

static int refuse_overlap(void *context, const struct stored_chunk *a, const struct stored_chunk *b, uint64_t elements,
                          struct cb_err *err)
{
    const struct stored_tensor *tensor = context;
    (void)a, (void)b;
    return cb_fail(err, CB_ERR_USAGE, "%s: regions overlap in %llu elements without being equal", tensor->fqn,
                   (unsigned long long)elements);
}

/* Checks tensor by tensor, as for a checkpoint that has a chunk for each box. */
static int check_complete(const struct layout *self, struct cb_err *err)
{
    struct stored_chunk *chunks = calloc(self->box_count + 1, sizeof *chunks);
    struct stored_checkpoint whole = {.chunks = chunks, .chunk_count = self->box_count};
    int rc = chunks ? 0 : alloc_fail(err, "for %zu boxes", self->box_count);
    for (size_t i = 0; i < self->box_count && !rc; i++)
        chunks[i].region = self->boxes[i].region;
    size_t at = 0;
    for (size_t i = 0; i < self->tensor_count && !rc; i++) {
        const struct state_tensor *tensor = &self->tensors[i];
        struct region all = region_whole(tensor->dims, tensor->shape);
        struct stored_tensor stored = {.fqn = (char *)tensor->fqn, .dims = tensor->dims, .first_chunk = (uint32_t)at};
        uint64_t missing = tensor->kind == KIND_BYTES ? 0 : region_elements(&all);
        memcpy(stored.shape, tensor->shape, sizeof stored.shape);
        for (; at < self->box_count && self->boxes[at].tensor == i; at++, stored.chunk_count++)
            missing -= region_elements(&self->boxes[at].region);
        rc = stored_each_overlap(&whole, &stored, refuse_overlap, &stored, err);
        if (!rc && missing > 0)
            rc = cb_fail(err, CB_ERR_USAGE, "%s: %llu of its %llu elements are in no rank's region", tensor->fqn,
                         (unsigned long long)missing, (unsigned long long)region_elements(&all));
    }
    free(chunks);
    return rc;
}

int layout_from_parts(uint32_t ranks, struct state_tensor *tensors, size_t tensor_count, struct layout_part *parts,
                      size_t part_count, bool is_complete, struct layout **layout, struct cb_err *err)
{
    struct layout *self = calloc(1, sizeof *self);
    if (!self) {
        layout_free_tensors(tensors, tensor_count);
        return alloc_fail(err, "for a layout");
    }
    *self = (struct layout){.tensors = tensors, .tensor_count = tensor_count, .state_name = "described"};
    self->description = strdup("described by its parts");
    self->mesh = (struct mesh){.axes = {{"dp", ranks}}, .roles = {AXIS_DP}, .count = 1, .world_size = ranks};
    for (int role = 0; role < AXIS_ROLES; role++)
        self->mesh.size[role] = role == AXIS_DP ? ranks : 1;
    self->mesh.stride[AXIS_DP] = 1;
    int rc = self->description ? make_boxes(self, parts, part_count, err) : alloc_fail(err, "for a layout");
    if (!rc && is_complete)
        rc = check_complete(self, err);
    if (rc)
        layout_free(self);
    else
        *layout = self;
    return rc;
}

int layout_set_value(struct layout *layout, size_t tensor, const void *bytes, struct cb_err *err)
{
    struct state_tensor *value = &layout->tensors[tensor];
    void *copy = malloc(value->blob_bytes + 1);
    if (!copy)
        return alloc_fail(err, "for the value of %s", value->fqn);
    memcpy(copy, bytes, value->blob_bytes);
    free((void *)value->blob);
    value->blob = copy;
    return 0;
}
