/* Entries of a block: a kind, and then
 *   tensor  its members
 *   run     chunks of one tensor: its number, what is known of them, their number, the box around their regions or the
 *           first and the last offset of their places, the bytes that follow, and the chunks
 *   path    the number of the tensor, and its path
 *   file    its name
 *   end     facts, and the counts of tensors, chunks and files; the last entry
 * Numbers of runs have 7 bits a byte, the lowest first. A receiver that needs nothing of a run skips it. */
#include "ckpt/stored/stored_blocks.h"

#include <string.h>

#include "ckpt/format/index.h"
#include "core/alloc.h"

enum entry { ENTRY_TENSOR = 1, ENTRY_RUN, ENTRY_PATH, ENTRY_FILE, ENTRY_END };

#define NUMBER_MOST_BYTES 10
#define REGION_MOST_BYTES ((size_t)2 * CKPT_MAX_DIMS * NUMBER_MOST_BYTES)
#define CHUNK_MOST_BYTES (REGION_MOST_BYTES + 3 * NUMBER_MOST_BYTES + 1)

/* --- sending --- */

void stored_sender_init(struct stored_sender *self)
{
    buf_init(&self->block, STORED_BLOCK_MOST_BYTES);
}

void stored_sender_release(struct stored_sender *self)
{
    buf_release(&self->block);
}

static int put_block(struct stored_sender *self, size_t least, struct cb_err *err)
{
    int code = buf_check(&self->block, "a block of what the checkpoint has", err);
    if (code || self->block.len < least)
        return code;
    code = self->put(self->context, self->block.data, self->block.len, err);
    buf_clear(&self->block);
    return code;
}

static int send_tensor(void *context, const struct stored_tensor *tensor, struct cb_err *err)
{
    struct stored_sender *self = context;
    struct buf *out = &self->block;
    buf_append_char(out, ENTRY_TENSOR);
    index_put_text(out, tensor->fqn);
    index_put_u32(out, tensor->is_bytes);
    index_put_u32(out, tensor->dtype);
    index_put_u32(out, tensor->dims);
    index_put_numbers(out, tensor->shape, tensor->dims);
    index_put_text(out, tensor->literal);
    self->tensors++;
    return put_block(self, STORED_BLOCK_BYTES, err);
}

static char *put_number(char *at, uint64_t value)
{
    for (; value > 0x7f; value >>= 7)
        *at++ = (char)(value | 0x80);
    *at++ = (char)value;
    return at;
}

static char *put_numbers(char *at, const uint64_t *values, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        at = put_number(at, values[i]);
    return at;
}

static void box_around(const struct stored_chunk *chunks, uint32_t count, struct region *box)
{
    *box = chunks->region;
    for (uint32_t i = 1; i < count; i++) {
        for (uint32_t d = 0; d < box->dims; d++) {
            uint64_t begin = chunks[i].region.offset[d], end = begin + chunks[i].region.size[d];
            uint64_t least = begin < box->offset[d] ? begin : box->offset[d];
            uint64_t most = end > box->offset[d] + box->size[d] ? end : box->offset[d] + box->size[d];
            box->offset[d] = least;
            box->size[d] = most - least;
        }
    }
}

/* The first and the last offset, as `offset` and `size`. */
static void ends_of(const struct stored_chunk *chunks, uint32_t count, struct region *ends)
{
    const struct region *low = &chunks->region, *high = low;
    for (uint32_t i = 1; i < count; i++) {
        const struct region *region = &chunks[i].region;
        low = region_compare_offsets(region, low) < 0 ? region : low;
        high = region_compare_offsets(region, high) > 0 ? region : high;
    }
    *ends = *low;
    memcpy(ends->size, high->offset, sizeof ends->size);
}

static char *put_chunk(char *at, enum stored_known known, const struct stored_chunk *chunk)
{
    at = put_numbers(at, chunk->region.offset, chunk->region.dims);
    if (known & STORED_REGIONS)
        at = put_numbers(at, chunk->region.size, chunk->region.dims);
    if (!(known & STORED_PLACES))
        return at;
    at = put_number(at, chunk->file);
    at = put_number(at, chunk->offset);
    at = put_number(at, chunk->length);
    *at++ = (char)chunk->compressed;
    return at;
}

