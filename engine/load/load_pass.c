/* I/O of a load: builds the schedule of a pass, that is which bytes it reads for the open items, and to where. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/format/format_ops.h"
#include "ckpt/format/save_id.h"
#include "core/alloc.h"
#include "engine/load/load_stages.h"
#include "engine/state.h"

#define WINDOW_BYTES (UINT64_C(32) << 20)
#define PAGE_BYTES 4096

/* A range of an item's payload and its destination: `memory`, or the mappings if `memory` is NULL. */
struct range {
    uint64_t begin, end;
    void *memory;
};

struct ranges {
    struct range *ranges;
    size_t count, capacity;
    bool failed;
};

static void add_range(struct ranges *self, uint64_t begin, uint64_t end, void *memory)
{
    if (self->count == self->capacity) {
        size_t wanted = self->capacity > 0 ? self->capacity * 2 : 16;
        struct range *larger = realloc(self->ranges, wanted * sizeof *larger);
        if (!larger) {
            self->failed = true;
            return;
        }
        self->ranges = larger;
        self->capacity = wanted;
    }
    self->ranges[self->count++] = (struct range){begin, end, memory};
}

static void add_read(const struct native_load *self, const struct load_item *item, uint32_t read, struct ranges *ranges)
{
    const struct mapping *mapping = &self->plan.mappings[read];
    char *memory = self->plan.memory[self->plan.wanted->reads[read].piece];
    uint64_t begin, end, memory_byte;
    if (!item->payload.contiguous) {
        struct strided strided = native_load_strided(self, item, read);
        strided_span(&strided, &begin, &end);
        add_range(ranges, begin, end, NULL);
        return;
    }
    if (self->plan.in_one[read]) {
        mapping_span(mapping, &begin, &end);
        add_range(ranges, begin, end, NULL);
        return;
    }
    for (uint64_t run = 0; run < mapping->run_count; run++) {
        mapping_run(mapping, run, &begin, &memory_byte);
        add_range(ranges, begin, begin + mapping->run_bytes, memory + memory_byte);
    }
}

