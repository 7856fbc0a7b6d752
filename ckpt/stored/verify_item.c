/* Verifies one stored item: its length, frame, bytes, checksum and values. */
#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/stored/unpack.h"
#include "ckpt/stored/verify_internal.h"
#include "core/alloc.h"
#include "core/clock.h"
#include "core/hash.h"

#define BLOCK_BYTES (UINT64_C(4) << 20)
#define WINDOW_BYTES (2 * BLOCK_BYTES)
#define MAX_VALUE_BYTES (UINT64_C(1) << 20)
#define MAX_PLAIN_BYTES (UINT64_C(64) << 20) /* of a compressed value, decompressed */
#define SAMPLE_ELEMENTS 64
/* Limits of items searched for our values: with a seed that the checkpoint stores, and with a guessed one. */
#define ASKED 1024
#define GUESSED 16
#define POLL_SLICE_NS (100 * NS_PER_MS)
#define GIVE_UP_NS (5 * NS_PER_S) /* time for a cancelled read to end */

/* The position of the current item. */
struct item {
    const struct stored_tensor *tensor;
    const struct stored_chunk *chunk;
    const char *file;
};

void verify_report(struct verifier *self, enum verify_problem_kind kind, const char *file, const char *tensor,
                   uint64_t offset, const char *format, ...)
{
    struct verify_problem what = {.kind = kind, .file = file, .tensor = tensor, .offset = offset};
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(what.text, sizeof what.text, format, arguments);
    va_end(arguments);
    self->result->problems++;
    pthread_mutex_lock(&self->shared->lock);
    self->report(self->context, &what);
    pthread_mutex_unlock(&self->shared->lock);
}

/* --- reading --- */

/* Whether to continue. After the first failure all threads stop. */
static int watch(struct verifier *self, uint64_t bytes)
{
    const struct verify_job *job = self->job;
    if (!job->watch)
        return 0;
    pthread_mutex_lock(&self->shared->lock);
    int code = self->shared->code;
    if (!code)
        code = job->watch(job->watch_context, bytes, &self->shared->failure);
    self->shared->code = code;
    if (code)
        *self->err = self->shared->failure;
    pthread_mutex_unlock(&self->shared->lock);
    if (code)
        atomic_store(&self->shared->stopped, true);
    return code;
}

static int watch_slice(void *context, struct cb_err *err)
{
    struct verifier *self = context;
    (void)err; /* the same error as in shared->failure */
    return watch(self, 0);
}

static int read_through(struct verifier *self, uint64_t offset, void *memory, uint64_t bytes)
{
    struct store_read_watch read_watch = {
        .slice_ns = POLL_SLICE_NS, .grace_ns = GIVE_UP_NS, .ask = watch_slice, .context = self};
    uint64_t start_ns = clock_monotonic_ns(), moved = 0;
    if (self->stuck)
        return cb_fail(self->err, CB_ERR_ABORTED, "an earlier read did not end");
    int code = store_read_at(self->store, self->object, offset, memory, bytes, self->job->watch ? &read_watch : NULL,
                             &moved, self->err);
    self->stuck = store_in_flight(self->store) > 0;
    self->result->requests++;
    self->result->read_ns += clock_monotonic_ns() - start_ns;
    self->result->store_bytes += moved;
    return code ? code : watch(self, bytes);
}

static int fill_window(struct verifier *self, uint64_t offset)
{
    uint64_t length = verify_file(self, self->open_file)->length, bytes = offset < length ? length - offset : 0;
    self->window_offset = offset;
    self->window_bytes = 0;
    if (bytes > WINDOW_BYTES)
        bytes = WINDOW_BYTES;
    int code = bytes > 0 ? read_through(self, offset, self->window, bytes) : 0;
    if (code == 0)
        self->window_bytes = bytes;
    return code;
}