static int send_chunks(void *context, uint32_t tensor, enum stored_known known, const struct stored_chunk *chunks,
                       uint32_t count, struct cb_err *err)
{
    struct stored_sender *self = context;
    struct region around;
    if (count == 0)
        return 0;
    char *memory = buf_extend(&self->block, 1 + 3 * NUMBER_MOST_BYTES + REGION_MOST_BYTES + sizeof(uint32_t) +
                                                count * CHUNK_MOST_BYTES);
    if (!memory)
        return put_block(self, STORED_BLOCK_BYTES, err);
    if (known & STORED_REGIONS)
        box_around(chunks, count, &around);
    else
        ends_of(chunks, count, &around);
    char *at = memory;
    *at++ = ENTRY_RUN;
    at = put_number(at, tensor);
    at = put_number(at, known);
    at = put_number(at, count);
    at = put_number(at, around.dims);
    at = put_numbers(at, around.offset, around.dims);
    at = put_numbers(at, around.size, around.dims);
    char *begin = at + sizeof(uint32_t), *end = begin;
    for (uint32_t i = 0; i < count; i++)
        end = put_chunk(end, known, &chunks[i]);
    uint32_t bytes = (uint32_t)(end - begin);
    memcpy(at, &bytes, sizeof bytes);
    self->block.len = (size_t)(end - self->block.data);
    self->chunks += count;
    return put_block(self, STORED_BLOCK_BYTES, err);
}

static int send_path(void *context, uint32_t tensor, const char *path, struct cb_err *err)
{
    struct stored_sender *self = context;
    buf_append_char(&self->block, ENTRY_PATH);
    index_put_u32(&self->block, tensor);
    index_put_text(&self->block, path);
    return put_block(self, STORED_BLOCK_BYTES, err);
}

static int send_file(void *context, const char *name, struct cb_err *err)
{
    struct stored_sender *self = context;
    buf_append_char(&self->block, ENTRY_FILE);
    index_put_text(&self->block, name);
    self->files++;
    return put_block(self, STORED_BLOCK_BYTES, err);
}

static int send_end(void *context, const struct stored_checkpoint *facts, struct cb_err *err)
{
    struct stored_sender *self = context;
    struct buf *out = &self->block;
    buf_append_char(out, ENTRY_END);
    index_put_u32(out, (uint32_t)facts->format);
    index_put_u32(out, facts->marked);
    index_put_u64(out, facts->save_id);
    index_put_u64(out, facts->duplicates);
    index_put_counts(out, self->tensors, self->chunks, self->files);
    return put_block(self, 0, err);
}

struct stored_sink stored_sender_sink(struct stored_sender *self)
{
    return (struct stored_sink){send_tensor, send_chunks, send_path, send_file, send_end, self};
}

/* --- receiving --- */

static int take_tensor(struct stored_receiver *self, struct index_cursor *cursor)
{
    struct stored_tensor tensor = {0};
    struct stored_sink sink = stored_collector_sink(&self->collector);
    index_take_tensor(cursor, 4, &tensor);
    tensor.literal = index_take_text(cursor, true);
    int code = cursor->failed ? 0 : sink.tensor(sink.context, &tensor, cursor->err);
    self->tensors++;
    free(tensor.fqn);
    free(tensor.literal);
    return code;
}

static uint64_t take_number(struct index_cursor *cursor)
{
    struct byte_window *window = &cursor->window;
    uint64_t value = 0;
    for (unsigned shift = 0; shift < 64 && window->at < window->have; shift += 7) {
        unsigned char byte = window->bytes[window->at++];
        value |= (uint64_t)(byte & 0x7f) << shift;
        if (byte < 0x80)
            return value;
    }
    cursor->failed = true;
    return 0;
}

static void take_numbers(struct index_cursor *cursor, uint64_t *values, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        values[i] = take_number(cursor);
}

static void take_chunk(struct index_cursor *cursor, enum stored_known known, uint32_t dims, struct stored_chunk *chunk)
{
    *chunk = (struct stored_chunk){.region.dims = dims};
    take_numbers(cursor, chunk->region.offset, dims);
    if (known & STORED_REGIONS)
        take_numbers(cursor, chunk->region.size, dims);
    if (!(known & STORED_PLACES))
        return;
    uint64_t file = take_number(cursor);
    chunk->file = (uint32_t)file;
    chunk->offset = take_number(cursor);
    chunk->length = take_number(cursor);
    chunk->compressed = index_take(cursor, 1) != 0;
    cursor->failed |= file > UINT32_MAX;
}

