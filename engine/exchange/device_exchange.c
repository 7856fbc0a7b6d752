/* An exchange from device to device: a rank copies what it reads to its device, and broadcasts it from there to all
 * ranks that need it, while reading continues.
 *
 * Blocks are queued in the order of ckpt/load/load_share.h on all ranks, which prevents deadlocks; a few are in flight
 * at a time. A block that is one contiguous range on all ranks is read, sent and received in the state itself. Other
 * blocks pass through device buffers; if ranks need different columns, all receive the whole block and each takes its
 * own. A device works in order, so its buffers can be reused without waiting. The window only limits how much is
 * queued, and determines when host memory may be reused. */
#include <inttypes.h>

#include "core/alloc.h"
#include "engine/exchange/exchange_window.h"
#include "engine/mapping.h"

#define BATCH 64 /* copies queued in one call */

/* A block in flight. */
struct queued {
    size_t block;
    uint64_t event;
};

struct device_exchange {
    struct exchange base;
    struct device_groups *groups;
    uint64_t deadline_ns;
    struct device_comm **comms; /* of the share's groups */
    char *buffers;              /* on the device: one for each block in flight */
    uint64_t buffer_bytes;
    struct queued ring[EXCHANGE_WINDOW];
    uint32_t first; /* the oldest open block */
};

static char *buffer_of(const struct device_exchange *self, size_t index)
{
    return self->buffers + index % EXCHANGE_WINDOW * self->buffer_bytes;
}

/* --- what a block's ranks queue --- */

/* Copies the reader's parts into the buffer, one after another, from the state or from the transit buffer. */
static int gather(struct device_exchange *self, size_t index, struct device_comm *comm, struct cb_err *err)
{
    const struct device_comm_ops *ops = self->groups->ops;
    const struct share_block *block = exchange_block(&self->base.window, index);
    enum device_direction direction =
        exchange_in_transit(&self->base.window, block) ? HOST_TO_DEVICE : DEVICE_TO_DEVICE;
    char *to = buffer_of(self, index);
    int rc = 0;
    for (size_t i = 0; i < block->part_count && !rc; i++) {
        uint64_t bytes = exchange_part_bytes(&self->base.window, exchange_part(&self->base.window, block, i));
        const char *from = exchange_read_to(&self->base.window, block, i);
        struct device_copy copy = {.to = to, .from = from, .row_bytes = bytes, .rows = 1};
        rc = ops->copy(comm, direction, &copy, 1, err);
        self->base.copied += bytes;
        to += bytes;
    }
    return rc;
}

/* Copies this rank's share of a part from the buffer to the state. */
static int scatter_part(struct device_exchange *self, const struct share_part *part, const struct region *own,
                        const char *from, struct device_comm *comm, struct cb_err *err)
{
    struct device_copy copies[BATCH];
    struct mapping mapping;
    struct mapping_rows rows;
    char *memory;
    const struct piece *piece = exchange_piece(&self->base.window, part, &memory);
    size_t count = 0;
    int rc = 0;
    mapping_init(&mapping, &part->extent, &piece->region, own, exchange_element_bytes(&self->base.window, part));
    for (uint64_t run = mapping_first_run(&mapping, 0);
         mapping_next_rows(&mapping, &run, 0, exchange_part_bytes(&self->base.window, part), &rows) && !rc;) {
        copies[count++] = (struct device_copy){
            .to = memory + rows.memory_at,
            .from = from + rows.bytes_at,
            .row_bytes = rows.row_bytes,
            .rows = rows.rows,
            .to_stride = rows.memory_stride,
            .from_stride = rows.bytes_stride,
        };
        self->base.copied += rows.row_bytes * rows.rows;
        if (count == BATCH) {
            rc = self->groups->ops->copy(comm, DEVICE_TO_DEVICE, copies, count, err);
            count = 0;
        }
    }
    if (!rc && count > 0)
        rc = self->groups->ops->copy(comm, DEVICE_TO_DEVICE, copies, count, err);
    return rc;
}

static int scatter(struct device_exchange *self, size_t index, struct device_comm *comm, struct cb_err *err)
{
    const struct share_block *block = exchange_block(&self->base.window, index);
    const struct share_group *group = exchange_group(&self->base.window, block);
    const char *from = buffer_of(self, index);
    int rc = 0;
    for (size_t i = 0; i < block->part_count && !rc; i++) {
        const struct share_part *part = exchange_part(&self->base.window, block, i);
        struct region own;
        if (load_share_of_class(self->base.window.setup.share, part, group->mine / group->replicas, &own))
            rc = scatter_part(self, part, &own, from, comm, err);
        from += exchange_part_bytes(&self->base.window, part);
    }
    return rc;
}

static int queue_block(struct device_exchange *self, size_t index, struct cb_err *err)
{
    const struct device_comm_ops *ops = self->groups->ops;
    const struct share_block *block = exchange_block(&self->base.window, index);
    struct device_comm *comm = self->comms[block->group];
    bool reads = exchange_is_reader(&self->base.window, block);
    char *direct = exchange_direct(&self->base.window, block), *bytes = direct ? direct : buffer_of(self, index);
    int rc = direct || !reads ? 0 : gather(self, index, comm, err);
    if (!rc)
        rc = ops->queue(comm, DEVICE_BROADCAST, bytes, bytes, block->bytes, block->reader, self->deadline_ns, err);
    if (!rc && !direct && !(reads && !exchange_in_transit(&self->base.window, block))) /* else the state has it */
        rc = scatter(self, index, comm, err);
    struct queued *queued = &self->ring[(self->first + self->base.open) % EXCHANGE_WINDOW];
    queued->block = index;
    if (!rc)
        rc = ops->record(comm, &queued->event, err);
    self->base.open += rc ? 0 : 1;
    return rc;
}

