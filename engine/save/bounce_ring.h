/* The bounce ring: a few slots of pinned memory through which requests pass between the store and a device, where
 * the caller waits for the operation. Each slot holds one request; while some are written or read, the
 * others are copied. At most save.staging_bytes, at least two slots, else twice io.depth.
 *
 * One thread, that of the device. Allocates in bounce_ring_reserve alone. */
#ifndef ENGINE_SAVE_BOUNCE_RING_H
#define ENGINE_SAVE_BOUNCE_RING_H

#include "engine/native.h"

/* Makes the engine's bounce ring ready for `requests` requests of at most `slot_bytes`; nothing is under way. */
int bounce_ring_reserve(struct native_engine *engine, struct device *device, uint64_t slot_bytes, size_t requests,
                        struct cb_err *err) CB_MUST_CHECK;
void bounce_ring_free(struct bounce_ring *self);

/* All slots are free. `frees`: a slot whose copies are done is free again (loads), else it is full. */
void bounce_ring_begin(struct bounce_ring *self, bool frees);
/* Gives a request a slot; false where none is free. */
bool bounce_ring_take(struct bounce_ring *self, size_t request) CB_MUST_CHECK;
bool bounce_ring_has_free(const struct bounce_ring *self);
char *bounce_ring_memory(const struct bounce_ring *self, size_t request);
struct device *bounce_ring_device(const struct bounce_ring *self);
/* The copies queued so far are those of the request's slot. */
int bounce_ring_copying(struct bounce_ring *self, size_t request, struct cb_err *err) CB_MUST_CHECK;
bool bounce_ring_is_full(const struct bounce_ring *self, size_t request);
void bounce_ring_give_back(struct bounce_ring *self, size_t request);
/* How many slots are being copied. */
uint32_t bounce_ring_under_way(const struct bounce_ring *self);
/* Looks which copies are done; with `until_ns` waits for the oldest. A deadline that passes is no failure. */
int bounce_ring_look(struct bounce_ring *self, uint64_t until_ns, struct cb_err *err) CB_MUST_CHECK;
/* Until nothing is being copied. After a failure of the device the memory stays for good. */
int bounce_ring_drain(struct bounce_ring *self, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;

#endif
