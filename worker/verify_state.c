/* Compares a loaded state with the saved values. Reads a checkpoint's metadata only to locate a wrong element. */
#include "worker/verify_state.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/load/load_need.h"
#include "ckpt/stored/read_metadata.h"
#include "core/alloc.h"
#include "core/clock.h"

#define NAME_BYTES 4096
#define PLACE_BYTES 1024
#define POLL_LIMIT_NS (10 * NS_PER_S)
#define GRACE_NS (1 * NS_PER_S) /* time for a cancelled read to end */

enum verify_mode verify_mode_read(const struct experiment *experiment, const struct layout *layout)
{
    if (experiment_is(experiment, OPT_VERIFY, "none"))
        return VERIFY_NONE;
    if (experiment_is(experiment, OPT_VERIFY, "full"))
        return VERIFY_FULL;
    if (experiment_is(experiment, OPT_VERIFY, "sample"))
        return VERIFY_SAMPLE;
    return layout_total_bytes(layout) <= VERIFY_FULL_LIMIT_BYTES ? VERIFY_FULL : VERIFY_SAMPLE;
}

const char *verify_mode_name(enum verify_mode mode)
{
    return mode == VERIFY_FULL ? "full" : mode == VERIFY_SAMPLE ? "sample" : "none";
}

bool verify_sample_region(const struct region *region, size_t element_bytes, uint64_t phase, uint64_t index,
                          struct region *part, uint64_t *skipped_bytes)
{
    *part = *region;
    *skipped_bytes = 0;
    if (region->dims == 0)
        return index == 0;
    uint64_t rows = region->size[0];
    uint64_t row_bytes = rows ? region_elements(region) / rows * element_bytes : 0;
    if (row_bytes == 0)
        return false;
    uint64_t part_rows = row_bytes < VERIFY_SAMPLE_BYTES ? VERIFY_SAMPLE_BYTES / row_bytes : 1;
    uint64_t parts = (rows + part_rows - 1) / part_rows;
    uint64_t first = phase % (parts < VERIFY_SAMPLE_STRIDE ? parts : VERIFY_SAMPLE_STRIDE);
    uint64_t chosen = first + index * VERIFY_SAMPLE_STRIDE;
    if (chosen >= parts)
        return false;
    uint64_t row = chosen * part_rows;
    part->offset[0] += row;
    part->size[0] = rows - row < part_rows ? rows - row : part_rows;
    *skipped_bytes = row * row_bytes;
    return true;
}

static int give_up(void *name, struct cb_err *err)
{
    return cb_fail(err, CB_ERR_TIMEOUT, "the header of an item in %s cannot be read in time", (const char *)name);
}

/* Reads the first bytes of an item, to find its payload. */
static int read_header(struct store *store, const char *name, const struct stored_chunk *chunk, char *bytes,
                       size_t *len, struct cb_err *err)
{
    struct store_object *object;
    uint64_t length = 0;
    int rc = store_open_read(store, name, &object, &length, err);
    if (rc)
        return rc;
    *len = chunk->length < ITEM_MAX_HEADER ? (size_t)chunk->length : ITEM_MAX_HEADER;
    struct store_read_watch watch = {
        .slice_ns = POLL_LIMIT_NS, .grace_ns = GRACE_NS, .ask = give_up, .context = (void *)name};
    rc = store_read_at(store, object, chunk->offset, bytes, *len, &watch, NULL, err);
    if (store_in_flight(store) == 0)
        store_close(store, object);
    return rc;
}

static void coordinates_of(const struct state_tensor *tensor, uint64_t element, uint64_t *coordinates)
{
    for (uint32_t i = tensor->dims; i-- > 0;) {
        coordinates[i] = element % tensor->shape[i];
        element /= tensor->shape[i];
    }
}

static bool region_holds(const struct region *region, uint32_t dims, const uint64_t *coordinates)
{
    for (uint32_t i = 0; i < dims; i++) {
        if (coordinates[i] < region->offset[i] || coordinates[i] >= region->offset[i] + region->size[i])
            return false;
    }
    return region->dims == dims;
}

