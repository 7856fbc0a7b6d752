/* Owns the verification of stored checkpoints. Knows no format's bytes, and nothing of how people are told. */
#include "ckpt/verify.h"

#include <inttypes.h>
#include <pthread.h>
#include <stdarg.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/collect.h"
#include "ckpt/payload.h"
#include "ckpt/unpack.h"
#include "core/hash.h"

#define BLOCK_BYTES (UINT64_C(4) << 20)
#define WINDOW_BYTES (2 * BLOCK_BYTES)
#define MAX_VALUE_BYTES (UINT64_C(1) << 20)
#define MAX_PLAIN_BYTES (UINT64_C(16) << 30) /* of one item that is compressed */
#define SAMPLE_ELEMENTS 64
#define MAX_THREADS 64
#define WORTH_THREADS_BYTES (UINT64_C(64) << 20)

struct file_state {
    uint64_t length;
    bool there;
};

/* What threads share: items in the order in which they lie in the files, and the next to look at. */
struct shared {
    const struct stored_chunk **places;
    size_t count;
    atomic_size_t next;
    pthread_mutex_t lock; /* reports, the sum of results, the first failure */
    int code;
    struct cb_err failure;
};

struct verifier {
    const struct verify_job *job;
    struct shared *shared;
    struct store *store;
    verify_problem_fn report;
    void *context;
    struct verify_result *result;
    struct stored_checkpoint *checkpoint;
    struct file_state *files;
    struct store_object *object; /* the file that is open */
    uint32_t open_file;
    bool has_seed, has_kind;
    uint64_t seed;
    enum payload_kind kind;
    unsigned char *block;
    unsigned char *window; /* of a store where every read is a request to a server, else NULL: bytes of the open file */
    uint64_t window_offset, window_bytes;
    struct buf plain; /* an item that was compressed */
    struct cb_err *err;
};

/* The place of an item that is being looked at. */
struct item {
    const struct stored_tensor *tensor;
    const struct stored_chunk *chunk;
    const char *file;
};

const char *verify_problem_name(enum verify_problem_kind kind)
{
    static const char *const names[] = {"incomplete", "missing", "short", "twice", "corrupt"};
    return names[kind];
}

