/* Loading: rank 0 reads the metadata, all get it, and each rank reads what its pieces need.
 *
 * Where our own writer puts payloads is known from an item's length, so header, payload and trailer
 * are read in one go, the payload straight into the state's memory; the header, parsed when it
 * arrives, says whether that was right. Items that lie otherwise are read again by what their header
 * says: another offset in a second pass, other strides through memory of their own. A wrong item is
 * named on the status page and the load goes on, so that all of them are named. Knows formats through
 * ckpt/format.h alone. */
#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/load_plan.h"
#include "core/hash.h"
#include "worker/native.h"

#define METADATA_MAX_BYTES (UINT64_C(8) * 1024 * 1024 * 1024)
#define FRAME_MAX_BYTES (UINT64_C(128) * 1024 * 1024)
/* Unwanted bytes that are read rather than making another request. */
#define GAP_BYTES 65536
/* Runs at least so long, or so far apart, are read one by one; others as one range and taken apart. */
#define LONG_RUN_BYTES 131072
/* Enough for the header of what PyTorch writes; one that is longer is read again. */
#define FIRST_PROBE_BYTES 8192
#define MAX_PASSES 4 /* as expected, short probe, long probe, by the header */
/* A value that is no tensor is read whole; a longer one is none of what PyTorch's planner stores so. */
#define VALUE_MAX_BYTES (UINT64_C(64) * 1024 * 1024)

enum item_state {
    ITEM_EXPECTED, /* laid out as our writer does it; the header will tell */
    ITEM_PROBE,    /* only its header is read */
    ITEM_KNOWN,    /* its header has been parsed */
    ITEM_DONE,
    ITEM_FAILED,
};

struct item {
    uint32_t chunk;
    uint32_t first_read, read_count; /* no reads: a bytes item */
    enum item_state state;
    struct stored_payload payload;
    uint64_t probe_bytes;
    bool again;    /* the header says that this pass read the wrong bytes */
    void *strided; /* payload as it is stored, where its strides are not ours; owned */
    uint32_t crc;  /* of the trailer */
    bool has_crc, bad_trailer;
    void *value;                               /* of a bytes item: all of it, once read; owned */
    size_t first_part, part_count, parts_left; /* of the pass under way */
};

struct native_load {
    struct program program;
    struct buf metadata;
    struct buf frame; /* what our writer would have written, or a value */
    /* of the load under way */
    struct native_operation *operation;
    struct stored_checkpoint *checkpoint;
    struct load_plan *plan;
    struct mapping *mappings; /* one a read */
    struct item *items;       /* by file and offset */
    size_t item_count;
    uint32_t *files; /* file of the checkpoint for each file of the program */
    size_t failures;
    char first_failure[512];
};

void native_load_free(struct native_load *self)
{
    if (!self)
        return;
    program_release(&self->program);
    buf_release(&self->metadata);
    buf_release(&self->frame);
    free(self);
}

static int load_new(const struct native_engine *engine, struct native_load **load, struct cb_err *err)
{
    struct native_load *self = calloc(1, sizeof *self);
    if (!self)
        return cb_fail(err, CB_ERR_MEMORY, "no memory to load");
    struct program_limits limits = program_limits_of(store_capabilities(engine->setup.store), engine->block_bytes);
    limits.gap = GAP_BYTES;
    limits.whole_frames = true;
    program_init(&self->program, &limits);
    buf_init(&self->metadata, METADATA_MAX_BYTES);
    buf_init(&self->frame, FRAME_MAX_BYTES);
    *load = self;
    return 0;
}

static const struct stored_chunk *chunk_of(const struct native_load *self, const struct item *item)
{
    return &self->checkpoint->chunks[item->chunk];
}

static const struct stored_tensor *tensor_of(const struct native_load *self, const struct item *item)
{
    return &self->checkpoint->tensors[chunk_of(self, item)->tensor];
}

/* --- what is wrong --- */

