/* Saving: the plan's items of this rank become a transfer program, and the commit follows the data.
 *
 * Order, always: an older marker is gone durably before the first byte; data, then fsync of files and
 * folders, then agreement of all ranks, then the marker, then the last agreement. Owns the program and
 * what composing headers and trailers needs; knows formats through ckpt/format.h alone. */
#include <assert.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "core/clock.h"
#include "core/hash.h"
#include "worker/native.h"

/* Largest gap between items that is written as zeros rather than left out. */
#define GAP_BYTES 65536
#define FRAME_MAX_BYTES (UINT64_C(128) * 1024 * 1024) /* the header of a safetensors file can be long */
#define METADATA_MAX_BYTES (UINT64_C(8) * 1024 * 1024 * 1024)
/* Copies longer than this are shown as staging; shorter ones belong to composing a request. */
#define STAGE_STATE_BYTES 65536

/* Where the payload of one of this rank's items lies. */
struct source {
    struct item_frame frame;
    const char *memory;      /* of its first byte, or of the piece where it is mapped; NULL for bytes items */
    struct mapping *mapping; /* NULL where contiguous */
    uint32_t crc;            /* of the payload so far */
};

struct native_save {
    struct program program;
    struct source *sources; /* of items first_item[rank] … */
    size_t source_count;
    uint32_t *files; /* file of the plan for each file of the program */
    void **memory;   /* the state's addresses that the program was made for */
    size_t piece_count;
    uint64_t payload_bytes;             /* of tensors */
    struct buf frame;                   /* a header, payload of a bytes item, or trailer being composed */
    struct buf metadata;                /* rank 0's */
    struct native_operation *operation; /* under way */
};

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
    release_sources(self);
    program_release(&self->program);
    buf_release(&self->frame);
    buf_release(&self->metadata);
    free(self->files);
    free(self->memory);
    free(self);
}

static struct program_limits save_limits(const struct native_engine *engine)
{
    struct program_limits limits = program_limits_of(store_capabilities(engine->setup.store), engine->block_bytes);
    limits.gap = limits.alignment > GAP_BYTES ? limits.alignment : GAP_BYTES;
    limits.whole_blocks = store_capabilities(engine->setup.store)->part_bytes > 0;
    if (limits.whole_blocks)
        limits.gap = UINT64_MAX;
    return limits;
}

static int save_new(const struct native_engine *engine, struct native_save **save, struct cb_err *err)
{
    struct native_save *self = calloc(1, sizeof *self);
    if (!self)
        return cb_fail(err, CB_ERR_MEMORY, "no memory to save");
    struct program_limits limits = save_limits(engine);
    program_init(&self->program, &limits);
    buf_init(&self->frame, FRAME_MAX_BYTES);
    buf_init(&self->metadata, METADATA_MAX_BYTES);
    *save = self;
    return 0;
}

static const struct plan_item *item_of(const struct native_save *self, uint32_t source)
{
    const struct native_engine *engine = self->operation->engine;
    return &engine->plan->items[native_first_item(engine) + source];
}

static const struct state_tensor *tensor_of(const struct native_save *self, const struct plan_item *item)
{
    return layout_tensor(self->operation->engine->setup.layout, item->tensor);
}

/* Pieces by tensor, so that an item's piece is found without looking at all of them. */
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
        return cb_fail(err, CB_ERR_MEMORY, "no memory to order %zu pieces", state->piece_count);
    for (size_t i = 0; i < state->piece_count; i++)
        made[i] = (struct piece_index){state->pieces[i].tensor, (uint32_t)i};
    qsort(made, state->piece_count, sizeof *made, compare_pieces);
    *index = made;
    return 0;
}

/* The piece that holds the item's box; SIZE_MAX if none does. */
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
        if (box_contains(&state->pieces[index[low].piece].box, &item->box))
            return index[low].piece;
    }
    return SIZE_MAX;
}

static int place_source(struct native_save *self, const struct piece_index *index, const struct plan_item *item,
                        struct source *source, struct cb_err *err)
{
    const struct state *state = self->operation->state;
    const struct state_tensor *tensor = tensor_of(self, item);
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
    if (piece == SIZE_MAX)
        return cb_fail(err, CB_ERR_INTERNAL, "the plan has this rank write a part of %s that it does not hold",
                       tensor->fqn);
    struct mapping mapping;
    mapping_init(&mapping, &item->box, &state->pieces[piece].box, &item->box, dtype_bytes(tensor->dtype));
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
        return cb_fail(err, CB_ERR_MEMORY, "no memory to place %s", tensor->fqn);
    *source->mapping = mapping;
    return 0;
}

