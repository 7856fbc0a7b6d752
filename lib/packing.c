#include "lib/packing.h"

#include <string.h>

#include "ckpt/dtype.h"
#include "core/alloc.h"
#include "engine/copy_rows.h"

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

static uint64_t packed_bytes(const struct ckptbench_state *state, const struct joined *joined, size_t piece)
{
    return (region_elements(&joined->pieces[piece].region) * element_bytes(state, region_at(state, joined, piece)) +
            ALIGNMENT - 1) /
           ALIGNMENT * ALIGNMENT;
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

static void free_memory(struct packing *self)
{
    if (self->device)
        self->device->ops->release(self->device, MEMORY_PINNED, self->memory, self->bytes);
    else
        free(self->memory);
    self->memory = NULL;
    self->bytes = 0;
    self->device = NULL;
}

/* Pinned memory for a state with tensors on a GPU. */
static int reserve(struct packing *self, struct device *device, uint64_t bytes, struct cb_err *err)
{
    void *memory = NULL;
    if (bytes <= self->bytes && device == self->device)
        return 0;
    free_memory(self);
    int rc = device ? device->ops->allocate(device, MEMORY_PINNED, bytes, &memory, err) : 0;
    if (!device)
        memory = aligned_alloc(ALIGNMENT, bytes);
    if (!rc && !memory)
        rc = alloc_fail(err, "for packed copies of regions, %llu bytes", (unsigned long long)bytes);
    if (rc)
        return rc;
    self->memory = memory;
    self->bytes = bytes;
    self->device = device;
    return 0;
}

int packing_prepare(struct packing *self, const struct ckptbench_state *state, const struct joined *joined,
                    const struct gpu *gpu, struct cb_err *err)
{
    uint64_t total = 0;
    bool uses_gpu = false;
    void **addresses = malloc((joined->piece_count + 1) * sizeof *addresses);
    if (!addresses)
        return alloc_fail(err, "for %zu regions", joined->piece_count);
    free(self->addresses);
    self->addresses = addresses;
    self->count = joined->piece_count;
    for (size_t i = 0; i < joined->piece_count; i++) {
        const struct ckptbench_region *region = region_at(state, joined, i);
        bool in_place = !region->device && is_row_major(region, state->tensors[region->tensor].dims);
        self->addresses[i] = in_place ? region->address : NULL;
        total += in_place ? 0 : packed_bytes(state, joined, i);
        uses_gpu = uses_gpu || region->device;
    }
    int rc = total ? reserve(self, uses_gpu ? gpu->device : self->device, total, err) : 0;
    char *next = self->memory;
    for (size_t i = 0; i < joined->piece_count && !rc; i++) {
        if (self->addresses[i])
            continue;
        self->addresses[i] = next;
        next += packed_bytes(state, joined, i);
    }
    return rc;
}

/* Rows of a region that lie at equal distances in its memory, and one after the other in the packed copy. */
static int copy_some(struct device *device, char *memory, uint64_t stride, char *packed, uint64_t row_bytes,
                     uint64_t rows, bool unpacks, struct cb_err *err)
{
    if (!device) {
        copy_rows(unpacks ? memory : packed, unpacks ? stride : row_bytes, unpacks ? packed : memory,
                  unpacks ? row_bytes : stride, row_bytes, rows);
        return 0;
    }
    bool is_expanded = stride < row_bytes; /* rows that share elements, which no single copy can read */
    int rc = 0;
    for (uint64_t i = 0; i < (is_expanded ? rows : 1) && !rc; i++) {
        char *at = memory + i * stride, *packed_at = packed + i * row_bytes;
        const struct device_copy copy = {.to = unpacks ? at : packed_at,
                                         .from = unpacks ? packed_at : at,
                                         .row_bytes = row_bytes,
                                         .rows = is_expanded ? 1 : rows,
                                         .to_stride = unpacks ? stride : row_bytes,
                                         .from_stride = unpacks ? row_bytes : stride};
        rc = device->ops->copy(device, unpacks ? HOST_TO_DEVICE : DEVICE_TO_HOST, &copy, 1, err);
    }
    return rc;
}

/* Copies between a region and its packed copy: all of it, or as many rows at a time as lie at equal distances. `device`
 * NULL: in host memory. */
static int copy_region(struct device *device, const struct ckptbench_region *region, uint64_t dims, uint64_t element,
                       char *packed, bool unpacks, struct cb_err *err)
{
    uint64_t at[CKPTBENCH_MOST_DIMS] = {0}, row_bytes = element;
    uint64_t outer = dims; /* dimensions that are not inside of a copy */
    for (; outer > 0 && (region->stride[outer - 1] == row_bytes / element || region->size[outer - 1] == 1); outer--)
        row_bytes *= region->size[outer - 1];
    uint64_t rows = outer > 0 ? region->size[outer - 1] : 1, stride = outer > 0 ? region->stride[outer - 1] : 0;
    outer -= outer > 0 ? 1 : 0;
    for (bool done = false; !done;) {
        uint64_t place = 0;
        for (uint64_t i = 0; i < outer; i++)
            place += at[i] * region->stride[i];
        int rc = copy_some(device, (char *)region->address + place * element, stride * element, packed, row_bytes, rows,
                           unpacks, err);
        if (rc)
            return rc;
        packed += row_bytes * rows;
        uint64_t dim = outer;
        while (dim > 0 && ++at[dim - 1] == region->size[dim - 1])
            at[--dim] = 0;
        done = dim == 0;
    }
    return 0;
}

static int copy_all(const struct packing *self, const struct ckptbench_state *state, const struct joined *joined,
                    const struct gpu *gpu, bool unpacks, uint64_t deadline_ns, struct cb_err *err)
{
    int rc = gpu->device ? gpu_follow(gpu, state, err) : 0;
    for (size_t i = 0; i < self->count && !rc; i++) {
        const struct ckptbench_region *region = region_at(state, joined, i);
        if (self->addresses[i] != region->address)
            rc = copy_region(region->device ? gpu->device : NULL, region, state->tensors[region->tensor].dims,
                             element_bytes(state, region), self->addresses[i], unpacks, err);
    }
    return !rc && gpu->device ? gpu_wait(gpu, deadline_ns, err) : rc;
}

int packing_pack(const struct packing *self, const struct ckptbench_state *state, const struct joined *joined,
                 const struct gpu *gpu, uint64_t deadline_ns, struct cb_err *err)
{
    return copy_all(self, state, joined, gpu, false, deadline_ns, err);
}

int packing_unpack(const struct packing *self, const struct ckptbench_state *state, const struct joined *joined,
                   const struct gpu *gpu, uint64_t deadline_ns, struct cb_err *err)
{
    return copy_all(self, state, joined, gpu, true, deadline_ns, err);
}

void packing_release(struct packing *self)
{
    free_memory(self);
    free(self->addresses);
    *self = (struct packing){0};
}
