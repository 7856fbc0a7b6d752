/* An exchange by messages: the reader sends a block to the first rank of each class, and each rank forwards it to the next
 * rank of its class.
 *
 * A few blocks are open at a time, opened in the order of ckpt/load/load_share.h, which prevents deadlocks. A block that is
 * one contiguous range on all ranks is sent and received in the state itself; others pass through buffers. For a state on
 * a device all blocks pass through pinned memory (share_options.all_in_transit), from which this rank copies what it needs
 * to the device. It needs memory for EXCHANGE_WINDOW blocks and for the transit buffer. */

#include "core/alloc.h"
#include "engine/exchange/exchange_window.h"
#include "engine/mapping.h"

enum phase { PHASE_READING, PHASE_RECEIVING, PHASE_SENDING };

struct slot {
    size_t block; /* EXCHANGE_NO_BLOCK: free */
    enum phase phase;
    char *buffer;                  /* for blocks that are not one contiguous range */
    struct comm_message *messages; /* for the reader one of each class; other ranks use the first */
    bool *in_flight;
    uint32_t message_count;
    uint64_t bytes; /* of the message received */
    bool copying;   /* to the device, until `event` is done */
    uint64_t event;
};

struct message_exchange {
    struct exchange base;
    struct device *device; /* of the state; NULL if it is in host memory */
    struct slot slots[EXCHANGE_WINDOW];
    char *buffers;
    struct comm_message *messages;
    bool *in_flight;
};

/* Bytes of a block that the ranks of a class need. */
static uint64_t class_bytes(const struct message_exchange *self, const struct share_block *block, uint32_t class_index)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < block->part_count; i++) {
        const struct share_part *part = exchange_part(&self->base.window, block, i);
        struct region extent;
        if (load_share_of_class(self->base.window.setup.share, part, class_index, &extent))
            bytes += region_elements(&extent) * exchange_element_bytes(&self->base.window, part);
    }
    return bytes;
}

/* --- packing --- */

/* Copies to this rank's state; the source must stay valid until the slot's copies are done. */
static void place(struct message_exchange *self, struct slot *slot, const struct mapping *mapping, const char *from,
                  uint64_t bytes, char *memory)
{
    if (!self->device) {
        self->base.copied += mapping_scatter(mapping, 0, from, bytes, memory);
        return;
    }
    slot->copying = true;
    if (!self->base.failed &&
        pinned_scatter(self->device, mapping, 0, from, bytes, memory, &self->base.copied, &self->base.err))
        exchange_fail(&self->base);
}

/* Call after the last copy of a block. */
static void end_placing(struct message_exchange *self, struct slot *slot)
{
    if (slot->copying && !self->base.failed && self->device->ops->record(self->device, &slot->event, &self->base.err))
        exchange_fail(&self->base);
}

/* Where the part of a block that a class needs lies in memory that contains `held`; returns its bytes. */
static uint64_t map_region(const struct message_exchange *self, const struct share_part *part,
                           const struct region *extent, const struct region *held, struct mapping *mapping)
{
    mapping_init(mapping, extent, held, extent, exchange_element_bytes(&self->base.window, part));
    return region_elements(extent) * exchange_element_bytes(&self->base.window, part);
}

static uint64_t pack(struct message_exchange *self, const struct share_block *block, uint32_t class_index,
                     char *message)
{
    struct mapping mapping;
    uint64_t done = 0;
    for (size_t i = 0; i < block->part_count; i++) {
        const struct share_part *part = exchange_part(&self->base.window, block, i);
        char *memory;
        const struct region *held = &exchange_piece(&self->base.window, part, &memory)->region;
        struct region extent;
        if (exchange_in_transit(&self->base.window, block)) {
            held = &part->extent;
            memory = exchange_read_to(&self->base.window, block, i);
        }
        if (!load_share_of_class(self->base.window.setup.share, part, class_index, &extent))
            continue;
        uint64_t bytes = map_region(self, part, &extent, held, &mapping);
        self->base.copied += mapping_gather(&mapping, 0, message + done, bytes, memory);
        done += bytes;
    }
    return done;
}

