/* A pinned host buffer for fast copies to and from a device. Allocating it is slow, so it is allocated before the data
 * path and reused while it is large enough. One thread. */
#ifndef ENGINE_PINNED_H
#define ENGINE_PINNED_H

#include "core/err.h"
#include "engine/device.h"
#include "engine/strided.h"

struct pinned {
    struct device *device; /* the device that allocated it; borrowed */
    char *memory;          /* NULL before pinned_reserve */
    uint64_t bytes;
};

/* Makes the buffer at least `bytes` large; its content is lost if it has to grow. */
int pinned_reserve(struct pinned *self, struct device *device, uint64_t bytes, struct cb_err *err) CB_MUST_CHECK;
void pinned_release(struct pinned *self);
/* Leaks the buffer on purpose, because a copy may still use it. */
void pinned_leave(struct pinned *self);

/* Queues copies of the needed part of payload bytes [begin, begin + len) from `bytes` to the device memory that `mapping`
 * describes. `bytes` must stay valid until a later event is done. Adds the number of bytes to *copied. */
int pinned_scatter(struct device *device, const struct mapping *mapping, uint64_t begin, const void *bytes,
                   uint64_t len, void *memory, uint64_t *copied, struct cb_err *err) CB_MUST_CHECK;
/* The same for a payload with arbitrary strides. */
int pinned_scatter_strided(struct device *device, const struct strided *strided, uint64_t begin, const void *bytes,
                           uint64_t len, void *memory, uint64_t *copied, struct cb_err *err) CB_MUST_CHECK;

#endif
