/* Completion of a load: processes requests as they arrive. The header shows whether the item has the expected layout,
 * the payload goes to the targets, and the trailer has the checksum. During a pass, only error reports allocate. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/stored/unpack.h"
#include "core/clock.h"
#include "core/hash.h"
#include "engine/load/load_stages.h"
#include "engine/state.h"

/* How long to wait after a failure for copies that are queued. */
#define DRAIN_NS (5 * NS_PER_S)

static int open_file(void *context, uint32_t file, struct store_object **object, uint64_t *length, struct cb_err *err)
{
    struct native_load *self = context;
    char name[PATH_MAX];
    int rc = native_load_file_name(self, self->io.files[file], name, err);
    return rc ? rc : store_open_read(self->operation->engine->setup.store, name, object, length, err);
}

/* If a header is longer than the part that was read, it is read again: first with the length that suffices for most,
 * then the maximum. */
static bool probe_longer(const struct native_load *self, struct load_item *item, uint64_t tried)
{
    uint64_t length = native_load_chunk(self, item)->length;
    uint64_t next = tried < LOAD_FIRST_PROBE_BYTES ? LOAD_FIRST_PROBE_BYTES : ITEM_MAX_HEADER;
    item->probe_bytes = length < next ? length : next;
    item->state = ITEM_PROBE;
    item->again = item->probe_bytes > tried;
    return item->again;
}

/* A header identical to our writer's, save id included, is not parsed, since parsing allocates. */
static bool is_our_header(struct native_load *self, const struct load_item *item, const void *bytes, uint64_t len)
{
    const struct stored_tensor *stored = native_load_tensor(self, item);
    const struct stored_chunk *chunk = native_load_chunk(self, item);
    struct state_tensor tensor = {.fqn = stored->fqn, .dtype = stored->dtype, .dims = stored->dims};
    struct plan_item ours = {
        .offset = chunk->offset,
        .length = chunk->length,
        .payload_offset = chunk->offset + item->payload.offset,
        .payload_bytes = item->payload.bytes,
        .region = chunk->region,
    };
    memcpy(tensor.shape, stored->shape, sizeof tensor.shape);
    buf_clear(&self->complete.frame);
    return format_item_header(self->plan.checkpoint->format, &tensor, &ours, self->plan.checkpoint->save_id,
                              &self->complete.frame, NULL) == 0 &&
           self->complete.frame.len == len && memcmp(self->complete.frame.data, bytes, len) == 0;
}

static void take_header(struct native_load *self, struct load_item *item, const void *bytes, uint64_t len)
{
    const struct stored_chunk *chunk = native_load_chunk(self, item);
    struct stored_payload payload;
    struct cb_err err;
    if (item->state == ITEM_EXPECTED && is_our_header(self, item, bytes, len)) {
        item->state = ITEM_KNOWN;
        return;
    }
    int rc = format_parse_item(self->plan.checkpoint->format, native_load_tensor(self, item), &chunk->region, bytes,
                               len, chunk->length, &payload, &err);
    if (rc) {
        if (!probe_longer(self, item, len))
            native_load_fail_item(self, item, CB_ERR_CORRUPT, err.message);
        return;
    }
    if (format_check_save(self->plan.checkpoint, false, bytes, len, &err)) {
        native_load_fail_item(self, item, CB_ERR_CORRUPT, err.message);
        return;
    }
    bool as_expected = item->state == ITEM_EXPECTED && payload.contiguous && payload.offset == item->payload.offset &&
                       payload.bytes == item->payload.bytes;
    item->payload = payload;
    item->again = !as_expected;
    item->state = ITEM_KNOWN;
}

/* A wrong trailer counts only after the header has confirmed the expected layout. */
static void take_trailer(struct native_load *self, struct load_item *item, const void *bytes, uint64_t len)
{
    struct stored_trailer trailer = {0};
    item->bad_trailer = format_parse_trailer(self->plan.checkpoint->format, bytes, len, &trailer, NULL) != 0;
    item->trailer = trailer;
}

