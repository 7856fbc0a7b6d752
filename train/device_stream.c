/* A stream on a device: tickets are events of the queue that the device's communicators share. */
#include "train/device_stream.h"

#include <time.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "engine/device_groups.h"

#define MOST_PENDING 512 /* fewer than the events that a device keeps */
#define SPIN_NS (100 * NS_PER_US)
#define SLEEP_NS (20 * NS_PER_US)
#define TAG_SHARDS 81 /* of the messages that bring the ids of communicators */
#define TAG_REPLICAS 82
#define TAG_ALL 83

struct device_stream {
    struct device_stream_setup setup;
    struct device_groups groups;
    uint64_t events[MOST_PENDING]; /* of a ticket, at its remainder */
    uint64_t added, held, done;    /* tickets */
    uint64_t deadline_ns;
    int code; /* of the first failure */
    struct cb_err err;
    struct stream_counts counts;
};

/* --- creation --- */

/* Joins `count` ranks, of which this one is number `mine`: `first`, `first` + `step`, … */
static int join(struct device_stream *self, struct stream_group *group, uint32_t first, uint32_t step, uint32_t mine,
                uint32_t tag, uint64_t deadline_ns, struct cb_err *err)
{
    uint32_t *ranks = calloc(group->ranks, sizeof *ranks);
    if (!ranks)
        return alloc_fail(err, "for a group of %u ranks", group->ranks);
    for (uint32_t i = 0; i < group->ranks; i++)
        ranks[i] = first + i * step;
    int rc = device_groups_join(&self->groups, self->setup.comm, ranks, group->ranks, mine, tag, deadline_ns,
                                &group->device_comm, err);
    free(ranks);
    return rc == CB_ERR_UNSUPPORTED ? cb_context(err, "training with device=cuda needs a GPU for each rank") : rc;
}

/* In hybrid sharding two ranks may have no group in common, and a device that ranks share is found only within a group:
 * all ranks join one for a moment. */
static int check_devices(const struct device_stream_setup *setup, uint64_t deadline_ns, struct cb_err *err)
{
    struct device_stream all = {.setup = *setup};
    struct stream_group group = {.ranks = comm_size(setup->comm)};
    device_groups_init(&all.groups, setup->ops, setup->device);
    int rc = device_groups_reserve(&all.groups, 0, err);
    if (!rc)
        rc = join(&all, &group, 0, 1, comm_rank(setup->comm), TAG_ALL, deadline_ns, err);
    if (rc)
        device_groups_abort(&all.groups);
    else
        device_groups_release(&all.groups);
    return rc;
}

int device_stream_new(const struct device_stream_setup *setup, uint64_t deadline_ns, struct device_stream **stream,
                      struct cb_err *err)
{
    uint32_t rank = comm_rank(setup->comm), shards = setup->shards->ranks;
    struct device_stream *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "for the exchange between ranks");
    self->setup = *setup;
    self->deadline_ns = deadline_ns;
    device_groups_init(&self->groups, setup->ops, setup->device);
    int rc = shards > 1 && setup->replicas->ranks > 1 ? check_devices(setup, deadline_ns, err) : 0;
    if (!rc)
        rc = device_groups_reserve(&self->groups, 0, err);
    if (!rc && (shards > 1 || setup->copies))
        rc = join(self, setup->shards, rank / shards * shards, 1, rank % shards, TAG_SHARDS, deadline_ns, err);
    if (!rc && setup->replicas->ranks > 1)
        rc = join(self, setup->replicas, rank % shards, shards, rank / shards, TAG_REPLICAS, deadline_ns, err);
    if (rc) {
        device_groups_abort(&self->groups);
        free(self);
        return rc;
    }
    *stream = self;
    return 0;
}

void device_stream_free(struct device_stream *self)
{
    if (!self)
        return;
    if (self->code || self->done < self->added)
        device_groups_abort(&self->groups);
    else
        device_groups_release(&self->groups);
    free(self);
}

void device_stream_begin(struct device_stream *self, uint64_t deadline_ns)
{
    self->deadline_ns = deadline_ns;
}

/* --- waiting --- */

/* The communicators share a queue, so any of them knows the event; but each reports only its own ranks' failures. */
static int poll_all(struct device_stream *self, uint64_t event, bool *done, struct cb_err *err)
{
    int rc = 0;
    for (size_t i = 0; i < self->groups.group_count && !rc; i++)
        rc = self->setup.ops->poll(self->groups.groups[i].comm, event, done, err);
    return rc;
}

