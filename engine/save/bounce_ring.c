/* Slots of pinned memory between the store and a device: free, being filled or emptied by copies, or full. */
#include "engine/save/bounce_ring.h"

#include <assert.h>
#include <inttypes.h>

#include "core/alloc.h"
#include "core/units.h"
#include "engine/pinned.h"

#define SLOT_ALIGNMENT UINT64_C(4096)
#define LEAST_SLOTS 2
#define NO_SLOT UINT32_MAX

enum slot_state { SLOT_FREE, SLOT_TAKEN, SLOT_COPYING, SLOT_FULL };

struct slot {
    enum slot_state state;
    uint64_t event; /* done after its copies */
};

struct bounce_ring {
    struct pinned pinned;
    uint64_t slot_bytes;
    uint32_t slot_count;
    struct slot *slots;
    uint32_t *free;    /* a stack */
    uint32_t *copying; /* a ring, oldest first */
    uint32_t free_count, copying_first, copying_count;
    uint32_t *slot_of; /* of each request */
    size_t capacity;   /* of each slot */
    bool frees;
};

static int count_slots(const struct native_engine *engine, uint64_t slot_bytes, uint32_t *count, struct cb_err *err)
{
    uint64_t limit = engine->setup.config.staging_bytes;
    uint64_t wanted = 2 * engine->setup.config.depth;
    if (limit > 0 && limit / slot_bytes < wanted)
        wanted = limit / slot_bytes;
    if (wanted < LEAST_SLOTS) {
        char have[32], need[32];
        return cb_fail(err, CB_ERR_USAGE, "save.staging_bytes=%s is too little: two requests of io.block need %s",
                       units_format_bytes((double)limit, have),
                       units_format_bytes((double)(LEAST_SLOTS * slot_bytes), need));
    }
    *count = (uint32_t)wanted;
    return 0;
}

static int make_slots(struct bounce_ring *self, uint32_t count, struct cb_err *err)
{
    free(self->slots);
    free(self->free);
    free(self->copying);
    self->slot_count = 0;
    self->slots = calloc(count, sizeof *self->slots);
    self->free = calloc(count, sizeof *self->free);
    self->copying = calloc(count, sizeof *self->copying);
    if (!self->slots || !self->free || !self->copying)
        return alloc_fail(err, "for %" PRIu32 " slots", count);
    self->slot_count = count;
    return 0;
}

/* Reallocates the slots for another size or another device. */
static int make_memory(struct native_engine *engine, struct device *device, uint64_t slot_bytes, struct cb_err *err)
{
    struct bounce_ring *self = engine->ring;
    uint32_t count = 0;
    int rc = count_slots(engine, slot_bytes, &count, err);
    self->slot_bytes = 0;
    if (!rc)
        rc = make_slots(self, count, err);
    if (!rc)
        rc = pinned_reserve(&self->pinned, device, count * slot_bytes, err);
    if (rc)
        return cb_context(err, "pinned memory between the store and the device");
    struct iovec region = {.iov_base = self->pinned.memory, .iov_len = self->pinned.bytes};
    store_register(engine->front.store, &region, 1);
    self->slot_bytes = slot_bytes;
    return 0;
}

int bounce_ring_reserve(struct native_engine *engine, struct device *device, uint64_t slot_bytes, size_t requests,
                        struct cb_err *err)
{
    uint64_t rounded = (slot_bytes + SLOT_ALIGNMENT - 1) / SLOT_ALIGNMENT * SLOT_ALIGNMENT;
    rounded = rounded > 0 ? rounded : SLOT_ALIGNMENT;
    if (!engine->ring)
        engine->ring = calloc(1, sizeof *engine->ring);
    struct bounce_ring *self = engine->ring;
    if (!self)
        return alloc_fail(err, "for the slots between store and device");
    if (transfer_is_stuck(engine->front.transfer))
        return cb_fail(err, CB_ERR_ABORTED, "requests of an earlier operation are still stuck in the store");
    if (requests > self->capacity) {
        uint32_t *larger = reallocarray(self->slot_of, requests, sizeof *larger);
        if (!larger)
            return alloc_fail(err, "for %zu requests", requests);
        self->slot_of = larger;
        self->capacity = requests;
    }
    bool fits = self->slot_bytes >= rounded && self->pinned.device == device;
    return requests == 0 || fits ? 0 : make_memory(engine, device, rounded, err);
}

