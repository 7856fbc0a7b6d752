/* Reads parts of stored tensors.
 *
 * Long runs are read one by one; short runs as one range, from which the part is then copied. A range longer than a
 * piece is first halved, along the dimension with the longest extent. If the page cache may have the bytes, a piece is
 * what fits into a core's cache until it is copied; if not, it is all of the scratch memory, since each read is a
 * request. */
#include "ckpt/stored/stored_read.h"

#include <inttypes.h>
#include <string.h>

#include "ckpt/format/save_id.h"
#include "ckpt/stored/save_places.h"
#include "ckpt/stored/unpack.h"
#include "core/alloc.h"
#include "core/hash.h"

#define LONG_RUN_BYTES (UINT64_C(256) << 10)
#define FRAMES 256 /* items whose headers are kept */
#define FIRST_PROBE_BYTES 8192
#define BLOCK_BYTES (UINT64_C(1) << 20)
#define CACHED_PIECE_BYTES (UINT64_C(256) << 10)
#define PAGE_BYTES 4096
#define LINE_BYTES 64
#define OPEN_FILES 8  /* a tensor's parts are in as many files as ranks shared it */
#define OPEN_PARTS 64 /* items that are read alternately */

struct frame {
    uint32_t chunk; /* UINT32_MAX: empty */
    uint32_t crc;   /* 0: no checksum */
    struct stored_payload payload;
};

struct open_file {
    struct store_object *object; /* NULL: empty */
    uint32_t file;
};

struct stored_reader {
    struct store *store;
    const struct stored_checkpoint *checkpoint;
    struct read_ledger *ledger;
    struct open_file files[OPEN_FILES];
    struct save_place *places;   /* of each file; cleared once its save id has been compared */
    struct store_object *object; /* of the file in use */
    bool is_cached;              /* the page cache may have the bytes */
    unsigned char *scratch, *probe;
    uint64_t scratch_bytes, piece_bytes, bytes;
    struct frame *frames;
    struct buf plain; /* of the compressed item plain_chunk */
    uint32_t plain_chunk;
    struct read_part parts[OPEN_PARTS]; /* not yet in the ledger, because adjacent reads extend them */
    struct cb_err *err;
};

/* --- ledger --- */

int read_ledger_init(struct read_ledger *self, struct cb_err *err)
{
    *self = (struct read_ledger){0};
    return pthread_mutex_init(&self->lock, NULL) ? cb_fail(err, CB_ERR_SYSTEM, "no lock for a ledger") : 0;
}

void read_ledger_release(struct read_ledger *self)
{
    pthread_mutex_destroy(&self->lock);
    free(self->parts);
}

/* Adds a part to the ledger. */
static int flush_part(struct stored_reader *self, struct read_part *part)
{
    struct read_ledger *ledger = self->ledger;
    int code = 0;
    if (ledger && part->bytes > 0) {
        pthread_mutex_lock(&ledger->lock);
        code = alloc_grow(&ledger->parts, ledger->count, sizeof *ledger->parts, self->err);
        if (!code)
            ledger->parts[ledger->count++] = *part;
        pthread_mutex_unlock(&ledger->lock);
    }
    part->bytes = 0;
    return code;
}

/* Extends the last part of the same item if this one is adjacent. */
static int note_read(struct stored_reader *self, uint32_t chunk, uint64_t begin, const void *bytes, uint64_t len)
{
    struct read_part *part = &self->parts[chunk % OPEN_PARTS];
    int code = 0;
    if (part->bytes > 0 && (part->chunk != chunk || part->begin + part->bytes != begin))
        code = flush_part(self, part);
    if (part->bytes == 0)
        *part = (struct read_part){.begin = begin, .chunk = chunk};
    part->crc = crc32_zip(part->crc, bytes, len);
    part->bytes += len;
    return code;
}

/* --- store --- */

static int read_at(struct stored_reader *self, uint64_t offset, void *memory, uint64_t bytes)
{
    self->bytes += bytes;
    return store_read_at(self->store, self->object, offset, memory, bytes, NULL, NULL, self->err);
}

