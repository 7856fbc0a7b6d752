/* Writes and reads catalogues. */
#include "ckpt/format/catalogue.h"

#include <string.h>

#include "ckpt/format/index.h"
#include "ckpt/format/item_groups.h"

static const struct index_form form;

/* --- writing --- */

static void put_tensor(struct buf *out, const struct stored_tensor *tensor)
{
    index_put_text(out, tensor->fqn);
    buf_append_char(out, tensor->is_bytes);
    buf_append_char(out, (char)tensor->dtype);
    buf_append_char(out, (char)tensor->dims);
    index_put_numbers(out, tensor->shape, tensor->dims);
    index_put_u32(out, tensor->chunk_count);
    index_put_text(out, tensor->literal);
    index_put_text(out, tensor->path);
}

static void put_chunk(struct buf *out, const struct stored_chunk *chunk)
{
    index_put_u32(out, chunk->file);
    buf_append_char(out, chunk->compressed);
    index_put_u64(out, chunk->offset);
    index_put_u64(out, chunk->length);
    index_put_numbers(out, chunk->region.offset, chunk->region.dims);
    index_put_numbers(out, chunk->region.size, chunk->region.dims);
}

static void put_head(struct buf *out, enum plan_format format, bool marked, size_t tensors, size_t chunks, size_t files)
{
    buf_append(out, form.magic, sizeof form.magic);
    index_put_u32(out, (uint32_t)format);
    index_put_u32(out, marked);
    index_put_counts(out, tensors, chunks, files);
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
        index_put_text(out, checkpoint->files[i]);
    return index_end(out, begin, "the catalogue of the checkpoint", err);
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
            .region = item->region, .file = item->file, .offset = item->payload_offset, .length = item->payload_bytes};
        if (layout_tensor(layout, item->tensor)->kind != KIND_BYTES)
            put_chunk(out, &chunk);
    }
    for (size_t i = 0; i < plan->file_count; i++)
        index_put_text(out, plan->files[i].name);
    item_groups_release(&groups);
    return index_end(out, begin, "the catalogue of the checkpoint", err);
}

/* --- reading --- */

static void take_head(struct index_cursor *cursor, struct stored_checkpoint *self)
{
    uint64_t format = index_take(cursor, 4);
    self->marked = index_take(cursor, 4) != 0;
    if (format >= PLAN_FORMATS)
        cursor->failed = true;
    else
        self->format = (enum plan_format)format;
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
    tensor->literal = index_take_text(cursor, true);
    tensor->path = index_take_text(cursor, true);
}

static void take_chunk(struct index_cursor *cursor, struct stored_chunk *chunk)
{
    chunk->file = (uint32_t)index_take(cursor, 4);
    chunk->compressed = index_take(cursor, 1) != 0;
    chunk->offset = index_take(cursor, 8);
    chunk->length = index_take(cursor, 8);
    index_take_numbers(cursor, chunk->region.offset, chunk->region.dims);
    index_take_numbers(cursor, chunk->region.size, chunk->region.dims);
}

static const struct index_form form = {
    .what = "catalogue",
    .magic = "CKPTCAT1",
    .take_head = take_head,
    .take_tensor = take_tensor,
    .take_chunk = take_chunk,
};

bool catalogue_is(const void *bytes, size_t len)
{
    return index_is(&form, bytes, len);
}

int catalogue_read(const char *name, const void *bytes, size_t len, struct stored_checkpoint **checkpoint,
                   struct cb_err *err)
{
    return index_read(&form, name, bytes, len, checkpoint, err);
}
