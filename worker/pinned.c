/* Pinned memory, and scattering from it. Knows devices and mappings; not what is copied. */
#include "worker/pinned.h"

#include <string.h>

#define BATCH 64 /* copies handed over at once */

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

int pinned_scatter(struct device *device, const struct mapping *mapping, uint64_t begin, const void *bytes,
                   uint64_t len, void *memory, uint64_t *copied, struct cb_err *err)
{
    struct device_copy copies[BATCH];
    struct mapping_rows rows;
    size_t count = 0;
    int rc = 0;
    for (uint64_t run = mapping_first_run(mapping, begin);
         mapping_next_rows(mapping, &run, begin, len, &rows) && !rc;) {
        copies[count++] = (struct device_copy){
            .to = (char *)memory + rows.memory_at,
            .from = (const char *)bytes + rows.bytes_at,
            .row_bytes = rows.row_bytes,
            .rows = rows.rows,
            .to_stride = rows.memory_stride,
            .from_stride = rows.bytes_stride,
        };
        *copied += rows.row_bytes * rows.rows;
        if (count == BATCH) {
            rc = device->ops->copy(device, HOST_TO_DEVICE, copies, count, err);
            count = 0;
        }
    }
    if (!rc && count > 0)
        rc = device->ops->copy(device, HOST_TO_DEVICE, copies, count, err);
    return rc;
}