/* Runs once for each file. */
static int check_save(struct stored_reader *self, uint32_t file, struct store_object *object)
{
    struct save_place *place = &self->places[file];
    char front[SAVE_ID_FRONT_BYTES];
    int code = 0;
    if (place->bytes > 0)
        code = store_read_at(self->store, object, place->offset, front, place->bytes, NULL, NULL, self->err);
    if (!code && place->bytes > 0)
        code = format_check_save(self->checkpoint, place->is_value, front, place->bytes, self->err);
    if (!code)
        place->bytes = 0;
    return code;
}

static int open_file(struct stored_reader *self, uint32_t file)
{
    struct open_file *slot = &self->files[file % OPEN_FILES];
    uint64_t length;
    int code = 0;
    if (slot->object && slot->file != file) {
        store_close(self->store, slot->object);
        slot->object = NULL;
    }
    slot->file = file;
    if (!slot->object)
        code = store_open_read(self->store, self->checkpoint->files[file], &slot->object, &length, self->err);
    if (!code)
        code = check_save(self, file, slot->object);
    self->object = slot->object;
    return code;
}

static int in_item(struct stored_reader *self, const struct stored_chunk *chunk, int code)
{
    bool damaged = code == CB_ERR_CORRUPT || code == CB_ERR_FORMAT;
    if (code && self->err)
        cb_context(self->err, "%s in %s at byte %" PRIu64 "%s", self->checkpoint->tensors[chunk->tensor].fqn,
                   self->checkpoint->files[chunk->file], chunk->offset,
                   damaged ? " is damaged (restore the file from a copy; `ckptbench verify` names all that is)" : "");
    return code;
}

/* --- headers --- */

static int parse_item(struct stored_reader *self, const struct stored_chunk *chunk, const void *bytes, uint64_t len,
                      uint64_t length, struct frame *frame)
{
    return format_parse_item(self->checkpoint->format, &self->checkpoint->tensors[chunk->tensor], &chunk->region, bytes,
                             (size_t)len, length, &frame->payload, self->err);
}

static int parse_trailer(struct stored_reader *self, const unsigned char *end, uint64_t length, struct frame *frame)
{
    uint64_t tail = length < ITEM_MAX_TRAILER ? length : ITEM_MAX_TRAILER;
    struct stored_trailer trailer;
    int code = format_parse_trailer(self->checkpoint->format, end - tail, (size_t)tail, &trailer, self->err);
    if (!code)
        code = format_check_header(&frame->payload, &trailer, self->err);
    if (!code)
        frame->crc = trailer.crc;
    return code;
}

/* Parses the header from a short first read; if that is too short, from the maximum length of a header. */
static int read_frame(struct stored_reader *self, const struct stored_chunk *chunk, struct frame *frame)
{
    const uint64_t probes[] = {FIRST_PROBE_BYTES, ITEM_MAX_HEADER};
    uint64_t length = chunk->length, tail = length < ITEM_MAX_TRAILER ? length : ITEM_MAX_TRAILER;
    int code = CB_ERR_CORRUPT;
    if (!format_has_checksums(self->checkpoint->format))
        return parse_item(self, chunk, NULL, 0, length, frame);
    for (int i = 0; i < 2 && code && (i == 0 || length > probes[0]); i++) {
        uint64_t head = length < probes[i] ? length : probes[i];
        int read = read_at(self, chunk->offset, self->probe, head);
        code = read ? read : parse_item(self, chunk, self->probe, head, length, frame);
    }
    if (!code)
        code = read_at(self, chunk->offset + length - tail, self->probe, tail);
    return code ? code : parse_trailer(self, self->probe + tail, tail, frame);
}

