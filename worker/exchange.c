/* The exchange of a load. Owns the messages and their buffers; knows shares, not files or formats. */
#include "worker/exchange.h"

#include <assert.h>
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "worker/mapping.h"

#define PAGE_BYTES 4096
/* Blocks of a group whose numbers are so far apart share a tag; a rank does not open the later one before it has
 * done with the earlier one, so that messages of one tag keep their order. */
#define NUMBERS_A_CODE (COMM_TAGS / SHARE_CODES)
#define NO_BLOCK SIZE_MAX
/* Waiting yields for a moment, then sleeps between looks. */
#define YIELD_NS (200 * NS_PER_US)
#define SLEEP_NS (50 * NS_PER_US)

enum phase { PHASE_READING, PHASE_RECEIVING, PHASE_SENDING };

struct slot {
    size_t block; /* NO_BLOCK: free */
    enum phase phase;
    char *buffer;                  /* for blocks that are not one contiguous range */
    struct comm_message *messages; /* one a class for the reader; the first for others */
    bool *under_way;
    uint32_t message_count;
    uint64_t bytes; /* of the message received */
    bool copying;   /* from here to the device, until: */
    uint64_t event;
};

struct exchange {
    struct exchange_setup setup;
    struct piece *pieces; /* targets of the stage */
    void **memory;
    size_t *block_of; /* of a target; NO_BLOCK where it is this rank's alone */
    size_t target_count;
    size_t *target_of;     /* of a block's first part, where this rank reads it */
    uint64_t *landed;      /* bytes of each block */
    struct device *device; /* that the state is on; NULL: it is in this machine's memory */
    char *transit;         /* parts of this stage that are not all this rank's */
    struct slot slots[EXCHANGE_WINDOW];
    char *buffers;
    struct comm_message *messages;
    bool *under_way;
    size_t next, end; /* blocks of the stage that are not yet open */
    uint32_t open;
    bool reading_done, failed;
    uint64_t copied;
    struct cb_err err; /* why it failed */
};

/* --- who and what --- */

static const struct share_block *block_at(const struct exchange *self, size_t index)
{
    return &self->setup.share->blocks[index];
}

static const struct share_group *group_of(const struct exchange *self, const struct share_block *block)
{
    return &self->setup.share->groups[block->group];
}

/* What this rank reads of the block goes to memory of the exchange, and from there to those that need it. */
static bool in_transit(const struct exchange *self, const struct share_block *block)
{
    return self->device || group_of(self, block)->classes > 1;
}

static bool is_reader(const struct exchange *self, const struct share_block *block)
{
    return group_of(self, block)->mine == block->reader;
}

static uint32_t rank_of(const struct exchange *self, const struct share_group *group, uint32_t member)
{
    uint32_t ranks = self->setup.ranks;
    return (group->members[member] + ranks - self->setup.shift % ranks) % ranks;
}

static size_t element_bytes(const struct exchange *self, const struct share_part *part)
{
    uint32_t tensor = self->setup.share->regions[part->region].tensor;
    return dtype_bytes(layout_tensor(self->setup.state->layout, tensor)->dtype);
}

static uint64_t part_bytes(const struct exchange *self, const struct share_part *part)
{
    return box_elements(&part->box) * element_bytes(self, part);
}

/* What a class gets of a block. */
static uint64_t class_bytes(const struct exchange *self, const struct share_block *block, uint32_t class_index)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < block->part_count; i++) {
        const struct share_part *part = &self->setup.share->parts[block->first_part + i];
        struct box box;
        if (load_share_of_class(self->setup.share, part, class_index, &box))
            bytes += box_elements(&box) * element_bytes(self, part);
    }
    return bytes;
}

static const struct piece *piece_of(const struct exchange *self, const struct share_part *part, char **memory)
{
    uint32_t piece = self->setup.share->regions[part->region].piece;
    *memory = self->setup.state->memory[piece];
    return &self->setup.state->pieces[piece];
}

/* Where a part lies in the state, for groups of one class. */
static char *place_in_state(const struct exchange *self, const struct share_part *part)
{
    char *memory;
    const struct piece *piece = piece_of(self, part, &memory);
    uint64_t outer, inner;
    box_run(&piece->box, &part->box, 0, &outer, &inner);
    return memory + outer * element_bytes(self, part);
}

/* --- packing --- */

static void fail(struct exchange *self)
{
    self->failed = true;
    comm_abandon_messages(self->setup.comm);
}