/* --- the window --- */

static bool may_queue(const struct device_exchange *self)
{
    if (self->base.failed || self->base.window.next == self->base.window.end || self->base.open == EXCHANGE_WINDOW)
        return false;
    const struct share_block *block = exchange_block(&self->base.window, self->base.window.next);
    return !exchange_is_reader(&self->base.window, block) ||
           exchange_window_has_landed(&self->base.window, self->base.window.next);
}

/* Whether any block made progress. */
static bool turn(struct exchange *base)
{
    struct device_exchange *self = (struct device_exchange *)base;
    bool moved = false, done = true;
    while (!self->base.failed && self->base.open > 0 && done) {
        const struct queued *oldest = &self->ring[self->first];
        struct device_comm *comm = self->comms[exchange_block(&self->base.window, oldest->block)->group];
        if (self->groups->ops->poll(comm, oldest->event, &done, &self->base.err)) {
            exchange_fail(&self->base);
        } else if (done) {
            self->first = (self->first + 1) % EXCHANGE_WINDOW;
            self->base.open--;
            moved = true;
        }
    }
    while (may_queue(self)) {
        if (queue_block(self, self->base.window.next, &self->base.err))
            exchange_fail(&self->base);
        self->base.window.next++;
        moved = true;
    }
    return moved;
}

static bool is_travelling(const struct exchange *self)
{
    return self->open > 0;
}

static size_t oldest_block(const struct exchange *base)
{
    const struct device_exchange *self = (const struct device_exchange *)base;
    if (self->base.open > 0)
        return self->ring[self->first].block;
    return self->base.window.next < self->base.window.end ? self->base.window.next : EXCHANGE_NO_BLOCK;
}

/* --- starting and ending --- */

static int allocate(struct device_exchange *self, struct cb_err *err)
{
    const struct load_share *share = self->base.window.setup.share;
    self->buffer_bytes = exchange_longest_buffered(&self->base.window);
    self->comms = calloc(share->group_count + 1, sizeof *self->comms);
    if (!self->comms)
        return alloc_fail(err, "for the communicators of a load");
    int rc =
        pinned_reserve(self->base.window.setup.pinned, self->base.window.setup.state->device, share->transit_most, err);
    if (rc)
        return cb_context(err, "what is in transit in a load");
    self->base.window.transit = self->base.window.setup.pinned->memory;
    rc = device_groups_reserve(self->groups, self->buffer_bytes * EXCHANGE_WINDOW, err);
    self->buffers = self->groups->memory;
    return rc;
}

static int join_group(struct device_exchange *self, uint32_t index, struct cb_err *err)
{
    const struct share_group *group = &self->base.window.setup.share->groups[index];
    uint32_t count = group->classes * group->replicas;
    uint32_t *ranks = malloc(count * sizeof *ranks);
    if (!ranks)
        return alloc_fail(err, "for a group of %" PRIu32 " ranks", count);
    for (uint32_t i = 0; i < count; i++)
        ranks[i] = exchange_rank_of(&self->base.window, group, i);
    int rc = device_groups_join(self->groups, self->base.window.setup.comm, ranks, count, group->mine,
                                group->code * EXCHANGE_TAGS_A_CODE, self->deadline_ns, &self->comms[index], err);
    free(ranks);
    return rc;
}

/* Joins all groups in the order of their blocks, which is the same on all ranks. Continues after a failure, since other
 * ranks wait in the later groups. */
static int join_groups(struct device_exchange *self, struct cb_err *err)
{
    const struct load_share *share = self->base.window.setup.share;
    struct cb_err later;
    int failure = 0;
    for (size_t i = 0; i < share->block_count; i++) {
        uint32_t group = share->blocks[i].group;
        if (i > 0 && share->blocks[i - 1].group == group)
            continue;
        int rc = self->comms[group] ? 0 : join_group(self, group, failure ? &later : err);
        failure = failure ? failure : rc;
        if (rc == CB_ERR_TIMEOUT || rc == CB_ERR_ABORTED)
            return failure;
    }
    return failure;
}

static void abandon(struct exchange *self)
{
    self->failed = true;
    device_groups_abort(((struct device_exchange *)self)->groups);
}

static void release(struct exchange *self)
{
    if (self->failed)
        pinned_leave(self->window.setup.pinned); /* copies may still be reading it */
    free(((struct device_exchange *)self)->comms);
}

int device_exchange_new(const struct device_exchange_setup *setup, struct exchange **exchange, struct cb_err *err)
{
    static const struct exchange_ops ops = {
        .turn = turn,
        .is_travelling = is_travelling,
        .oldest_block = oldest_block,
        .abandon = abandon,
        .release = release,
        .travels = "exchanged between devices",
        .context = "exchanging between devices",
    };
    struct device_exchange *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "to exchange a load");
    self->base.ops = &ops;
    self->groups = setup->groups;
    self->deadline_ns = setup->deadline_ns;
    int rc = exchange_window_init(&self->base.window, &setup->load, false, err);
    if (!rc)
        rc = allocate(self, err);
    if (!rc)
        rc = join_groups(self, err);
    if (rc)
        exchange_free(&self->base);
    else
        *exchange = &self->base;
    return rc;
}