/* Reads and decompresses the whole item; compares its checksum immediately. */
static int read_compressed(struct stored_reader *self, const struct stored_chunk *chunk, struct frame *frame)
{
    const struct stored_tensor *tensor = &self->checkpoint->tensors[chunk->tensor];
    uint32_t number = (uint32_t)(chunk - self->checkpoint->chunks);
    self->plain_chunk = UINT32_MAX;
    buf_clear(&self->plain);
    void *packed = chunk->length <= self->scratch_bytes ? malloc(chunk->length + 1) : NULL;
    int code =
        packed ? read_at(self, chunk->offset, packed, chunk->length)
               : cb_fail(self->err, CB_ERR_MEMORY,
                         "%" PRIu64 " compressed bytes do not fit into the memory allowed: allow more", chunk->length);
    if (!code)
        code = unpack_zstd(tensor->fqn, packed, chunk->length, &self->plain, self->err);
    free(packed);
    if (code || tensor->is_bytes)
        return code;
    uint64_t head = self->plain.len < ITEM_MAX_HEADER ? self->plain.len : ITEM_MAX_HEADER;
    const unsigned char *plain = (const unsigned char *)self->plain.data;
    code = parse_item(self, chunk, plain, head, self->plain.len, frame);
    if (!code)
        code = parse_trailer(self, plain + self->plain.len, self->plain.len, frame);
    if (!code && frame->crc != 0 && frame->payload.whole &&
        crc32_zip(0, plain + frame->payload.offset, frame->payload.bytes) != frame->crc)
        code = cb_fail(self->err, CB_ERR_CORRUPT, "the checksum of its bytes is wrong");
    if (!code)
        self->plain_chunk = number;
    return code;
}

static int frame_of(struct stored_reader *self, const struct stored_chunk *chunk, const struct frame **frame)
{
    uint32_t number = (uint32_t)(chunk - self->checkpoint->chunks);
    struct frame *slot = &self->frames[number % FRAMES], read = {.chunk = number};
    int code = 0;
    *frame = slot;
    if (slot->chunk == number && (!chunk->compressed || self->plain_chunk == number))
        return 0;
    if (chunk->length > 0)
        code = open_file(self, chunk->file);
    if (!code)
        code = chunk->compressed ? read_compressed(self, chunk, &read) : read_frame(self, chunk, &read);
    if (!code)
        *slot = read;
    return in_item(self, chunk, code);
}

/* --- parts of items --- */

/* One part, its source and its destination: elements and strides in elements. */
struct part {
    const struct stored_chunk *chunk;
    const struct frame *frame;
    uint32_t dims;
    uint64_t element_bytes;
    uint64_t size[CKPT_MAX_DIMS], from_stride[CKPT_MAX_DIMS], to_stride[CKPT_MAX_DIMS];
    uint64_t from; /* first element in the payload */
    char *to;
};

/* Elements that are contiguous on both sides: those of dimensions *dim and inward. */
static uint64_t run_of(const struct part *part, uint32_t *dim)
{
    uint64_t run = 1;
    uint32_t d = part->dims;
    while (d > 0 && (part->size[d - 1] == 1 || (part->from_stride[d - 1] == run && part->to_stride[d - 1] == run)))
        run *= part->size[--d];
    *dim = d;
    return run;
}

static uint64_t span_of(const struct part *part)
{
    uint64_t last = 0;
    for (uint32_t i = 0; i < part->dims; i++)
        last += (part->size[i] - 1) * part->from_stride[i];
    return last + 1;
}

static uint64_t offset_of(const struct part *part, uint64_t begin)
{
    return part->chunk->offset + part->frame->payload.offset + begin;
}

/* Reads payload bytes [begin, begin + bytes) of the item to memory. */
static int read_payload(struct stored_reader *self, const struct part *part, uint64_t begin, void *memory,
                        uint64_t bytes)
{
    const struct stored_payload *payload = &part->frame->payload;
    if (begin + bytes > payload->bytes)
        return cb_fail(self->err, CB_ERR_CORRUPT, "its strides reach beyond its bytes");
    int code = read_at(self, offset_of(part, begin), memory, bytes);
    if (!code && self->ledger && part->frame->crc != 0)
        code = note_read(self, part->frame->chunk, begin, memory, bytes);
    return code;
}

/* A place in the scratch memory to which these bytes are copied fast: the kernel's copy from the page cache needs more
 * than twice as long if offset and address differ modulo a cache line (docs/performance.md). */
static char *scratch_for(const struct stored_reader *self, const struct part *part, uint64_t begin)
{
    return (char *)self->scratch + offset_of(part, begin) % LINE_BYTES;
}

