#include "lib/packing.h"

#include <string.h>

#include "ckpt/dtype.h"
#include "core/alloc.h"

#define ALIGNMENT 64

static const struct ckptbench_region *region_at(const struct ckptbench_state *state, const struct joined *joined,
                                                size_t piece)
{
    return &state->regions[joined->region_of[piece]];
}

static uint64_t element_bytes(const struct ckptbench_state *state, const struct ckptbench_region *region)
{
    return dtype_bytes((enum dtype)state->tensors[region->tensor].dtype);
}

static bool is_row_major(const struct ckptbench_region *region, uint64_t dims)
{
    uint64_t expected = 1;
    for (uint64_t i = dims; i-- > 0; expected *= region->size[i]) {
        if (region->size[i] > 1 && region->stride[i] != expected)
            return false;
    }
    return true;
}

int packing_prepare(struct packing *self, const struct ckptbench_state *state, const struct joined *joined,
                    struct cb_err *err)
{
    uint64_t total = 0;
    void **addresses = malloc((joined->piece_count + 1) * sizeof *addresses);
    if (!addresses)
        return alloc_fail(err, "for %zu regions", joined->piece_count);
    free(self->addresses);
    self->addresses = addresses;
    self->count = joined->piece_count;
    for (size_t i = 0; i < joined->piece_count; i++) {
        const struct ckptbench_region *region = region_at(state, joined, i);
        bool in_place = is_row_major(region, state->tensors[region->tensor].dims);
        self->addresses[i] = in_place ? region->address : NULL;
        if (!in_place)
            total += (region_elements(&joined->pieces[i].region) * element_bytes(state, region) + ALIGNMENT - 1) /
                     ALIGNMENT * ALIGNMENT;
    }
    if (total > self->bytes) {
        free(self->memory);
        self->bytes = 0;
        self->memory = aligned_alloc(ALIGNMENT, total);
        if (!self->memory)
            return alloc_fail(err, "for packed copies of regions, %llu bytes", (unsigned long long)total);
        self->bytes = total;
    }
    char *next = self->memory;
    for (size_t i = 0; i < joined->piece_count; i++) {
        const struct ckptbench_region *region = region_at(state, joined, i);
        if (self->addresses[i])
            continue;
        self->addresses[i] = next;
        next += (region_elements(&joined->pieces[i].region) * element_bytes(state, region) + ALIGNMENT - 1) /
                ALIGNMENT * ALIGNMENT;
    }
    return 0;
}

/* Copies `count` elements; the strides are in bytes. */
static void copy_line(char *to, uint64_t to_stride, const char *from, uint64_t from_stride, uint64_t element,
                      uint64_t count)
{
    if (to_stride == element && from_stride == element) {
        memcpy(to, from, count * element);
        return;
    }
    for (uint64_t i = 0; i < count; i++) {
        switch (element) { /* a constant length is a single move */
        case 1:
            *to = *from;
            break;
        case 2:
            memcpy(to, from, 2);
            break;
        case 4:
            memcpy(to, from, 4);
            break;
        case 8:
            memcpy(to, from, 8);
            break;
        default:
            memcpy(to, from, element);
        }
        to += to_stride;
        from += from_stride;
    }
}

/* Copies between a region and its packed copy, a line of the last dimension at a time. */
static void copy_region(const struct ckptbench_region *region, uint64_t dims, uint64_t element, char *packed,
                        bool unpacks)
{
    uint64_t at[CKPTBENCH_MOST_DIMS] = {0}, last = dims - 1;
    for (bool done = false; !done;) {
        uint64_t place = 0;
        for (uint64_t i = 0; i < last; i++)
            place += at[i] * region->stride[i];
        char *memory = (char *)region->address + place * element;
        uint64_t stride = region->stride[last] * element;
        if (unpacks)
            copy_line(memory, stride, packed, element, element, region->size[last]);
        else
            copy_line(packed, element, memory, stride, element, region->size[last]);
        packed += region->size[last] * element;
        uint64_t dim = last;
        while (dim > 0 && ++at[dim - 1] == region->size[dim - 1])
            at[--dim] = 0;
        done = dim == 0;
    }
}

static void copy_all(const struct packing *self, const struct ckptbench_state *state, const struct joined *joined,
                     bool unpacks)
{
    for (size_t i = 0; i < self->count; i++) {
        const struct ckptbench_region *region = region_at(state, joined, i);
        if (self->addresses[i] != region->address)
            copy_region(region, state->tensors[region->tensor].dims, element_bytes(state, region), self->addresses[i],
                        unpacks);
    }
}

void packing_pack(const struct packing *self, const struct ckptbench_state *state, const struct joined *joined)
{
    copy_all(self, state, joined, false);
}

void packing_unpack(const struct packing *self, const struct ckptbench_state *state, const struct joined *joined)
{
    copy_all(self, state, joined, true);
}

void packing_release(struct packing *self)
{
    free(self->memory);
    free(self->addresses);
    *self = (struct packing){0};
}
