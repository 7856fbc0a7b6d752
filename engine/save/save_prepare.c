/* Prepares a save: the plan, from a cache whose key covers everything it depends on, and the I/O schedule of this rank's
 * items. */
#include <inttypes.h>
#include <string.h>

#include "core/alloc.h"
#include "core/hash.h"
#include "engine/save/native_save.h"

/* Largest gap between items that is written as zeros rather than left out. */
#define GAP_BYTES 65536
#define FRAME_MAX_BYTES (UINT64_C(128) * 1024 * 1024) /* the header of a safetensors file can be long */

static void release_sources(struct native_save *self)
{
    for (size_t i = 0; i < self->source_count; i++)
        free(self->sources[i].mapping);
    free(self->sources);
    self->sources = NULL;
    self->source_count = 0;
}

void native_save_free(struct native_save *self)
{
    if (!self)
        return;
    native_staging_release(self);
    bounce_save_release(self);
    release_sources(self);
    io_schedule_release(&self->schedule);
    buf_release(&self->frame);
    plan_free(self->plan);
    free(self->items);
    free(self->files);
    free(self->memory);
    free(self);
}

int native_save_make(struct native_engine *engine, struct cb_err *err)
{
    if (engine->save)
        return 0;
    struct native_save *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "to save");
    self->engine = engine;
    buf_init(&self->frame, FRAME_MAX_BYTES);
    engine->save = self;
    return 0;
}

/* --- where the state lies --- */

/* Sorts pieces by tensor, to find an item's piece quickly. */
struct piece_index {
    uint32_t tensor, piece;
};

static int compare_pieces(const void *a, const void *b)
{
    const struct piece_index *x = a, *y = b;
    if (x->tensor != y->tensor)
        return x->tensor < y->tensor ? -1 : 1;
    return x->piece < y->piece ? -1 : x->piece > y->piece;
}

static int index_pieces(const struct state *state, struct piece_index **index, struct cb_err *err)
{
    struct piece_index *made = malloc((state->piece_count + 1) * sizeof *made);
    if (!made)
        return alloc_fail(err, "to order %zu pieces", state->piece_count);
    for (size_t i = 0; i < state->piece_count; i++)
        made[i] = (struct piece_index){state->pieces[i].tensor, (uint32_t)i};
    qsort(made, state->piece_count, sizeof *made, compare_pieces);
    *index = made;
    return 0;
}

/* The piece that holds the item's region; SIZE_MAX if none does. */
static size_t find_piece(const struct state *state, const struct piece_index *index, const struct plan_item *item)
{
    size_t low = 0, high = state->piece_count;
    while (low < high) {
        size_t middle = low + (high - low) / 2;
        if (index[middle].tensor < item->tensor)
            low = middle + 1;
        else
            high = middle;
    }
    for (; low < state->piece_count && index[low].tensor == item->tensor; low++) {
        if (region_contains(&state->pieces[index[low].piece].region, &item->region))
            return index[low].piece;
    }
    return SIZE_MAX;
}

static int place_source(struct native_save *self, const struct state *state, const struct piece_index *index,
                        const struct plan_item *item, struct source *source, struct cb_err *err)
{
    const struct state_tensor *tensor = layout_tensor(self->layout, item->tensor);
    uint64_t header_bytes = item->payload_offset - item->offset;
    if (header_bytes + item->payload_bytes > item->length)
        return cb_fail(err, CB_ERR_INTERNAL, "the plan's item of %s does not have the length of its parts",
                       tensor->fqn);
    source->frame = (struct item_frame){.header_bytes = (uint32_t)header_bytes,
                                        .payload_bytes = item->payload_bytes,
                                        .trailer_bytes = (uint32_t)(item->length - header_bytes - item->payload_bytes)};
    if (tensor->kind == KIND_BYTES)
        return 0;
    size_t piece = find_piece(state, index, item);
    if (piece == SIZE_MAX && item->payload_bytes == 0) { /* no rank needs to hold a tensor without elements */
        source->memory = "";
        return 0;
    }
    if (piece == SIZE_MAX)
        return cb_fail(err, CB_ERR_INTERNAL, "the plan has this rank write a part of %s that it does not hold",
                       tensor->fqn);
    struct mapping mapping;
    mapping_init(&mapping, &item->region, &state->pieces[piece].region, &item->region, dtype_bytes(tensor->dtype));
    source->memory = state->memory[piece];
    self->payload_bytes += item->payload_bytes;
    if (mapping.run_count <= 1) {
        uint64_t payload_byte = 0, memory_byte = 0;
        if (mapping.run_count == 1)
            mapping_run(&mapping, 0, &payload_byte, &memory_byte);
        source->memory += memory_byte;
        return 0;
    }
    source->mapping = malloc(sizeof mapping);
    if (!source->mapping)
        return alloc_fail(err, "to place %s", tensor->fqn);
    *source->mapping = mapping;
    return 0;
}

