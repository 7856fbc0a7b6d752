/* The exchange of a load between devices. Owns what is queued and the window of it; knows shares, not files or
 * formats. What a device has been given to do it does in order, so buffers of the device need no waiting for: the
 * window only bounds how much is queued, and says when memory of this machine may be used again. */
#include "worker/device_exchange.h"

#include <assert.h>
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "core/clock.h"
#include "worker/mapping.h"

#define PAGE_BYTES 4096
#define NO_BLOCK SIZE_MAX
#define BATCH 64 /* copies handed over at once */
#define YIELD_NS (200 * NS_PER_US)
#define SLEEP_NS (50 * NS_PER_US)

/* A block that is under way. */
struct queued {
    size_t block;
    uint64_t event;
};

struct device_exchange {
    struct device_exchange_setup setup;
    struct device_comm **comms; /* of the share's groups */
    struct piece *pieces;       /* targets of the stage */
    void **memory;
    size_t *block_of; /* of a target; NO_BLOCK where it is this rank's alone */
    size_t target_count;
    size_t *target_of; /* of a block's first part, where this rank reads it */
    uint64_t *landed;  /* bytes of each block */
    char *transit;     /* pinned: parts of this stage that belong to several classes */
    char *buffers;     /* of the device: one for each place in the window */
    uint64_t buffer_bytes;
    struct queued window[EXCHANGE_WINDOW]; /* a ring */
    uint32_t first, count;                 /* oldest first */
    size_t next, end;                      /* blocks of the stage that are not yet queued */
    bool reading_done, failed;
    uint64_t copied;
    struct cb_err err; /* why it failed */
};

/* --- who and what --- */

static const struct share_block *block_at(const struct device_exchange *self, size_t index)
{
    return &self->setup.share->blocks[index];
}

static const struct share_part *part_at(const struct device_exchange *self, const struct share_block *block, size_t i)
{
    return &self->setup.share->parts[block->first_part + i];
}

static const struct share_group *group_of(const struct device_exchange *self, const struct share_block *block)
{
    return &self->setup.share->groups[block->group];
}

static bool is_reader(const struct device_exchange *self, const struct share_block *block)
{
    return group_of(self, block)->mine == block->reader;
}

/* Read to memory of this machine, since no rank's state has all of it. */
static bool in_transit(const struct device_exchange *self, const struct share_block *block)
{
    return group_of(self, block)->classes > 1;
}

static bool is_direct(const struct device_exchange *self, const struct share_block *block)
{
    return !in_transit(self, block) && block->part_count == 1;
}

static uint32_t rank_of(const struct device_exchange *self, const struct share_group *group, uint32_t member)
{
    uint32_t ranks = self->setup.ranks;
    return (group->members[member] + ranks - self->setup.shift % ranks) % ranks;
}

static size_t element_bytes(const struct device_exchange *self, const struct share_part *part)
{
    uint32_t tensor = self->setup.share->regions[part->region].tensor;
    return dtype_bytes(layout_tensor(self->setup.state->layout, tensor)->dtype);
}

static uint64_t part_bytes(const struct device_exchange *self, const struct share_part *part)
{
    return box_elements(&part->box) * element_bytes(self, part);
}

static const struct piece *piece_of(const struct device_exchange *self, const struct share_part *part, char **memory)
{
    uint32_t piece = self->setup.share->regions[part->region].piece;
    *memory = self->setup.state->memory[piece];
    return &self->setup.state->pieces[piece];
}

/* Where a part lies in the state, for groups of one class. */
static char *place_in_state(const struct device_exchange *self, const struct share_part *part)
{
    char *memory;
    const struct piece *piece = piece_of(self, part, &memory);
    uint64_t outer, inner;
    box_run(&piece->box, &part->box, 0, &outer, &inner);
    return memory + outer * element_bytes(self, part);
}

static char *buffer_of(const struct device_exchange *self, size_t index)
{
    return self->buffers + index % EXCHANGE_WINDOW * self->buffer_bytes;
}

/* --- what a block's ranks queue --- */

/* The reader's parts one after another in the buffer, from the state or from what is in transit. */
static int gather(struct device_exchange *self, size_t index, struct device_comm *comm, struct cb_err *err)
{
    const struct device_comm_ops *ops = self->setup.talk->ops;
    const struct share_block *block = block_at(self, index);
    enum device_direction direction = in_transit(self, block) ? HOST_TO_DEVICE : DEVICE_TO_DEVICE;
    char *to = buffer_of(self, index);
    int rc = 0;
    for (size_t i = 0; i < block->part_count && !rc; i++) {
        uint64_t bytes = part_bytes(self, part_at(self, block, i));
        struct device_copy copy = {
            .to = to, .from = self->memory[self->target_of[index] + i], .row_bytes = bytes, .rows = 1};
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
    const struct piece *piece = piece_of(self, part, &memory);
    size_t count = 0;
    int rc = 0;
    mapping_init(&mapping, &part->box, &piece->box, own, element_bytes(self, part));
    for (uint64_t run = mapping_first_run(&mapping, 0);
         mapping_next_rows(&mapping, &run, 0, part_bytes(self, part), &rows) && !rc;) {
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
            rc = self->setup.talk->ops->copy(comm, DEVICE_TO_DEVICE, copies, count, err);
            count = 0;
        }
    }
    if (!rc && count > 0)
        rc = self->setup.talk->ops->copy(comm, DEVICE_TO_DEVICE, copies, count, err);
    return rc;
}

