/* Owns the bytes of a catalogue, both ways. Knows nothing of the formats it describes. */
#include "ckpt/catalogue.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/item_groups.h"
#include "ckpt/stored.h"
#include "core/hash.h"

#define NO_TEXT UINT32_MAX

static const char magic[8] = "CKPTCAT1";

/* --- writing --- */

static void put_u32(struct buf *out, uint32_t value)
{
    buf_append(out, &value, sizeof value);
}

static void put_u64(struct buf *out, uint64_t value)
{
    buf_append(out, &value, sizeof value);
}

static void put_text(struct buf *out, const char *text)
{
    put_u32(out, text ? (uint32_t)strlen(text) : NO_TEXT);
    if (text)
        buf_append_text(out, text);
}

static void put_numbers(struct buf *out, const uint64_t *values, uint32_t count)
{
    buf_append(out, values, count * sizeof *values);
}

static void put_tensor(struct buf *out, const struct stored_tensor *tensor)
{
    put_text(out, tensor->fqn);
    buf_append_char(out, tensor->is_bytes);
    buf_append_char(out, (char)tensor->dtype);
    buf_append_char(out, (char)tensor->dims);
    put_numbers(out, tensor->shape, tensor->dims);
    put_u32(out, tensor->chunk_count);
    put_text(out, tensor->literal);
    put_text(out, tensor->path);
}

static void put_chunk(struct buf *out, const struct stored_chunk *chunk)
{
    put_u32(out, chunk->file);
    buf_append_char(out, chunk->compressed);
    put_u64(out, chunk->offset);
    put_u64(out, chunk->length);
    put_numbers(out, chunk->box.offset, chunk->box.dims);
    put_numbers(out, chunk->box.size, chunk->box.dims);
}

static void put_head(struct buf *out, enum plan_format format, bool marked, size_t tensors, size_t chunks, size_t files)
{
    buf_append(out, magic, sizeof magic);
    put_u32(out, (uint32_t)format);
    put_u32(out, marked);
    put_u64(out, tensors);
    put_u64(out, chunks);
    put_u64(out, files);
}

static int put_checksum(struct buf *out, size_t begin, struct cb_err *err)
{
    int code = buf_check(out, "the catalogue of the checkpoint", err);
    if (!code) {
        put_u32(out, crc32c(0, out->data + begin, out->len - begin));
        code = buf_check(out, "the catalogue of the checkpoint", err);
    }
    if (code)
        out->len = begin;
    return code;
}

int catalogue_write(const struct stored_checkpoint *checkpoint, struct buf *out, struct cb_err *err)
{
    size_t begin = out->len;
    put_head(out, checkpoint->format, checkpoint->marked, checkpoint->tensor_count, checkpoint->chunk_count,
             checkpoint->file_count);
    for (size_t i = 0; i < checkpoint->tensor_count; i++)
        put_tensor(out, &checkpoint->tensors[i]);
    for (size_t i = 0; i < checkpoint->chunk_count; i++)
        put_chunk(out, &checkpoint->chunks[i]);
    for (size_t i = 0; i < checkpoint->file_count; i++)
        put_text(out, checkpoint->files[i]);
    return put_checksum(out, begin, err);
}

static void put_state_tensor(struct buf *out, const struct state_tensor *tensor, uint32_t chunks)
{
    bool is_bytes = tensor->kind == KIND_BYTES;
    struct stored_tensor stored = {.fqn = (char *)tensor->fqn,
                                   .is_bytes = is_bytes,
                                   .dtype = tensor->dtype,
                                   .dims = tensor->dims,
                                   .chunk_count = is_bytes ? 0 : chunks,
                                   .literal = (char *)tensor->literal,
                                   .path = (char *)tensor->path};
    memcpy(stored.shape, tensor->shape, sizeof stored.shape);
    put_tensor(out, &stored);
}

int catalogue_write_plan(enum plan_format format, const struct layout *layout, const struct plan *plan, struct buf *out,
                         struct cb_err *err)
{
    size_t tensors = layout_tensor_count(layout), begin = out->len, chunks = 0;
    struct item_groups groups;
    int code = item_groups_init(&groups, plan, tensors, err);
    if (code)
        return code;
    for (uint32_t i = 0; i < groups.first[tensors]; i++)
        chunks += layout_tensor(layout, plan->items[groups.order[i]].tensor)->kind != KIND_BYTES;
    put_head(out, format, true, tensors, chunks, plan->file_count);
    for (size_t i = 0; i < tensors; i++)
        put_state_tensor(out, layout_tensor(layout, i), groups.first[i + 1] - groups.first[i]);
    for (uint32_t i = 0; i < groups.first[tensors]; i++) {
        const struct plan_item *item = &plan->items[groups.order[i]];
        struct stored_chunk chunk = {
            .box = item->box, .file = item->file, .offset = item->payload_offset, .length = item->payload_bytes};
        if (layout_tensor(layout, item->tensor)->kind != KIND_BYTES)
            put_chunk(out, &chunk);
    }
    for (size_t i = 0; i < plan->file_count; i++)
        put_text(out, plan->files[i].name);
    item_groups_release(&groups);
    return put_checksum(out, begin, err);
}

/* --- reading: a cursor that stays failed --- */

struct cursor {
    const unsigned char *at;
    size_t left;
    bool failed;
};

static const void *take(struct cursor *self, size_t bytes)
{
    if (self->failed || bytes > self->left) {
        self->failed = true;
        return NULL;
    }
    const void *place = self->at;
    self->at += bytes;
    self->left -= bytes;
    return place;
}

