/* Pinned memory, and scattering from it. */
#include "engine/pinned.h"

#include <string.h>

#define BATCH 64 /* copies queued in one call */

int pinned_reserve(struct pinned *self, struct device *device, uint64_t bytes, struct cb_err *err)
{
    void *memory = NULL;
    if (self->memory && self->device == device && self->bytes >= bytes)
        return 0;
    pinned_release(self);
    if (bytes == 0)
        return 0;
    int rc = device->ops->allocate(device, MEMORY_PINNED, bytes, &memory, err);
    if (rc)
        return rc;
    *self = (struct pinned){.device = device, .memory = memory, .bytes = bytes};
    return 0;
}

void pinned_release(struct pinned *self)
{
    if (self->memory)
        self->device->ops->release(self->device, MEMORY_PINNED, self->memory, self->bytes);
    pinned_leave(self);
}

void pinned_leave(struct pinned *self)
{
    memset(self, 0, sizeof *self);
}

/* Rows that wait to be queued. */
struct batch {
    struct device *device;
    const char *bytes;
    char *memory;
    struct device_copy copies[BATCH];
    size_t count;
    uint64_t copied;
};

static int hand_over(struct batch *self, struct cb_err *err)
{
    size_t count = self->count;
    self->count = 0;
    return count > 0 ? self->device->ops->copy(self->device, HOST_TO_DEVICE, self->copies, count, err) : 0;
}

static int add_rows(void *context, const struct mapping_rows *rows, struct cb_err *err)
{
    struct batch *self = context;
    self->copies[self->count++] = (struct device_copy){
        .to = self->memory + rows->memory_at,
        .from = self->bytes + rows->bytes_at,
        .row_bytes = rows->row_bytes,
        .rows = rows->rows,
        .to_stride = rows->memory_stride,
        .from_stride = rows->bytes_stride,
    };
    self->copied += rows->row_bytes * rows->rows;
    return self->count == BATCH ? hand_over(self, err) : 0;
}

int pinned_scatter(struct device *device, const struct mapping *mapping, uint64_t begin, const void *bytes,
                   uint64_t len, void *memory, uint64_t *copied, struct cb_err *err)
{
    struct batch batch = {.device = device, .bytes = bytes, .memory = memory};
    struct mapping_rows rows;
    int rc = 0;
    for (uint64_t run = mapping_first_run(mapping, begin); !rc && mapping_next_rows(mapping, &run, begin, len, &rows);)
        rc = add_rows(&batch, &rows, err);
    if (!rc)
        rc = hand_over(&batch, err);
    *copied += batch.copied;
    return rc;
}

int pinned_scatter_strided(struct device *device, const struct strided *strided, uint64_t begin, const void *bytes,
                           uint64_t len, void *memory, uint64_t *copied, struct cb_err *err)
{
    struct batch batch = {.device = device, .bytes = bytes, .memory = memory};
    int rc = strided_each(strided, begin, len, add_rows, &batch, err);
    if (!rc)
        rc = hand_over(&batch, err);
    *copied += batch.copied;
    return rc;
}