CB_PRINTF(6, 7)
static void problem(struct verifier *self, enum verify_problem_kind kind, const char *file, const char *tensor,
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

static int read_through(struct verifier *self, uint64_t offset, void *memory, uint64_t bytes)
{
    struct iovec segment = {memory, bytes};
    struct store_request request = {
        .kind = STORE_READ, .object = self->object, .offset = offset, .segments = &segment, .segment_count = 1};
    struct store_completion completion;
    size_t count = 0;
    int code = store_submit(self->store, &request, 1, self->err);
    if (!code)
        code = store_poll(self->store, &completion, 1, UINT64_MAX, &count, self->err);
    if (!code && completion.code)
        code = completion.sys_errno
                   ? cb_fail_errno(self->err, completion.sys_errno, "reading %" PRIu64 " bytes", bytes)
                   : cb_fail(self->err, completion.code, "reading %" PRIu64 " bytes ended early", bytes);
    return code;
}

static int fill_window(struct verifier *self, uint64_t offset)
{
    uint64_t length = self->files[self->open_file].length, bytes = offset < length ? length - offset : 0;
    self->window_offset = offset;
    self->window_bytes = 0;
    if (bytes > WINDOW_BYTES)
        bytes = WINDOW_BYTES;
    int code = bytes > 0 ? read_through(self, offset, self->window, bytes) : 0;
    if (code == 0)
        self->window_bytes = bytes;
    return code;
}

/* Items are looked at in the order in which they lie in a file, so what follows is wanted next. */
static int read_at(struct verifier *self, uint64_t offset, void *memory, uint64_t bytes)
{
    if (!self->window || bytes > WINDOW_BYTES)
        return read_through(self, offset, memory, bytes);
    bool inside = offset >= self->window_offset && offset + bytes <= self->window_offset + self->window_bytes;
    if (!inside && fill_window(self, offset) == 0)
        inside = bytes <= self->window_bytes;
    if (!inside) /* broken or short: these bytes alone say what is wrong */
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

static void read_problem(struct verifier *self, const struct item *item, uint64_t offset)
{
    problem(self, VERIFY_CORRUPT, item->file, item->tensor->fqn, offset, "%s: %s at byte %" PRIu64 ": %s", item->file,
            item->tensor->fqn, offset, self->err->message);
}

/* --- what the metadata says --- */

static void check_files(struct verifier *self)
{
    for (size_t i = 0; i < self->checkpoint->file_count; i++) {
        const char *name = self->checkpoint->files[i];
        self->files[i].there = store_stat(self->store, name, &self->files[i].length, self->err) == 0;
        if (!self->files[i].there)
            problem(self, VERIFY_MISSING, name, NULL, 0, "%s: the file is missing (%s)", name, self->err->message);
    }
}

/* A safetensors file ends where its last tensor does: stock readers refuse one that goes on. */
static int check_ends(struct verifier *self)
{
    const struct stored_checkpoint *checkpoint = self->checkpoint;
    if (checkpoint->format != PLAN_SAFETENSORS && checkpoint->format != PLAN_DCP_SAFETENSORS)
        return 0;
    uint64_t *ends = calloc(checkpoint->file_count + 1, sizeof *ends);
    if (!ends)
        return cb_fail(self->err, CB_ERR_MEMORY, "no memory for %zu files", checkpoint->file_count);
    for (size_t i = 0; i < checkpoint->chunk_count; i++) {
        const struct stored_chunk *chunk = &checkpoint->chunks[i];
        if (chunk->offset + chunk->length > ends[chunk->file])
            ends[chunk->file] = chunk->offset + chunk->length;
    }
    for (size_t i = 0; i < checkpoint->file_count; i++) {
        if (ends[i] > 0 && self->files[i].there && self->files[i].length > ends[i])
            problem(self, VERIFY_CORRUPT, checkpoint->files[i], NULL, ends[i],
                    "%s: the file has %" PRIu64 " bytes, but its last tensor ends at %" PRIu64, checkpoint->files[i],
                    self->files[i].length, ends[i]);
    }
    free(ends);
    return 0;
}

static bool report_overlap(struct verifier *self, const struct stored_tensor *tensor, const struct stored_chunk *a,
                           const struct stored_chunk *b)
{
    struct box common;
    if (!box_intersect(&a->box, &b->box, &common))
        return false;
    problem(self, VERIFY_TWICE, self->checkpoint->files[b->file], tensor->fqn, b->offset,
            "%s: %" PRIu64 " elements are stored twice, in %s at byte %" PRIu64 " and in %s at byte %" PRIu64,
            tensor->fqn, box_elements(&common), self->checkpoint->files[a->file], a->offset,
            self->checkpoint->files[b->file], b->offset);
    return true;
}

/* Chunks are sorted by offset, so those that may meet one are next to it. */
static void check_coverage(struct verifier *self, const struct stored_tensor *tensor)
{
    struct box whole = box_whole(tensor->dims, tensor->shape);
    const struct stored_chunk *chunks = self->checkpoint->chunks + tensor->first_chunk;
    uint64_t elements = 0;
    bool overlaps = false;
    if (tensor->literal)
        return;
    for (uint32_t i = 0; i < tensor->chunk_count; i++) {
        elements += box_elements(&chunks[i].box);
        for (uint32_t k = i + 1; k < tensor->chunk_count; k++) {
            if (tensor->dims > 0 && chunks[k].box.offset[0] >= chunks[i].box.offset[0] + chunks[i].box.size[0])
                break;
            overlaps |= report_overlap(self, tensor, &chunks[i], &chunks[k]);
        }
    }
    if (!overlaps && elements < box_elements(&whole))
        problem(self, VERIFY_MISSING, NULL, tensor->fqn, 0,
                "%s: %" PRIu64 " of %" PRIu64 " elements are in no stored chunk", tensor->fqn,
                box_elements(&whole) - elements, box_elements(&whole));
}

/* Whether the file reaches to the item's end. */
static bool check_length(struct verifier *self, const struct item *item)
{
    const struct file_state *file = &self->files[item->chunk->file];
    uint64_t end = item->chunk->offset + item->chunk->length;
    if (file->there && end > file->length)
        problem(self, VERIFY_SHORT, item->file, item->tensor->fqn, item->chunk->offset,
                "%s: the file has %" PRIu64 " bytes, but %s lies in it from byte %" PRIu64 " to %" PRIu64, item->file,
                file->length, item->tensor->fqn, item->chunk->offset, end);
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

/* A value of a class that we do not know is PyTorch's business. */
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

/* Without a report: that comes with the others. */
static bool item_is_there(const struct verifier *self, const struct item *item)
{
    const struct file_state *file = &self->files[item->chunk->file];
    return file->there && item->chunk->offset + item->chunk->length <= file->length;
}

static bool read_seed(const char *literal, uint64_t *seed)
{
    char *end;
    *seed = strtoull(literal, &end, 10);
    return end != literal && *end == '\0';
}

static void find_seed(struct verifier *self)
{
    const struct stored_tensor *tensor = stored_checkpoint_find(self->checkpoint, "train.seed");
    if (!self->has_seed && tensor && tensor->literal) {
        self->has_seed = read_seed(tensor->literal, &self->seed);
        return;
    }
    if (self->has_seed || !tensor || !tensor->is_bytes || tensor->chunk_count != 1)
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

/* --- payloads --- */

static struct payload_source source_of(const struct verifier *self, const struct stored_tensor *tensor,
                                       enum payload_kind kind)
{
    return (struct payload_source){kind, tensor->dtype, payload_key(self->seed, tensor->fqn)};
}

/* Elements [first, first + count) of the box's own row-major order. *wrong counts in that order. */
static bool check_part(const struct payload_source *source, const struct stored_tensor *tensor, const struct box *box,
                       uint64_t first, const unsigned char *memory, uint64_t count, uint64_t *wrong)
{
    struct box whole = box_whole(tensor->dims, tensor->shape);
    uint64_t runs, run_elements, done = 0;
    box_runs(&whole, box, &runs, &run_elements);
    while (done < count) {
        uint64_t run = (first + done) / run_elements, in_run = (first + done) % run_elements, element, in_box;
        uint64_t part = run_elements - in_run < count - done ? run_elements - in_run : count - done;
        box_run(&whole, box, run, &element, &in_box);
        if (!payload_check(source, element + in_run, memory + done * dtype_bytes(tensor->dtype), part, wrong)) {
            *wrong += first + done;
            return false;
        }
        done += part;
    }
    return true;
}

/* Whether the first elements of this item are one of our payloads. */
static void recognize(struct verifier *self, const struct item *item, const struct stored_payload *payload)
{
    static const enum payload_kind kinds[] = {PAYLOAD_WEIGHTS, PAYLOAD_RANDOM, PAYLOAD_ZERO};
    uint64_t element = dtype_bytes(item->tensor->dtype), count = payload->bytes / element, wrong;
    if (count > SAMPLE_ELEMENTS)
        count = SAMPLE_ELEMENTS;
    if (!payload->contiguous || count < 8 ||
        read_at(self, item->chunk->offset + payload->offset, self->block, count * element))
        return;
    for (size_t i = 0; i < sizeof kinds / sizeof *kinds && !self->has_kind; i++) {
        struct payload_source source = source_of(self, item->tensor, kinds[i]);
        self->has_kind = check_part(&source, item->tensor, &item->chunk->box, 0, self->block, count, &wrong);
        self->kind = kinds[i];
    }
}

static void report_wrong_value(struct verifier *self, const struct item *item, const struct stored_payload *payload,
                               uint64_t wrong)
{
    uint64_t offset = item->chunk->offset + payload->offset + wrong * dtype_bytes(item->tensor->dtype);
    problem(self, VERIFY_CORRUPT, item->file, item->tensor->fqn, offset,
            "%s: %s at byte %" PRIu64 ": the value is not what was written (element %" PRIu64 " of the chunk)",
            item->file, item->tensor->fqn, offset, wrong);
}

/* Streams the payload once, for checksum and values. False where something was reported. */
static bool check_payload(struct verifier *self, const struct item *item, const struct stored_payload *payload,
                          uint32_t *crc)
{
    uint64_t element = dtype_bytes(item->tensor->dtype), wrong;
    bool values = self->has_kind && payload->contiguous, right = true;
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
            !check_part(&source, item->tensor, &item->chunk->box, done / element, self->block, part / element,
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

static int read_frame(struct verifier *self, const struct item *item, struct stored_payload *payload, uint32_t *crc,
                      bool *has_crc)
{
    uint64_t length = item->chunk->length, head = length < FORMAT_MAX_HEADER ? length : FORMAT_MAX_HEADER;
    uint64_t tail = length < FORMAT_MAX_TRAILER ? length : FORMAT_MAX_TRAILER;
    int code = open_file(self, item->chunk->file);
    if (!code && head > 0)
        code = read_at(self, item->chunk->offset, self->block, head);
    if (!code)
        code = format_parse_item(self->checkpoint->format, item->tensor, &item->chunk->box, self->block, (size_t)head,
                                 length, payload, self->err);
    if (!code && tail > 0)
        code = read_at(self, item->chunk->offset + length - tail, self->block, tail);
    if (!code)
        code = format_parse_trailer(self->checkpoint->format, self->block, (size_t)tail, crc, has_crc, self->err);
    return code;
}

/* The whole item in memory, as it was before it was compressed. */
static int read_compressed(struct verifier *self, const struct item *item)
{
    uint64_t length = item->chunk->length;
    int code = open_file(self, item->chunk->file);
    unsigned char *packed = malloc(length + 1);
    if (!code && !packed)
        code = cb_fail(self->err, CB_ERR_MEMORY, "no memory for %" PRIu64 " compressed bytes", length);
    buf_clear(&self->plain);
    if (!code && length > 0)
        code = read_at(self, item->chunk->offset, packed, length);
    if (!code)
        code = unpack_zstd(item->tensor->fqn, packed, length, &self->plain, self->err);
    free(packed);
    return code;
}

static int parse_compressed(struct verifier *self, const struct item *item, struct stored_payload *payload,
                            uint32_t *crc, bool *has_crc)
{
    size_t len = self->plain.len, head = len < FORMAT_MAX_HEADER ? len : FORMAT_MAX_HEADER;
    size_t tail = len < FORMAT_MAX_TRAILER ? len : FORMAT_MAX_TRAILER;
    int code = format_parse_item(self->checkpoint->format, item->tensor, &item->chunk->box, self->plain.data, head, len,
                                 payload, self->err);
    return code ? code
                : format_parse_trailer(self->checkpoint->format, self->plain.data + len - tail, tail, crc, has_crc,
                                       self->err);
}

static void compare_checksum(struct verifier *self, const struct item *item, const struct stored_payload *payload,
                             uint32_t crc, uint32_t stored)
{
    self->result->checksums++;
    if (crc != stored)
        problem(self, VERIFY_CORRUPT, item->file, item->tensor->fqn, item->chunk->offset,
                "%s: %s at byte %" PRIu64 ": the checksum of its %" PRIu64 " bytes is %08x, stored was %08x",
                item->file, item->tensor->fqn, item->chunk->offset, payload->bytes, crc, stored);
}

static void check_compressed(struct verifier *self, const struct item *item)
{
    struct stored_payload payload;
    uint32_t stored = 0;
    bool has_crc = false;
    if (read_compressed(self, item) || parse_compressed(self, item, &payload, &stored, &has_crc)) {
        read_problem(self, item, item->chunk->offset);
        return;
    }
    self->result->payload_bytes += payload.bytes;
    if (has_crc && payload.bytes == box_elements(&item->chunk->box) * dtype_bytes(item->tensor->dtype))
        compare_checksum(self, item, &payload, crc32_zip(0, self->plain.data + payload.offset, payload.bytes), stored);
}

static void check_item(struct verifier *self, const struct item *item)
{
    struct stored_payload payload;
    uint32_t stored = 0, crc;
    bool has_crc = false;
    if (read_frame(self, item, &payload, &stored, &has_crc)) {
        read_problem(self, item, item->chunk->offset);
        return;
    }
    if (!check_payload(self, item, &payload, &crc))
        return;
    /* The checksum is of the whole storage, which the payload is unless strides leave holes in it. */
    bool dense = payload.bytes == box_elements(&item->chunk->box) * dtype_bytes(item->tensor->dtype);
    if (has_crc && dense)
        compare_checksum(self, item, &payload, crc, stored);
}

/* Looks for an item with values of ours before any is judged: the first one may be the damaged one. */
static void find_kind(struct verifier *self, const struct stored_chunk **order, size_t count)
{
    for (size_t i = 0; i < count && self->has_seed && !self->has_kind; i++) {
        struct item item = item_of(self, order[i]);
        struct stored_payload payload;
        uint32_t crc;
        bool has_crc;
        if (!item.tensor->is_bytes && !item.chunk->compressed && item_is_there(self, &item) &&
            read_frame(self, &item, &payload, &crc, &has_crc) == 0)
            recognize(self, &item, &payload);
    }
}

static int compare_places(const void *a, const void *b)
{
    const struct stored_chunk *x = *(const struct stored_chunk *const *)a, *y = *(const struct stored_chunk *const *)b;
    if (x->file != y->file)
        return x->file < y->file ? -1 : 1;
    return x->offset < y->offset ? -1 : x->offset > y->offset;
}

static void look_at(struct verifier *self, const struct stored_chunk *chunk)
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

static void look_at_all(struct verifier *self)
{
    struct shared *shared = self->shared;
    for (size_t i = atomic_fetch_add(&shared->next, 1); i < shared->count; i = atomic_fetch_add(&shared->next, 1))
        look_at(self, shared->places[i]);
}

static int open_store(struct verifier *self)
{
    struct store_options options = {.direct = STORE_DIRECT_NO, .depth = 1, .threads = 1, .read_only = true};
    self->object = NULL;
    self->store = NULL;
    self->window = NULL;
    self->window_bytes = 0;
    buf_init(&self->plain, MAX_PLAIN_BYTES);
    self->block = aligned_alloc(4096, BLOCK_BYTES);
    if (!self->block)
        return cb_fail(self->err, CB_ERR_MEMORY, "no memory for reading");
    int code = store_open(self->job->place, &options, &self->store, self->err);
    if (code || store_capabilities(self->store)->page_cache)
        return code;
    self->window = malloc(WINDOW_BYTES);
    return self->window ? 0 : cb_fail(self->err, CB_ERR_MEMORY, "no memory for reading");
}

static void close_store(struct verifier *self)
{
    if (self->object)
        store_close(self->store, self->object);
    if (self->store)
        store_free(self->store);
    buf_release(&self->plain);
    free(self->block);
    free(self->window);
}

/* Another thread's verifier: what the first one knows, and a store, memory and a result of its own. */
static void *run_thread(void *context)
{
    struct verifier self = *(const struct verifier *)context;
    struct verify_result own = {0}, *sum = self.result;
    struct cb_err err;
    self.result = &own;
    self.err = &err;
    int code = open_store(&self);
    if (!code)
        look_at_all(&self);
    close_store(&self);
    pthread_mutex_lock(&self.shared->lock);
    sum->payload_bytes += own.payload_bytes;
    sum->checksums += own.checksums;
    sum->values_checked += own.values_checked;
    sum->problems += own.problems;
    if (code && !self.shared->code) {
        self.shared->code = code;
        self.shared->failure = err;
    }
    pthread_mutex_unlock(&self.shared->lock);
    return NULL;
}

static uint64_t bytes_of(const struct stored_checkpoint *checkpoint)
{
    uint64_t bytes = 0;
    for (size_t i = 0; i < checkpoint->chunk_count; i++)
        bytes += checkpoint->chunks[i].length;
    return bytes;
}

/* The first verifier waits for the others: its result is their sum. */
static int run_threads(struct verifier *self)
{
    pthread_t threads[MAX_THREADS];
    uint32_t started = 0, wanted = self->job->threads < MAX_THREADS ? self->job->threads : MAX_THREADS;
    if (wanted < 2 || bytes_of(self->checkpoint) < WORTH_THREADS_BYTES) {
        look_at_all(self);
        return 0;
    }
    while (started < wanted && pthread_create(&threads[started], NULL, run_thread, self) == 0)
        started++;
    if (started == 0)
        look_at_all(self);
    for (uint32_t i = 0; i < started; i++)
        pthread_join(threads[i], NULL);
    if (self->shared->code)
        *self->err = self->shared->failure;
    return self->shared->code;
}

/* Items in the order in which they lie in the files. */
static int check_items(struct verifier *self)
{
    size_t count = self->checkpoint->chunk_count;
    const struct stored_chunk **places = malloc((count + 1) * sizeof *places);
    if (!places)
        return cb_fail(self->err, CB_ERR_MEMORY, "no memory for %zu items", count);
    for (size_t i = 0; i < count; i++)
        places[i] = &self->checkpoint->chunks[i];
    qsort(places, count, sizeof *places, compare_places);
    find_kind(self, places, count);
    self->shared->places = places;
    self->shared->count = count;
    int code = run_threads(self);
    free(places);
    return code;
}

static int check_all(struct verifier *self)
{
    const struct stored_checkpoint *checkpoint = self->checkpoint;
    self->files = calloc(checkpoint->file_count + 1, sizeof *self->files);
    if (!self->files)
        return cb_fail(self->err, CB_ERR_MEMORY, "no memory for %zu files", checkpoint->file_count);
    self->result->format = format_name(checkpoint->format);
    self->result->tensors = checkpoint->tensor_count;
    self->result->items = checkpoint->chunk_count;
    self->result->files = checkpoint->file_count;
    check_files(self);
    int code = check_ends(self);
    if (code)
        return code;
    for (size_t i = 0; i < checkpoint->tensor_count; i++)
        check_coverage(self, &checkpoint->tensors[i]);
    find_seed(self);
    code = check_items(self);
    static const char *const names[] = {"weights", "random", "zero"};
    if (self->has_kind)
        self->result->values = names[self->kind];
    return code;
}

static int verify(struct verifier *self)
{
    const char *file = self->job->file;
    int code = open_store(self);
    if (code)
        return code;
    if (*file ? collect_file(self->store, file, &self->checkpoint, self->err)
              : collect_checkpoint(self->store, "", &self->checkpoint, self->err)) {
        problem(self, VERIFY_INCOMPLETE, FORMAT_MARKER, NULL, 0, "the checkpoint is not complete: %s",
                self->err->message);
        return 0;
    }
    return check_all(self);
}

int verify_checkpoint(const struct verify_job *job, verify_problem_fn report, void *context,
                      struct verify_result *result, struct cb_err *err)
{
    struct cb_err own;
    struct shared shared = {0};
    *result = (struct verify_result){0};
    struct verifier self = {
        .job = job, .shared = &shared, .report = report, .context = context, .result = result, .err = &own};
    self.has_seed = job->seed != NULL;
    self.seed = job->seed ? *job->seed : 0;
    if (pthread_mutex_init(&shared.lock, NULL))
        return cb_fail(err, CB_ERR_SYSTEM, "no lock to verify with");
    int code = verify(&self);
    if (code && err)
        *err = own;
    close_store(&self);
    pthread_mutex_destroy(&shared.lock);
    free(self.files);
    stored_checkpoint_free(self.checkpoint);
    return code;
}
