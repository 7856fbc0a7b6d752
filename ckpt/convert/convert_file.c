/* Writes one converted file: items in order, through a few blocks.
 *
 * A block is sent when it is full (as parts of an object must be) or, in stores without that restriction, when it
 * holds as much as stays in the core's cache between reading, checksum and writing. */
#include "ckpt/convert/convert_file.h"

#include <assert.h>
#include <inttypes.h>
#include <string.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/hash.h"

#define CACHED_STEP_BYTES (UINT64_C(512) << 10)
#define POLL_SLICE_NS (100 * NS_PER_MS)
#define MAX_FRAME_BYTES (UINT64_C(128) << 20)

struct block {
    unsigned char *bytes;
    uint64_t fill;
    bool busy;
};

struct convert_writer {
    struct store *store;
    struct store_object *object;
    struct block blocks[CONVERT_BLOCKS];
    uint64_t block_bytes;
    bool in_parts; /* blocks are parts of an object */
    bool costly;   /* reading a part of this item costs more than its bytes, above all a small part */
    uint32_t current;
    uint64_t position; /* of the current block in the file */
    uint32_t crc;      /* of the file up to there */
    uint64_t save_id;  /* of the converted checkpoint */
    struct buf frame;
    struct convert_watch watch;
    bool ends; /* waits for requests in flight, even if the watch fails */
    struct cb_err *err;
};

int convert_writer_new(struct store *store, uint64_t block_bytes, const struct convert_watch *watch,
                       struct convert_writer **writer, struct cb_err *err)
{
    struct convert_writer *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "to convert");
    self->store = store;
    self->block_bytes = block_bytes;
    self->watch = *watch;
    buf_init(&self->frame, MAX_FRAME_BYTES);
    for (int i = 0; i < CONVERT_BLOCKS; i++) {
        self->blocks[i].bytes = aligned_alloc(4096, block_bytes);
        if (!self->blocks[i].bytes) {
            convert_writer_free(self);
            return alloc_fail(err, "to convert: %d blocks of %" PRIu64 " bytes", CONVERT_BLOCKS, block_bytes);
        }
    }
    *writer = self;
    return 0;
}

void convert_writer_free(struct convert_writer *self)
{
    if (!self)
        return;
    for (int i = 0; i < CONVERT_BLOCKS; i++)
        free(self->blocks[i].bytes);
    buf_release(&self->frame);
    free(self);
}

static int check_watch(struct convert_writer *self)
{
    return self->ends ? 0 : self->watch.check(self->watch.context, self->err);
}

/* Handles one completion, if one arrives before the deadline. */
static int take(struct convert_writer *self, uint64_t deadline_ns)
{
    struct store_completion completion;
    size_t count = 0;
    int code = check_watch(self);
    if (!code)
        code = store_poll(self->store, &completion, 1, deadline_ns, &count, self->err);
    if (code || count == 0)
        return code;
    if (completion.kind == STORE_WRITE)
        self->blocks[completion.user].busy = false;
    return completion.code ? store_completion_error(self->store, &completion, self->err) : 0;
}

static int drain(struct convert_writer *self)
{
    int code = 0;
    while (!code && store_in_flight(self->store) > 0)
        code = take(self, clock_monotonic_ns() + POLL_SLICE_NS);
    return code;
}

/* Submits the current block and makes a free one current. */
static int flush(struct convert_writer *self)
{
    struct block *block = &self->blocks[self->current];
    if (block->fill == 0)
        return 0;
    self->crc = crc32c(self->crc, block->bytes, block->fill);
    struct iovec segment = {block->bytes, block->fill};
    struct store_request request = {.kind = STORE_WRITE,
                                    .object = self->object,
                                    .offset = self->position,
                                    .segments = &segment,
                                    .segment_count = 1,
                                    .user = self->current};
    int code = store_submit(self->store, &request, 1, self->err);
    if (code)
        return code;
    block->busy = true;
    self->position += block->fill;
    code = take(self, 0);
    if (block->busy) /* if not, the same block again, which is still in the core's cache */
        self->current = (self->current + 1) % CONVERT_BLOCKS;
    while (!code && self->blocks[self->current].busy)
        code = take(self, clock_monotonic_ns() + POLL_SLICE_NS);
    self->blocks[self->current].fill = 0;
    return code;
}

/* Free bytes in the current block before it is submitted. */
static uint64_t room_of(const struct convert_writer *self)
{
    uint64_t fill = self->blocks[self->current].fill, most = self->block_bytes;
    if (!self->in_parts && !self->costly && most > CACHED_STEP_BYTES)
        most = CACHED_STEP_BYTES;
    return fill < most ? most - fill : 0;
}

static int make_room(struct convert_writer *self)
{
    return room_of(self) == 0 ? flush(self) : 0;
}

static int put(struct convert_writer *self, const char *bytes, uint64_t len)
{
    int code = 0;
    while (len > 0 && !code) {
        code = make_room(self);
        struct block *block = &self->blocks[self->current];
        uint64_t part = room_of(self) < len ? room_of(self) : len;
        if (code)
            break;
        memcpy(block->bytes + block->fill, bytes, part);
        block->fill += part;
        bytes += part;
        len -= part;
    }
    return code;
}

