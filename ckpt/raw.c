/* Owns the raw format: payloads alone, and its index. Knows nothing of other formats. */
#include "ckpt/raw.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/item_groups.h"
#include "ckpt/stored.h"
#include "core/hash.h"

static const char magic[8] = "CKPTRAW1";

int raw_item_frame(const struct state_tensor *tensor, const struct box *box, uint64_t item_offset, uint32_t alignment,
                   struct item_frame *frame, struct cb_err *err)
{
    if (alignment == 0 || (alignment & (alignment - 1)) != 0)
        return cb_fail(err, CB_ERR_USAGE, "payloads cannot be aligned to %u bytes: a power of two", alignment);
    if (tensor->kind == KIND_BYTES) {
        *frame = (struct item_frame){.payload_bytes = strlen(tensor->literal)};
        return 0;
    }
    frame->header_bytes = (uint32_t)(-item_offset & (alignment - 1));
    frame->payload_bytes = box_elements(box) * dtype_bytes(tensor->dtype);
    frame->trailer_bytes = 0;
    return 0;
}

int raw_item_header(const struct plan_item *item, struct buf *out, struct cb_err *err)
{
    size_t bytes = item->payload_offset - item->offset;
    void *padding = bytes > 0 ? buf_extend(out, bytes) : NULL;
    if (padding)
        memset(padding, 0, bytes);
    return buf_check(out, "an item's header", err);
}

int raw_bytes_payload(const struct state_tensor *tensor, struct buf *out, struct cb_err *err)
{
    buf_append_text(out, tensor->literal);
    return buf_check(out, "a bytes item", err);
}

/* --- the index --- */

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
    put_u32(out, (uint32_t)strlen(text));
    buf_append_text(out, text);
}

static void put_tensor(struct buf *out, const struct state_tensor *tensor, uint32_t chunks)
{
    put_text(out, tensor->fqn);
    buf_append_char(out, tensor->kind == KIND_BYTES);
    buf_append_char(out, (char)tensor->dtype);
    buf_append_char(out, (char)tensor->dims);
    for (uint32_t i = 0; i < tensor->dims; i++)
        put_u64(out, tensor->shape[i]);
    put_u32(out, chunks);
}

static void put_chunk(struct buf *out, const struct plan_item *item)
{
    put_u32(out, item->file);
    put_u64(out, item->offset);
    put_u64(out, item->length);
    for (uint32_t i = 0; i < item->box.dims; i++)
        put_u64(out, item->box.offset[i]);
    for (uint32_t i = 0; i < item->box.dims; i++)
        put_u64(out, item->box.size[i]);
}

int raw_write_metadata(const struct layout *layout, const struct plan *plan, struct buf *out, struct cb_err *err)
{
    size_t tensors = layout_tensor_count(layout), begin = out->len;
    struct item_groups groups;
    int code = item_groups_init(&groups, plan, tensors, err);
    if (code)
        return code;
    buf_append(out, magic, sizeof magic);
    put_u64(out, tensors);
    put_u64(out, groups.first[tensors]);
    put_u64(out, plan->file_count);
    for (size_t i = 0; i < tensors; i++)
        put_tensor(out, layout_tensor(layout, i), groups.first[i + 1] - groups.first[i]);
    for (uint32_t i = 0; i < groups.first[tensors]; i++)
        put_chunk(out, &plan->items[groups.order[i]]);
    for (size_t i = 0; i < plan->file_count; i++)
        put_text(out, plan->files[i].name);
    code = buf_check(out, "the index of the checkpoint", err);
    if (!code) {
        put_u32(out, crc32c(0, out->data + begin, out->len - begin));
        code = buf_check(out, "the index of the checkpoint", err);
    }
    if (code)
        out->len = begin;
    item_groups_release(&groups);
    return code;
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

static uint32_t take_u32(struct cursor *self)
{
    uint32_t value = 0;
    const void *place = take(self, sizeof value);
    if (place)
        memcpy(&value, place, sizeof value);
    return value;
}

static uint64_t take_u64(struct cursor *self)
{
    uint64_t value = 0;
    const void *place = take(self, sizeof value);
    if (place)
        memcpy(&value, place, sizeof value);
    return value;
}

static unsigned take_u8(struct cursor *self)
{
    const unsigned char *place = take(self, 1);
    return place ? *place : 0;
}

static char *take_text(struct cursor *self)
{
    size_t len = take_u32(self);
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
    tensor->fqn = take_text(cursor);
    tensor->is_bytes = take_u8(cursor) != 0;
    tensor->dtype = (enum dtype)take_u8(cursor);
    tensor->dims = take_u8(cursor);
    if ((unsigned)tensor->dtype >= DTYPE_COUNT || tensor->dims > CKPT_MAX_DIMS) {
        cursor->failed = true;
        tensor->dims = 0;
    }
    for (uint32_t i = 0; i < tensor->dims; i++)
        tensor->shape[i] = take_u64(cursor);
    tensor->first_chunk = (uint32_t)*chunks;
    tensor->chunk_count = take_u32(cursor);
    *chunks += tensor->chunk_count;
}

static void take_chunk(struct cursor *cursor, struct stored_chunk *chunk, uint32_t dims)
{
    chunk->file = take_u32(cursor);
    chunk->offset = take_u64(cursor);
    chunk->length = take_u64(cursor);
    chunk->box.dims = dims;
    for (uint32_t i = 0; i < dims; i++)
        chunk->box.offset[i] = take_u64(cursor);
    for (uint32_t i = 0; i < dims; i++)
        chunk->box.size[i] = take_u64(cursor);
}

bool raw_is_metadata(const void *bytes, size_t len)
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
        self->files[i] = take_text(cursor);
    if (cursor->left != 0)
        cursor->failed = true;
}