/* The same, but through the scratch memory if the direct copy would be the slow one. */
static int read_to_place(struct stored_reader *self, const struct part *part, uint64_t begin, char *memory,
                         uint64_t bytes)
{
    bool agree = (offset_of(part, begin) - (uintptr_t)memory) % LINE_BYTES == 0;
    int code = 0;
    if (agree || !self->is_cached || bytes < PAGE_BYTES)
        return read_payload(self, part, begin, memory, bytes);
    for (uint64_t done = 0; done < bytes && !code;) {
        uint64_t piece = bytes - done < self->piece_bytes ? bytes - done : self->piece_bytes;
        char *scratch = scratch_for(self, part, begin + done);
        code = read_payload(self, part, begin + done, scratch, piece);
        if (!code)
            memcpy(memory + done, scratch, piece);
        done += piece;
    }
    return code;
}

/* Calls for each run with its first element on both sides: odometer over the dimensions before `dim`. */
static void copy_runs(const struct part *part, const char *source, uint32_t dim, uint64_t run)
{
    uint64_t index[CKPT_MAX_DIMS] = {0}, from = 0, to = 0, bytes = run * part->element_bytes;
    for (;;) {
        memcpy(part->to + to * part->element_bytes, source + from * part->element_bytes, bytes);
        uint32_t d = dim;
        while (d > 0) {
            d--;
            from += part->from_stride[d];
            to += part->to_stride[d];
            if (++index[d] < part->size[d])
                break;
            from -= part->size[d] * part->from_stride[d];
            to -= part->size[d] * part->to_stride[d];
            index[d] = 0;
            if (d == 0)
                return;
        }
        if (dim == 0)
            return;
    }
}

static int read_runs(struct stored_reader *self, const struct part *part, uint32_t dim, uint64_t run)
{
    uint64_t runs = 1, bytes = run * part->element_bytes;
    int code = 0;
    for (uint32_t d = 0; d < dim; d++)
        runs *= part->size[d];
    for (uint64_t i = 0; i < runs && !code; i++) {
        uint64_t from = part->from, to = 0, rest = i;
        for (uint32_t d = dim; d-- > 0; rest /= part->size[d]) {
            from += rest % part->size[d] * part->from_stride[d];
            to += rest % part->size[d] * part->to_stride[d];
        }
        code = read_to_place(self, part, from * part->element_bytes, part->to + to * part->element_bytes, bytes);
    }
    return code;
}

/* Divides a part into two halves along the dimension with the longest extent; at most 64 times per dimension. */
static int read_part(struct stored_reader *self, const struct part *part);

static int read_halves(struct stored_reader *self, const struct part *part)
{
    uint32_t longest = 0;
    struct part half = *part;
    for (uint32_t i = 1; i < part->dims; i++) {
        if ((part->size[i] - 1) * part->from_stride[i] > (part->size[longest] - 1) * part->from_stride[longest])
            longest = i;
    }
    uint64_t first = part->size[longest] / 2;
    half.size[longest] = first;
    int code = read_part(self, &half);
    half.size[longest] = part->size[longest] - first;
    half.from += first * part->from_stride[longest];
    half.to += first * part->to_stride[longest] * part->element_bytes;
    return code ? code : read_part(self, &half);
}

// NOLINTNEXTLINE(misc-no-recursion): it halves, so it ends
static int read_part(struct stored_reader *self, const struct part *part)
{
    uint32_t dim;
    uint64_t run = run_of(part, &dim), element = part->element_bytes, span = span_of(part) * element;
    if (part->chunk->compressed) {
        const struct stored_payload *payload = &part->frame->payload;
        if (part->from * element + span > payload->bytes)
            return cb_fail(self->err, CB_ERR_CORRUPT, "its strides reach beyond its bytes");
        copy_runs(part, self->plain.data + payload->offset + part->from * element, dim, run);
        return 0;
    }
    if (dim == 0 || run * element >= LONG_RUN_BYTES)
        return read_runs(self, part, dim, run);
    if (span > self->piece_bytes)
        return read_halves(self, part);
    char *scratch = scratch_for(self, part, part->from * element);
    int code = read_payload(self, part, part->from * element, scratch, span);
    if (!code)
        copy_runs(part, scratch, dim, run);
    return code;
}

