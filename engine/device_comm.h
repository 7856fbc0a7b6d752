/* Ranks that talk from device memory to device memory: a communicator of a group of them.
 *
 * What is queued, by all communicators of a device together, happens in the order in which it was queued, and after
 * the copies that had been queued on the device itself by then; the device's own copies wait for none of it. Ranks
 * that have several groups in common must queue on them in one order, or they wait for each other for ever.
 * Memory must stay until an event behind what uses it. Every call can fail; what fails later fails at poll or wait.
 * After a failure or a deadline only abort and close remain. One thread, that of the device. */
#ifndef ENGINE_DEVICE_COMM_H
#define ENGINE_DEVICE_COMM_H

#include "engine/device.h"

#define DEVICE_COMM_ID_BYTES 128

enum device_collective {
    DEVICE_ALL_REDUCE,     /* sum of fp32; in place where both addresses are one, as is a broadcast */
    DEVICE_ALL_GATHER,     /* `bytes` of each rank to all, in the order of the ranks */
    DEVICE_REDUCE_SCATTER, /* sum of fp32; `bytes` is what a rank gets: its part, in the order of the ranks */
    DEVICE_BROADCAST,      /* of rank `peer` */
    DEVICE_ALL_TO_ALL,     /* `bytes` to each rank and from each rank */
    DEVICE_EXCHANGE,       /* `bytes` to rank `peer` and from it, which does the same; the others have no part in it */
};

struct device_comm;
struct device_comm_ops {
    int (*make_id)(char id[DEVICE_COMM_ID_BYTES], struct cb_err *err); /* one rank does, for all */
    /* Collective among the `size` ranks of the group. CB_ERR_UNSUPPORTED where two of them have one device. */
    int (*join)(struct device *device, const char id[DEVICE_COMM_ID_BYTES], uint32_t rank, uint32_t size,
                uint64_t deadline_ns, struct device_comm **comm, struct cb_err *err);
    /* The first of a communicator may wait for the other ranks to come, up to the deadline; none after it does. */
    int (*queue)(struct device_comm *self, enum device_collective kind, const void *from, void *to, uint64_t bytes,
                 uint32_t peer, uint64_t deadline_ns, struct cb_err *err);
    /* HOST_TO_DEVICE (of pinned memory) and DEVICE_TO_DEVICE, in one order with what `queue` queues. */
    int (*copy)(struct device_comm *self, enum device_direction direction, const struct device_copy *copies,
                size_t count, struct cb_err *err);
    /* Done when all is that was queued before it, by any communicator of the device. Any of them may be asked. */
    int (*record)(struct device_comm *self, uint64_t *event, struct cb_err *err);
    int (*poll)(struct device_comm *self, uint64_t event, bool *done, struct cb_err *err);
    /* Until all that was queued is done. */
    int (*wait)(struct device_comm *self, uint64_t deadline_ns, struct cb_err *err);
    void (*abort)(struct device_comm *self); /* also ends what is stuck */
    void (*close)(struct device_comm *self);
};

#endif