/* Items are checked in storage order, so the next bytes of the file will be needed. */
static int read_at(struct verifier *self, uint64_t offset, void *memory, uint64_t bytes)
{
    if (!self->window || bytes > WINDOW_BYTES)
        return read_through(self, offset, memory, bytes);
    bool inside = offset >= self->window_offset && offset + bytes <= self->window_offset + self->window_bytes;
    if (!inside && fill_window(self, offset) == 0)
        inside = bytes <= self->window_bytes;
    if (!inside) /* a failed or short read: report only these bytes */
        return read_through(self, offset, memory, bytes);
    memcpy(memory, self->window + (offset - self->window_offset), bytes);
    return 0;
}

static int open_file(struct verifier *self, uint32_t file)
{
    if (self->object && self->open_file == file)
        return 0;
    if (self->object)
        store_close(self->store, self->object);
    self->object = NULL;
    self->open_file = file;
    self->window_bytes = 0;
    uint64_t length;
    return store_open_read(self->store, self->checkpoint->files[file], &self->object, &length, self->err);
}

int verify_read_front(struct verifier *self, const char *name, uint64_t offset, void *memory, uint64_t bytes)
{
    uint64_t length;
    if (self->stuck)
        return cb_fail(self->err, CB_ERR_ABORTED, "an earlier read did not end");
    if (self->object)
        store_close(self->store, self->object);
    self->object = NULL;
    int code = store_open_read(self->store, name, &self->object, &length, self->err);
    if (!code && offset + bytes > length)
        code = cb_fail(self->err, CB_ERR_CORRUPT, "the file has only %" PRIu64 " bytes", length);
    if (!code)
        code = read_through(self, offset, memory, bytes);
    self->open_file = UINT32_MAX; /* the object is not one of the checkpoint's files */
    return code;
}

static void read_problem(struct verifier *self, const struct item *item, uint64_t offset)
{
    if (atomic_load(&self->shared->stopped))
        return; /* the verification was stopped; the file is not damaged */
    verify_report(self, VERIFY_CORRUPT, item->file, item->tensor->fqn, offset, "%s: %s at byte %" PRIu64 ": %s",
                  item->file, item->tensor->fqn, offset, self->err->message);
}

const struct file_state *verify_file(struct verifier *self, uint32_t file)
{
    struct file_state *state = &self->files[file];
    if (!state->known)
        state->there = store_stat(self->store, self->checkpoint->files[file], &state->length, self->err) == 0;
    state->known = true;
    return state;
}

/* Whether the file extends to the item's end. */
static bool check_length(struct verifier *self, const struct item *item)
{
    const struct file_state *file = verify_file(self, item->chunk->file);
    uint64_t end = item->chunk->offset + item->chunk->length;
    if (file->there && end > file->length)
        verify_report(self, VERIFY_SHORT, item->file, item->tensor->fqn, item->chunk->offset,
                      "%s: the file has %" PRIu64 " bytes, but %s lies in it from byte %" PRIu64 " to %" PRIu64,
                      item->file, file->length, item->tensor->fqn, item->chunk->offset, end);
    return file->there && end <= file->length;
}

/* --- small values --- */

static int read_value(struct verifier *self, const struct item *item, struct buf *literal)
{
    uint64_t length = item->chunk->length;
    if (length > MAX_VALUE_BYTES)
        return cb_fail(self->err, CB_ERR_UNSUPPORTED, "the value has %" PRIu64 " bytes", length);
    int code = open_file(self, item->chunk->file);
    if (!code && length > 0)
        code = read_at(self, item->chunk->offset, self->block, length);
    const void *value = self->block;
    buf_clear(&self->plain);
    if (!code && item->chunk->compressed) {
        code = unpack_zstd(item->tensor->fqn, self->block, (size_t)length, &self->plain, self->err);
        value = self->plain.data;
        length = self->plain.len;
    }
    if (!code)
        code = format_parse_bytes_payload(self->checkpoint->format, item->tensor->fqn, value, (size_t)length, literal,
                                          self->err);
    return code;
}

