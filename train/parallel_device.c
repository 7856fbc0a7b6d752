/* A rank's arrays in device memory. */
#include <assert.h>

#include "core/units.h"
#include "train/parallel_parts.h"
#include "train/train_model_internal.h"

#define PART_BYTES (UINT64_C(16) << 20) /* of initial values, before they are sent */

/* --- memory --- */

static void take(struct parallel *self, struct arena *arena)
{
    uint64_t share = self->wraps.share;
    unsigned moments = optimizer_moments(self->setup.optimizer.kind);
    self->on_device.counters = arena_take(arena, PARALLEL_COUNTERS, sizeof(int64_t));
    self->device_sum = arena_take(arena, 1, sizeof *self->device_sum);
    self->arrays[PARALLEL_WEIGHTS] = arena_take(arena, share, sizeof(float));
    self->arrays[PARALLEL_GRADIENTS] = arena_take(arena, share, sizeof(float));
    if (moments > 0)
        self->arrays[PARALLEL_EXP_AVG] = arena_take(arena, share, sizeof(float));
    if (moments > 1)
        self->arrays[PARALLEL_EXP_AVG_SQ] = arena_take(arena, share, sizeof(float));
    for (int i = 0; i < PARALLEL_SLOTS; i++)
        self->slots[i] = (struct slot){.wrap = SIZE_MAX};
    if (!self->gathers)
        return;
    self->root.memory = arena_take(arena, self->wraps.root_padded, sizeof(float));
    for (int i = 0; i < PARALLEL_SLOTS; i++)
        self->slots[i].memory = arena_take(arena, self->wraps.largest, sizeof(float));
}

int parallel_device_map(struct parallel *self, struct cb_err *err)
{
    struct device *device = self->math->device;
    struct arena arena = {0};
    char text[32];
    assert(!self->scatters && !self->buckets);
    take(self, &arena);
    self->on_device.bytes = self->bytes = arena.used_bytes;
    int rc = device->ops->allocate(device, MEMORY_DEVICE, arena.used_bytes, &self->on_device.base, err);
    if (rc)
        return cb_context(err, "%s of parameters, gradients and optimizer",
                          units_format_bytes((double)arena.used_bytes, text));
    arena = (struct arena){.base = self->on_device.base};
    take(self, &arena);
    void *pinned = NULL;
    rc = device->ops->allocate(device, MEMORY_PINNED, sizeof *self->host_sum, &pinned, err);
    self->host_sum = pinned;
    return rc;
}

void parallel_device_unmap(struct parallel *self)
{
    struct device *device = self->math->device;
    if (self->on_device.base)
        device->ops->release(device, MEMORY_DEVICE, self->on_device.base, self->on_device.bytes);
    if (self->host_sum)
        device->ops->release(device, MEMORY_PINNED, self->host_sum, sizeof *self->host_sum);
}

/* --- values --- */

int parallel_device_zero(struct parallel *self, struct cb_err *err)
{
    struct device *device = self->math->device;
    return device->ops->set(device, self->on_device.base, 0, self->on_device.bytes, err);
}

int parallel_device_init(struct parallel *self, size_t unit, uint64_t first, uint64_t count, float *weights,
                         uint64_t deadline_ns, struct cb_err *err)
{
    struct device *device = self->math->device;
    uint64_t most = PART_BYTES / sizeof(float), room = count < most ? count : most;
    void *part = NULL;
    int rc = device->ops->allocate(device, MEMORY_PINNED, room * sizeof(float), &part, err);
    for (uint64_t done = 0; done < count && !rc; done += room) {
        uint64_t now = count - done < room ? count - done : room;
        train_model_init(self->setup.model, unit, first + done, now, self->setup.seed, part);
        rc = device_math_copy(self->math, HOST_TO_DEVICE, weights + done, part, now * sizeof(float), err);
        if (!rc)
            rc = device_math_finish(self->math, deadline_ns, err);
    }
    if (part)
        device->ops->release(device, MEMORY_PINNED, part, room * sizeof(float));
    return rc;
}

int parallel_device_sum_of_squares(struct parallel *self, double *sum, uint64_t deadline_ns, struct cb_err *err)
{
    struct device_math *math = self->math;
    math->ops->sum_of_squares(math, self->arrays[PARALLEL_GRADIENTS], self->wraps.share, self->device_sum);
    int rc = device_math_copy(math, DEVICE_TO_HOST, self->host_sum, self->device_sum, sizeof *self->host_sum, err);
    if (!rc)
        rc = device_math_finish(math, deadline_ns, err);
    if (!rc)
        *sum = *self->host_sum;
    return rc;
}
