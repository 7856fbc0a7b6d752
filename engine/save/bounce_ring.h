/* The bounce ring: slots of pinned memory between the store and a device, for operations that the caller waits for. Each
 * slot holds one request; while some slots are written or read, others are copied. It has twice io.depth slots, but takes
 * at most save.staging_bytes, and has at least two slots.
 *
 * Used only from the device's thread. Allocates only in bounce_ring_reserve. */
#ifndef ENGINE_SAVE_BOUNCE_RING_H
#define ENGINE_SAVE_BOUNCE_RING_H

#include "engine/native.h"

/* Prepares the engine's bounce ring for `requests` requests of at most `slot_bytes`. No slot may be in use. */
int bounce_ring_reserve(struct native_engine *engine, struct device *device, uint64_t slot_bytes, size_t requests,
                        struct cb_err *err) CB_MUST_CHECK;
void bounce_ring_free(struct bounce_ring *self);

/* Begins an operation; all slots must be free. A slot whose copies are done becomes free if `frees` (loads), else full. */
void bounce_ring_begin(struct bounce_ring *self, bool frees);
/* Gives a request a slot; false if no slot is free. */
bool bounce_ring_take(struct bounce_ring *self, size_t request) CB_MUST_CHECK;
bool bounce_ring_has_free(const struct bounce_ring *self);
char *bounce_ring_memory(const struct bounce_ring *self, size_t request);
struct device *bounce_ring_device(const struct bounce_ring *self);
/* Marks the copies queued so far as those of the request's slot. */
int bounce_ring_copying(struct bounce_ring *self, size_t request, struct cb_err *err) CB_MUST_CHECK;
bool bounce_ring_is_full(const struct bounce_ring *self, size_t request);
void bounce_ring_give_back(struct bounce_ring *self, size_t request);
/* The number of slots being copied. */
uint32_t bounce_ring_under_way(const struct bounce_ring *self);
/* Checks which copies are done; waits for the oldest until `until_ns`. Reaching that time is not a failure. */
int bounce_ring_look(struct bounce_ring *self, uint64_t until_ns, struct cb_err *err) CB_MUST_CHECK;
/* Waits until no slot is being copied. After a failure of the device the memory is leaked on purpose. */
int bounce_ring_drain(struct bounce_ring *self, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;

#endif
