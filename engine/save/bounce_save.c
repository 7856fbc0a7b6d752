/* Saving from a device while the caller waits: as many requests as there are slots are copied to this
 * machine ahead of those that are written, in their order. Knows programs and the pump; not files. */
#include <assert.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "engine/save/bounce_ring.h"
#include "engine/save/native_save.h"

#define BATCH 32 /* copies handed over at once */
/* Copies that were queued before a failure get so long to end. */
#define DRAIN_NS (5 * NS_PER_S)

static struct native_pump *pump_of(const struct native_save *self)
{
    return self->engine->pump;
}

void native_pumped_release(struct native_save *self)
{
    free(self->pumped.list.copies);
    free(self->pumped.first_copy);
    self->pumped = (struct pumped){0};
}

int native_pumped_build(struct native_save *self, struct device *device, struct cb_err *err)
{
    struct pumped *pumped = &self->pumped;
    size_t requests = self->program.request_count;
    native_pumped_release(self);
    pumped->first_copy = calloc(requests + 1, sizeof *pumped->first_copy);
    if (!pumped->first_copy)
        return alloc_fail(err, "for the copies of %zu requests", requests);
    int rc = native_pump_reserve(self->engine, device, self->program.staging_bytes, requests, err);
    self->copied_bytes = 0;
    for (size_t i = 0; i < requests && !rc; i++) {
        pumped->first_copy[i] = pumped->list.first = pumped->list.count;
        rc = native_copies_add(self, i, 0, &pumped->list, err);
    }
    pumped->first_copy[requests] = pumped->list.count;
    return rc;
}

void native_pumped_begin(struct native_save *self)
{
    self->pumped.next = 0;
    native_pump_begin(pump_of(self), false);
}

int native_pumped_end(struct native_save *self, int rc, struct cb_err *err)
{
    struct cb_err later;
    self->operation->bytes_copied += self->copied_bytes;
    int drained = native_pump_drain(pump_of(self), clock_monotonic_ns() + DRAIN_NS, rc ? &later : err);
    if (drained)
        self->program_ready = false; /* its pinned memory is gone */
    return rc ? rc : drained;
}

/* Queues what a request's slot gets from the state. */
static int copy_request(struct native_save *self, size_t request, struct cb_err *err)
{
    const struct pumped *pumped = &self->pumped;
    struct device *device = native_pump_device(pump_of(self));
    char *memory = native_pump_memory(pump_of(self), request);
    struct device_copy copies[BATCH];
    int rc = 0;
    for (size_t i = pumped->first_copy[request]; i < pumped->first_copy[request + 1] && !rc;) {
        size_t count = 0;
        for (; count < BATCH && i < pumped->first_copy[request + 1]; i++, count++) {
            copies[count] = pumped->list.copies[i];
            copies[count].to = memory + (uintptr_t)pumped->list.copies[i].to;
        }
        rc = device->ops->copy(device, DEVICE_TO_HOST, copies, count, err);
    }
    return rc ? rc : native_pump_copying(pump_of(self), request, err);
}

static int copy_ahead(struct native_save *self, struct cb_err *err)
{
    struct pumped *pumped = &self->pumped;
    int rc = 0;
    while (!rc && pumped->next < self->program.request_count && native_pump_take(pump_of(self), pumped->next)) {
        rc = copy_request(self, pumped->next, err);
        pumped->next++;
    }
    return rc;
}

int native_pumped_ready(void *context, size_t request, uint64_t until_ns, bool *ready, struct cb_err *err)
{
    struct native_save *self = context;
    int rc = copy_ahead(self, err);
    if (!rc)
        rc = native_pump_look(pump_of(self), until_ns, err);
    *ready = !rc && native_pump_is_full(pump_of(self), request);
    return rc;
}

char *native_pumped_place(void *context, size_t request)
{
    const struct native_save *self = context;
    return native_pump_memory(pump_of(self), request);
}

void native_pumped_written(void *context, size_t request)
{
    const struct native_save *self = context;
    native_pump_give_back(pump_of(self), request);
}

/* While requests are written: a copy that is done lets the next one start. What fails here is told by
 * native_pumped_ready, which asks the device again. */
bool native_pumped_meanwhile(void *context)
{
    struct native_save *self = context;
    struct cb_err later;
    return native_pump_look(pump_of(self), 0, &later) == 0 && native_pump_under_way(pump_of(self)) > 0;
}