/* The read of the item whose target contains the bytes. */
static uint32_t read_of(const struct native_load *self, const struct load_item *item, const char *memory)
{
    for (uint32_t i = item->first_read; i < item->first_read + item->read_count; i++) {
        const struct load_read *read = &self->plan.wanted->reads[i];
        const char *begin = self->plan.memory[read->piece];
        uint64_t bytes = region_elements(&self->plan.pieces[read->piece].region) * self->plan.mappings[i].element_bytes;
        if (memory >= begin && memory < begin + bytes)
            return i;
    }
    assert(!"a part that no read asked for");
    return item->first_read;
}

/* Copies payload bytes to their target; on a device the copy is queued. */
static void place_bytes(struct native_load *self, struct part *part, const char *bytes)
{
    struct device_copy copy = {.to = part->memory, .from = bytes, .row_bytes = part->bytes, .rows = 1};
    struct device *device = self->operation->state->device;
    if (!state_is_on_device(self->operation->state, part->memory))
        memcpy(part->memory, bytes, part->bytes);
    else if (!self->complete.copy_code)
        self->complete.copy_code = device->ops->copy(device, HOST_TO_DEVICE, &copy, 1, &self->complete.copy_err);
    self->operation->bytes_copied += part->bytes;
}

static void take_payload(struct native_load *self, struct load_item *item, struct part *part, const char *bytes)
{
    bool packed = native_load_is_packed(self, item);
    if (part->kind == PART_MAPPED)
        native_load_place(self, item, part->skip, bytes, part->bytes);
    else if (!part->direct)
        place_bytes(self, part, bytes);
    if (packed)
        return;
    if (self->operation->engine->setup.config.checksum)
        part->crc = crc32_zip(0, part->direct ? part->memory : bytes, part->bytes);
    if (self->complete.exchange && part->kind == PART_PAYLOAD)
        self->complete.arrived[read_of(self, item, part->memory)] += part->bytes;
    if (item->state == ITEM_KNOWN && !item->again)
        native_load_settle(self, item, true);
}

static void check_crc(struct native_load *self, struct load_item *item)
{
    uint32_t crc = 0;
    for (size_t i = 0; i < item->part_count; i++) {
        const struct part *part = &self->io.schedule.parts[item->first_part + i];
        if (part->kind == PART_PAYLOAD || part->kind == PART_MAPPED)
            crc = part->skip == 0 ? part->crc : crc32_zip_combine(crc, part->crc, part->bytes);
    }
    if (crc == item->trailer.crc)
        return;
    char text[128];
    snprintf(text, sizeof text, "its bytes have the CRC-32 %08" PRIx32 ", stored is %08" PRIx32, crc,
             item->trailer.crc);
    native_load_fail_item(self, item, CB_ERR_CORRUPT, text);
}

static void item_done(struct native_load *self, struct load_item *item)
{
    struct cb_err err;
    if (item->again)
        native_load_settle(self, item, false);
    if (item->state == ITEM_FAILED || item->again)
        return;
    if (item->bad_trailer)
        native_load_fail_item(self, item, CB_ERR_CORRUPT, "what follows its bytes is damaged");
    else if (format_check_header(&item->payload, &item->trailer, &err))
        native_load_fail_item(self, item, CB_ERR_CORRUPT, err.message);
    else if (item->trailer.crc != 0 && item->payload.whole)
        check_crc(self, item);
    if (item->state == ITEM_FAILED || item->value || native_load_is_packed(self, item))
        return;
    native_load_settle(self, item, true);
    item->state = ITEM_DONE;
}

