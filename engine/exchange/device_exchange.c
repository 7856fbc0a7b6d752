/* The exchange of a load between devices. Owns what is queued and the window of it; knows shares, not files or
 * formats. What a device has been given to do it does in order, so buffers of the device need no waiting for: the
 * window only bounds how much is queued, and says when memory of this machine may be used again. */
#include "engine/exchange/device_exchange.h"

#include <assert.h>
#include <inttypes.h>

#include "core/alloc.h"
#include "engine/mapping.h"

#define BATCH 64 /* copies handed over at once */

/* A block that is under way. */
struct queued {
    size_t block;
    uint64_t event;
};

struct device_exchange {
    struct exchange_window window;
    struct device_talk *talk;
    uint64_t deadline_ns;
    struct device_comm **comms; /* of the share's groups */
    char *buffers;              /* of the device: one for each block that is under way */
    uint64_t buffer_bytes;
    struct queued ring[EXCHANGE_WINDOW];
    uint32_t first, count; /* oldest first */
    bool failed;
    uint64_t copied;
    struct cb_err err; /* why it failed */
};

static char *buffer_of(const struct device_exchange *self, size_t index)
{
    return self->buffers + index % EXCHANGE_WINDOW * self->buffer_bytes;
}

/* --- what a block's ranks queue --- */

/* The reader's parts one after another in the buffer, from the state or from what is in transit. */
static int gather(struct device_exchange *self, size_t index, struct device_comm *comm, struct cb_err *err)
{
    const struct device_comm_ops *ops = self->talk->ops;
    const struct share_block *block = exchange_block(&self->window, index);
    enum device_direction direction = exchange_in_transit(&self->window, block) ? HOST_TO_DEVICE : DEVICE_TO_DEVICE;
    char *to = buffer_of(self, index);
    int rc = 0;
    for (size_t i = 0; i < block->part_count && !rc; i++) {
        uint64_t bytes = exchange_part_bytes(&self->window, exchange_part(&self->window, block, i));
        const char *from = exchange_read_to(&self->window, block, i);
        struct device_copy copy = {.to = to, .from = from, .row_bytes = bytes, .rows = 1};
        rc = ops->copy(comm, direction, &copy, 1, err);
        self->copied += bytes;
        to += bytes;
    }
    return rc;
}

/* What of a part is this rank's, from the buffer to the state. */
static int scatter_part(struct device_exchange *self, const struct share_part *part, const struct box *own,
                        const char *from, struct device_comm *comm, struct cb_err *err)
{
    struct device_copy copies[BATCH];
    struct mapping mapping;
    struct mapping_rows rows;
    char *memory;
    const struct piece *piece = exchange_piece(&self->window, part, &memory);
    size_t count = 0;
    int rc = 0;
    mapping_init(&mapping, &part->box, &piece->box, own, exchange_element_bytes(&self->window, part));
    for (uint64_t run = mapping_first_run(&mapping, 0);
         mapping_next_rows(&mapping, &run, 0, exchange_part_bytes(&self->window, part), &rows) && !rc;) {
        copies[count++] = (struct device_copy){
            .to = memory + rows.memory_at,
            .from = from + rows.bytes_at,
            .row_bytes = rows.row_bytes,
            .rows = rows.rows,
            .to_stride = rows.memory_stride,
            .from_stride = rows.bytes_stride,
        };
        self->copied += rows.row_bytes * rows.rows;
        if (count == BATCH) {
            rc = self->talk->ops->copy(comm, DEVICE_TO_DEVICE, copies, count, err);
            count = 0;
        }
    }
    if (!rc && count > 0)
        rc = self->talk->ops->copy(comm, DEVICE_TO_DEVICE, copies, count, err);
    return rc;
}

static int scatter(struct device_exchange *self, size_t index, struct device_comm *comm, struct cb_err *err)
{
    const struct share_block *block = exchange_block(&self->window, index);
    const struct share_group *group = exchange_group(&self->window, block);
    const char *from = buffer_of(self, index);
    int rc = 0;
    for (size_t i = 0; i < block->part_count && !rc; i++) {
        const struct share_part *part = exchange_part(&self->window, block, i);
        struct box own;
        if (load_share_of_class(self->window.setup.share, part, group->mine / group->replicas, &own))
            rc = scatter_part(self, part, &own, from, comm, err);
        from += exchange_part_bytes(&self->window, part);
    }
    return rc;
}

static int queue_block(struct device_exchange *self, size_t index, struct cb_err *err)
{
    const struct device_comm_ops *ops = self->talk->ops;
    const struct share_block *block = exchange_block(&self->window, index);
    struct device_comm *comm = self->comms[block->group];
    bool reads = exchange_is_reader(&self->window, block);
    char *direct = exchange_direct(&self->window, block), *bytes = direct ? direct : buffer_of(self, index);
    int rc = direct || !reads ? 0 : gather(self, index, comm, err);
    if (!rc)
        rc = ops->queue(comm, DEVICE_BROADCAST, bytes, bytes, block->bytes, block->reader, self->deadline_ns, err);
    if (!rc && !direct && !(reads && !exchange_in_transit(&self->window, block))) /* else its state has it */
        rc = scatter(self, index, comm, err);
    struct queued *queued = &self->ring[(self->first + self->count) % EXCHANGE_WINDOW];
    queued->block = index;
    if (!rc)
        rc = ops->record(comm, &queued->event, err);
    self->count += rc ? 0 : 1;
    return rc;
}

/* --- the window --- */

