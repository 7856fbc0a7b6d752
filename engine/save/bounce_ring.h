/* The pump: a few slots of pinned memory through which requests pass between the store and a device, where
 * the caller waits for the operation. Each slot holds one request; while some are written or read, the
 * others are copied. At most save.staging_bytes, at least two slots, else twice io.depth.
 *
 * One thread, that of the device. Allocates in native_pump_reserve alone. */
#ifndef ENGINE_SAVE_BOUNCE_RING_H
#define ENGINE_SAVE_BOUNCE_RING_H

#include "engine/native.h"

/* Makes the engine's pump ready for `requests` requests of at most `slot_bytes`; nothing is under way. */
int native_pump_reserve(struct native_engine *engine, struct device *device, uint64_t slot_bytes, size_t requests,
                        struct cb_err *err) CB_MUST_CHECK;
void native_pump_free(struct native_pump *self);

/* All slots are free. `frees`: a slot whose copies are done is free again (loads), else it is full. */
void native_pump_begin(struct native_pump *self, bool frees);
/* Gives a request a slot; false where none is free. */
bool native_pump_take(struct native_pump *self, size_t request) CB_MUST_CHECK;
bool native_pump_has_free(const struct native_pump *self);
char *native_pump_memory(const struct native_pump *self, size_t request);
struct device *native_pump_device(const struct native_pump *self);
/* The copies queued so far are those of the request's slot. */
int native_pump_copying(struct native_pump *self, size_t request, struct cb_err *err) CB_MUST_CHECK;
bool native_pump_is_full(const struct native_pump *self, size_t request);
void native_pump_give_back(struct native_pump *self, size_t request);
/* How many slots are being copied. */
uint32_t native_pump_under_way(const struct native_pump *self);
/* Looks which copies are done; with `until_ns` waits for the oldest. A deadline that passes is no failure. */
int native_pump_look(struct native_pump *self, uint64_t until_ns, struct cb_err *err) CB_MUST_CHECK;
/* Until nothing is being copied. After a failure of the device the memory stays for good. */
int native_pump_drain(struct native_pump *self, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;

#endif
