/* For tests: a device in this machine's memory whose copies happen late, out of order and in pieces, so
 * that whoever does not wait for them is found out. Nothing is copied before somebody looks. */
#ifndef TESTS_FAKE_DEVICE_H
#define TESTS_FAKE_DEVICE_H

#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "worker/device.h"

#define FAKE_MAX_COPIES 65536

struct fake_copy {
    struct device_copy copy;
    uint64_t event; /* the first one behind it */
    bool done;
};

struct fake_device {
    struct device base;
    struct fake_copy copies[FAKE_MAX_COPIES];
    size_t count;
    uint64_t recorded, done;
    uint32_t random;
    unsigned looks;   /* an event is not done before somebody has looked so often */
    unsigned looked;  /* at the oldest event that is not done */
    unsigned fail_at; /* this event fails; 0: none */
    uint64_t waits;
    int64_t allocations; /* not released */
};

static inline uint32_t fake_random(struct fake_device *self)
{
    self->random = self->random * 1664525u + 1013904223u;
    return self->random >> 8;
}

static inline int fake_allocate(struct device *device, enum memory_kind kind, uint64_t bytes, void **memory,
                                struct cb_err *err)
{
    (void)kind;
    *memory = aligned_alloc(4096, (bytes + 4095) / 4096 * 4096);
    if (!*memory)
        return cb_fail(err, CB_ERR_MEMORY, "no memory");
    ((struct fake_device *)device)->allocations++;
    memset(*memory, 0xEE, bytes);
    return 0;
}

static inline void fake_release(struct device *device, enum memory_kind kind, void *memory, uint64_t bytes)
{
    (void)kind, (void)bytes;
    ((struct fake_device *)device)->allocations -= memory ? 1 : 0;
    free(memory);
}

static inline void fake_perform(struct fake_copy *copy)
{
    for (uint64_t row = 0; row < copy->copy.rows; row++)
        memcpy((char *)copy->copy.to + row * copy->copy.to_stride,
               (const char *)copy->copy.from + row * copy->copy.from_stride, copy->copy.row_bytes);
    copy->done = true;
}

/* Copies what lies before an event, in any order. */
static inline void fake_catch_up(struct fake_device *self, uint64_t event)
{
    for (size_t left = self->count; left > 0;) {
        size_t kept = 0;
        for (size_t i = 0; i < left; i++) {
            struct fake_copy *copy = &self->copies[i];
            if (copy->event <= event && fake_random(self) % 2)
                fake_perform(copy);
            else
                self->copies[kept++] = *copy;
        }
        bool waiting = false;
        for (size_t i = 0; i < kept; i++)
            waiting = waiting || self->copies[i].event <= event;
        self->count = left = kept;
        if (!waiting)
            break;
    }
    self->done = event;
    self->looked = 0;
}

static inline int fake_queue(struct device *device, enum device_direction direction, const struct device_copy *copies,
                             size_t count, struct cb_err *err)
{
    struct fake_device *self = (struct fake_device *)device;
    (void)direction;
    for (size_t i = 0; i < count; i++) {
        if (self->count == FAKE_MAX_COPIES)
            return cb_fail(err, CB_ERR_INTERNAL, "the fake device has room for %d copies", FAKE_MAX_COPIES);
        self->copies[self->count++] = (struct fake_copy){.copy = copies[i], .event = self->recorded + 1};
    }
    /* A few at once: a real one does not wait for the event either. */
    for (size_t i = 0; i < self->count; i++) {
        if (fake_random(self) % 8 == 0) {
            fake_perform(&self->copies[i]);
            self->copies[i] = self->copies[--self->count];
        }
    }
    return 0;
}

static inline int fake_record(struct device *device, uint64_t *event, struct cb_err *err)
{
    (void)err;
    *event = ++((struct fake_device *)device)->recorded;
    return 0;
}

static inline int fake_poll(struct device *device, uint64_t event, bool *done, struct cb_err *err)
{
    struct fake_device *self = (struct fake_device *)device;
    if (self->fail_at && event >= self->fail_at)
        return cb_fail(err, CB_ERR_SYSTEM, "the fake device lost a copy");
    if (event > self->done && ++self->looked >= self->looks)
        fake_catch_up(self, event);
    *done = event <= self->done;
    return 0;
}

static inline int fake_wait(struct device *device, uint64_t event, uint64_t deadline_ns, struct cb_err *err)
{
    bool done = false;
    ((struct fake_device *)device)->waits++;
    while (!done) {
        int rc = fake_poll(device, event, &done, err);
        if (!rc && !done && clock_monotonic_ns() > deadline_ns)
            rc = cb_fail(err, CB_ERR_TIMEOUT, "the fake device is late");
        if (rc)
            return rc;
    }
    return 0;
}

static inline void fake_close(struct device *device)
{
    free(device);
}

static const struct device_ops fake_ops = {
    .version = DEVICE_VERSION,
    .name = "fake",
    .allocate = fake_allocate,
    .release = fake_release,
    .copy = fake_queue,
    .record = fake_record,
    .poll = fake_poll,
    .wait = fake_wait,
    .close = fake_close,
};

static inline struct fake_device *fake_device_new(uint32_t seed, unsigned looks)
{
    struct fake_device *self = calloc(1, sizeof *self);
    if (self) {
        self->base.ops = &fake_ops;
        self->random = seed;
        self->looks = looks;
    }
    return self;
}

#endif