static int scatter(struct device_exchange *self, size_t index, struct device_comm *comm, struct cb_err *err)
{
    const struct share_block *block = block_at(self, index);
    const struct share_group *group = group_of(self, block);
    const char *from = buffer_of(self, index);
    int rc = 0;
    for (size_t i = 0; i < block->part_count && !rc; i++) {
        const struct share_part *part = part_at(self, block, i);
        struct box own;
        if (load_share_of_class(self->setup.share, part, group->mine / group->replicas, &own))
            rc = scatter_part(self, part, &own, from, comm, err);
        from += part_bytes(self, part);
    }
    return rc;
}

static int queue_block(struct device_exchange *self, size_t index, struct cb_err *err)
{
    const struct device_comm_ops *ops = self->setup.talk->ops;
    const struct share_block *block = block_at(self, index);
    struct device_comm *comm = self->comms[block->group];
    bool direct = is_direct(self, block), reads = is_reader(self, block);
    char *bytes = direct ? place_in_state(self, part_at(self, block, 0)) : buffer_of(self, index);
    int rc = direct || !reads ? 0 : gather(self, index, comm, err);
    if (!rc)
        rc =
            ops->queue(comm, DEVICE_BROADCAST, bytes, bytes, block->bytes, block->reader, self->setup.deadline_ns, err);
    if (!rc && !direct && !(reads && !in_transit(self, block))) /* else its state has it */
        rc = scatter(self, index, comm, err);
    struct queued *queued = &self->window[(self->first + self->count) % EXCHANGE_WINDOW];
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
    device_talk_abort(self->setup.talk);
}

static bool may_queue(const struct device_exchange *self)
{
    if (self->failed || self->next == self->end || self->count == EXCHANGE_WINDOW)
        return false;
    const struct share_block *block = block_at(self, self->next);
    return self->reading_done || !is_reader(self, block) || self->landed[self->next] >= block->bytes;
}