static int place_sources(struct native_save *self, struct cb_err *err)
{
    const struct native_engine *engine = self->operation->engine;
    size_t count = native_item_count(engine);
    release_sources(self);
    self->payload_bytes = 0;
    self->sources = calloc(count + 1, sizeof *self->sources);
    if (!self->sources)
        return cb_fail(err, CB_ERR_MEMORY, "no memory for %zu items", count);
    self->source_count = count;
    struct piece_index *index = NULL;
    int rc = index_pieces(self->operation->state, &index, err);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < count && !rc; i++)
        rc = place_source(self, index, item_of(self, i), &self->sources[i], err);
    free(index);
    return rc;
}

static void add_item(struct native_save *self, uint32_t number)
{
    const struct plan_item *item = item_of(self, number);
    const struct source *source = &self->sources[number];
    struct program *program = &self->program;
    program_add_frame(program, PART_HEADER, number, item->offset, source->frame.header_bytes);
    if (source->mapping || !source->memory)
        program_add_mapped(program, number, item->payload_offset, item->payload_bytes, 0);
    else /* a write only reads it, but one program serves both ways */
        program_add_payload(program, number, item->payload_offset, item->payload_bytes, 0, (void *)source->memory);
    program_add_frame(program, PART_TRAILER, number, item->payload_offset + item->payload_bytes,
                      source->frame.trailer_bytes);
}

/* In a file that ranks share, a rank's first and last block must be its own. */
static int check_shared(const struct native_save *self, const struct plan_item *first, struct cb_err *err)
{
    if (first->offset % self->program.limits.alignment == 0)
        return 0;
    return cb_fail(err, CB_ERR_INTERNAL, "the plan has this rank start at offset %" PRIu64 " of a shared file",
                   first->offset);
}

static int build_program(struct native_save *self, struct cb_err *err)
{
    const struct native_engine *engine = self->operation->engine;
    free(self->files);
    self->files = malloc((self->source_count + 1) * sizeof *self->files);
    if (!self->files)
        return cb_fail(err, CB_ERR_MEMORY, "no memory for the list of files");
    program_clear(&self->program);
    for (uint32_t i = 0; i < self->source_count;) {
        uint32_t file = item_of(self, i)->file;
        int rc = check_shared(self, item_of(self, i), err);
        if (rc)
            return rc;
        self->files[self->program.file_count] = file;
        uint64_t part_bytes =
            store_part_bytes(store_capabilities(engine->setup.store), engine->plan->files[file].length);
        if (part_bytes > 0)
            self->program.limits.block = part_bytes;
        for (; i < self->source_count && item_of(self, i)->file == file; i++)
            add_item(self, i);
        program_end_file(&self->program);
    }
    uint32_t turns =
        engine->plan_options.files == FILES_PER_RANK && self->program.file_count > 1 ? self->program.file_count : 1;
    int rc = program_finish(&self->program, turns, err);
    return rc ? rc : transfer_reserve(engine->transfer, self->program.file_count, self->program.staging_bytes, err);
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
        return cb_fail(err, CB_ERR_MEMORY, "no memory for %zu addresses", state->piece_count);
    memcpy(memory, state->memory, state->piece_count * sizeof *memory);
    free(self->memory);
    self->memory = memory;
    self->piece_count = state->piece_count;
    return 0;
}

static int compute_plan(struct native_engine *engine, struct cb_err *err)
{
    if (engine->plan)
        return 0;
    double *values = engine->setup.page->run_values;
    int rc = plan_compute(engine->setup.layout, &engine->plan_options, &engine->plan, err);
    if (rc)
        return rc;
    assert(engine->plan);
    values[METRIC_GLOBAL_PLAN_S] = (double)engine->plan->compute_ns / 1e9;
    values[METRIC_PLAN_ITEMS] = (double)engine->plan->item_count;
    values[METRIC_IMBALANCE] = engine->plan->imbalance;
    values[METRIC_IMBALANCE_VS_BOUND] = engine->plan->imbalance_vs_bound;
    return 0;
}

/* Plan and program, made by the first save and kept while the structure stays: the layout belongs to
 * the engine for good, so only the state's addresses can change. */
