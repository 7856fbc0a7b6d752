/* Synchronous saves from a device: requests are copied to host memory in order, ahead of the writes, as far as there are
 * free slots. If the store writes device memory itself, only headers and what is not whole blocks take this way. */
#include <assert.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "engine/save/bounce_ring.h"
#include "engine/save/native_save.h"

#define BATCH 32 /* copies queued in one call */
/* How long to wait after a failure for copies that are queued. */
#define DRAIN_NS (5 * NS_PER_S)

static struct bounce_ring *ring_of(const struct native_save *self)
{
    return self->engine->ring;
}

void bounce_save_release(struct native_save *self)
{
    free(self->bounce.list.copies);
    free(self->bounce.first_copy);
    self->bounce = (struct bounce_save){0};
}

int bounce_save_build(struct native_save *self, struct device *device, struct cb_err *err)
{
    struct bounce_save *bounce = &self->bounce;
    size_t requests = self->schedule.request_count;
    bounce_save_release(self);
    bounce->first_copy = calloc(requests + 1, sizeof *bounce->first_copy);
    if (!bounce->first_copy)
        return alloc_fail(err, "for the copies of %zu requests", requests);
    int rc = bounce_ring_reserve(self->engine, device, self->schedule.staging_bytes, requests, err);
    self->copied_bytes = 0;
    for (size_t i = 0; i < requests && !rc; i++) {
        bounce->first_copy[i] = bounce->list.first = bounce->list.count;
        rc = native_copies_add(self, i, 0, &bounce->list, err);
    }
    bounce->first_copy[requests] = bounce->list.count;
    return rc;
}

int bounce_save_begin(struct native_save *self, struct cb_err *err)
{
    struct device *device = self->operation->state->device;
    uint64_t event = 0;
    self->bounce.next = 0;
    bounce_ring_begin(ring_of(self), false);
    if (!self->skips_host)
        return 0;
    /* The store does not wait for what is queued on the device, as a copy would. */
    timeline_enter(&self->operation->timeline, STATE_STAGE);
    int rc = device->ops->record(device, &event, err);
    if (!rc)
        rc = device->ops->wait(device, event, self->operation->options->deadline_ns, err);
    return rc ? cb_context(err, "before saving the device's memory") : 0;
}

static bool is_apart(const struct native_save *self, size_t request)
{
    return io_schedule_is_apart(&self->schedule, &self->schedule.requests[request]);
}

int bounce_save_end(struct native_save *self, int rc, struct cb_err *err)
{
    struct cb_err later;
    self->operation->bytes_copied += self->copied_bytes;
    int drained = bounce_ring_drain(ring_of(self), clock_monotonic_ns() + DRAIN_NS, rc ? &later : err);
    if (drained)
        self->schedule_ready = false; /* its pinned memory has been freed */
    return rc ? rc : drained;
}

/* Queues the copies of a request from the state to its slot. */
static int copy_request(struct native_save *self, size_t request, struct cb_err *err)
{
    const struct bounce_save *bounce = &self->bounce;
    struct device *device = bounce_ring_device(ring_of(self));
    char *memory = bounce_ring_memory(ring_of(self), request);
    struct device_copy copies[BATCH];
    int rc = 0;
    for (size_t i = bounce->first_copy[request]; i < bounce->first_copy[request + 1] && !rc;) {
        size_t count = 0;
        for (; count < BATCH && i < bounce->first_copy[request + 1]; i++, count++) {
            copies[count] = bounce->list.copies[i];
            copies[count].to = memory + (uintptr_t)bounce->list.copies[i].to;
        }
        rc = device->ops->copy(device, DEVICE_TO_HOST, copies, count, err);
    }
    return rc ? rc : bounce_ring_copying(ring_of(self), request, err);
}

static int copy_ahead(struct native_save *self, struct cb_err *err)
{
    struct bounce_save *bounce = &self->bounce;
    int rc = 0;
    while (!rc && bounce->next < self->schedule.request_count) {
        if (!is_apart(self, bounce->next) && !bounce_ring_take(ring_of(self), bounce->next))
            break;
        if (!is_apart(self, bounce->next))
            rc = copy_request(self, bounce->next, err);
        bounce->next++;
    }
    return rc;
}

int bounce_save_ready(void *context, size_t request, uint64_t until_ns, bool *ready, struct cb_err *err)
{
    struct native_save *self = context;
    bool apart = is_apart(self, request);
    int rc = copy_ahead(self, err);
    if (!rc)
        rc = bounce_ring_look(ring_of(self), apart ? 0 : until_ns, err);
    *ready = !rc && (apart || bounce_ring_is_full(ring_of(self), request));
    return rc;
}

char *bounce_save_place(void *context, size_t request)
{
    const struct native_save *self = context;
    const struct io_request *requests = self->schedule.requests;
    return is_apart(self, request) ? self->schedule.parts[requests[request].first_part].memory
                                   : bounce_ring_memory(ring_of(self), request);
}

void bounce_save_written(void *context, size_t request)
{
    const struct native_save *self = context;
    if (!is_apart(self, request))
        bounce_ring_give_back(ring_of(self), request);
}

/* Starts the next copies while requests are written. bounce_save_ready reports failures, since it polls the device
 * again. */
bool bounce_save_meanwhile(void *context)
{
    struct native_save *self = context;
    struct cb_err later;
    return bounce_ring_look(ring_of(self), 0, &later) == 0 && bounce_ring_under_way(ring_of(self)) > 0;
}