/* A value of an unknown class is not checked: only PyTorch can interpret it. */
static void check_value(struct verifier *self, const struct item *item)
{
    struct buf literal;
    buf_init(&literal, MAX_VALUE_BYTES);
    int code = read_value(self, item, &literal);
    if (code && code != CB_ERR_UNSUPPORTED && code != CB_ERR_FORMAT)
        read_problem(self, item, item->chunk->offset);
    buf_release(&literal);
}

static struct item item_of(const struct verifier *self, const struct stored_chunk *chunk)
{
    return (struct item){&self->checkpoint->tensors[chunk->tensor], chunk, self->checkpoint->files[chunk->file]};
}

/* Does not report: the other checks do. */
static bool item_is_there(struct verifier *self, const struct item *item)
{
    const struct file_state *file = verify_file(self, item->chunk->file);
    return file->there && item->chunk->offset + item->chunk->length <= file->length;
}

static bool read_seed(const char *literal, uint64_t *seed)
{
    char *end;
    *seed = strtoull(literal, &end, 10);
    return end != literal && *end == '\0';
}

static void read_stored_seed(struct verifier *self)
{
    const struct stored_tensor *tensor = stored_checkpoint_find(self->checkpoint, "train.seed");
    if (tensor && tensor->literal) {
        self->has_seed = read_seed(tensor->literal, &self->seed);
        return;
    }
    if (!tensor || !tensor->is_bytes || tensor->chunk_count != 1)
        return;
    struct item item = item_of(self, &self->checkpoint->chunks[tensor->first_chunk]);
    if (!item_is_there(self, &item))
        return;
    struct buf literal;
    buf_init(&literal, MAX_VALUE_BYTES);
    if (read_value(self, &item, &literal) == 0)
        self->has_seed = read_seed(literal.data, &self->seed);
    buf_release(&literal);
}

void verify_find_seed(struct verifier *self)
{
    if (!self->has_seed)
        read_stored_seed(self);
    if (self->has_seed || !self->job->likely_seed)
        return;
    self->has_seed = self->guesses = true;
    self->seed = *self->job->likely_seed;
}

/* --- payloads --- */

static struct payload_source source_of(const struct verifier *self, const struct stored_tensor *tensor,
                                       enum payload_kind kind)
{
    return (struct payload_source){kind, tensor->dtype, payload_key(self->seed, tensor->fqn)};
}

/* Elements [first, first + count) of the region's own row-major order. *wrong counts in that order. */
static bool check_part(const struct payload_source *source, const struct stored_tensor *tensor,
                       const struct region *region, uint64_t first, const unsigned char *memory, uint64_t count,
                       uint64_t *wrong)
{
    struct region whole = region_whole(tensor->dims, tensor->shape);
    uint64_t runs, run_elements, done = 0;
    region_runs(&whole, region, &runs, &run_elements);
    while (done < count) {
        uint64_t run = (first + done) / run_elements, in_run = (first + done) % run_elements, element, in_region;
        uint64_t part = run_elements - in_run < count - done ? run_elements - in_run : count - done;
        region_run(&whole, region, run, &element, &in_region);
        if (!payload_check(source, element + in_run, memory + done * dtype_bytes(tensor->dtype), part, wrong)) {
            *wrong += first + done;
            return false;
        }
        done += part;
    }
    return true;
}

/* Whether the first elements of this item have our values. */
static void recognize(struct verifier *self, const struct item *item, const struct stored_payload *payload)
{
    static const enum payload_kind kinds[] = {PAYLOAD_WEIGHTS, PAYLOAD_RANDOM, PAYLOAD_ZERO};
    uint64_t element = dtype_bytes(item->tensor->dtype), count = payload->bytes / element, wrong;
    if (count > SAMPLE_ELEMENTS)
        count = SAMPLE_ELEMENTS;
    if (!payload->contiguous || count < 8 ||
        read_at(self, item->chunk->offset + payload->offset, self->block, count * element))
        return;
    size_t kind_count = self->guesses ? 2 : sizeof kinds / sizeof *kinds;
    for (size_t i = 0; i < kind_count && !self->has_kind; i++) {
        struct payload_source source = source_of(self, item->tensor, kinds[i]);
        self->has_kind = check_part(&source, item->tensor, &item->chunk->region, 0, self->block, count, &wrong);
        self->kind = kinds[i];
    }
}