static int compare_ranges(const void *a, const void *b)
{
    const struct range *x = a, *y = b;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* Sorts ranges and merges those that overlap because several reads need the same bytes; these use the mappings. */
static void join_ranges(struct ranges *self)
{
    if (self->count == 0)
        return;
    qsort(self->ranges, self->count, sizeof *self->ranges, compare_ranges);
    size_t kept = 0;
    for (size_t i = 0; i < self->count; i++) {
        struct range *last = kept > 0 ? &self->ranges[kept - 1] : NULL;
        if (last && self->ranges[i].begin < last->end) {
            last->end = self->ranges[i].end > last->end ? self->ranges[i].end : last->end;
            last->memory = NULL;
        } else {
            self->ranges[kept++] = self->ranges[i];
        }
    }
    self->count = kept;
}

static void add_payload(struct native_load *self, uint32_t number, struct ranges *ranges)
{
    struct load_item *item = &self->plan.items[number];
    uint64_t start = native_load_chunk(self, item)->offset + item->payload.offset;
    ranges->count = 0;
    for (uint32_t i = 0; i < item->read_count; i++)
        add_read(self, item, item->first_read + i, ranges);
    join_ranges(ranges);
    for (size_t i = 0; i < ranges->count; i++) {
        const struct range *range = &ranges->ranges[i];
        if (range->memory)
            io_schedule_add_payload(&self->io.schedule, number, start + range->begin, range->end - range->begin,
                                    range->begin, range->memory);
        else
            io_schedule_add_mapped(&self->io.schedule, number, start + range->begin, range->end - range->begin,
                                   range->begin);
    }
}

/* Whether to read the trailer, which contains checksums: that of the payload, if all of it is read, or, if the item is
 * a view of its storage, that of the header. */
static bool wants_trailer(const struct native_load *self, const struct load_item *item, const struct ranges *ranges)
{
    uint64_t end = item->payload.offset + item->payload.bytes, length = native_load_chunk(self, item)->length;
    uint64_t covered = 0;
    for (size_t i = 0; i < ranges->count; i++)
        covered += ranges->ranges[i].end - ranges->ranges[i].begin;
    bool tells = item->payload.whole ? covered == item->payload.bytes : item->payload.header_crc != 0;
    return self->operation->engine->setup.config.checksum && tells && item->payload.bytes > 0 && length > end;
}

/* Adds the next bytes of a compressed item, as many as fit into the window. */
static void add_packed(struct native_load *self, uint32_t number)
{
    struct load_item *item = &self->plan.items[number];
    struct window *window = &self->io.window;
    const struct stored_chunk *chunk = native_load_chunk(self, item);
    uint64_t offset = chunk->offset + item->taken, left = chunk->length - item->taken;
    uint64_t at = (window->used + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES + offset % PAGE_BYTES;
    item->window_at = at;
    item->in_window = at >= window->bytes ? 0 : window->bytes - at < left ? window->bytes - at : left;
    if (item->in_window == 0)
        return;
    io_schedule_add_payload(&self->io.schedule, number, offset, item->in_window, item->taken, window->memory + at);
    window->used = at + item->in_window;
}

/* Formats with a file header: adds the beginning of the file, which has the save id, to the read of its first item. */
static void add_file_front(struct native_load *self, uint32_t number)
{
    const struct stored_checkpoint *checkpoint = self->plan.checkpoint;
    const struct load_item *item = &self->plan.items[number];
    uint64_t offset = native_load_chunk(self, item)->offset;
    if (checkpoint->save_id && item->state == ITEM_EXPECTED && format_ops_of(checkpoint->format)->has_file_headers)
        io_schedule_add_frame(&self->io.schedule, PART_HEADER, number, 0,
                              offset < SAVE_ID_FRONT_BYTES ? offset : SAVE_ID_FRONT_BYTES);
}

static void add_item(struct native_load *self, uint32_t number, struct ranges *ranges)
{
    struct load_item *item = &self->plan.items[number];
    const struct stored_chunk *chunk = native_load_chunk(self, item);
    struct io_schedule *schedule = &self->io.schedule;
    item->again = item->bad_trailer = false;
    item->trailer = (struct stored_trailer){0};
    if (item->read_count == 0) {
        io_schedule_add_frame(schedule, PART_HEADER, number, chunk->offset, chunk->length);
        return;
    }
    if (chunk->compressed) {
        add_packed(self, number);
        return;
    }
    if (item->state == ITEM_PROBE) {
        io_schedule_add_frame(schedule, PART_HEADER, number, chunk->offset, item->probe_bytes);
        return;
    }
    if (item->state == ITEM_EXPECTED)
        io_schedule_add_frame(schedule, PART_HEADER, number, chunk->offset, item->payload.offset);
    add_payload(self, number, ranges);
    uint64_t end = item->payload.offset + item->payload.bytes;
    if (!wants_trailer(self, item, ranges))
        return;
    uint64_t bytes = chunk->length - end < ITEM_MAX_TRAILER ? chunk->length - end : ITEM_MAX_TRAILER;
    io_schedule_add_frame(schedule, PART_TRAILER, number, chunk->offset + chunk->length - bytes, bytes);
}

static void find_parts(struct native_load *self)
{
    for (size_t i = 0; i < self->plan.item_count; i++)
        self->plan.items[i].part_count = self->plan.items[i].parts_left = 0;
    for (size_t i = 0; i < self->io.schedule.part_count; i++) {
        struct load_item *item = &self->plan.items[self->io.schedule.parts[i].item];
        if (item->part_count++ == 0)
            item->first_part = i;
        item->parts_left++;
    }
    for (size_t i = 0; i < self->plan.item_count; i++) {
        struct load_item *item = &self->plan.items[i];
        if (native_load_is_open(item) && item->part_count == 0 && !native_load_is_packed(self, item))
            item->state = ITEM_DONE; /* an item without elements */
    }
}

/* The reason why an item described by damaged or foreign metadata cannot be read, or NULL. `end` is the end of the
 * previous item in the file. */
static const char *refuse_item(const struct native_load *self, const struct load_item *item, uint64_t end)
{
    const struct stored_chunk *chunk = native_load_chunk(self, item);
    if (chunk->length == 0)
        return "it has no bytes";
    if (chunk->offset < end)
        return "it overlaps the item before it in the file";
    if (item->read_count == 0 && chunk->length > LOAD_VALUE_MAX_BYTES)
        return "it is too long for a value that is no tensor";
    return NULL;
}

static void add_file(struct native_load *self, size_t *next, struct ranges *ranges)
{
    uint32_t file = native_load_chunk(self, &self->plan.items[*next])->file;
    uint64_t end = 0;
    self->io.files[self->io.schedule.file_count] = file;
    for (; *next < self->plan.item_count && native_load_chunk(self, &self->plan.items[*next])->file == file; ++*next) {
        struct load_item *item = &self->plan.items[*next];
        if (!native_load_is_open(item))
            continue;
        const char *why = refuse_item(self, item, end);
        if (why) {
            native_load_fail_item(self, item, CB_ERR_CORRUPT, why);
            continue;
        }
        if (end == 0)
            add_file_front(self, (uint32_t)*next);
        add_item(self, (uint32_t)*next, ranges);
        end = native_load_chunk(self, item)->offset + native_load_chunk(self, item)->length;
    }
    io_schedule_end_file(&self->io.schedule);
}

/* Whether any target is in device memory. */
static bool reaches_device(const struct native_load *self)
{
    for (size_t i = 0; i < self->plan.piece_count; i++) {
        if (state_is_on_device(self->operation->state, self->plan.memory[i]))
            return true;
    }
    return false;
}

/* Whether the store reads into the device itself. Not if bytes are decompressed, or passed on to other ranks. */
static bool skips_host(const struct native_load *self)
{
    return native_skips_host(self->operation->engine) && !self->io.window.memory && self->plan.mode == LOAD_ALONE;
}

int native_load_build_pass(struct native_load *self, struct cb_err *err)
{
    const struct native_engine *engine = self->operation->engine;
    struct device *device = reaches_device(self) ? self->operation->state->device : NULL;
    struct ranges ranges = {0};
    io_schedule_clear(&self->io.schedule);
    io_schedule_limit_waste(&self->io.schedule, self->plan.waste_left);
    self->io.window.used = 0;
    self->io.schedule.limits.apart = device && skips_host(self);
    self->io.schedule.limits.images = device && !self->io.schedule.limits.apart;
    for (size_t next = 0; next < self->plan.item_count;)
        add_file(self, &next, &ranges);
    free(ranges.ranges);
    self->plan.waste_left = self->io.schedule.waste_left;
    if (ranges.failed)
        return alloc_fail(err, "for the ranges to read");
    uint32_t turns = engine->setup.config.plan.files == FILES_PER_RANK ? engine->setup.config.plan.files_per_rank : 1;
    int rc = io_schedule_finish(&self->io.schedule, turns, err);
    if (rc)
        return rc;
    find_parts(self);
    if (device)
        rc = bounce_ring_reserve(self->operation->engine, device, self->io.schedule.staging_bytes,
                                 self->io.schedule.request_count, err);
    self->io.ring = device ? engine->ring : NULL;
    return rc ? rc
              : transfer_reserve(engine->transfer, self->io.schedule.file_count,
                                 device ? 0 : self->io.schedule.staging_bytes, err);
}

/* --- memory of all passes --- */

static int reserve_window(struct native_load *self, struct cb_err *err)
{
    struct window *window = &self->io.window;
    struct device *device = self->operation->state->device;
    uint64_t bytes = 0;
    for (size_t i = 0; i < self->plan.item_count; i++) {
        if (native_load_is_packed(self, &self->plan.items[i]))
            bytes += native_load_chunk(self, &self->plan.items[i])->length + 2 * PAGE_BYTES;
    }
    if (bytes == 0)
        return 0;
    bytes = (bytes < WINDOW_BYTES ? bytes : WINDOW_BYTES) / PAGE_BYTES * PAGE_BYTES;
    *window = (struct window){.memory = aligned_alloc(PAGE_BYTES, bytes), .bytes = bytes};
    int rc = device ? pinned_reserve(&self->io.bounce, device, LOAD_STEP_BYTES, err) : 0;
    if (rc)
        return rc;
    window->step = device ? self->io.bounce.memory : malloc(LOAD_STEP_BYTES);
    if (!window->memory || !window->step)
        return alloc_fail(err, "to decompress items");
    return 0;
}

int native_load_reserve_io(struct native_load *self, struct cb_err *err)
{
    self->io.files = malloc((self->plan.item_count + 1) * sizeof *self->io.files);
    if (!self->io.files)
        return alloc_fail(err, "for %zu items", self->plan.item_count);
    return reserve_window(self, err);
}

void native_load_release_io(struct native_load *self)
{
    free(self->io.files);
    self->io.files = NULL;
    free(self->io.window.memory);
    if (self->io.window.step != self->io.bounce.memory)
        free(self->io.window.step);
    self->io.window = (struct window){0};
}