/* Copies to this rank's memory from what must stay until the slot's copies are done. */
static void place(struct exchange *self, struct slot *slot, const struct mapping *mapping, const char *from,
                  uint64_t bytes, char *memory)
{
    if (!self->device) {
        self->copied += mapping_scatter(mapping, 0, from, bytes, memory);
        return;
    }
    slot->copying = true;
    if (!self->failed && pinned_scatter(self->device, mapping, 0, from, bytes, memory, &self->copied, &self->err))
        fail(self);
}

/* After the last of a block's copies. */
static void end_placing(struct exchange *self, struct slot *slot)
{
    if (slot->copying && !self->failed && self->device->ops->record(self->device, &slot->event, &self->err))
        fail(self);
}

/* How the box of a part that a class gets lies in memory that holds `held`; its bytes. */
static uint64_t map_box(const struct exchange *self, const struct share_part *part, const struct box *box,
                        const struct box *held, struct mapping *mapping)
{
    mapping_init(mapping, box, held, box, element_bytes(self, part));
    return box_elements(box) * element_bytes(self, part);
}

static uint64_t pack(struct exchange *self, const struct share_block *block, uint32_t class_index, char *message)
{
    struct mapping mapping;
    uint64_t done = 0;
    for (size_t i = 0; i < block->part_count; i++) {
        const struct share_part *part = &self->setup.share->parts[block->first_part + i];
        char *memory;
        const struct box *held = &piece_of(self, part, &memory)->box;
        struct box box;
        if (in_transit(self, block)) {
            held = &part->box;
            memory = self->memory[self->target_of[block - self->setup.share->blocks] + i];
        }
        if (!load_share_of_class(self->setup.share, part, class_index, &box))
            continue;
        uint64_t bytes = map_box(self, part, &box, held, &mapping);
        self->copied += mapping_gather(&mapping, 0, message + done, bytes, memory);
        done += bytes;
    }
    return done;
}

static void unpack(struct exchange *self, struct slot *slot, const struct share_block *block)
{
    const struct share_group *group = group_of(self, block);
    struct mapping mapping;
    uint64_t done = 0;
    for (size_t i = 0; i < block->part_count; i++) {
        const struct share_part *part = &self->setup.share->parts[block->first_part + i];
        char *memory;
        const struct piece *piece = piece_of(self, part, &memory);
        struct box box;
        if (!load_share_of_class(self->setup.share, part, group->mine / group->replicas, &box))
            continue;
        uint64_t bytes = map_box(self, part, &box, &piece->box, &mapping);
        place(self, slot, &mapping, slot->buffer + done, bytes, memory);
        done += bytes;
    }
    end_placing(self, slot);
}

/* This rank's own of what it has read for several. */
static void keep_own(struct exchange *self, struct slot *slot, const struct share_block *block)
{
    const struct share_group *group = group_of(self, block);
    for (size_t i = 0; i < block->part_count && in_transit(self, block); i++) {
        const struct share_part *part = &self->setup.share->parts[block->first_part + i];
        char *memory, *from = self->memory[self->target_of[block - self->setup.share->blocks] + i];
        const struct piece *piece = piece_of(self, part, &memory);
        struct box box;
        struct mapping mapping;
        if (!load_share_of_class(self->setup.share, part, group->mine / group->replicas, &box))
            continue;
        mapping_init(&mapping, &part->box, &piece->box, &box, element_bytes(self, part));
        place(self, slot, &mapping, from, part_bytes(self, part), memory);
    }
    end_placing(self, slot);
}

/* --- messages --- */

static uint32_t tag_of(const struct exchange *self, const struct share_block *block)
{
    return group_of(self, block)->code * NUMBERS_A_CODE + block->number % NUMBERS_A_CODE;
}

static bool is_direct(const struct exchange *self, const struct share_block *block)
{
    return !in_transit(self, block) && block->part_count == 1;
}

static void send_to(struct exchange *self, struct slot *slot, uint32_t member, const void *bytes, uint64_t len)
{
    const struct share_block *block = block_at(self, slot->block);
    uint32_t rank = rank_of(self, group_of(self, block), member);
    if (self->failed || len == 0)
        return;
    if (comm_send(self->setup.comm, bytes, len, rank, tag_of(self, block), &slot->messages[slot->message_count],
                  &self->err))
        fail(self);
    else
        slot->under_way[slot->message_count++] = true;
}