static void unpack(struct message_exchange *self, struct slot *slot, const struct share_block *block)
{
    const struct share_group *group = exchange_group(&self->base.window, block);
    struct mapping mapping;
    uint64_t done = 0;
    for (size_t i = 0; i < block->part_count; i++) {
        const struct share_part *part = exchange_part(&self->base.window, block, i);
        char *memory;
        const struct piece *piece = exchange_piece(&self->base.window, part, &memory);
        struct region extent;
        if (!load_share_of_class(self->base.window.setup.share, part, group->mine / group->replicas, &extent))
            continue;
        uint64_t bytes = map_region(self, part, &extent, &piece->region, &mapping);
        place(self, slot, &mapping, slot->buffer + done, bytes, memory);
        done += bytes;
    }
    end_placing(self, slot);
}

/* Copies this rank's own share of a block that it has read for several ranks. */
static void keep_own(struct message_exchange *self, struct slot *slot, const struct share_block *block)
{
    const struct share_group *group = exchange_group(&self->base.window, block);
    for (size_t i = 0; i < block->part_count && exchange_in_transit(&self->base.window, block); i++) {
        const struct share_part *part = exchange_part(&self->base.window, block, i);
        char *memory, *from = exchange_read_to(&self->base.window, block, i);
        const struct piece *piece = exchange_piece(&self->base.window, part, &memory);
        struct region extent;
        struct mapping mapping;
        if (!load_share_of_class(self->base.window.setup.share, part, group->mine / group->replicas, &extent))
            continue;
        mapping_init(&mapping, &part->extent, &piece->region, &extent,
                     exchange_element_bytes(&self->base.window, part));
        place(self, slot, &mapping, from, exchange_part_bytes(&self->base.window, part), memory);
    }
    end_placing(self, slot);
}

/* --- messages --- */

static uint32_t tag_of(const struct message_exchange *self, const struct share_block *block)
{
    return exchange_group(&self->base.window, block)->code * EXCHANGE_TAGS_A_CODE +
           block->number % EXCHANGE_TAGS_A_CODE;
}

static void send_to(struct message_exchange *self, struct slot *slot, uint32_t member, const void *bytes, uint64_t len)
{
    const struct share_block *block = exchange_block(&self->base.window, slot->block);
    uint32_t rank = exchange_rank_of(&self->base.window, exchange_group(&self->base.window, block), member);
    if (self->base.failed || len == 0)
        return;
    if (comm_send(self->base.window.setup.comm, bytes, len, rank, tag_of(self, block),
                  &slot->messages[slot->message_count], &self->base.err))
        exchange_fail(&self->base);
    else
        slot->in_flight[slot->message_count++] = true;
}

/* The rank after `replica` in its class, counted from the reader; false after the last rank. */
static bool next_replica(const struct share_group *group, const struct share_block *block, uint32_t replica,
                         uint32_t *next)
{
    *next = (replica + 1) % group->replicas;
    return *next != block->reader % group->replicas;
}

/* The reader has read a block: keeps its own share and sends a message to each class. */
static void start_sending(struct message_exchange *self, struct slot *slot)
{
    const struct share_block *block = exchange_block(&self->base.window, slot->block);
    const struct share_group *group = exchange_group(&self->base.window, block);
    uint32_t replica = block->reader % group->replicas, next;
    uint64_t used = 0;
    slot->phase = PHASE_SENDING;
    char *direct = exchange_direct(&self->base.window, block);
    keep_own(self, slot, block);
    for (uint32_t c = 0; c < group->classes; c++) {
        bool own = c == block->reader / group->replicas;
        if (own && !next_replica(group, block, replica, &next))
            continue;
        uint32_t member = c * group->replicas + (own ? next : replica);
        char *bytes = direct ? direct : slot->buffer + used;
        uint64_t len = direct ? block->bytes : pack(self, block, c, bytes);
        used += len;
        send_to(self, slot, member, bytes, len);
    }
}