static void add_failure(struct native_load *self, int code, const char *text)
{
    if (self->failures++ == 0)
        snprintf(self->first_failure, sizeof self->first_failure, "%s", text);
    status_page_add_failure(self->operation->engine->setup.page, code, text);
}

static void fail_item(struct native_load *self, struct item *item, int code, const char *why)
{
    if (item->state == ITEM_FAILED)
        return;
    const struct stored_chunk *chunk = chunk_of(self, item);
    char text[512];
    item->state = ITEM_FAILED;
    snprintf(text, sizeof text, "%s in %s/%s at offset %" PRIu64 ", %" PRIu64 " bytes: %s", tensor_of(self, item)->fqn,
             self->operation->path, self->checkpoint->files[chunk->file], chunk->offset, chunk->length, why);
    add_failure(self, code, text);
}

static void report_problem(void *context, const struct load_problem *problem)
{
    add_failure(context, CB_ERR_CORRUPT, problem->text);
}

/* --- metadata --- */

static int read_metadata(struct native_operation *operation, struct cb_err *err)
{
    struct native_engine *engine = operation->engine;
    char name[PATH_MAX];
    int rc = native_name(operation->path, FORMAT_MARKER, name, err);
    if (!rc)
        rc = store_read_small(engine->setup.store, name, &engine->load->metadata, err);
    if (rc == CB_ERR_NOT_FOUND)
        rc = cb_fail(err, rc, "there is no complete checkpoint at %s: it has no %s", operation->path, FORMAT_MARKER);
    return rc;
}

/* Rank 0's metadata to all. */
static int share_metadata(struct native_operation *operation, struct cb_err *err)
{
    struct native_engine *engine = operation->engine;
    struct buf *metadata = &engine->load->metadata;
    struct agreement agreement;
    buf_clear(metadata);
    int rc = engine->rank == 0 ? read_metadata(operation, err) : 0;
    timeline_enter(&operation->timeline, STATE_WAIT);
    rc = native_agree(operation, rc, metadata->len, &agreement, err);
    if (rc)
        return rc;
    timeline_enter(&operation->timeline, STATE_EXCHANGE);
    if (engine->rank != 0 && !buf_extend(metadata, agreement.sum))
        rc = buf_check(metadata, "the checkpoint's metadata", err);
    rc = native_agree(operation, rc, 0, &agreement, err);
    return rc ? rc
              : comm_broadcast(engine->setup.comm, metadata->data, metadata->len, operation->options->deadline_ns, err);
}

/* --- items --- */

static int make_mappings(struct native_load *self, struct cb_err *err)
{
    const struct state *state = self->operation->state;
    self->mappings = malloc((self->plan->read_count + 1) * sizeof *self->mappings);
    if (!self->mappings)
        return cb_fail(err, CB_ERR_MEMORY, "no memory for %zu reads", self->plan->read_count);
    for (size_t i = 0; i < self->plan->read_count; i++) {
        const struct load_read *read = &self->plan->reads[i];
        const struct stored_chunk *chunk = &self->checkpoint->chunks[read->chunk];
        mapping_init(&self->mappings[i], &chunk->box, &state->pieces[read->piece].box, &read->common,
                     dtype_bytes(self->checkpoint->tensors[chunk->tensor].dtype));
    }
    return 0;
}

static void init_item(struct native_load *self, struct item *item)
{
    const struct stored_chunk *chunk = chunk_of(self, item);
    bool expected = format_expect_payload(self->checkpoint->format, tensor_of(self, item), &chunk->box, chunk->length,
                                          &item->payload);
    item->state = expected && item->payload.offset <= FORMAT_MAX_HEADER ? ITEM_EXPECTED : ITEM_PROBE;
    item->probe_bytes = chunk->length < FIRST_PROBE_BYTES ? chunk->length : FIRST_PROBE_BYTES;
}