static void take_part(struct native_load *self, struct part *part, const char *bytes)
{
    struct load_item *item = &self->plan.items[part->item];
    if (part->kind == PART_HEADER && item->read_count == 0)
        memcpy(item->value, bytes, part->bytes);
    else if (part->kind == PART_HEADER)
        take_header(self, item, bytes, part->bytes);
    else if (part->kind == PART_TRAILER)
        take_trailer(self, item, bytes, part->bytes);
    else
        take_payload(self, item, part, bytes);
}

static int take_request(void *context, const struct io_request *request, const char *staging, uint64_t available,
                        const struct cb_err *why, struct cb_err *err)
{
    struct native_load *self = context;
    if (why->code == CB_ERR_ABORTED) {
        *err = *why;
        return why->code;
    }
    for (size_t i = 0; i < request->part_count; i++) {
        struct part *part = &self->io.schedule.parts[request->first_part + i];
        struct load_item *item = &self->plan.items[part->item];
        if (part->offset + part->bytes <= available)
            take_part(self, part, staging + (part->offset - request->offset));
        else
            native_load_fail_item(self, item, why->code ? why->code : CB_ERR_CORRUPT,
                                  why->code ? why->message : "the file is too short: it ends before or in the item");
        if (--item->parts_left == 0)
            item_done(self, item);
    }
    if (!self->io.ring || !staging || io_schedule_is_apart(&self->io.schedule, request))
        return 0;
    int rc = self->complete.copy_code;
    if (rc)
        *err = self->complete.copy_err;
    return rc ? rc : bounce_ring_copying(self->io.ring, (size_t)(request - self->io.schedule.requests), err);
}

/* --- slots of pinned memory, for a state on a device --- */

static int slot_ready(void *context, size_t request, uint64_t until_ns, bool *ready, struct cb_err *err)
{
    struct native_load *self = context;
    bool apart = io_schedule_is_apart(&self->io.schedule, &self->io.schedule.requests[request]);
    bool free_now = apart || bounce_ring_has_free(self->io.ring);
    int rc = bounce_ring_look(self->io.ring, free_now ? 0 : until_ns, err);
    *ready = !rc && (apart || bounce_ring_has_free(self->io.ring));
    return rc;
}

static char *slot_place(void *context, size_t request)
{
    struct native_load *self = context;
    const struct io_schedule *schedule = &self->io.schedule;
    if (io_schedule_is_apart(schedule, &schedule->requests[request])) /* not staged: the store reads into the state */
        return schedule->parts[schedule->requests[request].first_part].memory;
    bool taken = bounce_ring_take(self->io.ring, request);
    assert(taken);
    (void)taken;
    return bounce_ring_memory(self->io.ring, request);
}

static bool go_on_exchanging(void *context)
{
    struct native_load *self = context;
    bool soon = self->io.ring && bounce_ring_under_way(self->io.ring) > 0 && !bounce_ring_has_free(self->io.ring);
    return (self->complete.exchange && exchange_progress(self->complete.exchange)) || soon;
}

/* Waits for copies before their source is reused, also after a failed pass. */
static int end_copies(struct native_load *self, int rc, struct cb_err *err)
{
    struct cb_err later;
    uint64_t drain_ns = clock_monotonic_ns() + DRAIN_NS;
    if (!self->io.ring)
        return rc;
    timeline_enter(&self->operation->timeline, STATE_STAGE);
    int drained =
        bounce_ring_drain(self->io.ring, rc ? drain_ns : self->operation->options->deadline_ns, rc ? &later : err);
    return rc ? rc : drained;
}