static int prepare(struct native_operation *operation, struct cb_err *err)
{
    struct native_engine *engine = operation->engine;
    int rc = compute_plan(engine, err);
    if (!rc && !engine->save)
        rc = save_new(engine, &engine->save, err);
    if (rc)
        return rc;
    struct native_save *self = engine->save;
    self->operation = operation;
    if (!same_memory(self, operation->state)) {
        rc = place_sources(self, err);
        if (!rc)
            rc = build_program(self, err);
        if (!rc)
            rc = remember_memory(self, operation->state, err);
    }
    for (size_t i = 0; i < self->source_count; i++)
        self->sources[i].crc = 0;
    operation->bytes_needed = self->payload_bytes;
    return rc;
}

/* --- composing requests --- */

static int compose_frame(struct native_save *self, const struct part *part, char *to, struct cb_err *err)
{
    const struct native_engine *engine = self->operation->engine;
    const struct plan_item *item = item_of(self, part->item);
    const struct state_tensor *tensor = tensor_of(self, item);
    enum plan_format format = engine->plan_options.format;
    int rc;
    buf_clear(&self->frame);
    if (part->kind == PART_HEADER)
        rc = format_plan_header(format, engine->setup.layout, engine->plan, item, &self->frame, err);
    else if (part->kind == PART_TRAILER)
        rc = format_item_trailer(format, tensor, item, self->sources[part->item].crc, &self->frame, err);
    else
        rc = format_bytes_payload(format, tensor, &self->frame, err);
    if (rc)
        return rc;
    if (part->skip + part->bytes > self->frame.len)
        return cb_fail(err, CB_ERR_INTERNAL, "header, payload or trailer of %s is shorter than planned", tensor->fqn);
    memcpy(to, self->frame.data + part->skip, part->bytes);
    return 0;
}

static void copy_part(struct native_save *self, const struct part *part, char *to)
{
    const struct source *source = &self->sources[part->item];
    if (part->bytes >= STAGE_STATE_BYTES)
        timeline_enter(&self->operation->timeline, STATE_STAGE);
    if (source->mapping)
        mapping_gather(source->mapping, part->skip, to, part->bytes, source->memory);
    else
        memcpy(to, part->memory, part->bytes);
    self->operation->bytes_copied += part->bytes;
    if (part->bytes >= STAGE_STATE_BYTES)
        timeline_enter(&self->operation->timeline, STATE_SERIALIZE);
}

static int compose_request(void *context, const struct program_request *request, char *staging, struct cb_err *err)
{
    struct native_save *self = context;
    uint64_t position = request->offset;
    timeline_enter(&self->operation->timeline, STATE_SERIALIZE);
    for (size_t i = 0; i < request->part_count; i++) {
        const struct part *part = &self->program.parts[request->first_part + i];
        struct source *source = &self->sources[part->item];
        char *to = staging + (part->offset - request->offset);
        if (part->offset > position)
            memset(staging + (position - request->offset), 0, part->offset - position);
        position = part->offset + part->bytes;
        if (part->kind == PART_HEADER || part->kind == PART_TRAILER || !source->memory) {
            int rc = compose_frame(self, part, to, err);
            if (rc)
                return rc;
            continue;
        }
        if (!part->direct)
            copy_part(self, part, to);
        if (self->operation->engine->checksum && format_has_checksums(self->operation->engine->plan_options.format))
            source->crc = crc32_zip(source->crc, part->direct ? part->memory : to, part->bytes);
    }
    if (position < request->end)
        memset(staging + (position - request->offset), 0, request->end - position);
    return 0;
}

static int create_file(void *context, uint32_t file, struct store_object **object, uint64_t *length, struct cb_err *err)
{
    struct native_save *self = context;
    struct native_engine *engine = self->operation->engine;
    const struct plan_file *planned = &engine->plan->files[self->files[file]];
    char name[PATH_MAX];
    int rc = native_name(self->operation->path, planned->name, name, err);
    if (rc)
        return rc;
    *length = planned->length;
    /* A shared file was made by its creator before the data path. */
    if (engine->plan_options.files == FILES_SHARED)
        return store_open_shared(engine->setup.store, name, planned->length, object, err);
    return store_create(engine->setup.store, name, planned->length, object, err);
}

static int write_failed(void *context, const struct program_request *request, const char *staging, uint64_t available,
                        const struct cb_err *why, struct cb_err *err)
{
    (void)context, (void)request, (void)staging, (void)available;
    *err = *why;
    return why->code;
}