/* A value that is too long gets no memory: refuse_item says so. */
static int add_value(struct native_load *self, const struct stored_tensor *stored, struct cb_err *err)
{
    struct item *item = &self->items[self->item_count++];
    *item = (struct item){.chunk = stored->first_chunk, .state = ITEM_KNOWN};
    uint64_t length = chunk_of(self, item)->length;
    if (length > VALUE_MAX_BYTES)
        return 0;
    item->value = malloc(length + 1);
    return item->value ? 0 : cb_fail(err, CB_ERR_MEMORY, "no memory for the value of %s", stored->fqn);
}

/* The values that are no tensors; each rank needs all of them. */
static int add_values(struct native_load *self, struct cb_err *err)
{
    int rc = 0;
    const struct layout *layout = self->operation->engine->setup.layout;
    for (size_t i = 0; i < layout_tensor_count(layout) && !rc; i++) {
        const struct state_tensor *wanted = layout_tensor(layout, i);
        if (wanted->kind != KIND_BYTES)
            continue;
        const struct stored_tensor *stored = stored_checkpoint_find(self->checkpoint, wanted->fqn);
        if (!stored || !stored->is_bytes || stored->chunk_count == 0) {
            char text[512];
            snprintf(text, sizeof text, "%s is not in %s", wanted->fqn, self->operation->path);
            add_failure(self, CB_ERR_CORRUPT, text);
            continue;
        }
        rc = add_value(self, stored, err);
    }
    return rc;
}

