/* The communicators of a rank's device, one for each group of ranks that it has been in, and the device's memory that
 * their messages pass through. Joining takes long, so they are kept from one load to the next.
 *
 * All ranks of a group join and forget it together: after a failure of any of them all forget all of theirs
 * (device_groups_abort). A value; one thread, that of the device. */
#ifndef ENGINE_DEVICE_GROUPS_H
#define ENGINE_DEVICE_GROUPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"
#include "core/err.h"
#include "engine/device_comm.h"

struct device_group {
    uint32_t *ranks; /* of the world, in the order of the communicator's */
    uint32_t count, mine;
    struct device_comm *comm;
};

struct device_groups {
    const struct device_comm_ops *ops; /* borrowed, as is the device; NULL: ranks talk through this machine's memory */
    struct device *device;
    struct device_group *groups;
    size_t group_count, group_capacity;
    char *memory; /* of the device; NULL before device_groups_reserve */
    uint64_t bytes;
};

void device_groups_init(struct device_groups *self, const struct device_comm_ops *ops, struct device *device);
/* Nothing is under way. Ends each communicator with its other ranks, who do the same. */
void device_groups_release(struct device_groups *self);
/* Ends whatever is under way or stuck, and forgets all groups; what ops is stays. */
void device_groups_abort(struct device_groups *self);

/* At least `bytes` of the device's memory; what it held is gone where it must be allocated anew. */
int device_groups_reserve(struct device_groups *self, uint64_t bytes, struct cb_err *err) CB_MUST_CHECK;

/* The communicator of these ranks, of which this one is number `mine`; where there is none yet they join: collective
 * among them, and several groups in one order on all ranks. `comm` carries the introduction, with `tag`. Memory must have
 * been reserved. CB_ERR_UNSUPPORTED where two of them have one device. */
int device_groups_join(struct device_groups *self, struct comm *comm, const uint32_t *ranks, uint32_t count,
                       uint32_t mine, uint32_t tag, uint64_t deadline_ns, struct device_comm **joined,
                       struct cb_err *err) CB_MUST_CHECK;

#endif
