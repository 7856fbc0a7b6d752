/* Writes and reads catalogues and the index of format=raw. */
#include "ckpt/format/catalogue.h"

#include <string.h>

#include "ckpt/format/index.h"
#include "ckpt/format/item_groups.h"

static const struct index_form catalogue_form, raw_form;

/* --- writing --- */

static void put_tensor(struct buf *out, const struct stored_tensor *tensor, bool raw)
{
    index_put_text(out, tensor->fqn);
    buf_append_char(out, tensor->is_bytes);
    buf_append_char(out, (char)tensor->dtype);
    buf_append_char(out, (char)tensor->dims);
    index_put_numbers(out, tensor->shape, tensor->dims);
    index_put_u32(out, tensor->chunk_count);
    if (raw)
        return;
    index_put_text(out, tensor->literal);
    index_put_text(out, tensor->path);
}

static void put_chunk(struct buf *out, const struct stored_chunk *chunk, bool raw)
{
    index_put_u32(out, chunk->file);
    if (!raw)
        buf_append_char(out, chunk->compressed);
    index_put_u64(out, chunk->offset);
    index_put_u64(out, chunk->length);
    index_put_numbers(out, chunk->region.offset, chunk->region.dims);
    index_put_numbers(out, chunk->region.size, chunk->region.dims);
}

int catalogue_write(const struct stored_checkpoint *checkpoint, struct buf *out, struct cb_err *err)
{
    size_t begin = out->len;
    index_put_head(out, &catalogue_form, checkpoint->save_id);
    index_put_u32(out, (uint32_t)checkpoint->format);
    index_put_u32(out, checkpoint->marked);
    index_put_counts(out, checkpoint->tensor_count, checkpoint->chunk_count, checkpoint->file_count);
    for (size_t i = 0; i < checkpoint->tensor_count; i++)
        put_tensor(out, &checkpoint->tensors[i], false);
    for (size_t i = 0; i < checkpoint->chunk_count; i++)
        put_chunk(out, &checkpoint->chunks[i], false);
    for (size_t i = 0; i < checkpoint->file_count; i++)
        index_put_text(out, checkpoint->files[i]);
    return index_end(out, begin, "the catalogue of the checkpoint", err);
}

static void put_items(struct buf *out, const struct item_groups *groups, bool raw)
{
    for (size_t i = 0; i < groups->span_count; i++) {
        for (uint32_t k = 0; k < groups->spans[i].count; k++) {
            struct plan_item item = item_span_at(groups->plan, &groups->spans[i], k);
            struct stored_chunk chunk = {.region = item.region,
                                         .file = item.file,
                                         .offset = raw ? item.offset : item.payload_offset,
                                         .length = raw ? item.length : item.payload_bytes};
            put_chunk(out, &chunk, raw);
        }
    }
}

/* A catalogue contains values as literals, and only the payloads of items; raw contains whole items. */
static int write_plan(bool raw, const struct layout *layout, const struct plan *plan, uint64_t save_id, struct buf *out,
                      struct cb_err *err)
{
    size_t tensors = layout_tensor_count(layout), begin = out->len, chunks = 0;
    struct item_groups groups;
    int rc = item_groups_init(&groups, plan, tensors, err);
    if (rc)
        return rc;
    for (uint32_t i = 0; i < tensors && !rc; i++) {
        rc = item_groups_select(&groups, i, err);
        if (raw || layout_tensor(layout, i)->kind != KIND_BYTES)
            chunks += item_groups_count(&groups);
    }
    index_put_head(out, raw ? &raw_form : &catalogue_form, save_id);
    if (!raw) {
        index_put_u32(out, PLAN_DCP_SAFETENSORS);
        index_put_u32(out, true);
    }
    index_put_counts(out, tensors, chunks, plan->file_count);
    for (uint32_t i = 0; i < tensors && !rc; i++) {
        const struct state_tensor *tensor = layout_tensor(layout, i);
        rc = item_groups_select(&groups, i, err);
        bool is_bytes = tensor->kind == KIND_BYTES;
        struct stored_tensor stored = {.fqn = (char *)tensor->fqn,
                                       .is_bytes = is_bytes,
                                       .dtype = tensor->dtype,
                                       .dims = tensor->dims,
                                       .chunk_count = is_bytes && !raw ? 0 : (uint32_t)item_groups_count(&groups),
                                       .literal = (char *)tensor->literal,
                                       .path = (char *)tensor->path};
        memcpy(stored.shape, tensor->shape, sizeof stored.shape);
        put_tensor(out, &stored, raw);
    }
    for (uint32_t i = 0; i < tensors && !rc; i++) {
        rc = item_groups_select(&groups, i, err);
        if (!rc && (raw || layout_tensor(layout, i)->kind != KIND_BYTES))
            put_items(out, &groups, raw);
    }
    for (uint32_t i = 0; i < plan->file_count; i++) {
        char name[PLAN_NAME_BYTES];
        plan_file_name(plan, i, name);
        index_put_text(out, name);
    }
    item_groups_release(&groups);
    if (rc)
        out->len = begin;
    return rc ? rc
              : index_end(out, begin, raw ? "the index of the checkpoint" : "the catalogue of the checkpoint", err);
}

