/* Memory of a device and copies between it and this machine's: one vtable, one file an implementation.
 *
 * `host` (device_host.c) copies at once with this rank's cores: the state lies in this machine's
 * memory, and staging it is a copy like any other. A device with memory of its own queues copies and
 * says with an event when they are done. A device belongs to one thread at a time.
 *
 * Copies: between being queued and an event that follows them, they happen in any order, at any time,
 * and all of them read and write their memory until then. An event is done when every copy queued
 * before it is. Events are done in the order in which they were recorded. Every call can fail; a copy
 * that fails later fails at poll or wait of an event behind it. */
#ifndef ENGINE_DEVICE_H
#define ENGINE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/payload.h"
#include "ckpt/region.h"
#include "core/err.h"
#include "store/store.h"

#define DEVICE_VERSION 3

/* `rows` rows of `row_bytes`; the addresses of two that follow each other are the strides apart. */
struct device_copy {
    void *to;
    const void *from;
    uint64_t row_bytes, rows;
    uint64_t to_stride, from_stride; /* no smaller than row_bytes; unused with one row */
};

/* The last is for memory of one device, and for what a communicator queues (engine/device_comm.h). */
enum device_direction { DEVICE_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_DEVICE };

/* The values of a region of a tensor (ckpt/payload.h), row-major. */
struct device_values {
    struct payload_source source;
    uint64_t shape[CKPT_MAX_DIMS];
    struct region region;
};

/* What is not as it should be. */
struct device_difference {
    uint64_t wrong; /* elements */
    uint64_t first; /* the lowest of them, as an element of the tensor; where there is one */
};

struct device; /* an implementation's struct begins with `struct device` */

struct device_ops {
    uint32_t version; /* DEVICE_VERSION */
    const char *name;
    /* MEMORY_PINNED: memory of this machine for fast copies and for O_DIRECT, at least 4 KiB aligned, and
     * touched, so that its first use costs no page faults. MEMORY_DEVICE: the device's own, at least 256
     * bytes aligned. At least one byte. */
    int (*allocate)(struct device *self, enum memory_kind kind, uint64_t bytes, void **memory, struct cb_err *err);
    void (*release)(struct device *self, enum memory_kind kind, void *memory, uint64_t bytes);
    /* Queues copies, or makes them. `copies` is borrowed until the call returns; nothing is allocated. */
    int (*copy)(struct device *self, enum device_direction direction, const struct device_copy *copies, size_t count,
                struct cb_err *err);
    int (*record)(struct device *self, uint64_t *event, struct cb_err *err);
    int (*poll)(struct device *self, uint64_t event, bool *done, struct cb_err *err);
    /* CB_ERR_TIMEOUT at the monotonic deadline. */
    int (*wait)(struct device *self, uint64_t event, uint64_t deadline_ns, struct cb_err *err);
    /* For memory of the device, which this machine may not touch: NULL in a device that has none
     * (MEMORY_DEVICE is refused then). They wait for copies queued before, and return when they are done. */
    int (*set)(struct device *self, void *memory, unsigned char byte, uint64_t bytes, struct cb_err *err);
    int (*fill)(struct device *self, const struct device_values *values, void *memory, struct cb_err *err);
    int (*check)(struct device *self, const struct device_values *values, const void *memory,
                 struct device_difference *difference, struct cb_err *err);
    void (*close)(struct device *self);
};

struct device {
    const struct device_ops *ops; /* set by whoever opens it */
};

/* The memory of this machine, copied by `threads` threads (1: the caller alone) that run where the
 * caller may run. Allocating gives huge pages where the machine has them. */
int device_host_open(uint32_t threads, struct device **device, struct cb_err *err) CB_MUST_CHECK;
void device_close(struct device *self);

/* The cores that the caller may run on. */
uint32_t device_host_cores(void);

#endif