static void start_receiving(struct message_exchange *self, struct slot *slot)
{
    const struct share_block *block = exchange_block(&self->base.window, slot->block);
    const struct share_group *group = exchange_group(&self->base.window, block);
    uint32_t class_index = group->mine / group->replicas, replica = group->mine % group->replicas;
    uint32_t before = (replica + group->replicas - 1) % group->replicas;
    bool is_head = replica == block->reader % group->replicas;
    uint32_t from = is_head ? block->reader : class_index * group->replicas + before;
    slot->phase = PHASE_RECEIVING;
    slot->bytes = class_bytes(self, block, class_index);
    if (slot->bytes == 0)
        return;
    char *direct = exchange_direct(&self->base.window, block);
    if (comm_receive(self->base.window.setup.comm, direct ? direct : slot->buffer, slot->bytes,
                     exchange_rank_of(&self->base.window, group, from), tag_of(self, block), &slot->messages[0],
                     &self->base.err)) {
        exchange_fail(&self->base);
        return;
    }
    slot->in_flight[0] = true;
    slot->message_count = 1;
}

static void start_forwarding(struct message_exchange *self, struct slot *slot)
{
    const struct share_block *block = exchange_block(&self->base.window, slot->block);
    const struct share_group *group = exchange_group(&self->base.window, block);
    uint32_t class_index = group->mine / group->replicas, next;
    char *direct = exchange_direct(&self->base.window, block);
    slot->phase = PHASE_SENDING;
    slot->message_count = 0;
    if (next_replica(group, block, group->mine % group->replicas, &next))
        send_to(self, slot, class_index * group->replicas + next, direct ? direct : slot->buffer, slot->bytes);
    if (!direct && slot->bytes > 0)
        unpack(self, slot, block);
}

/* --- the window --- */

static void open_slot(struct message_exchange *self, struct slot *slot)
{
    slot->block = self->base.window.next++;
    slot->message_count = 0;
    slot->copying = false;
    self->base.open++;
    if (exchange_is_reader(&self->base.window, exchange_block(&self->base.window, slot->block)))
        slot->phase = PHASE_READING;
    else
        start_receiving(self, slot);
}

/* True when all messages of the slot are done. */
static bool messages_done(struct message_exchange *self, struct slot *slot)
{
    bool all = true;
    for (uint32_t i = 0; i < slot->message_count && !self->base.failed; i++) {
        bool done = true;
        if (slot->in_flight[i] &&
            comm_message_test(self->base.window.setup.comm, &slot->messages[i], &done, &self->base.err))
            exchange_fail(&self->base);
        slot->in_flight[i] = slot->in_flight[i] && !done;
        all = all && done;
    }
    return all && !self->base.failed;
}

/* True when all copies of the slot to the device are done. */
static bool copies_done(struct message_exchange *self, struct slot *slot)
{
    bool done = true;
    if (slot->copying && !self->base.failed &&
        self->device->ops->poll(self->device, slot->event, &done, &self->base.err))
        exchange_fail(&self->base);
    slot->copying = slot->copying && !done;
    return !slot->copying && !self->base.failed;
}