/* The file and offset of an element, once the metadata has been read. */
static int find_byte(const struct verify_job *job, const struct stored_checkpoint *stored,
                     const struct state_tensor *tensor, uint64_t element, char *text, size_t text_bytes,
                     struct cb_err *err)
{
    uint64_t coordinates[CKPT_MAX_DIMS] = {0};
    coordinates_of(tensor, element, coordinates);
    const struct stored_tensor *held = stored_checkpoint_find(stored, tensor->fqn);
    const struct stored_chunk *chunk = NULL;
    for (uint32_t i = 0; held && i < held->chunk_count && !chunk; i++) {
        const struct stored_chunk *candidate = &stored->chunks[held->first_chunk + i];
        if (region_holds(&candidate->region, tensor->dims, coordinates))
            chunk = candidate;
    }
    if (!chunk)
        return cb_fail(err, CB_ERR_NOT_FOUND, "the metadata places it nowhere");
    char *header = malloc(ITEM_MAX_HEADER);
    if (!header)
        return alloc_fail(err, "for a header");
    char name[NAME_BYTES];
    size_t len = 0;
    struct stored_payload payload;
    snprintf(name, sizeof name, "%s/%s", job->path, stored->files[chunk->file]);
    int rc = read_header(job->store, name, chunk, header, &len, err);
    if (!rc)
        rc = format_parse_item(stored->format, held, &chunk->region, header, len, chunk->length, &payload, err);
    if (store_in_flight(job->store) == 0) /* if not, a read that did not end may still write to it */
        free(header);
    if (rc)
        return rc;
    uint64_t inside = 0;
    for (uint32_t i = 0; i < tensor->dims; i++)
        inside += (coordinates[i] - chunk->region.offset[i]) * payload.stride[i];
    snprintf(text, text_bytes, "file %.900s, offset %" PRIu64, name,
             chunk->offset + payload.offset + inside * dtype_bytes(tensor->dtype));
    return 0;
}

struct verification {
    const struct verify_job *job;
    const struct state *state;
    struct status_page *page;
    struct stored_checkpoint *stored; /* read when the first wrong element is found */
    bool no_metadata;
    uint64_t right_bytes, wrong_pieces;
    uint64_t wrong_elements; /* used only for a device */
    int code;                /* an error of a device during the comparison */
    struct cb_err err;
};

/* Of the items with this rank's pieces. */
static void read_metadata(struct verification *self)
{
    const struct verify_job *job = self->job;
    const struct state *state = self->state;
    struct load_need need;
    struct cb_err unused;
    if (!job->store || load_need_init(&need, state->layout, state->pieces, state->piece_count, false, &unused)) {
        self->no_metadata = true;
        return;
    }
    self->no_metadata = metadata_read_needed(job->store, job->path, load_need_of, &need, &self->stored, &unused) != 0;
    load_need_release(&need);
}

static void report_wrong(struct verification *self, const struct state_tensor *tensor, uint64_t element)
{
    char place[PLACE_BYTES] = "its place in the store is unknown", line[PLACE_BYTES + 1024];
    struct cb_err unused;
    self->wrong_pieces++;
    if (!self->stored && !self->no_metadata)
        read_metadata(self);
    if (self->stored && find_byte(self->job, self->stored, tensor, element, place, sizeof place, &unused))
        snprintf(place, sizeof place, "its place in the store is unknown: %.512s", unused.message);
    snprintf(line, sizeof line, "iteration %u: tensor %.512s, element %" PRIu64 ": not what was saved (%s)",
             self->job->iteration, tensor->fqn, element, place);
    status_page_add_failure(self->page, CB_ERR_CORRUPT, line);
}

/* The device compares and counts by itself. */
static bool check_on_device(struct verification *self, const struct state_tensor *tensor, const struct region *region,
                            const void *memory, uint64_t *first)
{
    struct device *device = self->state->device;
    struct device_values values = state_values(tensor, region, &self->job->payload);
    struct device_difference difference = {0};
    if (region_elements(region) > 0 && !self->code)
        self->code = device->ops->check(device, &values, memory, &difference, &self->err);
    self->wrong_elements += difference.wrong;
    *first = difference.first;
    return !self->code && difference.wrong == 0;
}