int catalogue_write_plan(const struct layout *layout, const struct plan *plan, const char *checkpoint_id,
                         uint64_t save_id, struct buf *out, struct cb_err *err)
{
    (void)checkpoint_id;
    return write_plan(false, layout, plan, save_id, out, err);
}

int raw_index_write(const struct layout *layout, const struct plan *plan, const char *checkpoint_id, uint64_t save_id,
                    struct buf *out, struct cb_err *err)
{
    (void)checkpoint_id;
    return write_plan(true, layout, plan, save_id, out, err);
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

static void take_raw_head(struct index_cursor *cursor, struct stored_checkpoint *self)
{
    (void)cursor;
    self->format = PLAN_RAW;
    self->marked = true;
}

static void take_raw_tensor(struct index_cursor *cursor, struct stored_tensor *tensor)
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

static void take_tensor(struct index_cursor *cursor, struct stored_tensor *tensor)
{
    take_raw_tensor(cursor, tensor);
    tensor->literal = index_take_text(cursor, true);
    tensor->path = index_take_text(cursor, true);
}

static void take_place(struct index_cursor *cursor, struct stored_chunk *chunk)
{
    chunk->offset = index_take(cursor, 8);
    chunk->length = index_take(cursor, 8);
    index_take_numbers(cursor, chunk->region.offset, chunk->region.dims);
    index_take_numbers(cursor, chunk->region.size, chunk->region.dims);
}

static void take_chunk(struct index_cursor *cursor, struct stored_chunk *chunk)
{
    chunk->file = (uint32_t)index_take(cursor, 4);
    chunk->compressed = index_take(cursor, 1) != 0;
    take_place(cursor, chunk);
}

static void take_raw_chunk(struct index_cursor *cursor, struct stored_chunk *chunk)
{
    chunk->file = (uint32_t)index_take(cursor, 4);
    take_place(cursor, chunk);
}

static const struct index_form catalogue_form = {"catalogue", "CKPTCAT2", take_head, take_tensor, take_chunk};
static const struct index_form raw_form = {"index", "CKPTRAW2", take_raw_head, take_raw_tensor, take_raw_chunk};

bool catalogue_is(const void *bytes, size_t len)
{
    return index_is(&catalogue_form, bytes, len);
}

int catalogue_read(const char *name, const void *bytes, size_t len, struct stored_checkpoint **checkpoint,
                   struct cb_err *err)
{
    return index_read(&catalogue_form, name, bytes, len, checkpoint, err);
}

bool raw_index_is(const void *bytes, size_t len)
{
    return index_is(&raw_form, bytes, len);
}

int raw_index_read(const char *name, const void *bytes, size_t len, struct stored_checkpoint **checkpoint,
                   struct cb_err *err)
{
    return index_read(&raw_form, name, bytes, len, checkpoint, err);
}