static void fail(struct device_exchange *self)
{
    self->failed = true;
    device_talk_abort(self->talk);
}

static bool may_queue(const struct device_exchange *self)
{
    if (self->failed || self->window.next == self->window.end || self->count == EXCHANGE_WINDOW)
        return false;
    const struct share_block *block = exchange_block(&self->window, self->window.next);
    return !exchange_is_reader(&self->window, block) || exchange_window_has_landed(&self->window, self->window.next);
}

/* Whether anything got further. */
static bool turn(struct device_exchange *self)
{
    bool moved = false, done = true;
    while (!self->failed && self->count > 0 && done) {
        const struct queued *oldest = &self->ring[self->first];
        struct device_comm *comm = self->comms[exchange_block(&self->window, oldest->block)->group];
        if (self->talk->ops->poll(comm, oldest->event, &done, &self->err)) {
            fail(self);
        } else if (done) {
            self->first = (self->first + 1) % EXCHANGE_WINDOW;
            self->count--;
            moved = true;
        }
    }
    while (may_queue(self)) {
        if (queue_block(self, self->window.next, &self->err))
            fail(self);
        self->window.next++;
        moved = true;
    }
    return moved;
}

bool device_exchange_progress(struct device_exchange *self)
{
    while (turn(self))
        continue;
    return !self->failed && self->count > 0;
}

void device_exchange_reading_done(struct device_exchange *self)
{
    self->window.reading_done = true;
}

void device_exchange_give_up(struct device_exchange *self)
{
    if (!self->failed)
        fail(self);
}

static size_t oldest_block(const struct device_exchange *self)
{
    if (self->count > 0)
        return self->ring[self->first].block;
    return self->window.next < self->window.end ? self->window.next : EXCHANGE_NO_BLOCK;
}

int device_exchange_finish_stage(struct device_exchange *self, uint64_t deadline_ns, struct cb_err *err)
{
    struct exchange_wait wait = exchange_wait_begin(deadline_ns);
    while (!self->failed && (self->count > 0 || self->window.next < self->window.end)) {
        int rc = exchange_wait_check(&wait, &self->window, oldest_block(self), "exchanged between devices", err);
        if (rc) {
            fail(self);
            return rc;
        }
        exchange_wait_pause(&wait, turn(self));
    }
    if (!self->failed)
        return 0;
    *err = self->err;
    return cb_context(err, "exchanging between devices");
}

struct exchange_targets device_exchange_begin_stage(struct device_exchange *self, uint32_t stage)
{
    assert(self->failed || (self->count == 0 && self->window.next == self->window.end));
    return exchange_window_begin_stage(&self->window, stage);
}

void device_exchange_landed(struct device_exchange *self, uint32_t target, uint64_t bytes)
{
    exchange_window_landed(&self->window, target, bytes);
}

uint64_t device_exchange_copied(const struct device_exchange *self)
{
    return self->copied;
}

/* --- from beginning to end --- */

static int allocate(struct device_exchange *self, struct cb_err *err)
{
    const struct load_share *share = self->window.setup.share;
    self->buffer_bytes = exchange_longest_buffered(&self->window);
    self->comms = calloc(share->group_count + 1, sizeof *self->comms);
    if (!self->comms)
        return alloc_fail(err, "for the communicators of a load");
    int rc = pinned_reserve(self->window.setup.pinned, self->window.setup.state->device, share->transit_most, err);
    if (rc)
        return cb_context(err, "what is in transit in a load");
    self->window.transit = self->window.setup.pinned->memory;
    rc = device_talk_reserve(self->talk, self->buffer_bytes * EXCHANGE_WINDOW, err);
    self->buffers = self->talk->memory;
    return rc;
}

static int join_group(struct device_exchange *self, uint32_t index, struct cb_err *err)
{
    const struct share_group *group = &self->window.setup.share->groups[index];
    uint32_t count = group->classes * group->replicas;
    uint32_t *ranks = malloc(count * sizeof *ranks);
    if (!ranks)
        return alloc_fail(err, "for a group of %" PRIu32 " ranks", count);
    for (uint32_t i = 0; i < count; i++)
        ranks[i] = exchange_rank_of(&self->window, group, i);
    int rc = device_talk_join(self->talk, self->window.setup.comm, ranks, count, group->mine,
                              group->code * EXCHANGE_TAGS_A_CODE, self->deadline_ns, &self->comms[index], err);
    free(ranks);
    return rc;
}

/* All groups in the order of their blocks, which is one on all ranks; also after one that failed, since its other
 * ranks come to those, too. */
static int join_groups(struct device_exchange *self, struct cb_err *err)
{
    const struct load_share *share = self->window.setup.share;
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

int device_exchange_new(const struct device_exchange_setup *setup, struct device_exchange **exchange,
                        struct cb_err *err)
{
    struct device_exchange *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "to exchange a load");
    self->talk = setup->talk;
    self->deadline_ns = setup->deadline_ns;
    int rc = exchange_window_init(&self->window, &setup->load, false, err);
    if (!rc)
        rc = allocate(self, err);
    if (!rc)
        rc = join_groups(self, err);
    if (rc)
        device_exchange_free(self);
    else
        *exchange = self;
    return rc;
}

void device_exchange_free(struct device_exchange *self)
{
    if (!self)
        return;
    if (self->failed)
        pinned_leave(self->window.setup.pinned); /* copies may still be reading it */
    exchange_window_release(&self->window);
    free(self->comms);
    free(self);
}