static int compare_items(const void *a, const void *b, void *context)
{
    const struct native_load *self = context;
    const struct stored_chunk *x = chunk_of(self, a), *y = chunk_of(self, b);
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

/* One item for each chunk that is read; reads of one chunk stand side by side in the plan. */
static int make_items(struct native_load *self, struct cb_err *err)
{
    const struct load_plan *plan = self->plan;
    size_t capacity = plan->read_count + layout_tensor_count(self->operation->engine->setup.layout) + 1;
    self->items = calloc(capacity, sizeof *self->items);
    self->files = malloc((capacity + self->checkpoint->file_count) * sizeof *self->files);
    if (!self->items || !self->files)
        return cb_fail(err, CB_ERR_MEMORY, "no memory for %zu items", capacity);
    for (uint32_t i = 0; i < plan->read_count;) {
        struct item *item = &self->items[self->item_count++];
        *item = (struct item){.chunk = plan->reads[i].chunk, .first_read = i};
        while (i < plan->read_count && plan->reads[i].chunk == item->chunk)
            i++;
        item->read_count = i - item->first_read;
        init_item(self, item);
    }
    int rc = add_values(self, err);
    qsort_r(self->items, self->item_count, sizeof *self->items, compare_items, self);
    return rc;
}

/* --- the program of a pass --- */

/* A range of an item's payload, and where it goes: to `memory`, or (NULL) by the mappings. */
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

static bool reads_runs_apart(const struct mapping *mapping)
{
    uint64_t first, second, unused;
    if (mapping->run_count <= 1 || mapping->run_bytes >= LONG_RUN_BYTES)
        return true;
    mapping_run(mapping, 0, &first, &unused);
    mapping_run(mapping, 1, &second, &unused);
    return second - first - mapping->run_bytes > GAP_BYTES;
}

static void add_read(const struct native_load *self, uint32_t read, struct ranges *ranges)
{
    const struct mapping *mapping = &self->mappings[read];
    char *memory = self->operation->state->memory[self->plan->reads[read].piece];
    uint64_t begin, end, memory_byte;
    if (!reads_runs_apart(mapping)) {
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

/* Sorts, and joins ranges that overlap (several reads want the same bytes): those go by the mappings. */
static void join_ranges(struct ranges *self)
{
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
    struct item *item = &self->items[number];
    uint64_t start = chunk_of(self, item)->offset + item->payload.offset;
    if (item->strided) {
        program_add_payload(&self->program, number, start, item->payload.bytes, 0, item->strided);
        return;
    }
    ranges->count = 0;
    for (uint32_t i = 0; i < item->read_count; i++)
        add_read(self, item->first_read + i, ranges);
    join_ranges(ranges);
    for (size_t i = 0; i < ranges->count; i++) {
        const struct range *range = &ranges->ranges[i];
        if (range->memory)
            program_add_payload(&self->program, number, start + range->begin, range->end - range->begin, range->begin,
                                range->memory);
        else
            program_add_mapped(&self->program, number, start + range->begin, range->end - range->begin, range->begin);
    }
}

/* The trailer is worth reading where all of the payload passes by, to check its CRC. */
static bool wants_trailer(const struct native_load *self, const struct item *item, const struct ranges *ranges)
{
    uint64_t end = item->payload.offset + item->payload.bytes, length = chunk_of(self, item)->length;
    uint64_t covered = 0;
    for (size_t i = 0; i < ranges->count; i++)
        covered += ranges->ranges[i].end - ranges->ranges[i].begin;
    return self->operation->engine->checksum && item->payload.bytes > 0 && covered == item->payload.bytes &&
           length > end;
}

static void add_item(struct native_load *self, uint32_t number, struct ranges *ranges)
{
    struct item *item = &self->items[number];
    const struct stored_chunk *chunk = chunk_of(self, item);
    struct program *program = &self->program;
    item->again = item->has_crc = item->bad_trailer = false;
    if (item->read_count == 0) {
        program_add_frame(program, PART_HEADER, number, chunk->offset, chunk->length);
        return;
    }
    if (item->state == ITEM_PROBE) {
        program_add_frame(program, PART_HEADER, number, chunk->offset, item->probe_bytes);
        return;
    }
    if (item->state == ITEM_EXPECTED)
        program_add_frame(program, PART_HEADER, number, chunk->offset, item->payload.offset);
    add_payload(self, number, ranges);
    uint64_t end = item->payload.offset + item->payload.bytes;
    if (item->strided || !wants_trailer(self, item, ranges))
        return;
    uint64_t bytes = chunk->length - end < FORMAT_MAX_TRAILER ? chunk->length - end : FORMAT_MAX_TRAILER;
    program_add_frame(program, PART_TRAILER, number, chunk->offset + chunk->length - bytes, bytes);
}

static bool is_open(const struct item *item)
{
    return item->state != ITEM_DONE && item->state != ITEM_FAILED;
}

static void find_parts(struct native_load *self)
{
    for (size_t i = 0; i < self->item_count; i++)
        self->items[i].part_count = self->items[i].parts_left = 0;
    for (size_t i = 0; i < self->program.part_count; i++) {
        struct item *item = &self->items[self->program.parts[i].item];
        if (item->part_count++ == 0)
            item->first_part = i;
        item->parts_left++;
    }
    for (size_t i = 0; i < self->item_count; i++) {
        if (is_open(&self->items[i]) && self->items[i].part_count == 0)
            self->items[i].state = ITEM_DONE; /* of no elements */
    }
}

/* Why an item that damaged or foreign metadata describes cannot be read; NULL where it can. `end` is
 * that of the item before it in the file. */
static const char *refuse_item(const struct native_load *self, const struct item *item, uint64_t end)
{
    const struct stored_chunk *chunk = chunk_of(self, item);
    if (chunk->length == 0)
        return "it has no bytes";
    if (chunk->offset < end)
        return "it overlaps the item before it in the file";
    if (item->read_count == 0 && chunk->length > VALUE_MAX_BYTES)
        return "it is too long for a value that is no tensor";
    return NULL;
}

static void add_file(struct native_load *self, size_t *next, struct ranges *ranges)
{
    uint32_t file = chunk_of(self, &self->items[*next])->file;
    uint64_t end = 0;
    self->files[self->program.file_count] = file;
    for (; *next < self->item_count && chunk_of(self, &self->items[*next])->file == file; ++*next) {
        struct item *item = &self->items[*next];
        if (!is_open(item))
            continue;
        const char *why = refuse_item(self, item, end);
        if (why) {
            fail_item(self, item, CB_ERR_CORRUPT, why);
            continue;
        }
        add_item(self, (uint32_t)*next, ranges);
        end = chunk_of(self, item)->offset + chunk_of(self, item)->length;
    }
    program_end_file(&self->program);
}

static int build_pass(struct native_load *self, struct cb_err *err)
{
    const struct native_engine *engine = self->operation->engine;
    struct ranges ranges = {0};
    program_clear(&self->program);
    for (size_t next = 0; next < self->item_count;)
        add_file(self, &next, &ranges);
    free(ranges.ranges);
    if (ranges.failed)
        return cb_fail(err, CB_ERR_MEMORY, "no memory for the ranges to read");
    uint32_t turns = engine->plan_options.files == FILES_PER_RANK ? engine->plan_options.files_per_rank : 1;
    int rc = program_finish(&self->program, turns, err);
    if (rc)
        return rc;
    find_parts(self);
    return transfer_reserve(engine->transfer, self->program.file_count, self->program.staging_bytes, err);
}

/* --- what arrives --- */

static int open_file(void *context, uint32_t file, struct store_object **object, uint64_t *length, struct cb_err *err)
{
    struct native_load *self = context;
    char name[PATH_MAX];
    int rc = native_name(self->operation->path, self->checkpoint->files[self->files[file]], name, err);
    return rc ? rc : store_open_read(self->operation->engine->setup.store, name, object, length, err);
}

/* Parsing a value allocates, so it is kept until the pass is over. */
static void check_value(struct native_load *self, struct item *item)
{
    struct cb_err err;
    buf_clear(&self->frame);
    int rc = format_parse_bytes_payload(self->checkpoint->format, tensor_of(self, item)->fqn, item->value,
                                        chunk_of(self, item)->length, &self->frame, &err);
    if (rc && rc != CB_ERR_UNSUPPORTED) /* a kind of value that only Python knows is none of our business */
        fail_item(self, item, rc, err.message);
    else
        item->state = ITEM_DONE;
}

/* A header that is longer than what was read of it is read again: first as much as most need, then as
 * much as one may have. */
static bool probe_longer(const struct native_load *self, struct item *item, uint64_t tried)
{
    uint64_t length = chunk_of(self, item)->length;
    uint64_t next = tried < FIRST_PROBE_BYTES ? FIRST_PROBE_BYTES : FORMAT_MAX_HEADER;
    item->probe_bytes = length < next ? length : next;
    item->state = ITEM_PROBE;
    item->again = item->probe_bytes > tried;
    return item->again;
}

/* The very header that our own writer makes needs no parsing, which would allocate. */
static bool is_our_header(struct native_load *self, const struct item *item, const void *bytes, uint64_t len)
{
    const struct stored_tensor *stored = tensor_of(self, item);
    const struct stored_chunk *chunk = chunk_of(self, item);
    struct state_tensor tensor = {.fqn = stored->fqn, .dtype = stored->dtype, .dims = stored->dims};
    struct plan_item ours = {
        .offset = chunk->offset,
        .length = chunk->length,
        .payload_offset = chunk->offset + item->payload.offset,
        .payload_bytes = item->payload.bytes,
        .box = chunk->box,
    };
    memcpy(tensor.shape, stored->shape, sizeof tensor.shape);
    buf_clear(&self->frame);
    return format_item_header(self->checkpoint->format, &tensor, &ours, &self->frame, NULL) == 0 &&
           self->frame.len == len && memcmp(self->frame.data, bytes, len) == 0;
}

static void take_header(struct native_load *self, struct item *item, const void *bytes, uint64_t len)
{
    const struct stored_chunk *chunk = chunk_of(self, item);
    struct stored_payload payload;
    struct cb_err err;
    if (item->state == ITEM_EXPECTED && is_our_header(self, item, bytes, len)) {
        item->state = ITEM_KNOWN;
        return;
    }
    int rc = format_parse_item(self->checkpoint->format, tensor_of(self, item), &chunk->box, bytes, len, chunk->length,
                               &payload, &err);
    if (rc) {
        if (!probe_longer(self, item, len))
            fail_item(self, item, CB_ERR_CORRUPT, err.message);
        return;
    }
    bool as_expected = item->state == ITEM_EXPECTED && payload.contiguous && payload.offset == item->payload.offset &&
                       payload.bytes == item->payload.bytes;
    item->payload = payload;
    item->again = !as_expected;
    item->state = ITEM_KNOWN;
}

/* Only once the header has said that the item lies as expected does a wrong trailer mean anything. */
static void take_trailer(struct native_load *self, struct item *item, const void *bytes, uint64_t len)
{
    bool has_crc = false;
    int rc = format_parse_trailer(self->checkpoint->format, bytes, len, &item->crc, &has_crc, NULL);
    item->bad_trailer = rc != 0;
    item->has_crc = rc == 0 && has_crc && item->crc != 0; /* checksum=none stores 0 */
}

static void take_payload(struct native_load *self, struct item *item, struct part *part, const char *bytes)
{
    if (part->kind == PART_MAPPED) {
        for (uint32_t i = item->first_read; i < item->first_read + item->read_count; i++)
            self->operation->bytes_copied +=
                mapping_scatter(&self->mappings[i], part->skip, bytes, part->bytes,
                                self->operation->state->memory[self->plan->reads[i].piece]);
    } else if (!part->direct) {
        memcpy(part->memory, bytes, part->bytes);
        self->operation->bytes_copied += part->bytes;
    }
    if (self->operation->engine->checksum)
        part->crc = crc32_zip(0, part->direct ? part->memory : bytes, part->bytes);
}

static void check_crc(struct native_load *self, struct item *item)
{
    uint32_t crc = 0;
    for (size_t i = 0; i < item->part_count; i++) {
        const struct part *part = &self->program.parts[item->first_part + i];
        if (part->kind == PART_PAYLOAD || part->kind == PART_MAPPED)
            crc = part->skip == 0 ? part->crc : crc32_zip_combine(crc, part->crc, part->bytes);
    }
    if (crc == item->crc)
        return;
    char text[128];
    snprintf(text, sizeof text, "its bytes have the CRC-32 %08" PRIx32 ", stored is %08" PRIx32, crc, item->crc);
    fail_item(self, item, CB_ERR_CORRUPT, text);
}

static void item_done(struct native_load *self, struct item *item)
{
    if (item->state == ITEM_FAILED || item->again)
        return;
    if (item->bad_trailer)
        fail_item(self, item, CB_ERR_CORRUPT, "what follows its bytes is damaged");
    else if (item->has_crc)
        check_crc(self, item);
    if (item->state != ITEM_FAILED && !item->strided && !item->value)
        item->state = ITEM_DONE;
}

static void take_part(struct native_load *self, struct part *part, const char *bytes)
{
    struct item *item = &self->items[part->item];
    if (part->kind == PART_HEADER && item->read_count == 0)
        memcpy(item->value, bytes, part->bytes);
    else if (part->kind == PART_HEADER)
        take_header(self, item, bytes, part->bytes);
    else if (part->kind == PART_TRAILER)
        take_trailer(self, item, bytes, part->bytes);
    else
        take_payload(self, item, part, bytes);
}

static int take_request(void *context, const struct program_request *request, const char *staging, uint64_t available,
                        const struct cb_err *why, struct cb_err *err)
{
    struct native_load *self = context;
    if (why->code == CB_ERR_ABORTED) {
        *err = *why;
        return why->code;
    }
    for (size_t i = 0; i < request->part_count; i++) {
        struct part *part = &self->program.parts[request->first_part + i];
        struct item *item = &self->items[part->item];
        if (part->offset + part->bytes <= available)
            take_part(self, part, staging + (part->offset - request->offset));
        else
            fail_item(self, item, why->code ? why->code : CB_ERR_CORRUPT,
                      why->code ? why->message : "the file is too short: it ends before or in the item");
        if (--item->parts_left == 0)
            item_done(self, item);
    }
    return 0;
}

static int run_pass(struct native_load *self, struct cb_err *err)
{
    static const struct transfer_ops ops = {.open = open_file, .complete = take_request};
    struct native_operation *operation = self->operation;
    struct status_page *page = operation->engine->setup.page;
    struct transfer_run run = {
        .program = &self->program,
        .ops = &ops,
        .context = self,
        .timeline = &operation->timeline,
        .latency = operation->sample->flags & SAMPLE_WARMUP ? NULL : &page->latency[OP_LOAD],
        .deadline_ns = operation->options->deadline_ns,
    };
    struct transfer_counts counts;
    atomic_fetch_add_explicit(&page->bytes_total, self->program.bytes, memory_order_relaxed);
    int rc = transfer_run(operation->engine->transfer, &run, &counts, err);
    operation->counts.requests += counts.requests;
    operation->counts.errors += counts.errors;
    operation->counts.bytes += counts.bytes;
    return rc;
}

/* --- items with strides of their own --- */

/* One element of the part, by its index in `common`, from a payload with other strides. */
static uint64_t strided_element(const struct stored_payload *payload, const struct box *stored,
                                const struct box *common, uint64_t index)
{
    uint64_t element = 0;
    for (uint32_t i = common->dims; i-- > 0; index /= common->size[i])
        element += (common->offset[i] - stored->offset[i] + index % common->size[i]) * payload->stride[i];
    return element;
}

static uint64_t held_element(const struct box *held, const struct box *common, uint64_t index)
{
    uint64_t element = 0, stride = 1;
    for (uint32_t i = common->dims; i-- > 0; index /= common->size[i]) {
        element += (common->offset[i] - held->offset[i] + index % common->size[i]) * stride;
        stride *= held->size[i];
    }
    return element;
}

static void place_strided(struct native_load *self, struct item *item)
{
    const struct stored_chunk *chunk = chunk_of(self, item);
    size_t element_bytes = dtype_bytes(tensor_of(self, item)->dtype);
    for (uint32_t i = item->first_read; i < item->first_read + item->read_count; i++) {
        const struct box *common = &self->plan->reads[i].common;
        char *memory = self->operation->state->memory[self->plan->reads[i].piece];
        uint64_t count = box_elements(common);
        for (uint64_t j = 0; j < count; j++) {
            uint64_t from = strided_element(&item->payload, &chunk->box, common, j);
            if ((from + 1) * element_bytes > item->payload.bytes) {
                fail_item(self, item, CB_ERR_CORRUPT, "its strides reach beyond its bytes");
                return;
            }
            memcpy(memory + held_element(&self->mappings[i].held, common, j) * element_bytes,
                   (char *)item->strided + from * element_bytes, element_bytes);
        }
        self->operation->bytes_copied += count * element_bytes;
    }
}

/* After a pass: places what came with other strides, and says whether another pass is needed. */
static int after_pass(struct native_load *self, bool *again, struct cb_err *err)
{
    *again = false;
    for (size_t i = 0; i < self->item_count; i++) {
        struct item *item = &self->items[i];
        if (!is_open(item))
            continue;
        if (item->value) {
            check_value(self, item);
            continue;
        }
        if (item->strided) {
            place_strided(self, item);
            free(item->strided);
            item->strided = NULL;
            item->state = item->state == ITEM_FAILED ? ITEM_FAILED : ITEM_DONE;
            continue;
        }
        *again = true;
        if (item->state != ITEM_KNOWN || item->payload.contiguous)
            continue;
        item->strided = aligned_alloc(4096, (item->payload.bytes / 4096 + 1) * 4096);
        if (!item->strided)
            return cb_fail(err, CB_ERR_MEMORY, "no memory for %" PRIu64 " bytes of %s, which is stored with strides",
                           item->payload.bytes, tensor_of(self, item)->fqn);
    }
    return 0;
}

/* --- the order of things --- */

static int plan_load(struct native_load *self, struct cb_err *err)
{
    const struct native_operation *operation = self->operation;
    char name[PATH_MAX];
    int rc = native_name(operation->path, FORMAT_MARKER, name, err);
    if (!rc)
        rc = format_read_metadata(name, self->metadata.data, self->metadata.len, &self->checkpoint, err);
    if (!rc)
        rc = load_plan_compute(self->checkpoint, operation->engine->setup.layout, operation->state->pieces,
                               operation->state->piece_count, report_problem, self, &self->plan, err);
    if (!rc)
        rc = make_mappings(self, err);
    if (!rc)
        rc = make_items(self, err);
    return rc;
}

static int read_data(struct native_load *self, struct cb_err *err)
{
    struct native_operation *operation = self->operation;
    bool again = true;
    int rc = 0;
    for (int pass = 0; again && !rc; pass++) {
        assert(pass < MAX_PASSES);
        timeline_enter(&operation->timeline, STATE_PLAN);
        rc = build_pass(self, err);
        if (!rc)
            rc = run_pass(self, err);
        if (!rc)
            rc = after_pass(self, &again, err);
    }
    if (!rc && self->failures > 0)
        rc = cb_fail(err, CB_ERR_CORRUPT, "%zu of %zu items are missing, short or corrupt; the first: %s",
                     self->failures, self->item_count, self->first_failure);
    return rc;
}

static int timed_load(struct native_operation *operation, struct cb_err *err)
{
    struct native_load *self = operation->engine->load;
    struct agreement agreement;
    int rc = share_metadata(operation, err);
    if (rc)
        return rc;
    timeline_enter(&operation->timeline, STATE_PLAN);
    rc = plan_load(self, err);
    operation->bytes_needed = self->plan ? self->plan->needed_bytes : 0;
    if (!rc)
        rc = read_data(self, err);
    timeline_own_done(&operation->timeline);
    timeline_enter(&operation->timeline, STATE_WAIT);
    return native_agree(operation, rc, 0, &agreement, err);
}

static void forget_load(struct native_load *self)
{
    for (size_t i = 0; i < self->item_count; i++) {
        free(self->items[i].strided);
        free(self->items[i].value);
    }
    free(self->items);
    free(self->files);
    free(self->mappings);
    load_plan_free(self->plan);
    stored_checkpoint_free(self->checkpoint);
    self->items = NULL;
    self->item_count = 0;
    self->files = NULL;
    self->mappings = NULL;
    self->plan = NULL;
    self->checkpoint = NULL;
    self->operation = NULL;
}

int native_load_run(struct native_operation *operation, struct cb_err *err)
{
    struct native_engine *engine = operation->engine;
    struct agreement agreement;
    int rc = engine->load ? 0 : load_new(engine, &engine->load, err);
    rc = native_agree(operation, rc, 0, &agreement, err);
    if (rc)
        return cb_context(err, "loading %s, rank %" PRIu32, operation->path, engine->rank);
    assert(engine->load); /* made, or its maker failed and so did the agreement */
    engine->load->operation = operation;
    engine->load->failures = 0;
    native_begin(operation, engine->rank == 0 ? STATE_IO : STATE_WAIT);
    rc = timed_load(operation, err);
    native_end(operation);
    if (!transfer_is_stuck(engine->transfer))
        forget_load(engine->load);
    return rc ? cb_context(err, "loading %s, rank %" PRIu32, operation->path, engine->rank) : 0;
}