int raw_read_metadata(const char *name, const void *bytes, size_t len, struct stored_checkpoint **checkpoint,
                      struct cb_err *err)
{
    uint32_t crc = 0;
    if (len < sizeof magic + 3 * 8 + sizeof crc)
        return cb_fail(err, CB_ERR_CORRUPT, "%s: the index is cut off", name);
    memcpy(&crc, (const char *)bytes + len - sizeof crc, sizeof crc);
    if (crc32c(0, bytes, len - sizeof crc) != crc)
        return cb_fail(err, CB_ERR_CORRUPT, "%s: the index is damaged: its checksum is wrong", name);
    struct cursor cursor = {(const unsigned char *)bytes + sizeof magic, len - sizeof magic - sizeof crc, false};
    uint64_t tensors = take_u64(&cursor), chunks = take_u64(&cursor), files = take_u64(&cursor);
    if (tensors > cursor.left || chunks > cursor.left || files > cursor.left)
        return cb_fail(err, CB_ERR_FORMAT, "%s: the index counts more than it can hold", name);
    struct stored_checkpoint *self = calloc(1, sizeof *self);
    if (!self)
        return cb_fail(err, CB_ERR_MEMORY, "%s: no memory for the index", name);
    self->format = PLAN_RAW;
    self->marked = true;
    self->tensors = calloc(tensors + 1, sizeof *self->tensors);
    self->chunks = calloc(chunks + 1, sizeof *self->chunks);
    self->files = calloc(files + 1, sizeof *self->files);
    int code = 0;
    if (!self->tensors || !self->chunks || !self->files) {
        code = cb_fail(err, CB_ERR_MEMORY, "%s: no memory for the index", name);
        goto out;
    }
    self->tensor_count = tensors;
    self->chunk_count = chunks;
    self->file_count = files;
    take_all(&cursor, self);
    if (cursor.failed)
        code = cb_fail(err, CB_ERR_FORMAT, "%s: the index is no index of a raw checkpoint", name);
    else
        code = stored_checkpoint_settle(self, name, err);
out:
    if (code)
        stored_checkpoint_free(self);
    else
        *checkpoint = self;
    return code;
}

int raw_parse_item(const struct stored_tensor *tensor, const struct box *box, uint64_t item_length,
                   struct stored_payload *payload, struct cb_err *err)
{
    uint64_t bytes = tensor->is_bytes ? item_length : box_elements(box) * dtype_bytes(tensor->dtype);
    if (bytes > item_length)
        return cb_fail(err, CB_ERR_CORRUPT, "%s: the item has %llu bytes, its box %llu", tensor->fqn,
                       (unsigned long long)item_length, (unsigned long long)bytes);
    *payload =
        (struct stored_payload){.offset = item_length - bytes, .bytes = bytes, .contiguous = true, .whole = true};
    uint64_t step = 1;
    for (uint32_t i = box->dims; i-- > 0;) {
        payload->stride[i] = step;
        step *= box->size[i] ? box->size[i] : 1;
    }
    return 0;
}