/* --- the order of things --- */

static int remove_if_there(struct store *store, const char *path, const char *file, bool *removed, struct cb_err *err)
{
    char name[PATH_MAX];
    int rc = native_name(path, file, name, err);
    if (!rc)
        rc = store_remove(store, name, err);
    *removed = rc == 0;
    return rc == CB_ERR_NOT_FOUND ? 0 : rc;
}

static int remove_marker(struct native_operation *operation, struct cb_err *err)
{
    struct store *store = operation->engine->setup.store;
    bool removed = false, any = false;
    int rc = 0;
    for (size_t i = 0; format_marker_at(i) && !rc; i++) { /* of any format: an earlier run may have had another */
        rc = remove_if_there(store, operation->path, format_marker_at(i), &removed, err);
        any |= removed;
    }
    return rc || !any ? rc : store_sync_folder(store, operation->path, err);
}

static int refuse_marker(struct native_operation *operation, struct cb_err *err)
{
    char name[PATH_MAX];
    uint64_t length;
    int rc = CB_ERR_NOT_FOUND;
    for (size_t i = 0; format_marker_at(i) && rc == CB_ERR_NOT_FOUND; i++) {
        rc = native_name(operation->path, format_marker_at(i), name, err);
        if (!rc)
            rc = store_stat(operation->engine->setup.store, name, &length, err);
    }
    if (rc == CB_ERR_NOT_FOUND)
        return 0;
    return rc ? rc
              : cb_fail(err, CB_ERR_EXISTS,
                        "%s holds a complete checkpoint already: give another suffix, or folder=overwrite",
                        operation->path);
}

static int remove_own_files(struct native_operation *operation, struct cb_err *err)
{
    const struct native_engine *engine = operation->engine;
    int rc = 0;
    for (size_t i = 0; i < engine->plan->file_count && !rc; i++) {
        bool removed;
        if (engine->plan->files[i].rank == engine->rank)
            rc = remove_if_there(engine->setup.store, operation->path, engine->plan->files[i].name, &removed, err);
    }
    return rc;
}

/* Takes away what an earlier save left in the same folder: its marker first, durably, before any rank
 * touches data. Not in the save's time; it is delete_s. */
static int clear_folder(struct native_operation *operation, struct cb_err *err)
{
    struct agreement agreement;
    uint64_t start_ns = clock_monotonic_ns();
    int rc = operation->engine->rank == 0 ? remove_marker(operation, err) : 0;
    rc = native_agree(operation, rc, 0, &agreement, err);
    if (!rc)
        rc = remove_own_files(operation, err);
    operation->sample->values[METRIC_DELETE_S] = (double)(clock_monotonic_ns() - start_ns) / 1e9;
    return rc;
}

static int create_shared(struct native_operation *operation, struct cb_err *err)
{
    const struct native_engine *engine = operation->engine;
    const struct plan_file *file = &engine->plan->files[0];
    struct store_object *object;
    char name[PATH_MAX];
    int rc = native_name(operation->path, file->name, name, err);
    if (!rc)
        rc = store_create(engine->setup.store, name, file->length, &object, err);
    if (!rc)
        store_close(engine->setup.store, object);
    return rc;
}

/* What must be there before any rank writes: the folder, no marker in it, a shared file. */
static int make_place(struct native_operation *operation, struct cb_err *err)
{
    const struct native_engine *engine = operation->engine;
    if (engine->rank != 0)
        return 0;
    int rc = store_make_folder(engine->setup.store, operation->path, err);
    if (!rc)
        rc = refuse_marker(operation, err);
    if (!rc && engine->plan_options.files == FILES_SHARED && engine->plan->file_count > 0)
        rc = create_shared(operation, err);
    return rc;
}

/* Each folder that this rank created files in, once; files of one folder are together. */
static int sync_folders(struct native_operation *operation, struct cb_err *err)
{
    const struct native_engine *engine = operation->engine;
    char last[PATH_MAX] = "";
    timeline_enter(&operation->timeline, STATE_FSYNC);
    int rc = 0;
    for (uint32_t i = 0; i < engine->save->program.file_count && !rc; i++) {
        char folder[PATH_MAX];
        rc = native_name(operation->path, engine->plan->files[engine->save->files[i]].name, folder, err);
        if (rc)
            return rc;
        *strrchr(folder, '/') = '\0';
        if (strcmp(folder, last) == 0)
            continue;
        rc = store_sync_folder(engine->setup.store, folder, err);
        memcpy(last, folder, sizeof last);
    }
    return rc;
}