/* The rank after `replica` in its class; false after the last one. The class begins where the reader is. */
static bool next_replica(const struct share_group *group, const struct share_block *block, uint32_t replica,
                         uint32_t *next)
{
    *next = (replica + 1) % group->replicas;
    return *next != block->reader % group->replicas;
}

/* The reader's block has landed: its own part stays, and each class gets its message. */
static void start_sending(struct exchange *self, struct slot *slot)
{
    const struct share_block *block = block_at(self, slot->block);
    const struct share_group *group = group_of(self, block);
    uint32_t replica = block->reader % group->replicas, next;
    uint64_t used = 0;
    slot->phase = PHASE_SENDING;
    keep_own(self, slot, block);
    for (uint32_t c = 0; c < group->classes; c++) {
        bool own = c == block->reader / group->replicas;
        if (own && !next_replica(group, block, replica, &next))
            continue;
        uint32_t member = c * group->replicas + (own ? next : replica);
        char *bytes = is_direct(self, block) ? place_in_state(self, &self->setup.share->parts[block->first_part])
                                             : slot->buffer + used;
        uint64_t len = is_direct(self, block) ? block->bytes : pack(self, block, c, bytes);
        used += len;
        send_to(self, slot, member, bytes, len);
    }
}

static void start_receiving(struct exchange *self, struct slot *slot)
{
    const struct share_block *block = block_at(self, slot->block);
    const struct share_group *group = group_of(self, block);
    uint32_t class_index = group->mine / group->replicas, replica = group->mine % group->replicas;
    uint32_t before = (replica + group->replicas - 1) % group->replicas;
    bool is_head = replica == block->reader % group->replicas;
    uint32_t from = is_head ? block->reader : class_index * group->replicas + before;
    slot->phase = PHASE_RECEIVING;
    slot->bytes = class_bytes(self, block, class_index);
    if (slot->bytes == 0)
        return;
    void *bytes =
        is_direct(self, block) ? place_in_state(self, &self->setup.share->parts[block->first_part]) : slot->buffer;
    if (comm_receive(self->setup.comm, bytes, slot->bytes, rank_of(self, group, from), tag_of(self, block),
                     &slot->messages[0], &self->err)) {
        fail(self);
        return;
    }
    slot->under_way[0] = true;
    slot->message_count = 1;
}

static void start_forwarding(struct exchange *self, struct slot *slot)
{
    const struct share_block *block = block_at(self, slot->block);
    const struct share_group *group = group_of(self, block);
    uint32_t class_index = group->mine / group->replicas, next;
    bool direct = is_direct(self, block);
    char *bytes = direct ? place_in_state(self, &self->setup.share->parts[block->first_part]) : slot->buffer;
    slot->phase = PHASE_SENDING;
    slot->message_count = 0;
    if (next_replica(group, block, group->mine % group->replicas, &next))
        send_to(self, slot, class_index * group->replicas + next, bytes, slot->bytes);
    if (!direct && slot->bytes > 0)
        unpack(self, slot, block);
}

/* --- the window --- */

static void open_slot(struct exchange *self, struct slot *slot)
{
    slot->block = self->next++;
    slot->message_count = 0;
    slot->copying = false;
    self->open++;
    if (is_reader(self, block_at(self, slot->block)))
        slot->phase = PHASE_READING;
    else
        start_receiving(self, slot);
}

/* True when all messages of the slot are done. */
static bool messages_done(struct exchange *self, struct slot *slot)
{
    bool all = true;
    for (uint32_t i = 0; i < slot->message_count && !self->failed; i++) {
        bool done = true;
        if (slot->under_way[i] && comm_message_test(self->setup.comm, &slot->messages[i], &done, &self->err))
            fail(self);
        slot->under_way[i] = slot->under_way[i] && !done;
        all = all && done;
    }
    return all && !self->failed;
}

/* True when all copies of the slot to the device are done. */
static bool copies_done(struct exchange *self, struct slot *slot)
{
    bool done = true;
    if (slot->copying && !self->failed && self->device->ops->poll(self->device, slot->event, &done, &self->err))
        fail(self);
    slot->copying = slot->copying && !done;
    return !slot->copying && !self->failed;
}

/* One step of a slot; *moved where it got further. */
static void step(struct exchange *self, struct slot *slot, bool *moved)
{
    const struct share_block *block = block_at(self, slot->block);
    if (slot->phase == PHASE_READING) {
        if (!self->reading_done && self->landed[slot->block] < block->bytes)
            return;
        start_sending(self, slot);
        *moved = true;
        return;
    }
    if (!messages_done(self, slot) || !copies_done(self, slot))
        return;
    *moved = true;
    if (slot->phase == PHASE_RECEIVING) {
        start_forwarding(self, slot);
        return;
    }
    slot->block = NO_BLOCK;
    self->open--;
}

