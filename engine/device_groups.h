/* A cache of the communicators of a rank's device, one for each group of ranks, and a device buffer for their messages.
 * Joining is slow, so communicators are kept from one load to the next.
 *
 * All ranks of a group join and discard it together: if any rank fails, all discard all their groups
 * (device_groups_abort). Used only from the device's thread. */
#ifndef ENGINE_DEVICE_GROUPS_H
#define ENGINE_DEVICE_GROUPS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "comm/comm.h"
#include "core/err.h"
#include "engine/device_comm.h"

struct device_group {
    uint32_t *ranks; /* world ranks, in the order of the communicator's ranks */
    uint32_t count, mine;
    struct device_comm *comm;
};

struct device_groups {
    const struct device_comm_ops *ops; /* borrowed, as is the device; NULL: ranks communicate through host memory */
    struct device *device;
    struct device_group *groups;
    size_t group_count;
    char *memory; /* device memory; NULL before device_groups_reserve */
    uint64_t bytes;
};

void device_groups_init(struct device_groups *self, const struct device_comm_ops *ops, struct device *device);
/* Closes every communicator; collective among the ranks of each. Nothing may be in flight. */
void device_groups_release(struct device_groups *self);
/* Aborts all operations and discards all groups; keeps ops and the device. */
void device_groups_abort(struct device_groups *self);

/* Makes the buffer at least `bytes` large; its content is lost if it has to grow. */
int device_groups_reserve(struct device_groups *self, uint64_t bytes, struct cb_err *err) CB_MUST_CHECK;

/* The communicator of these ranks; this rank is number `mine` among them. Joins them if they have no communicator yet,
 * which is collective among them; ranks that share several groups must join them in the same order. The id travels over
 * `comm` with `tag`. Memory must have been reserved. CB_ERR_UNSUPPORTED if two of the ranks share a device. */
int device_groups_join(struct device_groups *self, struct comm *comm, const uint32_t *ranks, uint32_t count,
                       uint32_t mine, uint32_t tag, uint64_t deadline_ns, struct device_comm **joined,
                       struct cb_err *err) CB_MUST_CHECK;

#endif
