/* The raw format: payloads alone, and its index. */
#include "ckpt/format/raw.h"

#include <string.h>

#include "ckpt/format/format_ops.h"
#include "ckpt/format/index.h"
#include "ckpt/format/item_groups.h"

static const struct index_form form;

int raw_item_frame(const struct state_tensor *tensor, const struct region *region, uint64_t item_offset,
                   uint32_t alignment, struct item_frame *frame, struct cb_err *err)
{
    if (alignment == 0 || (alignment & (alignment - 1)) != 0)
        return cb_fail(err, CB_ERR_USAGE, "payloads cannot be aligned to %u bytes: a power of two", alignment);
    if (tensor->kind == KIND_BYTES) {
        *frame = (struct item_frame){.payload_bytes = strlen(tensor->literal)};
        return 0;
    }
    frame->header_bytes = (uint32_t)(-item_offset & (alignment - 1));
    frame->payload_bytes = region_elements(region) * dtype_bytes(tensor->dtype);
    frame->trailer_bytes = 0;
    return 0;
}

int raw_item_header(const struct state_tensor *tensor, const struct plan_item *item, struct buf *out,
                    struct cb_err *err)
{
    (void)tensor;
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

static void put_tensor(struct buf *out, const struct state_tensor *tensor, uint32_t chunks)
{
    index_put_text(out, tensor->fqn);
    buf_append_char(out, tensor->kind == KIND_BYTES);
    buf_append_char(out, (char)tensor->dtype);
    buf_append_char(out, (char)tensor->dims);
    index_put_numbers(out, tensor->shape, tensor->dims);
    index_put_u32(out, chunks);
}

static void put_chunk(struct buf *out, const struct plan_item *item)
{
    index_put_u32(out, item->file);
    index_put_u64(out, item->offset);
    index_put_u64(out, item->length);
    index_put_numbers(out, item->region.offset, item->region.dims);
    index_put_numbers(out, item->region.size, item->region.dims);
}

int raw_write_metadata(const struct layout *layout, const struct plan *plan, const char *checkpoint_id, struct buf *out,
                       struct cb_err *err)
{
    (void)checkpoint_id;
    size_t tensors = layout_tensor_count(layout), begin = out->len;
    struct item_groups groups;
    int code = item_groups_init(&groups, plan, tensors, err);
    if (code)
        return code;
    buf_append(out, form.magic, sizeof form.magic);
    index_put_counts(out, tensors, groups.first[tensors], plan->file_count);
    for (size_t i = 0; i < tensors; i++)
        put_tensor(out, layout_tensor(layout, i), groups.first[i + 1] - groups.first[i]);
    for (uint32_t i = 0; i < groups.first[tensors]; i++)
        put_chunk(out, &plan->items[groups.order[i]]);
    for (size_t i = 0; i < plan->file_count; i++)
        index_put_text(out, plan->files[i].name);
    item_groups_release(&groups);
    return index_end(out, begin, "the index of the checkpoint", err);
}

static void take_head(struct index_cursor *cursor, struct stored_checkpoint *self)
{
    (void)cursor;
    self->format = PLAN_RAW;
    self->marked = true;
}

static void take_tensor(struct index_cursor *cursor, struct stored_tensor *tensor)
{
    tensor->fqn = index_take_text(cursor, false);
    tensor->is_bytes = index_take(cursor, 1) != 0;
    uint64_t dtype = index_take(cursor, 1), dims = index_take(cursor, 1);
    if (dtype >= DTYPE_COUNT || dims > CKPT_MAX_DIMS) {
        cursor->failed = true;
        return;
    }
    tensor->dtype = (enum dtype)dtype;
    tensor->dims = (uint32_t)dims;
    index_take_numbers(cursor, tensor->shape, tensor->dims);
    tensor->chunk_count = (uint32_t)index_take(cursor, 4);
}

static void take_chunk(struct index_cursor *cursor, struct stored_chunk *chunk)
{
    chunk->file = (uint32_t)index_take(cursor, 4);
    chunk->offset = index_take(cursor, 8);
    chunk->length = index_take(cursor, 8);
    index_take_numbers(cursor, chunk->region.offset, chunk->region.dims);
    index_take_numbers(cursor, chunk->region.size, chunk->region.dims);
}

static const struct index_form form = {
    .what = "index",
    .magic = "CKPTRAW1",
    .take_head = take_head,
    .take_tensor = take_tensor,
    .take_chunk = take_chunk,
};

bool raw_is_metadata(const void *bytes, size_t len)
{
    return index_is(&form, bytes, len);
}

int raw_read_metadata(const char *name, const void *bytes, size_t len, struct stored_checkpoint **checkpoint,
                      struct cb_err *err)
{
    return index_read(&form, name, bytes, len, checkpoint, err);
}

int raw_parse_item(const struct stored_tensor *tensor, const struct region *region, const void *bytes_read, size_t len,
                   uint64_t item_length, struct stored_payload *payload, struct cb_err *err)
{
    (void)bytes_read, (void)len;
    uint64_t bytes = tensor->is_bytes ? item_length : region_elements(region) * dtype_bytes(tensor->dtype);
    if (bytes > item_length)
        return cb_fail(err, CB_ERR_CORRUPT, "%s: the item has %llu bytes, its box %llu", tensor->fqn,
                       (unsigned long long)item_length, (unsigned long long)bytes);
    *payload =
        (struct stored_payload){.offset = item_length - bytes, .bytes = bytes, .contiguous = true, .whole = true};
    uint64_t step = 1;
    for (uint32_t i = region->dims; i-- > 0;) {
        payload->stride[i] = step;
        step *= region->size[i] ? region->size[i] : 1;
    }
    return 0;
}

bool raw_expect_payload(const struct stored_tensor *tensor, const struct region *region, uint64_t item_length,
                        struct stored_payload *payload)
{
    return raw_parse_item(tensor, region, NULL, 0, item_length, payload, NULL) == 0;
}

const struct format_ops raw_format = {
    .name = "raw",
    .marker = STORED_MARKER,
    .suffix = "raw",
    .has_folders = true,
    .has_fanout = true,
    .item_frame = raw_item_frame,
    .item_header = raw_item_header,
    .bytes_payload = raw_bytes_payload,
    .write_metadata = raw_write_metadata,
    .is_metadata = raw_is_metadata,
    .read_metadata = raw_read_metadata,
    .parse_item = raw_parse_item,
    .expect_payload = raw_expect_payload,
};