int native_load_run_pass(struct native_load *self, struct cb_err *err)
{
    static const struct transfer_ops in_place = {
        .open = open_file, .complete = take_request, .meanwhile = go_on_exchanging};
    static const struct transfer_ops bounced = {.open = open_file,
                                                .ready = slot_ready,
                                                .place = slot_place,
                                                .complete = take_request,
                                                .meanwhile = go_on_exchanging};
    struct native_operation *operation = self->operation;
    struct status_page *page = operation->engine->setup.page;
    struct transfer_run run = {
        .schedule = &self->io.schedule,
        .ops = self->io.ring ? &bounced : &in_place,
        .context = self,
        .timeline = &operation->timeline,
        .warmup = (operation->sample->flags & SAMPLE_WARMUP) != 0,
        .iteration = operation->options->iteration,
        .deadline_ns = operation->options->deadline_ns,
    };
    struct transfer_counts counts;
    atomic_fetch_add_explicit(&page->bytes_total, self->io.schedule.bytes, memory_order_relaxed);
    self->complete.copy_code = 0;
    if (self->io.ring)
        bounce_ring_begin(self->io.ring, true);
    int rc = transfer_run(operation->engine->transfer, &run, &counts, err);
    rc = end_copies(self, rc, err);
    operation->counts.requests += counts.requests;
    operation->counts.errors += counts.errors;
    operation->counts.bytes += counts.bytes;
    return rc;
}

/* --- after a pass --- */

static int unpack_value(const struct native_load *self, const struct load_item *item, struct buf *plain,
                        struct cb_err *err)
{
    buf_init(plain, 2 * LOAD_VALUE_MAX_BYTES);
    return unpack_zstd(native_load_tensor(self, item)->fqn, item->value, native_load_chunk(self, item)->length, plain,
                       err);
}

/* Passes a value on without knowing what it means. What looks like a torch.save must not be damaged. */
static int keep_value(const struct native_load *self, const struct load_item *item, const struct buf *plain, int code,
                      struct cb_err *err)
{
    const struct engine_setup *setup = &self->operation->engine->setup;
    bool is_zip = plain->len >= 4 && memcmp(plain->data, "PK\3\4", 4) == 0;
    if (is_zip && code == CB_ERR_CORRUPT)
        return code;
    return setup->keep_value(setup->values, native_load_tensor(self, item)->fqn, plain->data, plain->len, err);
}

/* Parsing a value allocates, so it is done after the pass. */
static void check_value(struct native_load *self, struct load_item *item)
{
    struct cb_err err;
    struct buf plain = {.data = item->value, .len = native_load_chunk(self, item)->length};
    bool compressed = native_load_chunk(self, item)->compressed;
    buf_clear(&self->complete.frame);
    int rc = compressed ? unpack_value(self, item, &plain, &err)
                        : format_check_save(self->plan.checkpoint, true, plain.data, plain.len, &err);
    bool unpacked = rc == 0;
    if (!rc)
        rc = format_parse_bytes_payload(self->plan.checkpoint->format, native_load_tensor(self, item)->fqn, plain.data,
                                        plain.len, &self->complete.frame, &err);
    if (unpacked && self->operation->engine->setup.keep_value)
        rc = keep_value(self, item, &plain, rc, &err);
    if (compressed)
        buf_release(&plain);
    if (rc && rc != CB_ERR_UNSUPPORTED) /* a value that only Python can load (of another class) is not checked */
        native_load_fail_item(self, item, rc, err.message);
    else
        item->state = ITEM_DONE;
}

/* Frees the state of items that failed before their end. */
static int take_packed(struct native_load *self, struct load_item *item, bool *again, struct cb_err *err)
{
    int rc = item->in_window > 0 ? native_load_unpack(self, item, err) : 0;
    *again = *again || native_load_is_open(item);
    return rc;
}

int native_load_after_pass(struct native_load *self, bool *again, struct cb_err *err)
{
    int rc = 0;
    *again = false;
    for (size_t i = 0; i < self->plan.item_count && !rc; i++) {
        struct load_item *item = &self->plan.items[i];
        if (item->state == ITEM_FAILED)
            native_load_forget_unpacking(item);
        if (!native_load_is_open(item))
            continue;
        if (item->value)
            check_value(self, item);
        else if (native_load_is_packed(self, item))
            rc = take_packed(self, item, again, err);
        else
            *again = true;
    }
    return rc;
}