/* Elements [first, first + count) of the region's own row-major order, as at most BOX_MAX_OF_INTERVAL regions. */
static int read_elements(struct convert_writer *self, struct stored_reader *reader, const struct stored_tensor *tensor,
                         const struct region *region, uint64_t first, uint64_t count, unsigned char *memory)
{
    struct region parts[BOX_MAX_OF_INTERVAL];
    uint32_t found = region_of_interval(region, first, first + count, parts);
    int code = 0;
    for (uint32_t i = 0; i < found && !code; i++) {
        uint64_t bytes = region_elements(&parts[i]) * dtype_bytes(tensor->dtype);
        code = stored_reader_region(reader, tensor, &parts[i], memory, self->err);
        memory += bytes;
    }
    return code;
}

static int put_payload(struct convert_writer *self, const struct convert_job *job, struct stored_reader *reader,
                       const struct plan_item *item, uint32_t *crc)
{
    const struct state_tensor *wanted = layout_tensor(job->layout, item->tensor);
    const struct stored_tensor *tensor = stored_checkpoint_find(job->checkpoint, wanted->fqn);
    uint64_t elements = region_elements(&item->region), element = dtype_bytes(wanted->dtype);
    bool checksum = job->checksum && format_has_checksums(job->format);
    int code = 0;
    self->costly = false;
    for (uint64_t done = 0; done < elements && !code;) {
        code = make_room(self);
        if (code)
            break;
        struct block *block = &self->blocks[self->current];
        uint64_t room = room_of(self) / element, left = elements - done, before = stored_reader_bytes(reader);
        if (room == 0) { /* the element continues in the next block: blocks are always written full */
            unsigned char bytes[16];
            assert(element <= sizeof bytes);
            code = read_elements(self, reader, tensor, &item->region, done++, 1, bytes);
            if (!code && checksum)
                *crc = crc32_zip(*crc, bytes, element);
            if (!code)
                code = put(self, (const char *)bytes, element);
            continue;
        }
        uint64_t count = room < left ? room : left;
        unsigned char *place = block->bytes + block->fill;
        code = read_elements(self, reader, tensor, &item->region, done, count, place);
        if (!code && checksum)
            *crc = crc32_zip(*crc, place, count * element);
        self->costly = self->costly || stored_reader_bytes(reader) - before > 2 * count * element;
        block->fill += count * element;
        done += count;
    }
    return code;
}

static int put_frame(struct convert_writer *self, int code)
{
    if (!code)
        code = put(self, self->frame.data, self->frame.len);
    buf_clear(&self->frame);
    return code;
}

static uint64_t place_of(const struct convert_writer *self)
{
    return self->position + self->blocks[self->current].fill;
}

static int put_item(struct convert_writer *self, const struct convert_job *job, struct stored_reader *reader,
                    const struct plan_item *item, size_t left)
{
    static const char zeros[4096];
    const struct state_tensor *tensor = layout_tensor(job->layout, item->tensor);
    uint32_t crc = 0;
    int code = 0;
    for (uint64_t here = place_of(self); here < item->offset && !code; here = place_of(self))
        code = put(self, zeros, item->offset - here < sizeof zeros ? item->offset - here : sizeof zeros);
    if (!code)
        code = put_frame(self, format_plan_header(job->format, job->layout, job->plan, item, left, self->save_id,
                                                  &self->frame, self->err));
    if (!code && tensor->kind == KIND_BYTES)
        code = put_frame(self, format_bytes_payload(job->format, tensor, self->save_id, &self->frame, self->err));
    else if (!code)
        code = put_payload(self, job, reader, item, &crc);
    if (!code)
        code = put_frame(self,
                         format_item_trailer(job->format, tensor, item, self->save_id, crc, &self->frame, self->err));
    if (!code && place_of(self) != item->offset + item->length)
        code = cb_fail(self->err, CB_ERR_INTERNAL, "the item of %s does not have the length that was planned",
                       tensor->fqn);
    return code;
}

static int finish(struct convert_writer *self)
{
    struct store_request request = {.kind = STORE_FINISH, .object = self->object};
    int code = flush(self);
    if (!code)
        code = drain(self);
    if (!code)
        code = store_submit(self->store, &request, 1, self->err);
    return code ? code : drain(self);
}

int convert_file(struct convert_writer *self, const struct convert_job *job, uint64_t save_id,
                 struct stored_reader *reader, uint32_t file, uint32_t *crc, struct cb_err *err)
{
    uint64_t length = plan_file_length(job->plan, file);
    char name[PLAN_NAME_BYTES];
    struct plan_item *items = NULL;
    size_t count = 0;
    plan_file_name(job->plan, file, name);
    self->err = err;
    self->save_id = save_id;
    self->ends = false;
    self->position = 0;
    self->crc = 0;
    uint64_t part_bytes = store_part_bytes(store_capabilities(self->store), length);
    self->block_bytes = part_bytes > 0 ? part_bytes : self->block_bytes;
    self->in_parts = part_bytes > 0;
    self->costly = false;
    for (int i = 0; i < CONVERT_BLOCKS; i++)
        self->blocks[i] = (struct block){.bytes = self->blocks[i].bytes};
    int code = plan_items_of_file(job->plan, file, &items, &count, err);
    if (!code)
        code = store_create(self->store, name, length, &self->object, err);
    if (code) {
        free(items);
        return code;
    }
    for (size_t i = 0; i < count && !code; i++)
        code = put_item(self, job, reader, &items[i], count - i);
    if (!code)
        code = finish(self);
    if (code) {
        struct cb_err unused;
        self->err = &unused;
        self->ends = true;
        store_cancel(self->store);
        while (store_in_flight(self->store) > 0 && drain(self)) {
        }
    }
    store_close(self->store, self->object);
    free(items);
    *crc = self->crc;
    return code;
}