static bool is_needed(struct stored_receiver *self, enum stored_known known, uint32_t tensor,
                      const struct region *around)
{
    struct region high = {.dims = around->dims};
    if (known & STORED_REGIONS)
        return stored_collector_needs(&self->collector, tensor, around);
    memcpy(high.offset, around->size, sizeof high.offset);
    return stored_collector_has(&self->collector, tensor, around, &high);
}

static int take_run(struct stored_receiver *self, struct index_cursor *cursor)
{
    struct stored_chunk batch[STORED_AT_ONCE];
    struct stored_sink sink = stored_collector_sink(&self->collector);
    struct region around = {0};
    uint64_t tensor = take_number(cursor), known = take_number(cursor), count = take_number(cursor);
    uint64_t dims = take_number(cursor);
    cursor->failed |=
        tensor >= self->tensors || known == 0 || known > STORED_ALL || count > STORED_AT_ONCE || dims > CKPT_MAX_DIMS;
    if (cursor->failed || self->collector.checkpoint->tensors[tensor].dims != dims)
        return cb_fail(cursor->err, CB_ERR_CORRUPT, "a run of chunks did not arrive whole from rank 0");
    around.dims = (uint32_t)dims;
    take_numbers(cursor, around.offset, around.dims);
    take_numbers(cursor, around.size, around.dims);
    uint64_t bytes = index_take(cursor, 4);
    cursor->failed |= bytes > byte_window_left(&cursor->window);
    if (cursor->failed)
        return 0;
    self->chunks += count;
    if (!is_needed(self, (enum stored_known)known, (uint32_t)tensor, &around)) {
        cursor->failed |= !byte_window_skip(&cursor->window, bytes, cursor->err);
        return 0;
    }
    for (uint64_t i = 0; i < count; i++)
        take_chunk(cursor, (enum stored_known)known, around.dims, &batch[i]);
    if (cursor->failed)
        return 0;
    return sink.chunks(sink.context, (uint32_t)tensor, (enum stored_known)known, batch, (uint32_t)count, cursor->err);
}

static int take_path(struct stored_receiver *self, struct index_cursor *cursor)
{
    struct stored_sink sink = stored_collector_sink(&self->collector);
    uint32_t tensor = (uint32_t)index_take(cursor, 4);
    char *path = index_take_text(cursor, false);
    int code = path ? sink.path(sink.context, tensor, path, cursor->err) : 0;
    free(path);
    return code;
}

static int take_file(struct stored_receiver *self, struct index_cursor *cursor)
{
    struct stored_sink sink = stored_collector_sink(&self->collector);
    char *name = index_take_text(cursor, false);
    int code = name ? sink.file(sink.context, name, cursor->err) : 0;
    self->files++;
    free(name);
    return code;
}

static int take_end(struct stored_receiver *self, struct index_cursor *cursor)
{
    struct stored_sink sink = stored_collector_sink(&self->collector);
    struct stored_checkpoint facts = {0};
    uint64_t format = index_take(cursor, 4);
    facts.format = (enum plan_format)format;
    facts.marked = index_take(cursor, 4) != 0;
    facts.save_id = index_take(cursor, 8);
    facts.duplicates = index_take(cursor, 8);
    cursor->failed |= index_take(cursor, 8) != self->tensors;
    cursor->failed |= index_take(cursor, 8) != self->chunks;
    cursor->failed |= index_take(cursor, 8) != self->files;
    cursor->failed |= format >= PLAN_FORMATS || self->collector.ended;
    return cursor->failed ? 0 : sink.end(sink.context, &facts, cursor->err);
}

int stored_block_read(struct stored_receiver *self, const void *bytes, size_t len, struct cb_err *err)
{
    struct byte_source source = byte_source_of(bytes, len);
    struct index_cursor cursor = {.err = err};
    int code = byte_window_init(&cursor.window, &source, err);
    while (!code && !cursor.failed && byte_window_left(&cursor.window) > 0) {
        switch (index_take(&cursor, 1)) {
        case ENTRY_TENSOR:
            code = take_tensor(self, &cursor);
            break;
        case ENTRY_RUN:
            code = take_run(self, &cursor);
            break;
        case ENTRY_PATH:
            code = take_path(self, &cursor);
            break;
        case ENTRY_FILE:
            code = take_file(self, &cursor);
            break;
        case ENTRY_END:
            code = take_end(self, &cursor);
            break;
        default:
            cursor.failed = true;
        }
    }
    byte_window_release(&cursor.window);
    if (!code && cursor.failed)
        code = cb_fail(err, CB_ERR_CORRUPT, "what the checkpoint has did not arrive whole from rank 0");
    return code;
}