/* Whether anything got further. */
static bool turn(struct device_exchange *self)
{
    bool moved = false, done = true;
    while (!self->failed && self->count > 0 && done) {
        const struct queued *oldest = &self->window[self->first];
        struct device_comm *comm = self->comms[block_at(self, oldest->block)->group];
        if (self->setup.talk->ops->poll(comm, oldest->event, &done, &self->err)) {
            fail(self);
        } else if (done) {
            self->first = (self->first + 1) % EXCHANGE_WINDOW;
            self->count--;
            moved = true;
        }
    }
    while (may_queue(self)) {
        if (queue_block(self, self->next, &self->err))
            fail(self);
        self->next++;
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
    self->reading_done = true;
}

void device_exchange_give_up(struct device_exchange *self)
{
    if (!self->failed)
        fail(self);
}

/* Which rank the oldest block that is not done is waiting for. */
static int describe_wait(const struct device_exchange *self, int code, const char *why, struct cb_err *err)
{
    size_t index = self->count > 0 ? self->window[self->first].block : self->next;
    if (index == self->end)
        return cb_fail(err, code, "%s in the exchange of the load", why);
    const struct share_block *block = block_at(self, index);
    uint32_t tensor = self->setup.share->regions[part_at(self, block, 0)->region].tensor;
    return cb_fail(err, code, "%s while %s, which rank %" PRIu32 " reads, is exchanged between devices", why,
                   layout_tensor(self->setup.state->layout, tensor)->fqn,
                   rank_of(self, group_of(self, block), block->reader));
}

static void pause_for(uint64_t idle_ns)
{
    struct timespec pause = {.tv_nsec = SLEEP_NS};
    if (idle_ns < YIELD_NS)
        sched_yield();
    else
        nanosleep(&pause, NULL);
}

int device_exchange_finish_stage(struct device_exchange *self, uint64_t deadline_ns, struct cb_err *err)
{
    uint64_t moved_ns = clock_monotonic_ns();
    while (!self->failed && (self->count > 0 || self->next < self->end)) {
        uint64_t now_ns = clock_monotonic_ns();
        struct cb_err why;
        int rc = comm_check(self->setup.comm, &why);
        if (!rc && now_ns > deadline_ns)
            rc = cb_fail(&why, CB_ERR_TIMEOUT, "the deadline passed");
        if (rc) {
            rc = describe_wait(self, rc, why.message, err);
            fail(self);
            return rc;
        }
        if (turn(self))
            moved_ns = now_ns;
        else
            pause_for(now_ns - moved_ns);
    }
    if (!self->failed)
        return 0;
    *err = self->err;
    return cb_context(err, "exchanging between devices");
}

/* --- targets --- */

static void add_target(struct device_exchange *self, uint32_t tensor, const struct box *box, void *memory, size_t block)
{
    self->pieces[self->target_count] = (struct piece){.tensor = tensor, .box = *box};
    self->memory[self->target_count] = memory;
    self->block_of[self->target_count++] = block;
}

static void add_block_targets(struct device_exchange *self, size_t index, uint64_t *used)
{
    const struct share_block *block = block_at(self, index);
    bool transit = in_transit(self, block);
    self->target_of[index] = self->target_count;
    for (size_t i = 0; i < block->part_count; i++) {
        const struct share_part *part = part_at(self, block, i);
        char *memory = transit ? self->transit + *used : place_in_state(self, part);
        *used += transit ? part_bytes(self, part) : 0;
        add_target(self, self->setup.share->regions[part->region].tensor, &part->box, memory, index);
    }
}

struct exchange_targets device_exchange_begin_stage(struct device_exchange *self, uint32_t stage)
{
    const struct load_share *share = self->setup.share;
    const struct state *state = self->setup.state;
    uint64_t used = 0;
    assert(self->failed || (self->count == 0 && self->next == self->end));
    self->target_count = 0;
    self->reading_done = false;
    for (size_t i = 0; i < share->alone_count && stage == 0; i++) {
        const struct piece *piece = &state->pieces[share->alone[i]];
        add_target(self, piece->tensor, &piece->box, state->memory[share->alone[i]], NO_BLOCK);
    }
    for (self->end = self->next; self->end < share->block_count && share->blocks[self->end].stage == stage;) {
        if (is_reader(self, block_at(self, self->end)))
            add_block_targets(self, self->end, &used);
        self->end++;
    }
    assert(used <= share->transit_most);
    return (struct exchange_targets){self->pieces, self->memory, self->target_count};
}

void device_exchange_landed(struct device_exchange *self, uint32_t target, uint64_t bytes)
{
    if (self->block_of[target] != NO_BLOCK)
        self->landed[self->block_of[target]] += bytes;
}

uint64_t device_exchange_copied(const struct device_exchange *self)
{
    return self->copied;
}

/* --- from beginning to end --- */

static int allocate(struct device_exchange *self, struct cb_err *err)
{
    const struct load_share *share = self->setup.share;
    size_t targets = share->part_count + share->alone_count + 1;
    for (size_t i = 0; i < share->block_count; i++) {
        const struct share_block *block = block_at(self, i);
        if (!is_direct(self, block) && block->bytes > self->buffer_bytes)
            self->buffer_bytes = block->bytes;
    }
    self->buffer_bytes = (self->buffer_bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
    self->comms = calloc(share->group_count + 1, sizeof *self->comms);
    self->pieces = malloc(targets * sizeof *self->pieces);
    self->memory = malloc(targets * sizeof *self->memory);
    self->block_of = malloc(targets * sizeof *self->block_of);
    self->target_of = malloc((share->block_count + 1) * sizeof *self->target_of);
    self->landed = calloc(share->block_count + 1, sizeof *self->landed);
    if (!self->comms || !self->pieces || !self->memory || !self->block_of || !self->target_of || !self->landed)
        return cb_fail(err, CB_ERR_MEMORY, "no memory to exchange %zu blocks of a load", share->block_count);
    int rc = pinned_reserve(self->setup.pinned, self->setup.state->device, share->transit_most, err);
    if (rc)
        return cb_context(err, "what is in transit in a load");
    self->transit = self->setup.pinned->memory;
    rc = device_talk_reserve(self->setup.talk, self->buffer_bytes * EXCHANGE_WINDOW, err);
    self->buffers = self->setup.talk->memory;
    return rc;
}

static int join_group(struct device_exchange *self, uint32_t index, struct cb_err *err)
{
    const struct share_group *group = &self->setup.share->groups[index];
    uint32_t count = group->classes * group->replicas;
    uint32_t *ranks = malloc(count * sizeof *ranks);
    if (!ranks)
        return cb_fail(err, CB_ERR_MEMORY, "no memory for a group of %" PRIu32 " ranks", count);
    for (uint32_t i = 0; i < count; i++)
        ranks[i] = rank_of(self, group, i);
    int rc =
        device_talk_join(self->setup.talk, self->setup.comm, ranks, count, group->mine,
                         group->code * (COMM_TAGS / SHARE_CODES), self->setup.deadline_ns, &self->comms[index], err);
    free(ranks);
    return rc;
}

/* All groups in the order of their blocks, which is one on all ranks; also after one that failed, since its other
 * ranks come to those, too. */
static int join_groups(struct device_exchange *self, struct cb_err *err)
{
    const struct load_share *share = self->setup.share;
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
        return cb_fail(err, CB_ERR_MEMORY, "no memory to exchange a load");
    self->setup = *setup;
    int rc = allocate(self, err);
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
        pinned_leave(self->setup.pinned); /* copies may still be reading it */
    free(self->landed);
    free(self->target_of);
    free(self->block_of);
    free(self->memory);
    free(self->pieces);
    free(self->comms);
    free(self);
}