static int wait_for(struct device_stream *self, uint64_t ticket, uint64_t deadline_ns, struct cb_err *err)
{
    uint64_t start_ns = clock_monotonic_ns();
    const struct timespec pause = {.tv_nsec = SLEEP_NS};
    while (self->done < ticket) {
        bool done = false;
        int rc = poll_all(self, self->events[ticket % MOST_PENDING], &done, err);
        if (rc)
            return rc;
        if (done) {
            self->done = ticket;
            return 0;
        }
        uint64_t now_ns = clock_monotonic_ns();
        rc = comm_check(self->setup.comm, err);
        if (!rc && now_ns > deadline_ns)
            rc = cb_fail(err, CB_ERR_TIMEOUT, "another rank's GPU did not take part in the exchange in time");
        if (rc)
            return rc;
        if (now_ns - start_ns > SPIN_NS)
            nanosleep(&pause, NULL);
    }
    return 0;
}

static int failure(const struct device_stream *self, struct cb_err *err)
{
    if (self->code && err)
        *err = self->err;
    return self->code;
}

int device_stream_wait(struct device_stream *self, uint64_t ticket, uint64_t deadline_ns, struct cb_err *err)
{
    if (!self->code)
        self->code = wait_for(self, ticket, deadline_ns, &self->err);
    return failure(self, err);
}

int device_stream_hold(struct device_stream *self, uint64_t ticket, struct cb_err *err)
{
    if (!self->code && ticket > self->held && ticket > self->done)
        self->code =
            self->setup.ops->hold_device(self->groups.groups[0].comm, self->events[ticket % MOST_PENDING], &self->err);
    if (ticket > self->held)
        self->held = ticket;
    return failure(self, err);
}

/* --- work --- */

static int queue(struct device_stream *self, const struct stream_work *work, struct cb_err *err)
{
    static const enum device_collective kinds[] = {[STREAM_GATHER] = DEVICE_ALL_GATHER,
                                                   [STREAM_SCATTER] = DEVICE_REDUCE_SCATTER,
                                                   [STREAM_REDUCE] = DEVICE_ALL_REDUCE};
    const struct device_comm_ops *ops = self->setup.ops;
    struct device_comm *comm = work->group->device_comm;
    uint64_t bytes = work->values * sizeof(float);
    const struct device_copy copy = {.to = work->to, .from = work->from, .row_bytes = bytes, .rows = 1};
    if (work->kind == STREAM_TO_DEVICE)
        return ops->copy(comm, HOST_TO_DEVICE, &copy, 1, err);
    if (work->kind == STREAM_TO_HOST)
        return ops->copy(comm, DEVICE_TO_HOST, &copy, 1, err);
    return ops->queue(comm, kinds[work->kind], work->from, work->to, bytes, 0, self->deadline_ns, err);
}

/* In a traced step the device notes when a piece of work starts and ends; the host does not wait for it. */
static int add(struct device_stream *self, const struct stream_work *work, struct cb_err *err)
{
    const struct device_comm_ops *ops = self->setup.ops;
    struct device_comm *comm = work->group->device_comm;
    uint64_t ticket = self->added + 1, start = 0, end = 0;
    bool is_full = self->added - self->done == MOST_PENDING, is_traced = trace_is_active(self->setup.trace);
    int rc = is_full ? wait_for(self, ticket - MOST_PENDING, self->deadline_ns, err) : 0;
    if (!rc && is_traced)
        rc = ops->mark(comm, &start, err);
    if (!rc)
        rc = queue(self, work, err);
    if (!rc && is_traced)
        rc = ops->mark(comm, &end, err);
    if (!rc)
        rc = ops->record(comm, &self->events[ticket % MOST_PENDING], err);
    if (rc)
        return rc;
    self->added = ticket;
    stream_count(&self->counts, work);
    if (is_traced)
        stream_note(self->setup.trace, work, true, start, end);
    return 0;
}

uint64_t device_stream_add(struct device_stream *self, const struct stream_work *work)
{
    if (!self->code)
        self->code = add(self, work, &self->err);
    return self->added;
}

struct stream_counts device_stream_counts(const struct device_stream *self)
{
    return self->counts;
}