/* A block that takes long does not hold up those after it, up to where tags come again. */
static bool may_open(const struct exchange *self)
{
    bool may = self->next < self->end;
    for (uint32_t i = 0; i < EXCHANGE_WINDOW && may; i++)
        may = self->slots[i].block == NO_BLOCK || self->next - self->slots[i].block < NUMBERS_A_CODE;
    return may;
}

/* Whether anything got further. */
static bool turn(struct exchange *self)
{
    bool moved = false;
    for (uint32_t i = 0; i < EXCHANGE_WINDOW && !self->failed; i++) {
        struct slot *slot = &self->slots[i];
        if (slot->block == NO_BLOCK && may_open(self)) {
            open_slot(self, slot);
            moved = true;
        }
        if (slot->block != NO_BLOCK && !self->failed)
            step(self, slot, &moved);
    }
    return moved;
}

bool exchange_progress(struct exchange *self)
{
    while (!self->failed && turn(self))
        continue;
    for (uint32_t i = 0; i < EXCHANGE_WINDOW && !self->failed; i++) {
        if (self->slots[i].block != NO_BLOCK && self->slots[i].phase != PHASE_READING)
            return true;
    }
    return false;
}

void exchange_reading_done(struct exchange *self)
{
    self->reading_done = true;
}

/* Which rank the oldest open block is waiting for. */
static int describe_wait(const struct exchange *self, int code, const char *why, struct cb_err *err)
{
    const struct slot *oldest = NULL;
    for (uint32_t i = 0; i < EXCHANGE_WINDOW; i++) {
        const struct slot *slot = &self->slots[i];
        if (slot->block != NO_BLOCK && (!oldest || slot->block < oldest->block))
            oldest = slot;
    }
    if (!oldest)
        return cb_fail(err, code, "%s in the exchange of the load", why);
    const struct share_block *block = block_at(self, oldest->block);
    const struct share_part *part = &self->setup.share->parts[block->first_part];
    uint32_t tensor = self->setup.share->regions[part->region].tensor;
    return cb_fail(err, code, "%s while %s, which rank %" PRIu32 " reads, is exchanged", why,
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

int exchange_finish_stage(struct exchange *self, uint64_t deadline_ns, struct cb_err *err)
{
    uint64_t moved_ns = clock_monotonic_ns();
    while (!self->failed && (self->open > 0 || self->next < self->end)) {
        uint64_t now_ns = clock_monotonic_ns();
        struct cb_err why;
        int rc = comm_check(self->setup.comm, &why);
        if (!rc && now_ns > deadline_ns)
            rc = cb_fail(&why, CB_ERR_TIMEOUT, "the deadline passed");
        if (rc) {
            fail(self);
            return describe_wait(self, rc, why.message, err);
        }
        if (turn(self))
            moved_ns = now_ns;
        else
            pause_for(now_ns - moved_ns);
    }
    if (!self->failed)
        return 0;
    *err = self->err;
    return err->code;
}

/* --- targets --- */

static void add_target(struct exchange *self, uint32_t tensor, const struct box *box, void *memory, size_t block)
{
    self->pieces[self->target_count] = (struct piece){.tensor = tensor, .box = *box};
    self->memory[self->target_count] = memory;
    self->block_of[self->target_count++] = block;
}

static void add_block_targets(struct exchange *self, size_t index, uint64_t *used)
{
    const struct share_block *block = block_at(self, index);
    bool transit = in_transit(self, block);
    self->target_of[index] = self->target_count;
    for (size_t i = 0; i < block->part_count; i++) {
        const struct share_part *part = &self->setup.share->parts[block->first_part + i];
        char *memory = transit ? self->transit + *used : place_in_state(self, part);
        *used += transit ? part_bytes(self, part) : 0;
        add_target(self, self->setup.share->regions[part->region].tensor, &part->box, memory, index);
    }
}

struct exchange_targets exchange_begin_stage(struct exchange *self, uint32_t stage)
{
    const struct load_share *share = self->setup.share;
    const struct state *state = self->setup.state;
    uint64_t used = 0;
    assert(self->open == 0 && self->next == self->end);
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

void exchange_landed(struct exchange *self, uint32_t target, uint64_t bytes)
{
    if (self->block_of[target] != NO_BLOCK)
        self->landed[self->block_of[target]] += bytes;
}

uint64_t exchange_copied(const struct exchange *self)
{
    return self->copied;
}

/* --- from beginning to end --- */

/* The longest message that passes through a buffer, and the most messages of a block. */
static void measure(const struct exchange *self, uint64_t *buffer_bytes, uint32_t *messages)
{
    const struct load_share *share = self->setup.share;
    *buffer_bytes = 0;
    *messages = 1;
    for (size_t i = 0; i < share->block_count; i++) {
        const struct share_block *block = &share->blocks[i];
        if (!is_direct(self, block) && block->bytes > *buffer_bytes)
            *buffer_bytes = block->bytes;
        uint32_t classes = group_of(self, block)->classes;
        *messages = classes > *messages ? classes : *messages;
    }
    *buffer_bytes = (*buffer_bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES;
}

/* What blocks pass through: `transit` bytes, then a buffer a slot. */
static int allocate_buffers(struct exchange *self, uint64_t transit, uint64_t buffer_bytes, struct cb_err *err)
{
    if (self->device) {
        int rc = pinned_reserve(self->setup.pinned, self->device, transit + buffer_bytes * EXCHANGE_WINDOW, err);
        if (rc)
            return cb_context(err, "what is in transit in a load");
        self->transit = self->setup.pinned->memory;
        self->buffers = self->transit + transit;
        return 0;
    }
    self->transit = aligned_alloc(PAGE_BYTES, transit);
    self->buffers = buffer_bytes ? aligned_alloc(PAGE_BYTES, buffer_bytes * EXCHANGE_WINDOW) : NULL;
    if (!self->transit || (buffer_bytes && !self->buffers))
        return cb_fail(err, CB_ERR_MEMORY, "no memory for what is in transit in a load");
    return 0;
}

static int allocate(struct exchange *self, struct cb_err *err)
{
    const struct load_share *share = self->setup.share;
    size_t targets = share->part_count + share->alone_count + 1;
    uint64_t buffer_bytes, transit = (share->transit_most / PAGE_BYTES + 1) * PAGE_BYTES;
    uint32_t messages;
    measure(self, &buffer_bytes, &messages);
    self->pieces = malloc(targets * sizeof *self->pieces);
    self->memory = malloc(targets * sizeof *self->memory);
    self->block_of = malloc(targets * sizeof *self->block_of);
    self->target_of = malloc((share->block_count + 1) * sizeof *self->target_of);
    self->landed = calloc(share->block_count + 1, sizeof *self->landed);
    int rc = allocate_buffers(self, transit, buffer_bytes, err);
    if (rc)
        return rc;
    self->messages = calloc((size_t)messages * EXCHANGE_WINDOW, sizeof *self->messages);
    self->under_way = calloc((size_t)messages * EXCHANGE_WINDOW, sizeof *self->under_way);
    if (!self->pieces || !self->memory || !self->block_of || !self->target_of || !self->landed || !self->messages ||
        !self->under_way)
        return cb_fail(err, CB_ERR_MEMORY, "no memory to exchange %zu blocks of a load", share->block_count);
    for (size_t i = 0; i < EXCHANGE_WINDOW; i++) {
        self->slots[i].block = NO_BLOCK;
        self->slots[i].buffer = self->buffers ? self->buffers + i * buffer_bytes : NULL;
        self->slots[i].messages = self->messages + i * messages;
        self->slots[i].under_way = self->under_way + i * messages;
    }
    return 0;
}

int exchange_new(const struct exchange_setup *setup, struct exchange **exchange, struct cb_err *err)
{
    struct exchange *self = calloc(1, sizeof *self);
    if (!self)
        return cb_fail(err, CB_ERR_MEMORY, "no memory to exchange a load");
    self->setup = *setup;
    self->device = setup->state->device;
    int rc = allocate(self, err);
    if (rc)
        exchange_free(self);
    else
        *exchange = self;
    return rc;
}

void exchange_free(struct exchange *self)
{
    if (!self)
        return;
    if (self->failed && self->device)
        pinned_leave(self->setup.pinned); /* messages and copies may still be written to and read from */
    if (!self->failed && !self->device) {
        free(self->transit);
        free(self->buffers);
    }
    if (!self->failed) {
        free(self->messages);
        free(self->under_way);
    }
    free(self->landed);
    free(self->target_of);
    free(self->block_of);
    free(self->memory);
    free(self->pieces);
    free(self);
}