static int read_common(struct stored_reader *self, const struct stored_chunk *chunk, const struct region *common,
                       const struct region *region, char *memory)
{
    struct part part = {.chunk = chunk, .dims = common->dims, .to = memory};
    int code = frame_of(self, chunk, &part.frame);
    if (code)
        return code;
    uint64_t stride = 1, to = 0;
    part.element_bytes = dtype_bytes(self->checkpoint->tensors[chunk->tensor].dtype);
    for (uint32_t i = common->dims; i-- > 0;) {
        part.size[i] = common->size[i];
        part.from_stride[i] = part.frame->payload.stride[i];
        part.to_stride[i] = stride;
        part.from += (common->offset[i] - chunk->region.offset[i]) * part.from_stride[i];
        to += (common->offset[i] - region->offset[i]) * stride;
        stride *= region->size[i];
    }
    part.to += to * part.element_bytes;
    code = open_file(self, chunk->file);
    if (!code)
        code = read_part(self, &part);
    return in_item(self, chunk, code);
}

/* --- public functions --- */

int stored_reader_new(struct store *store, const struct stored_checkpoint *checkpoint, uint64_t scratch_bytes,
                      struct read_ledger *ledger, struct stored_reader **reader, struct cb_err *err)
{
    struct stored_reader *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "to read a checkpoint");
    *self = (struct stored_reader){.store = store,
                                   .checkpoint = checkpoint,
                                   .ledger = ledger,
                                   .scratch_bytes = scratch_bytes < BLOCK_BYTES ? BLOCK_BYTES : scratch_bytes,
                                   .plain_chunk = UINT32_MAX};
    self->is_cached = store_capabilities(store)->page_cache;
    self->piece_bytes = self->is_cached ? CACHED_PIECE_BYTES : self->scratch_bytes;
    buf_init(&self->plain, self->scratch_bytes);
    int code = save_places_of(checkpoint, &self->places, err);
    if (code) {
        stored_reader_free(self);
        return code;
    }
    self->scratch = aligned_alloc(PAGE_BYTES, (self->scratch_bytes / PAGE_BYTES + 2) * PAGE_BYTES);
    self->probe = malloc(ITEM_MAX_HEADER);
    self->frames = malloc(FRAMES * sizeof *self->frames);
    if (!self->scratch || !self->probe || !self->frames) {
        stored_reader_free(self);
        return alloc_fail(err, "to read a checkpoint");
    }
    memset(self->frames, 0xff, FRAMES * sizeof *self->frames);
    *reader = self;
    return 0;
}

void stored_reader_free(struct stored_reader *self)
{
    if (!self)
        return;
    for (int i = 0; i < OPEN_FILES; i++) {
        if (self->files[i].object)
            store_close(self->store, self->files[i].object);
    }
    buf_release(&self->plain);
    free(self->scratch);
    free(self->probe);
    free(self->frames);
    free(self->places);
    free(self);
}

int stored_reader_region(struct stored_reader *self, const struct stored_tensor *tensor, const struct region *region,
                         void *memory, struct cb_err *err)
{
    int code = 0;
    self->err = err;
    if (region_elements(region) == 0)
        return 0;
    for (uint32_t i = 0; i < tensor->chunk_count && !code; i++) {
        const struct stored_chunk *chunk = &self->checkpoint->chunks[tensor->first_chunk + i];
        struct region common;
        if (tensor->dims > 0 && chunk->region.offset[0] >= region->offset[0] + region->size[0])
            break; /* chunks are sorted */
        if (region_intersect(&chunk->region, region, &common))
            code = read_common(self, chunk, &common, region, memory);
    }
    return code;
}

int stored_reader_value(struct stored_reader *self, const struct stored_tensor *tensor, struct buf *out,
                        struct cb_err *err)
{
    const struct stored_chunk *chunk = &self->checkpoint->chunks[tensor->first_chunk];
    struct frame frame;
    self->err = err;
    int code = open_file(self, chunk->file);
    if (!code && chunk->compressed) {
        code = read_compressed(self, chunk, &frame);
        if (!code)
            buf_append(out, self->plain.data, self->plain.len);
        return in_item(self, chunk, code ? code : buf_check(out, tensor->fqn, err));
    }
    void *place = !code && chunk->length <= out->max - out->len ? buf_extend(out, chunk->length) : NULL;
    if (!code)
        code = place ? read_at(self, chunk->offset, place, chunk->length)
                     : cb_fail(err, CB_ERR_MEMORY, "a value of %" PRIu64 " bytes is too long", chunk->length);
    return in_item(self, chunk, code);
}