/* False after a wrong element: the rest of the piece is skipped. */
static bool check_part(struct verification *self, const struct state_tensor *tensor, const struct region *region,
                       const void *memory)
{
    struct payload_source source = state_payload_source(tensor, &self->job->payload);
    uint64_t wrong = 0;
    uint64_t bytes = region_elements(region) * dtype_bytes(tensor->dtype);
    bool right = self->state->device ? check_on_device(self, tensor, region, memory, &wrong)
                                     : payload_check_region(&source, tensor->shape, region, memory, &wrong);
    atomic_fetch_add_explicit(&self->page->bytes_done, bytes, memory_order_relaxed);
    if (right)
        self->right_bytes += bytes;
    else if (!self->code)
        report_wrong(self, tensor, wrong);
    atomic_store_explicit(&self->page->progress_ns, clock_monotonic_ns(), memory_order_relaxed);
    return right;
}

static void check_piece(struct verification *self, size_t index)
{
    const struct piece *piece = &self->state->pieces[index];
    const struct state_tensor *tensor = layout_tensor(self->state->layout, piece->tensor);
    if (tensor->kind == KIND_BYTES)
        return;
    const char *memory = self->state->memory[index];
    if (self->job->mode == VERIFY_FULL) {
        (void)check_part(self, tensor, &piece->region, memory);
        return;
    }
    struct region part;
    uint64_t skipped = 0;
    for (uint64_t sample = 0; verify_sample_region(&piece->region, dtype_bytes(tensor->dtype),
                                                   self->job->iteration + index, sample, &part, &skipped);
         sample++) {
        if (!check_part(self, tensor, &part, memory + skipped))
            return;
    }
}

/* The total for progress: all tensor bytes, or 0 (unknown) for a sample. */
static uint64_t bytes_to_check(const struct verify_job *job, const struct state *state)
{
    uint64_t bytes = 0;
    for (size_t i = 0; job->mode == VERIFY_FULL && i < state->piece_count; i++) {
        const struct state_tensor *tensor = layout_tensor(state->layout, state->pieces[i].tensor);
        if (tensor->kind != KIND_BYTES)
            bytes += region_elements(&state->pieces[i].region) * dtype_bytes(tensor->dtype);
    }
    return bytes;
}

int verify_state(const struct verify_job *job, const struct state *state, struct status_page *page,
                 struct sample *sample, struct cb_err *err)
{
    struct verification verification = {.job = job, .state = state, .page = page};
    uint64_t start_ns = clock_monotonic_ns();
    atomic_store_explicit(&page->bytes_done, 0, memory_order_relaxed);
    atomic_store_explicit(&page->bytes_total, bytes_to_check(job, state), memory_order_relaxed);
    status_page_enter(page, OP_VERIFY, STATE_OTHER, start_ns);
    for (size_t i = 0; i < state->piece_count; i++)
        check_piece(&verification, i);
    uint64_t end_ns = clock_monotonic_ns();
    status_page_enter(page, OP_NONE, STATE_OTHER, end_ns);
    stored_checkpoint_free(verification.stored);
    sample->values[METRIC_VERIFY_S] = (double)(end_ns - start_ns) / 1e9;
    sample->values[METRIC_VERIFIED_BYTES] = (double)verification.right_bytes;
    if (verification.wrong_pieces == 0 && !verification.code)
        return 0;
    sample->flags |= SAMPLE_FAILED;
    if (verification.code) {
        *err = verification.err;
        return cb_context(err, "verifying %s", job->path);
    }
    if (verification.wrong_elements > 0)
        return cb_fail(err, CB_ERR_CORRUPT,
                       "%s: %" PRIu64 " of %zu pieces of rank %u are not what was saved (%" PRIu64
                       " elements of what was looked at)",
                       job->path, verification.wrong_pieces, state->piece_count, page->rank,
                       verification.wrong_elements);
    return cb_fail(err, CB_ERR_CORRUPT, "%s: %" PRIu64 " of %zu pieces of rank %u are not what was saved", job->path,
                   verification.wrong_pieces, state->piece_count, page->rank);
}