static int place_sources(struct native_save *self, const struct state *state, struct cb_err *err)
{
    size_t count = self->item_count;
    release_sources(self);
    self->payload_bytes = 0;
    self->sources = calloc(count + 1, sizeof *self->sources);
    if (!self->sources)
        return alloc_fail(err, "for %zu items", count);
    self->source_count = count;
    struct piece_index *index = NULL;
    int rc = index_pieces(state, &index, err);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < count && !rc; i++)
        rc = place_source(self, state, index, &self->items[i], &self->sources[i], err);
    free(index);
    return rc;
}

static bool same_memory(const struct native_save *self, const struct state *state)
{
    return self->memory && self->piece_count == state->piece_count &&
           memcmp(self->memory, state->memory, state->piece_count * sizeof *state->memory) == 0;
}

static int remember_memory(struct native_save *self, const struct state *state, struct cb_err *err)
{
    void **memory = malloc((state->piece_count + 1) * sizeof *memory);
    if (!memory)
        return alloc_fail(err, "for %zu addresses", state->piece_count);
    memcpy(memory, state->memory, state->piece_count * sizeof *memory);
    free(self->memory);
    self->memory = memory;
    self->piece_count = state->piece_count;
    return 0;
}

/* --- the schedule --- */

static struct io_limits save_limits(const struct native_save *self)
{
    const struct native_engine *engine = self->engine;
    struct store *store = self->staged ? engine->back.store : engine->front.store;
    struct io_limits limits = io_limits_of(store_capabilities(store), engine->setup.config.block_bytes);
    limits.gap = limits.alignment > GAP_BYTES ? limits.alignment : GAP_BYTES;
    limits.images = self->staged || (self->bounces && !self->skips_host);
    limits.apart = self->skips_host;
    limits.whole_blocks = store_capabilities(store)->part_bytes > 0;
    if (limits.whole_blocks)
        limits.gap = UINT64_MAX;
    return limits;
}

static void add_item(struct native_save *self, uint32_t number)
{
    const struct plan_item *item = &self->items[number];
    const struct source *source = &self->sources[number];
    struct io_schedule *schedule = &self->schedule;
    io_schedule_add_frame(schedule, PART_HEADER, number, item->offset, source->frame.header_bytes);
    if (source->mapping || !source->memory)
        io_schedule_add_mapped(schedule, number, item->payload_offset, item->payload_bytes, 0);
    else /* a write does not modify it, but reads use the same struct */
        io_schedule_add_payload(schedule, number, item->payload_offset, item->payload_bytes, 0, (void *)source->memory);
    io_schedule_add_frame(schedule, PART_TRAILER, number, item->payload_offset + item->payload_bytes,
                          source->frame.trailer_bytes);
}

/* In a shared file no block may belong to two ranks. */
static int check_shared(const struct native_save *self, const struct plan_item *first, struct cb_err *err)
{
    if (first->offset % self->schedule.limits.alignment == 0)
        return 0;
    return cb_fail(err, CB_ERR_INTERNAL, "the plan has this rank start at offset %" PRIu64 " of a shared file",
                   first->offset);
}