static void report_wrong_value(struct verifier *self, const struct item *item, const struct stored_payload *payload,
                               uint64_t wrong)
{
    uint64_t offset = item->chunk->offset + payload->offset + wrong * dtype_bytes(item->tensor->dtype);
    verify_report(self, VERIFY_CORRUPT, item->file, item->tensor->fqn, offset,
                  "%s: %s at byte %" PRIu64 ": the value is not what was written (element %" PRIu64 " of the chunk)",
                  item->file, item->tensor->fqn, offset, wrong);
}

static bool knows_values(const struct verifier *self, const struct stored_payload *payload)
{
    return self->has_kind && payload->contiguous;
}

/* Streams the payload once, for checksum and values. False if a problem was reported. */
static bool check_payload(struct verifier *self, const struct item *item, const struct stored_payload *payload,
                          uint32_t *crc)
{
    uint64_t element = dtype_bytes(item->tensor->dtype), wrong;
    bool values = knows_values(self, payload), right = true;
    struct payload_source source = source_of(self, item->tensor, self->kind);
    *crc = 0;
    for (uint64_t done = 0; done < payload->bytes;) {
        uint64_t part = payload->bytes - done < BLOCK_BYTES ? payload->bytes - done : BLOCK_BYTES;
        uint64_t offset = item->chunk->offset + payload->offset + done;
        if (read_at(self, offset, self->block, part)) {
            read_problem(self, item, offset);
            return false;
        }
        *crc = crc32_zip(*crc, self->block, part);
        if (values && right &&
            !check_part(&source, item->tensor, &item->chunk->region, done / element, self->block, part / element,
                        &wrong)) {
            report_wrong_value(self, item, payload, wrong);
            right = false;
        }
        done += part;
    }
    self->result->payload_bytes += payload->bytes;
    self->result->values_checked += values;
    return right;
}

static int read_frame(struct verifier *self, const struct item *item, struct stored_payload *payload,
                      struct stored_trailer *trailer)
{
    uint64_t length = item->chunk->length, head = length < ITEM_MAX_HEADER ? length : ITEM_MAX_HEADER;
    uint64_t tail = length < ITEM_MAX_TRAILER ? length : ITEM_MAX_TRAILER;
    int code = open_file(self, item->chunk->file);
    if (!code && head > 0)
        code = read_at(self, item->chunk->offset, self->block, head);
    if (!code)
        code = format_parse_item(self->checkpoint->format, item->tensor, &item->chunk->region, self->block,
                                 (size_t)head, length, payload, self->err);
    if (!code && tail > 0)
        code = read_at(self, item->chunk->offset + length - tail, self->block, tail);
    if (!code)
        code = format_parse_trailer(self->checkpoint->format, self->block, (size_t)tail, trailer, self->err);
    return code ? code : format_check_header(payload, trailer, self->err);
}

/* Decompresses all of it, block by block, without keeping it. */
static int read_compressed(struct verifier *self, const struct item *item, struct unpack_result *result)
{
    struct unpack_item *unpacked = NULL;
    uint64_t length = item->chunk->length;
    int code = open_file(self, item->chunk->file);
    if (!code)
        code = unpack_item_new(self->checkpoint->format, item->tensor, &item->chunk->region, &unpacked, self->err);
    for (uint64_t done = 0; done < length && !code;) {
        uint64_t part = length - done < BLOCK_BYTES ? length - done : BLOCK_BYTES;
        code = read_at(self, item->chunk->offset + done, self->block, part);
        if (!code)
            code = unpack_item_take(unpacked, self->block, part, self->err);
        done += part;
    }
    if (!code)
        code = unpack_item_end(unpacked, result, self->err);
    unpack_item_free(unpacked);
    return code;
}