static uint64_t take_number(struct cursor *self, size_t bytes)
{
    uint64_t value = 0;
    const void *place = take(self, bytes);
    if (place)
        memcpy(&value, place, bytes);
    return value;
}

/* NULL where there is none, and after a failure. */
static char *take_text(struct cursor *self, bool optional)
{
    size_t len = take_number(self, 4);
    if (optional && len == NO_TEXT)
        return NULL;
    const char *place = take(self, len);
    if (!place || memchr(place, '\0', len)) {
        self->failed = true;
        return NULL;
    }
    char *text = strndup(place, len);
    self->failed |= !text;
    return text;
}

static void take_tensor(struct cursor *cursor, struct stored_tensor *tensor, uint64_t *chunks)
{
    tensor->fqn = take_text(cursor, false);
    tensor->is_bytes = take_number(cursor, 1) != 0;
    uint64_t dtype = take_number(cursor, 1), dims = take_number(cursor, 1);
    if (dtype >= DTYPE_COUNT || dims > CKPT_MAX_DIMS) {
        cursor->failed = true;
        return;
    }
    tensor->dtype = (enum dtype)dtype;
    tensor->dims = (uint32_t)dims;
    for (uint32_t i = 0; i < dims; i++)
        tensor->shape[i] = take_number(cursor, 8);
    tensor->first_chunk = (uint32_t)*chunks;
    tensor->chunk_count = (uint32_t)take_number(cursor, 4);
    *chunks += tensor->chunk_count;
    tensor->literal = take_text(cursor, true);
    tensor->path = take_text(cursor, true);
}

static void take_chunk(struct cursor *cursor, struct stored_chunk *chunk, uint32_t dims)
{
    chunk->file = (uint32_t)take_number(cursor, 4);
    chunk->compressed = take_number(cursor, 1) != 0;
    chunk->offset = take_number(cursor, 8);
    chunk->length = take_number(cursor, 8);
    chunk->box.dims = dims;
    for (uint32_t i = 0; i < dims; i++)
        chunk->box.offset[i] = take_number(cursor, 8);
    for (uint32_t i = 0; i < dims; i++)
        chunk->box.size[i] = take_number(cursor, 8);
}

bool catalogue_is(const void *bytes, size_t len)
{
    return len >= sizeof magic && memcmp(bytes, magic, sizeof magic) == 0;
}

/* Everything after the counts, which are known to be no larger than the bytes that are left. */
static void take_all(struct cursor *cursor, struct stored_checkpoint *self)
{
    uint64_t chunks = 0;
    for (size_t i = 0; i < self->tensor_count && !cursor->failed; i++)
        take_tensor(cursor, &self->tensors[i], &chunks);
    if (chunks != self->chunk_count)
        cursor->failed = true;
    for (size_t i = 0; i < self->tensor_count && !cursor->failed; i++) {
        const struct stored_tensor *tensor = &self->tensors[i];
        for (uint32_t k = 0; k < tensor->chunk_count && !cursor->failed; k++)
            take_chunk(cursor, &self->chunks[tensor->first_chunk + k], tensor->dims);
    }
    for (size_t i = 0; i < self->file_count && !cursor->failed; i++)
        self->files[i] = take_text(cursor, false);
    if (cursor->left != 0)
        cursor->failed = true;
}

static int take_checkpoint(const char *name, struct cursor *cursor, struct stored_checkpoint *self, struct cb_err *err)
{
    uint64_t format = take_number(cursor, 4);
    self->marked = take_number(cursor, 4) != 0;
    uint64_t tensors = take_number(cursor, 8), chunks = take_number(cursor, 8), files = take_number(cursor, 8);
    if (format >= PLAN_FORMATS || tensors > cursor->left || chunks > cursor->left || files > cursor->left)
        return cb_fail(err, CB_ERR_FORMAT, "%s: the catalogue counts more than it can hold", name);
    self->format = (enum plan_format)format;
    self->tensors = calloc(tensors + 1, sizeof *self->tensors);
    self->chunks = calloc(chunks + 1, sizeof *self->chunks);
    self->files = calloc(files + 1, sizeof *self->files);
    if (!self->tensors || !self->chunks || !self->files)
        return cb_fail(err, CB_ERR_MEMORY, "%s: no memory for the catalogue", name);
    self->tensor_count = tensors;
    self->chunk_count = chunks;
    self->file_count = files;
    take_all(cursor, self);
    if (cursor->failed)
        return cb_fail(err, CB_ERR_FORMAT, "%s: the catalogue is no catalogue of a checkpoint", name);
    return stored_checkpoint_settle(self, name, err);
}

int catalogue_read(const char *name, const void *bytes, size_t len, struct stored_checkpoint **checkpoint,
                   struct cb_err *err)
{
    uint32_t crc = 0;
    if (len < sizeof magic + 2 * 4 + 3 * 8 + sizeof crc)
        return cb_fail(err, CB_ERR_CORRUPT, "%s: the catalogue is cut off", name);
    memcpy(&crc, (const char *)bytes + len - sizeof crc, sizeof crc);
    if (crc32c(0, bytes, len - sizeof crc) != crc)
        return cb_fail(err, CB_ERR_CORRUPT, "%s: the catalogue is damaged: its checksum is wrong", name);
    struct cursor cursor = {(const unsigned char *)bytes + sizeof magic, len - sizeof magic - sizeof crc, false};
    struct stored_checkpoint *self = calloc(1, sizeof *self);
    int code = self ? take_checkpoint(name, &cursor, self, err)
                    : cb_fail(err, CB_ERR_MEMORY, "%s: no memory for the catalogue", name);
    if (code)
        stored_checkpoint_free(self);
    else
        *checkpoint = self;
    return code;
}
