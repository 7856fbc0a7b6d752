/* Cuts and joins parts of files into aligned requests. */
#include "engine/io/io_schedule.h"

#include "core/alloc.h"

#include <assert.h>
#include <string.h>

/* Shorter pieces of memory are copied, since a segment of their own would cost more. */
#define COPY_BELOW_BYTES 2048

void io_schedule_init(struct io_schedule *self, const struct io_limits *limits)
{
    memset(self, 0, sizeof *self);
    self->limits = *limits;
    self->waste_left = UINT64_MAX;
}

void io_schedule_release(struct io_schedule *self)
{
    free(self->pending);
    free(self->parts);
    free(self->requests);
    memset(self, 0, sizeof *self);
}

void io_schedule_clear(struct io_schedule *self)
{
    self->pending_count = self->part_count = self->request_count = 0;
    self->file_count = 0;
    self->staging_bytes = self->bytes = 0;
    self->waste_left = UINT64_MAX;
    self->code = 0;
}

void io_schedule_limit_waste(struct io_schedule *self, uint64_t bytes)
{
    self->waste_left = bytes;
}

struct io_limits io_limits_of(const struct store_capabilities *capabilities, uint64_t block)
{
    uint64_t alignment = capabilities->offset_alignment > capabilities->length_alignment
                             ? capabilities->offset_alignment
                             : capabilities->length_alignment;
    if (alignment == 0)
        alignment = 1;
    if (capabilities->part_bytes > 0)
        block = capabilities->part_bytes;
    uint64_t whole = block / alignment * alignment;
    return (struct io_limits){
        .block = whole > 0 ? whole : alignment,
        .alignment = alignment,
        .memory_alignment = capabilities->memory_alignment > 0 ? capabilities->memory_alignment : 1,
        .max_segments = capabilities->max_segments > 0 ? capabilities->max_segments : 1,
    };
}

static uint64_t align_down(uint64_t value, uint64_t alignment)
{
    return value / alignment * alignment;
}

static uint64_t align_up(uint64_t value, uint64_t alignment)
{
    return align_down(value + alignment - 1, alignment);
}

/* Makes room for one more element of `size` bytes. If memory runs out, returns NULL and records the failure. */
static void *grow(struct io_schedule *self, void *array, size_t count, size_t *capacity, size_t size)
{
    if (count < *capacity)
        return array;
    size_t wanted = *capacity > 0 ? *capacity * 2 : 256;
    void *larger = realloc(array, wanted * size);
    if (!larger) {
        self->code = CB_ERR_MEMORY;
        return NULL;
    }
    *capacity = wanted;
    return larger;
}

static void add_pending(struct io_schedule *self, const struct part *part)
{
    if (part->bytes == 0 || self->code)
        return;
    const struct part *last = self->pending_count > 0 ? &self->pending[self->pending_count - 1] : NULL;
    assert(!last || last->offset + last->bytes <= part->offset);
    struct part *pending =
        grow(self, self->pending, self->pending_count, &self->pending_capacity, sizeof *self->pending);
    if (!pending)
        return;
    self->pending = pending;
    pending[self->pending_count++] = *part;
    self->bytes += part->bytes;
}

void io_schedule_add_frame(struct io_schedule *self, enum part_kind kind, uint32_t item, uint64_t offset,
                           uint64_t bytes)
{
    add_pending(self, &(struct part){.kind = (uint8_t)kind, .item = item, .offset = offset, .bytes = bytes});
}

void io_schedule_add_mapped(struct io_schedule *self, uint32_t item, uint64_t offset, uint64_t bytes, uint64_t skip)
{
    add_pending(self,
                &(struct part){.kind = PART_MAPPED, .item = item, .offset = offset, .bytes = bytes, .skip = skip});
}

void io_schedule_add_payload(struct io_schedule *self, uint32_t item, uint64_t offset, uint64_t bytes, uint64_t skip,
                             void *memory)
{
    uint64_t end = offset + bytes;
    uint64_t body = align_up(offset, self->limits.alignment);
    uint64_t body_end = align_down(end, self->limits.alignment);
    bool direct = !self->limits.images && body_end > body && body_end - body >= COPY_BELOW_BYTES &&
                  ((uintptr_t)memory + (body - offset)) % self->limits.memory_alignment == 0;
    if (!direct)
        body = body_end = end;
    const uint64_t cuts[] = {offset, body, body_end, end};
    for (int i = 0; i < 3; i++) {
        add_pending(self, &(struct part){
                              .kind = PART_PAYLOAD,
                              .item = item,
                              .offset = cuts[i],
                              .bytes = cuts[i + 1] - cuts[i],
                              .skip = skip + (cuts[i] - offset),
                              .memory = (char *)memory + (cuts[i] - offset),
                              .direct = i == 1,
                          });
    }
}

static void append_part(struct io_schedule *self, const struct part *part)
{
    struct part *parts = grow(self, self->parts, self->part_count, &self->part_capacity, sizeof *self->parts);
    if (!parts)
        return;
    self->parts = parts;
    parts[self->part_count++] = *part;
}

static void append_request(struct io_schedule *self, const struct io_request *request)
{
    struct io_request *requests =
        grow(self, self->requests, self->request_count, &self->request_capacity, sizeof *self->requests);
    if (!requests)
        return;
    self->requests = requests;
    requests[self->request_count++] = *request;
    if (request->end - request->offset > self->staging_bytes && !io_schedule_is_apart(self, request))
        self->staging_bytes = request->end - request->offset;
}

static bool is_frame(const struct part *part)
{
    return part->kind == PART_HEADER || part->kind == PART_TRAILER;
}