/* False if a problem was reported. */
static bool compare_checksum(struct verifier *self, const struct item *item, const struct stored_payload *payload,
                             uint32_t crc, uint32_t stored)
{
    self->result->checksums++;
    if (crc == stored)
        return true;
    verify_report(self, VERIFY_CORRUPT, item->file, item->tensor->fqn, item->chunk->offset,
                  "%s: %s at byte %" PRIu64 ": the checksum of its %" PRIu64 " bytes is %08x, stored was %08x",
                  item->file, item->tensor->fqn, item->chunk->offset, payload->bytes, crc, stored);
    return false;
}

/* Called when an item's bytes have been read and its values, if known, are right. */
static void judge_item(struct verifier *self, const struct item *item, const struct stored_payload *payload,
                       uint32_t crc, uint32_t stored, bool values)
{
    bool has_checksum = stored != 0 && payload->whole;
    if (has_checksum && !compare_checksum(self, item, payload, crc, stored))
        return;
    if (has_checksum || values)
        self->result->right_bytes += payload->bytes;
    else
        self->result->unproven += payload->bytes > 0;
}

static void check_compressed(struct verifier *self, const struct item *item)
{
    struct unpack_result found;
    if (read_compressed(self, item, &found)) {
        read_problem(self, item, item->chunk->offset);
        return;
    }
    self->result->payload_bytes += found.payload.bytes;
    judge_item(self, item, &found.payload, found.crc, found.stored, false);
}

static void check_item(struct verifier *self, const struct item *item)
{
    struct stored_payload payload;
    struct stored_trailer stored = {0};
    uint32_t crc;
    if (read_frame(self, item, &payload, &stored)) {
        read_problem(self, item, item->chunk->offset);
        return;
    }
    if (!check_payload(self, item, &payload, &crc))
        return;
    judge_item(self, item, &payload, crc, stored.crc, knows_values(self, &payload));
}

void verify_find_kind(struct verifier *self, const struct stored_chunk **order, size_t count)
{
    size_t most = self->guesses ? GUESSED : ASKED;
    if (count > most)
        count = most;
    for (size_t i = 0; i < count && self->has_seed && !self->has_kind; i++) {
        struct item item = item_of(self, order[i]);
        struct stored_payload payload;
        struct stored_trailer trailer;
        if (!item.tensor->is_bytes && !item.chunk->compressed && item_is_there(self, &item) &&
            read_frame(self, &item, &payload, &trailer) == 0)
            recognize(self, &item, &payload);
    }
}

void verify_item(struct verifier *self, const struct stored_chunk *chunk)
{
    struct item item = item_of(self, chunk);
    if (!check_length(self, &item))
        return;
    if (item.tensor->is_bytes)
        check_value(self, &item);
    else if (item.chunk->compressed)
        check_compressed(self, &item);
    else
        check_item(self, &item);
}

int verify_open(struct verifier *self)
{
    struct store_options options = {.direct = STORE_DIRECT_NO, .depth = 1, .threads = 1, .read_only = true};
    if (self->job->store) {
        options.rank = self->job->store->rank;
        options.shared_folder = self->job->store->shared_folder;
        options.s3 = self->job->store->s3;
    }
    self->object = NULL;
    self->store = NULL;
    self->window = NULL;
    self->window_bytes = 0;
    buf_init(&self->plain, MAX_PLAIN_BYTES);
    self->block = aligned_alloc(4096, BLOCK_BYTES);
    if (!self->block)
        return alloc_fail(self->err, "for reading");
    int code = store_open(self->job->place, &options, &self->store, self->err);
    if (code || store_capabilities(self->store)->page_cache)
        return code;
    self->window = malloc(WINDOW_BYTES);
    return self->window ? 0 : alloc_fail(self->err, "for reading");
}

void verify_close(struct verifier *self)
{
    if (self->stuck)
        return;
    if (self->object)
        store_close(self->store, self->object);
    if (self->store)
        store_free(self->store);
    buf_release(&self->plain);
    free(self->block);
    free(self->window);
}