static int build_program(struct native_save *self, const struct state *state, struct cb_err *err)
{
    const struct native_engine *engine = self->engine;
    free(self->files);
    self->files = malloc((self->source_count + 1) * sizeof *self->files);
    if (!self->files)
        return alloc_fail(err, "for the list of files");
    const struct store_capabilities *capabilities =
        store_capabilities(self->staged ? engine->back.store : engine->front.store);
    struct io_limits limits = save_limits(self);
    io_schedule_release(&self->schedule);
    io_schedule_init(&self->schedule, &limits);
    for (uint32_t i = 0; i < self->source_count;) {
        uint32_t file = self->items[i].file;
        int rc = check_shared(self, &self->items[i], err);
        if (rc)
            return rc;
        self->files[self->schedule.file_count] = file;
        uint64_t part_bytes = store_part_bytes(capabilities, plan_file_length(self->plan, file));
        if (part_bytes > 0)
            self->schedule.limits.block = part_bytes;
        for (; i < self->source_count && self->items[i].file == file; i++)
            add_item(self, i);
        io_schedule_end_file(&self->schedule);
    }
    uint32_t turns = engine->setup.config.plan.files == FILES_PER_RANK && self->schedule.file_count > 1
                         ? self->schedule.file_count
                         : 1;
    int rc = io_schedule_finish(&self->schedule, turns, err);
    if (!rc && self->staged)
        rc = native_staging_build(self, err);
    if (!rc && self->bounces)
        rc = bounce_save_build(self, state->device, err);
    if (rc)
        return rc;
    struct transfer *transfer = self->staged ? engine->back.transfer : engine->front.transfer;
    uint64_t staging_bytes = self->staged || self->bounces ? 0 : self->schedule.staging_bytes;
    return transfer_reserve(transfer, self->schedule.file_count, staging_bytes, err);
}

/* --- the cache --- */

static void show_plan(const struct native_engine *engine, const struct plan *plan)
{
    double *values = engine->setup.page->run_values;
    values[METRIC_GLOBAL_PLAN_S] = (double)plan->compute_ns / 1e9;
    values[METRIC_PLAN_ITEMS] = (double)plan->item_count;
    values[METRIC_IMBALANCE] = plan->imbalance;
    values[METRIC_IMBALANCE_VS_BOUND] = plan->imbalance_vs_bound;
}

static int compute_plan(struct native_save *self, const struct plan_key *key, struct cb_err *err)
{
    struct plan *plan = NULL;
    struct plan_item *items = NULL;
    size_t item_count = 0;
    int rc = plan_compute(self->layout, &self->engine->setup.config.plan, &plan, err);
    if (!rc)
        rc = plan_items_of_rank(plan, self->engine->rank, &items, &item_count, err);
    if (rc) {
        plan_free(plan);
        return rc;
    }
    plan_free(self->plan);
    free(self->items);
    self->plan = plan;
    self->items = items;
    self->item_count = item_count;
    self->key = *key;
    self->schedule_ready = false;
    show_plan(self->engine, plan);
    return 0;
}

static int make_program(struct native_save *self, const struct state *state, bool staged, struct cb_err *err)
{
    self->schedule_ready = false;
    self->staged = staged;
    self->bounces = !staged && state->device;
    self->skips_host = self->bounces && native_skips_host(self->engine);
    int rc = place_sources(self, state, err);
    if (!rc)
        rc = build_program(self, state, err);
    if (!rc)
        rc = remember_memory(self, state, err);
    self->schedule_ready = rc == 0;
    return rc;
}

/* The key of the state's plan, which a save before may have computed. */
static int find_key(const struct native_save *self, const struct native_operation *operation, struct plan_key *key,
                    struct cb_err *err)
{
    uint64_t number = operation->options->layout_number;
    if (!self->plan || number == 0 || number != self->layout_number)
        return plan_key_of(operation->state->layout, &operation->engine->setup.config.plan, key, err);
    *key = self->key;
    return 0;
}

int native_prepare(struct native_operation *operation, bool staged,
                   int (*idle)(struct native_engine *, struct cb_err *), struct cb_err *err)
{
    struct native_engine *engine = operation->engine;
    struct native_save *self = engine->save;
    struct plan_key key;
    int rc = find_key(self, operation, &key, err);
    if (rc)
        return rc;
    bool hit = engine->setup.config.caches_plans && self->plan && plan_key_equal(&key, &self->key);
    bool ready = hit && self->schedule_ready && self->staged == staged &&
                 self->bounces == (!staged && operation->state->device) && same_memory(self, operation->state);
    if (!ready)
        rc = idle(engine, err);
    if (rc)
        return rc;
    self->layout = operation->state->layout;
    if (!hit)
        rc = compute_plan(self, &key, err);
    if (!rc)
        self->layout_number = operation->options->layout_number;
    if (!rc && !ready)
        rc = make_program(self, operation->state, staged, err);
    if (rc)
        return rc;
    const uint64_t both[] = {key.number, self->plan->digest};
    operation->plan_number = hash_u64(both, sizeof both) >> 1 << 1 | (hit ? 1 : 0);
    operation->bytes_needed = self->payload_bytes * engine->setup.config.copies;
    return 0;
}