/* One step of a slot; sets *moved if it made progress. */
static void step(struct message_exchange *self, struct slot *slot, bool *moved)
{
    if (slot->phase == PHASE_READING) {
        if (!exchange_window_has_landed(&self->base.window, slot->block))
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
    slot->block = EXCHANGE_NO_BLOCK;
    self->base.open--;
}

/* A slow block delays only later blocks that would reuse its tag. */
static bool may_open(const struct message_exchange *self)
{
    bool may = self->base.window.next < self->base.window.end;
    for (uint32_t i = 0; i < EXCHANGE_WINDOW && may; i++)
        may = self->slots[i].block == EXCHANGE_NO_BLOCK ||
              self->base.window.next - self->slots[i].block < EXCHANGE_TAGS_A_CODE;
    return may;
}

/* Whether any block made progress. */
static bool turn(struct exchange *base)
{
    struct message_exchange *self = (struct message_exchange *)base;
    bool moved = false;
    for (uint32_t i = 0; i < EXCHANGE_WINDOW && !self->base.failed; i++) {
        struct slot *slot = &self->slots[i];
        if (slot->block == EXCHANGE_NO_BLOCK && may_open(self)) {
            open_slot(self, slot);
            moved = true;
        }
        if (slot->block != EXCHANGE_NO_BLOCK && !self->base.failed)
            step(self, slot, &moved);
    }
    return moved;
}

static bool is_travelling(const struct exchange *base)
{
    const struct message_exchange *self = (const struct message_exchange *)base;
    for (uint32_t i = 0; i < EXCHANGE_WINDOW; i++) {
        if (self->slots[i].block != EXCHANGE_NO_BLOCK && self->slots[i].phase != PHASE_READING)
            return true;
    }
    return false;
}

static size_t oldest_block(const struct exchange *base)
{
    const struct message_exchange *self = (const struct message_exchange *)base;
    size_t oldest = EXCHANGE_NO_BLOCK; /* larger than any index */
    for (uint32_t i = 0; i < EXCHANGE_WINDOW; i++)
        oldest = self->slots[i].block < oldest ? self->slots[i].block : oldest;
    return oldest;
}

/* --- starting and ending --- */

static uint32_t most_messages(const struct message_exchange *self)
{
    const struct load_share *share = self->base.window.setup.share;
    uint32_t most = 1;
    for (size_t i = 0; i < share->block_count; i++) {
        uint32_t classes = exchange_group(&self->base.window, &share->blocks[i])->classes;
        most = classes > most ? classes : most;
    }
    return most;
}

/* Allocates `transit` bytes and a buffer for each slot. */
static int allocate_buffers(struct message_exchange *self, uint64_t transit, uint64_t buffer_bytes, struct cb_err *err)
{
    if (self->device) {
        int rc =
            pinned_reserve(self->base.window.setup.pinned, self->device, transit + buffer_bytes * EXCHANGE_WINDOW, err);
        if (rc)
            return cb_context(err, "what is in transit in a load");
        self->base.window.transit = self->base.window.setup.pinned->memory;
        self->buffers = self->base.window.transit + transit;
        return 0;
    }
    self->base.window.transit = aligned_alloc(EXCHANGE_PAGE_BYTES, transit);
    self->buffers = buffer_bytes ? aligned_alloc(EXCHANGE_PAGE_BYTES, buffer_bytes * EXCHANGE_WINDOW) : NULL;
    if (!self->base.window.transit || (buffer_bytes && !self->buffers))
        return alloc_fail(err, "for what is in transit in a load");
    return 0;
}

static int allocate(struct message_exchange *self, struct cb_err *err)
{
    uint64_t transit = (self->base.window.setup.share->transit_most / EXCHANGE_PAGE_BYTES + 1) * EXCHANGE_PAGE_BYTES;
    uint64_t buffer_bytes = exchange_longest_buffered(&self->base.window);
    uint32_t messages = most_messages(self);
    int rc = allocate_buffers(self, transit, buffer_bytes, err);
    if (rc)
        return rc;
    self->messages = calloc((size_t)messages * EXCHANGE_WINDOW, sizeof *self->messages);
    self->in_flight = calloc((size_t)messages * EXCHANGE_WINDOW, sizeof *self->in_flight);
    if (!self->messages || !self->in_flight)
        return alloc_fail(err, "for the messages of a load");
    for (size_t i = 0; i < EXCHANGE_WINDOW; i++) {
        self->slots[i].block = EXCHANGE_NO_BLOCK;
        self->slots[i].buffer = self->buffers ? self->buffers + i * buffer_bytes : NULL;
        self->slots[i].messages = self->messages + i * messages;
        self->slots[i].in_flight = self->in_flight + i * messages;
    }
    return 0;
}

static void abandon(struct exchange *self)
{
    comm_abandon_messages(self->window.setup.comm);
}

/* Leaks the memory of messages that never ended. */
static void release(struct exchange *base)
{
    struct message_exchange *self = (struct message_exchange *)base;
    if (base->failed && self->device)
        pinned_leave(base->window.setup.pinned); /* messages and copies may still use them */
    if (!base->failed && !self->device) {
        free(base->window.transit);
        free(self->buffers);
    }
    if (!base->failed) {
        free(self->messages);
        free(self->in_flight);
    }
}

int exchange_new(const struct exchange_setup *setup, struct exchange **exchange, struct cb_err *err)
{
    static const struct exchange_ops ops = {
        .turn = turn,
        .is_travelling = is_travelling,
        .oldest_block = oldest_block,
        .abandon = abandon,
        .release = release,
        .travels = "exchanged",
    };
    struct message_exchange *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "to exchange a load");
    self->base.ops = &ops;
    self->device = setup->state->device;
    int rc = exchange_window_init(&self->base.window, setup, self->device != NULL, err);
    if (!rc)
        rc = allocate(self, err);
    if (rc)
        exchange_free(&self->base);
    else
        *exchange = &self->base;
    return rc;
}