/* The number of segments that `part` adds to a request that ends at `position` so far. */
static uint32_t segments_added(const struct part *part, uint64_t position, bool after_staging)
{
    bool gap = part->offset > position;
    if (!part->direct)
        return after_staging ? 0 : 1;
    return gap && !after_staging ? 2 : 1;
}

/* Whether a request continues over a gap; if so, the gap counts as waste. */
static bool spans(struct io_schedule *self, uint64_t gap)
{
    uint64_t waste = gap < self->limits.alignment ? 0 : gap;
    if (gap > self->limits.gap || waste > self->waste_left)
        return false;
    if (self->waste_left < UINT64_MAX)
        self->waste_left -= waste;
    return true;
}

/* Makes one request from the pending parts at *next. It ends at the end of the block, before a gap that is too long, when
 * the segments are used up, or between host and device memory; the last two only happen next to a direct part, and so at an
 * aligned offset. */
static void cut_request(struct io_schedule *self, size_t *next)
{
    const struct io_limits *limits = &self->limits;
    struct io_request request = {.file = self->file_count, .first_part = self->part_count};
    request.offset = align_down(self->pending[*next].offset, limits->whole_blocks ? limits->block : limits->alignment);
    uint64_t limit = limits->whole_frames ? request.offset + limits->block
                                          : align_down(request.offset, limits->block) + limits->block;
    uint64_t position = request.offset;
    uint32_t segments = 0;
    bool after_staging = false;
    while (*next < self->pending_count && !self->code) {
        struct part *part = &self->pending[*next];
        bool first = self->part_count == request.first_part;
        uint64_t room = part->offset < limit ? limit - part->offset : 0;
        uint64_t bytes = part->bytes < room ? part->bytes : room;
        if (limits->whole_frames && is_frame(part) && bytes < part->bytes)
            bytes = first ? part->bytes : 0;
        if (limits->whole_blocks && segments + 3 >= limits->max_segments)
            part->direct = false; /* copied: the block must not end here */
        uint32_t added = segments_added(part, position, after_staging);
        if (!first && limits->apart && (part->direct || !after_staging))
            break;
        if (!first && (bytes == 0 || segments + added > limits->max_segments || !spans(self, part->offset - position)))
            break;
        struct part taken = *part;
        taken.bytes = bytes;
        append_part(self, &taken);
        segments += added;
        after_staging = !part->direct;
        position = part->offset + bytes;
        part->offset += bytes;
        part->skip += bytes;
        part->bytes -= bytes;
        part->memory = part->memory ? (char *)part->memory + bytes : NULL;
        if (part->bytes == 0)
            ++*next;
    }
    bool fills = limits->whole_blocks && *next < self->pending_count;
    request.end = fills ? limit : align_up(position, limits->alignment);
    request.part_count = self->part_count - request.first_part;
    append_request(self, &request);
}

void io_schedule_end_file(struct io_schedule *self)
{
    for (size_t next = 0; next < self->pending_count && !self->code;)
        cut_request(self, &next);
    self->pending_count = 0;
    self->file_count++;
}

/* Reorders requests [begin, end), which are sorted by file, so that files alternate. */
static void take_turns(const struct io_request *sorted, size_t begin, size_t end, struct io_request *out, size_t *heads,
                       uint32_t files)
{
    size_t known = 0;
    for (size_t i = begin; i < end; i++) {
        if (i == begin || sorted[i].file != sorted[i - 1].file)
            heads[known++] = i;
    }
    assert(known <= files);
    for (size_t written = begin; written < end;) {
        for (size_t file = 0; file < known; file++) {
            size_t at = heads[file];
            if (at == SIZE_MAX)
                continue;
            out[written++] = sorted[at];
            heads[file] = at + 1 < end && sorted[at + 1].file == sorted[at].file ? at + 1 : SIZE_MAX;
        }
    }
}

static int interleave_files(struct io_schedule *self, uint32_t files, struct cb_err *err)
{
    struct io_request *sorted = malloc(self->request_count * sizeof *sorted);
    size_t *heads = malloc(files * sizeof *heads);
    if (!sorted || !heads) {
        free(sorted);
        free(heads);
        return alloc_fail(err, "to order %zu requests", self->request_count);
    }
    memcpy(sorted, self->requests, self->request_count * sizeof *sorted);
    for (size_t begin = 0; begin < self->request_count;) {
        size_t end = begin;
        uint32_t seen = 0;
        for (; end < self->request_count; end++) {
            bool new_file = end == begin || sorted[end].file != sorted[end - 1].file;
            if (new_file && seen++ == files)
                break;
        }
        take_turns(sorted, begin, end, self->requests, heads, files);
        begin = end;
    }
    free(sorted);
    free(heads);
    return 0;
}

int io_schedule_finish(struct io_schedule *self, uint32_t interleave, struct cb_err *err)
{
    if (self->code)
        return cb_fail(err, self->code, "no memory for the transfer of %zu parts", self->part_count);
    return interleave > 1 && self->request_count > 1 ? interleave_files(self, interleave, err) : 0;
}

uint32_t io_schedule_segments(const struct io_schedule *self, const struct io_request *request, uint64_t end,
                              char *staging, struct iovec *segments)
{
    uint32_t count = 0;
    uint64_t position = request->offset;
    for (size_t i = 0; i < request->part_count && position < end; i++) {
        const struct part *part = &self->parts[request->first_part + i];
        if (!part->direct)
            continue;
        uint64_t part_end = part->offset + part->bytes < end ? part->offset + part->bytes : end;
        if (part->offset >= end)
            break;
        if (part->offset > position)
            segments[count++] = (struct iovec){staging + (position - request->offset), part->offset - position};
        segments[count++] = (struct iovec){part->memory, part_end - part->offset};
        position = part_end;
    }
    if (position < end)
        segments[count++] = (struct iovec){staging + (position - request->offset), end - position};
    return count;
}