int stored_reader_literal(struct stored_reader *self, const struct stored_tensor *tensor, const struct buf *value,
                          struct buf *literal, struct cb_err *err)
{
    size_t before = literal->len;
    self->err = err;
    int code = format_parse_bytes_payload(self->checkpoint->format, tensor->fqn, value->data, value->len, literal, err);
    if (!code)
        return 0;
    literal->len = before;
    bool unknown = code == CB_ERR_UNSUPPORTED || code == CB_ERR_FORMAT;
    return unknown ? 0 : in_item(self, &self->checkpoint->chunks[tensor->first_chunk], code);
}

uint64_t stored_reader_bytes(const struct stored_reader *self)
{
    return self->bytes;
}

/* --- checksums --- */

static int compare_parts(const void *a, const void *b)
{
    const struct read_part *x = a, *y = b;
    if (x->chunk != y->chunk)
        return x->chunk < y->chunk ? -1 : 1;
    return x->begin < y->begin ? -1 : x->begin > y->begin;
}

/* The checksum from the ledger's parts of the chunk, which begin at *next; false unless they are exactly the whole
 * chunk. */
static bool combine_parts(const struct read_ledger *ledger, uint32_t chunk, uint64_t bytes, size_t *next, uint32_t *crc)
{
    uint64_t end = 0;
    bool whole = true;
    *crc = 0;
    for (; *next < ledger->count && ledger->parts[*next].chunk == chunk; ++*next) {
        const struct read_part *part = &ledger->parts[*next];
        whole = whole && part->begin == end;
        *crc = end == 0 ? part->crc : crc32_zip_combine(*crc, part->crc, part->bytes);
        end = part->begin + part->bytes;
    }
    return whole && end == bytes;
}

static int read_whole(struct stored_reader *self, const struct stored_chunk *chunk, const struct frame *frame,
                      uint32_t *crc)
{
    int code = open_file(self, chunk->file);
    *crc = 0;
    for (uint64_t done = 0; done < frame->payload.bytes && !code;) {
        uint64_t left = frame->payload.bytes - done, bytes = left < self->scratch_bytes ? left : self->scratch_bytes;
        code = read_at(self, chunk->offset + frame->payload.offset + done, self->scratch, bytes);
        if (!code)
            *crc = crc32_zip(*crc, self->scratch, bytes);
        done += bytes;
    }
    return code;
}

static int check_chunk(struct stored_reader *self, uint32_t number, size_t *next, uint64_t *checked)
{
    const struct stored_chunk *chunk = &self->checkpoint->chunks[number];
    const struct frame *frame;
    uint32_t crc;
    if (self->checkpoint->tensors[chunk->tensor].is_bytes || chunk->compressed)
        return 0; /* values are copied unchanged; compressed ones were compared when they were read */
    int code = frame_of(self, chunk, &frame);
    if (code)
        return code;
    bool whole = combine_parts(self->ledger, number, frame->payload.bytes, next, &crc);
    if (frame->crc == 0 || !frame->payload.whole)
        return 0;
    if (!whole)
        code = read_whole(self, chunk, frame, &crc);
    if (!code && crc != frame->crc)
        code = cb_fail(self->err, CB_ERR_CORRUPT, "its bytes have the CRC-32 %08" PRIx32 ", stored is %08" PRIx32, crc,
                       frame->crc);
    *checked += code == 0;
    return in_item(self, chunk, code);
}

int stored_reader_check(struct stored_reader *self, uint64_t *checked, struct cb_err *err)
{
    size_t next = 0;
    int code = 0;
    self->err = err;
    if (!self->ledger || !format_has_checksums(self->checkpoint->format))
        return 0;
    if (self->ledger->count > 0)
        qsort(self->ledger->parts, self->ledger->count, sizeof *self->ledger->parts, compare_parts);
    for (size_t i = 0; i < self->checkpoint->chunk_count && !code; i++)
        code = check_chunk(self, (uint32_t)i, &next, checked);
    return code;
}

int stored_reader_flush(struct stored_reader *self, struct cb_err *err)
{
    int code = 0;
    self->err = err;
    for (int i = 0; i < OPEN_PARTS && !code; i++)
        code = flush_part(self, &self->parts[i]);
    return code;
}
