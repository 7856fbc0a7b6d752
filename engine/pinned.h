/* A piece of this machine's memory that a device copies fast from and to, kept while it is large enough.
 *
 * Allocating it takes long, so it is made before the data path and used again. A value; one thread. */
#ifndef ENGINE_PINNED_H
#define ENGINE_PINNED_H

#include "core/err.h"
#include "engine/device.h"
#include "engine/strided.h"

struct pinned {
    struct device *device; /* that allocated it; borrowed */
    char *memory;          /* NULL before pinned_reserve */
    uint64_t bytes;
};

/* At least `bytes` of `device`; what it held is gone where it must be allocated anew. */
int pinned_reserve(struct pinned *self, struct device *device, uint64_t bytes, struct cb_err *err) CB_MUST_CHECK;
void pinned_release(struct pinned *self);
/* Something may still be copied from or to it: the memory stays, and this forgets it. */
void pinned_leave(struct pinned *self);

/* Copies what of payload bytes [begin, begin + len) is wanted from `bytes` to the device's memory that a
 * mapping describes; queued, so `bytes` must stay until an event behind it. Adds to *copied. */
int pinned_scatter(struct device *device, const struct mapping *mapping, uint64_t begin, const void *bytes,
                   uint64_t len, void *memory, uint64_t *copied, struct cb_err *err) CB_MUST_CHECK;
/* The same of a payload with other strides. */
int pinned_scatter_strided(struct device *device, const struct strided *strided, uint64_t begin, const void *bytes,
                           uint64_t len, void *memory, uint64_t *copied, struct cb_err *err) CB_MUST_CHECK;

#endif