void bounce_ring_free(struct bounce_ring *self)
{
    if (!self)
        return;
    pinned_release(&self->pinned);
    free(self->slots);
    free(self->free);
    free(self->copying);
    free(self->slot_of);
    free(self);
}

void bounce_ring_begin(struct bounce_ring *self, bool frees)
{
    assert(self->copying_count == 0);
    self->frees = frees;
    self->free_count = 0;
    for (uint32_t i = self->slot_count; i-- > 0;) {
        self->slots[i].state = SLOT_FREE;
        self->free[self->free_count++] = i;
    }
    for (size_t i = 0; i < self->capacity; i++)
        self->slot_of[i] = NO_SLOT;
}

bool bounce_ring_take(struct bounce_ring *self, size_t request)
{
    if (self->free_count == 0)
        return false;
    uint32_t slot = self->free[--self->free_count];
    self->slots[slot].state = SLOT_TAKEN;
    self->slot_of[request] = slot;
    return true;
}

bool bounce_ring_has_free(const struct bounce_ring *self)
{
    return self->free_count > 0;
}

char *bounce_ring_memory(const struct bounce_ring *self, size_t request)
{
    assert(self->slot_of[request] != NO_SLOT);
    return self->pinned.memory + self->slot_of[request] * self->slot_bytes;
}

struct device *bounce_ring_device(const struct bounce_ring *self)
{
    return self->pinned.device;
}

int bounce_ring_copying(struct bounce_ring *self, size_t request, struct cb_err *err)
{
    uint32_t slot = self->slot_of[request];
    struct device *device = self->pinned.device;
    assert(self->slots[slot].state == SLOT_TAKEN);
    int rc = device->ops->record(device, &self->slots[slot].event, err);
    if (rc)
        return rc;
    self->slots[slot].state = SLOT_COPYING;
    self->copying[(self->copying_first + self->copying_count++) % self->slot_count] = slot;
    return 0;
}

bool bounce_ring_is_full(const struct bounce_ring *self, size_t request)
{
    return self->slot_of[request] != NO_SLOT && self->slots[self->slot_of[request]].state == SLOT_FULL;
}

static void free_slot(struct bounce_ring *self, uint32_t slot)
{
    self->slots[slot].state = SLOT_FREE;
    self->free[self->free_count++] = slot;
}

void bounce_ring_give_back(struct bounce_ring *self, size_t request)
{
    assert(self->slots[self->slot_of[request]].state != SLOT_COPYING);
    free_slot(self, self->slot_of[request]);
    self->slot_of[request] = NO_SLOT;
}

uint32_t bounce_ring_under_way(const struct bounce_ring *self)
{
    return self->copying_count;
}

/* The oldest copy is done. */
static void take_oldest(struct bounce_ring *self)
{
    uint32_t slot = self->copying[self->copying_first];
    self->copying_first = (self->copying_first + 1) % self->slot_count;
    self->copying_count--;
    if (self->frees)
        free_slot(self, slot);
    else
        self->slots[slot].state = SLOT_FULL;
}

int bounce_ring_look(struct bounce_ring *self, uint64_t until_ns, struct cb_err *err)
{
    struct device *device = self->pinned.device;
    bool done = true;
    int rc = 0;
    if (until_ns > 0 && self->copying_count > 0) {
        struct cb_err why;
        rc = device->ops->wait(device, self->slots[self->copying[self->copying_first]].event, until_ns, &why);
        if (rc == CB_ERR_TIMEOUT)
            return 0;
        if (rc)
            *err = why;
    }
    while (!rc && done && self->copying_count > 0) {
        rc = device->ops->poll(device, self->slots[self->copying[self->copying_first]].event, &done, err);
        if (!rc && done)
            take_oldest(self);
    }
    return rc ? cb_context(err, "copying between the device and pinned memory") : 0;
}

int bounce_ring_drain(struct bounce_ring *self, uint64_t deadline_ns, struct cb_err *err)
{
    struct device *device = self->pinned.device;
    int rc = 0;
    uint64_t event = 0;
    if (!device)
        return 0;
    rc = device->ops->record(device, &event, err); /* covers copies queued before a failure, too */
    if (!rc)
        rc = device->ops->wait(device, event, deadline_ns, err);
    while (!rc && self->copying_count > 0)
        take_oldest(self);
    if (!rc)
        return 0;
    pinned_leave(&self->pinned);
    self->slot_bytes = 0;
    self->copying_count = 0;
    return cb_context(err, "copying between the device and pinned memory");
}
