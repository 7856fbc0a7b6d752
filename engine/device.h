/* A device's memory, and copies between it and host memory: one vtable, one file for each implementation.
 *
 * `host` (device_host.c) copies immediately, on this rank's cores: the state is in host memory, and staging it is an
 * ordinary copy. A device with its own memory queues copies, and an event reports when they are done. One thread at a
 * time may use a device.
 *
 * Queued copies run in any order, and may read and write their memory until a later event is done. An event is done when
 * every copy queued before it is done. Events complete in the order in which they were recorded. Every call can fail; a
 * copy that fails later is reported by poll or wait of a later event. */
#ifndef ENGINE_DEVICE_H
#define ENGINE_DEVICE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/payload.h"
#include "ckpt/region.h"
#include "core/err.h"
#include "store/device_files.h"
#include "store/store.h"

#define DEVICE_VERSION 6

/* `rows` rows of `row_bytes`; the strides are the distances from row to row. */
struct device_copy {
    void *to;
    const void *from;
    uint64_t row_bytes, rows;
    uint64_t to_stride, from_stride; /* at least row_bytes; ignored for a single row */
};

/* DEVICE_TO_DEVICE copies within one device, or in the queue of a communicator (engine/device_comm.h). */
enum device_direction { DEVICE_TO_HOST, HOST_TO_DEVICE, DEVICE_TO_DEVICE };

/* The values of a region of a tensor (ckpt/payload.h), row-major. */
struct device_values {
    struct payload_source source;
    uint64_t shape[CKPT_MAX_DIMS];
    struct region region;
};

/* How memory differs from the expected values. */
struct device_difference {
    uint64_t wrong; /* elements */
    uint64_t first; /* index of the first wrong element in the tensor, if any */
};

struct device; /* an implementation's struct begins with `struct device` */

struct device_ops {
    uint32_t version; /* DEVICE_VERSION */
    const char *name;
    /* MEMORY_PINNED: host memory for fast copies and O_DIRECT, aligned to at least 4 KiB, already touched so that its
     * first use causes no page faults. MEMORY_DEVICE: device memory, aligned to at least 256 bytes. `bytes` > 0. */
    int (*allocate)(struct device *self, enum memory_kind kind, uint64_t bytes, void **memory, struct cb_err *err);
    void (*release)(struct device *self, enum memory_kind kind, void *memory, uint64_t bytes);
    /* Queues copies, or performs them. Borrows `copies` during the call; allocates nothing. */
    int (*copy)(struct device *self, enum device_direction direction, const struct device_copy *copies, size_t count,
                struct cb_err *err);
    /* Copies from here on wait for what has been queued so far on `stream`, which belongs to another program of this
     * process (a cudaStream_t). The host does not wait. NULL if the device has no memory of its own. */
    int (*follow)(struct device *self, void *stream, struct cb_err *err);
    int (*record)(struct device *self, uint64_t *event, struct cb_err *err);
    int (*poll)(struct device *self, uint64_t event, bool *done, struct cb_err *err);
    /* CB_ERR_TIMEOUT at the monotonic deadline. */
    int (*wait)(struct device *self, uint64_t event, uint64_t deadline_ns, struct cb_err *err);
    /* Times on the device, for traces. `begin_marks`, once for each step that is traced, forgets all marks, and compares the
     * device's clock with the monotonic clock: nothing may be pending, and it waits until the device has told its time. The
     * others never wait. `mark` marks the moment at which everything queued so far, copies and operations, is done.
     * `mark_ns` is that moment by the monotonic clock, within some microseconds; CB_ERR_ABORTED if it has not come yet.
     * NULL if the device has no memory of its own. */
    int (*begin_marks)(struct device *self, struct cb_err *err);
    int (*mark)(struct device *self, uint64_t *mark, struct cb_err *err);
    int (*mark_ns)(struct device *self, uint64_t mark, uint64_t *ns, struct cb_err *err);
    /* For device memory, which the host cannot access: set bytes, fill with values, compare with values. They wait for
     * copies queued before and return when done. NULL if the device has no memory of its own; MEMORY_DEVICE is rejected
     * then. */
    int (*set)(struct device *self, void *memory, unsigned char byte, uint64_t bytes, struct cb_err *err);
    int (*fill)(struct device *self, const struct device_values *values, void *memory, struct cb_err *err);
    int (*check)(struct device *self, const struct device_values *values, const void *memory,
                 struct device_difference *difference, struct cb_err *err);
    /* For saves and loads without host memory in between; end it before the memory that it uses is released. Fails with the
     * reason why that is not possible here. NULL: the device has nothing of the kind. */
    int (*open_files)(struct device *self, struct device_files **files, struct cb_err *err);
    void (*close)(struct device *self);
};

struct device {
    const struct device_ops *ops; /* set when the device is opened */
};

/* Host memory, copied by `threads` threads (1: only the caller) on the cores that the caller may use. Allocates huge
 * pages if the machine has some. */
int device_host_open(uint32_t threads, struct device **device, struct cb_err *err) CB_MUST_CHECK;
void device_close(struct device *self);

/* The cores that the caller may run on. */
uint32_t device_host_cores(void);

#endif
