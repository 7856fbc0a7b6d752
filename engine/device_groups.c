/* Joins and keeps communicators between devices. */
#include "engine/device_groups.h"

#include <string.h>
#include <time.h>

#include "core/alloc.h"
#include "core/clock.h"

#define SLEEP_NS (50 * NS_PER_US)
#define GREETING_BYTES 256 /* the first message of a group, which establishes the links between devices */

/* What the first rank of a group sends to the others. */
struct introduction {
    int64_t code; /* not 0: the first rank has no id */
    char id[DEVICE_COMM_ID_BYTES];
};

void device_groups_init(struct device_groups *self, const struct device_comm_ops *ops, struct device *device)
{
    *self = (struct device_groups){.ops = ops, .device = device};
}

static void forget(struct device_groups *self)
{
    for (size_t i = 0; i < self->group_count; i++)
        free(self->groups[i].ranks);
    free(self->groups);
    if (self->memory)
        self->device->ops->release(self->device, MEMORY_DEVICE, self->memory, self->bytes);
    device_groups_init(self, self->ops, self->device);
}

void device_groups_release(struct device_groups *self)
{
    for (size_t i = 0; i < self->group_count; i++)
        self->ops->close(self->groups[i].comm);
    forget(self);
}

void device_groups_abort(struct device_groups *self)
{
    for (size_t i = 0; i < self->group_count; i++) /* on all communicators, before anything waits for the device */
        self->ops->abort(self->groups[i].comm);
    device_groups_release(self);
}

int device_groups_reserve(struct device_groups *self, uint64_t bytes, struct cb_err *err)
{
    void *memory = NULL;
    bytes = bytes > GREETING_BYTES ? bytes : GREETING_BYTES;
    if (self->bytes >= bytes)
        return 0;
    if (self->memory)
        self->device->ops->release(self->device, MEMORY_DEVICE, self->memory, self->bytes);
    self->memory = NULL;
    self->bytes = 0;
    int rc = self->device->ops->allocate(self->device, MEMORY_DEVICE, bytes, &memory, err);
    if (rc)
        return cb_context(err, "what ranks send each other");
    self->memory = memory;
    self->bytes = bytes;
    return 0;
}

/* --- joining --- */

static int wait_for(struct comm *comm, struct comm_message *message, uint64_t deadline_ns, struct cb_err *err)
{
    struct timespec pause = {.tv_nsec = SLEEP_NS};
    for (;;) {
        bool done = false;
        int rc = comm_message_test(comm, message, &done, err);
        if (rc || done)
            return rc;
        rc = comm_check(comm, err);
        if (!rc && clock_monotonic_ns() > deadline_ns)
            rc = cb_fail(err, CB_ERR_TIMEOUT, "the other ranks of a group did not come");
        if (rc)
            return rc;
        nanosleep(&pause, NULL);
    }
}

static int tell_others(struct comm *comm, const struct introduction *told, const struct device_group *group,
                       uint32_t tag, uint64_t deadline_ns, struct cb_err *err)
{
    struct comm_message message;
    int rc = 0;
    for (uint32_t i = 1; i < group->count && !rc; i++) {
        rc = comm_send(comm, told, sizeof *told, group->ranks[i], tag, &message, err);
        if (!rc)
            rc = wait_for(comm, &message, deadline_ns, err);
    }
    return rc;
}

static int hear(struct comm *comm, struct introduction *told, const struct device_group *group, uint32_t tag,
                uint64_t deadline_ns, struct cb_err *err)
{
    struct comm_message message;
    int rc = comm_receive(comm, told, sizeof *told, group->ranks[0], tag, &message, err);
    return rc ? rc : wait_for(comm, &message, deadline_ns, err);
}

/* Sends the first rank's id to the group, or the reason why it has no id. */
static int introduce(struct device_groups *self, struct comm *comm, const struct device_group *group, uint32_t tag,
                     uint64_t deadline_ns, char id[DEVICE_COMM_ID_BYTES], struct cb_err *err)
{
    struct introduction *told = calloc(1, sizeof *told);
    struct cb_err why;
    if (!told)
        return alloc_fail(err, "to introduce ranks to each other");
    if (group->mine == 0)
        told->code = self->ops->make_id(told->id, &why);
    int rc = group->mine == 0 ? tell_others(comm, told, group, tag, deadline_ns, err)
                              : hear(comm, told, group, tag, deadline_ns, err);
    if (rc) {
        comm_abandon_messages(comm); /* `told` stays: it may still be written to */
        return rc;
    }
    if (told->code && group->mine == 0) {
        *err = why;
        rc = why.code;
    } else if (told->code) {
        rc = cb_fail(err, CB_ERR_ABORTED, "rank %u could not make a communicator for its group", group->ranks[0]);
    }
    memcpy(id, told->id, sizeof told->id);
    free(told);
    return rc;
}

static int meet(struct device_groups *self, struct comm *comm, struct device_group *group, uint32_t tag,
                uint64_t deadline_ns, struct cb_err *err)
{
    char id[DEVICE_COMM_ID_BYTES];
    int rc = introduce(self, comm, group, tag, deadline_ns, id, err);
    if (!rc)
        rc = self->ops->join(self->device, id, group->mine, group->count, deadline_ns, &group->comm, err);
    if (rc)
        return rc;
    rc = self->ops->queue(group->comm, DEVICE_BROADCAST, self->memory, self->memory, GREETING_BYTES, 0, deadline_ns,
                          err);
    if (!rc)
        rc = self->ops->wait(group->comm, deadline_ns, err);
    if (!rc)
        return 0;
    self->ops->abort(group->comm);
    self->ops->close(group->comm);
    return rc;
}

static bool is_group(const struct device_group *group, const uint32_t *ranks, uint32_t count)
{
    return group->count == count && memcmp(group->ranks, ranks, count * sizeof *ranks) == 0;
}

int device_groups_join(struct device_groups *self, struct comm *comm, const uint32_t *ranks, uint32_t count,
                       uint32_t mine, uint32_t tag, uint64_t deadline_ns, struct device_comm **joined,
                       struct cb_err *err)
{
    for (size_t i = 0; i < self->group_count; i++) {
        if (is_group(&self->groups[i], ranks, count)) {
            *joined = self->groups[i].comm;
            return 0;
        }
    }
    int rc = alloc_grow(&self->groups, self->group_count, sizeof *self->groups, err);
    if (rc)
        return rc;
    struct device_group group = {.ranks = malloc(count * sizeof *ranks), .count = count, .mine = mine};
    if (!group.ranks)
        return alloc_fail(err, "for a group of %u ranks", count);
    memcpy(group.ranks, ranks, count * sizeof *ranks);
    rc = meet(self, comm, &group, tag, deadline_ns, err);
    if (rc) {
        free(group.ranks);
        return rc;
    }
    self->groups[self->group_count++] = group;
    *joined = group.comm;
    return 0;
}