static int write_data(struct native_operation *operation, struct cb_err *err)
{
    static const struct transfer_ops ops = {.open = create_file, .prepare = compose_request, .complete = write_failed};
    struct native_engine *engine = operation->engine;
    struct status_page *page = engine->setup.page;
    bool warmup = (operation->sample->flags & SAMPLE_WARMUP) != 0;
    struct transfer_run run = {
        .program = &engine->save->program,
        .ops = &ops,
        .context = engine->save,
        .write = true,
        .timeline = &operation->timeline,
        .latency = warmup ? NULL : &page->latency[OP_SAVE],
        .deadline_ns = operation->options->deadline_ns,
    };
    atomic_store_explicit(&page->bytes_total, engine->save->program.bytes, memory_order_relaxed);
    int rc = transfer_run(engine->transfer, &run, &operation->counts, err);
    if (!rc && engine->durable)
        rc = sync_folders(operation, err);
    return rc;
}

static int compose_metadata(struct native_operation *operation, struct cb_err *err)
{
    struct native_engine *engine = operation->engine;
    char id[PATH_MAX];
    timeline_enter(&operation->timeline, STATE_SERIALIZE);
    const char *place = engine->setup.store_path;
    int rc =
        native_name(place ? place : experiment_text(engine->setup.experiment, OPT_STORE), operation->path, id, err);
    buf_clear(&engine->save->metadata);
    if (!rc)
        rc = format_write_metadata(engine->plan_options.format, engine->setup.layout, engine->plan, id,
                                   &engine->save->metadata, err);
    return rc ? rc : buf_check(&engine->save->metadata, "the checkpoint's metadata", err);
}

static int publish_marker(struct native_operation *operation, struct cb_err *err)
{
    struct native_engine *engine = operation->engine;
    char name[PATH_MAX];
    timeline_enter(&operation->timeline, STATE_COMMIT);
    int rc = native_name(operation->path, format_marker(engine->plan_options.format), name, err);
    return rc ? rc
              : store_publish(engine->setup.store, name, engine->save->metadata.data, engine->save->metadata.len, err);
}

/* From agreeing on the plan to the marker. Any failure of any rank ends it before the marker. */
static int timed_save(struct native_operation *operation, struct cb_err *err)
{
    struct native_engine *engine = operation->engine;
    struct agreement agreement;
    int rc = make_place(operation, err);
    timeline_enter(&operation->timeline, STATE_WAIT);
    rc = native_agree(operation, rc, engine->plan->digest, &agreement, err);
    if (!rc && agreement.min != agreement.max)
        rc = cb_fail(err, CB_ERR_INTERNAL,
                     "ranks computed different plans: do all run the same program and experiment?");
    if (rc)
        return rc;
    rc = write_data(operation, err);
    if (!rc && engine->rank == 0)
        rc = compose_metadata(operation, err);
    timeline_own_done(&operation->timeline);
    timeline_enter(&operation->timeline, STATE_WAIT);
    rc = native_agree(operation, rc, 0, &agreement, err);
    if (rc)
        return rc;
    if (engine->rank == 0)
        rc = publish_marker(operation, err);
    timeline_enter(&operation->timeline, STATE_WAIT);
    return native_agree(operation, rc, 0, &agreement, err);
}

int native_save_run(struct native_operation *operation, struct cb_err *err)
{
    struct native_engine *engine = operation->engine;
    struct agreement agreement;
    /* The first plan is computed once a run, before the clock starts; its time is global_plan_s. */
    int rc = native_agree(operation, prepare(operation, err), 0, &agreement, err);
    if (!rc && engine->folder == FOLDER_REPLACE)
        rc = native_agree(operation, clear_folder(operation, err), 0, &agreement, err);
    if (rc)
        return cb_context(err, "saving %s, rank %" PRIu32, operation->path, engine->rank);
    native_begin(operation, engine->rank == 0 ? STATE_IO : STATE_WAIT);
    rc = timed_save(operation, err);
    native_end(operation);
    if (rc)
        return cb_context(err, "saving %s, rank %" PRIu32, operation->path, engine->rank);
    operation->sample->values[METRIC_STALL_S] = operation->sample->values[METRIC_OP_S];
    if (engine->durable)
        operation->sample->values[METRIC_DURABLE_S] = operation->sample->values[METRIC_OP_S];
    return 0;
}
