/* Communication from device memory to device memory, within a group of ranks.
 *
 * The communicators of a device share one queue: their operations run in the order in which they were queued, and after
 * the copies and operations that were queued on the device before. The device's own queue does not wait for this one, except
 * by hold_device. Ranks that share several groups must queue on them in the same order, or they deadlock. Memory must stay valid until a later event is
 * done. Every call can fail; later failures are reported by poll or wait. After a failure or a time-out only abort and
 * close may be called. Used only from the device's thread. */
#ifndef ENGINE_DEVICE_COMM_H
#define ENGINE_DEVICE_COMM_H

#include "engine/device.h"

#define DEVICE_COMM_ID_BYTES 128

enum device_collective {
    DEVICE_ALL_REDUCE,     /* sum of fp32; in place if both addresses are equal, also for a broadcast */
    DEVICE_ALL_GATHER,     /* `bytes` of each rank to all, in the order of the ranks */
    DEVICE_REDUCE_SCATTER, /* sum of fp32; each rank receives `bytes`, its part in the order of the ranks */
    DEVICE_BROADCAST,      /* from rank `peer` */
    DEVICE_ALL_TO_ALL,     /* `bytes` to each rank and from each rank */
    DEVICE_EXCHANGE,       /* `bytes` to and from rank `peer`, which makes the same call; no other rank takes part */
};

struct device_comm;
struct device_comm_ops {
    int (*make_id)(char id[DEVICE_COMM_ID_BYTES], struct cb_err *err); /* called by one rank for the group */
    /* Collective among the `size` ranks of the group. CB_ERR_UNSUPPORTED if two of them share a device. */
    int (*join)(struct device *device, const char id[DEVICE_COMM_ID_BYTES], uint32_t rank, uint32_t size,
                uint64_t deadline_ns, struct device_comm **comm, struct cb_err *err);
    /* Only the first collective of a communicator may block, until all ranks have arrived or the deadline. */
    int (*queue)(struct device_comm *self, enum device_collective kind, const void *from, void *to, uint64_t bytes,
                 uint32_t peer, uint64_t deadline_ns, struct cb_err *err);
    /* From or to pinned memory, or DEVICE_TO_DEVICE, in the same order as what `queue` queues. */
    int (*copy)(struct device_comm *self, enum device_direction direction, const struct device_copy *copies,
                size_t count, struct cb_err *err);
    /* The event is done when everything queued before it, on any communicator of the device, is done. Any communicator
     * of the device may poll it. */
    int (*record)(struct device_comm *self, uint64_t *event, struct cb_err *err);
    /* A mark of the device (engine/device.h) in this queue: as everything in it, after what was queued on the device
     * before. */
    int (*mark)(struct device_comm *self, uint64_t *mark, struct cb_err *err);
    /* What is queued on the device later, copies and operations, waits for the event. The host does not wait. */
    int (*hold_device)(struct device_comm *self, uint64_t event, struct cb_err *err);
    int (*poll)(struct device_comm *self, uint64_t event, bool *done, struct cb_err *err);
    /* Waits until everything queued is done. */
    int (*wait)(struct device_comm *self, uint64_t deadline_ns, struct cb_err *err);
    void (*abort)(struct device_comm *self); /* also stops operations that hang */
    void (*close)(struct device_comm *self);
};

#endif
