/* Writes and reads catalogues and the index of format=raw. */
#include "ckpt/format/catalogue.h"

#include <string.h>

#include "ckpt/format/index.h"
#include "ckpt/format/item_groups.h"
#include "core/hash.h"

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

/* Writes an index of a plan to a sink. */
struct index_writer {
    struct metadata_sink *sink;
    struct buf out; /* not yet passed to the sink */
    uint32_t crc;   /* of what has been passed */
    bool raw;
    struct cb_err *err;
};

#define FLUSH_BYTES ((size_t)1 << 20)

static int flush(struct index_writer *self, size_t least)
{
    if (self->out.len < least && !self->out.code)
        return 0;
    int rc = buf_check(&self->out, "the index of the checkpoint", self->err);
    self->crc = crc32c(self->crc, self->out.data, self->out.len);
    if (!rc)
        rc = metadata_sink_put(self->sink, self->out.data, self->out.len, self->err);
    buf_clear(&self->out);
    return rc;
}

static int put_items(struct index_writer *self, const struct item_groups *groups)
{
    int rc = 0;
    for (size_t i = 0; i < groups->span_count && !rc; i++) {
        uint32_t count = groups->spans[i].count, alike = self->sink->write ? 1 : count;
        for (uint32_t k = 0; k < count && !rc; k += alike) {
            struct plan_item item = item_span_at(groups->plan, &groups->spans[i], k);
            struct stored_chunk chunk = {.region = item.region,
                                         .file = item.file,
                                         .offset = self->raw ? item.offset : item.payload_offset,
                                         .length = self->raw ? item.length : item.payload_bytes};
            size_t begin = self->out.len;
            put_chunk(&self->out, &chunk, self->raw);
            self->sink->bytes += (alike - 1) * (self->out.len - begin);
            rc = flush(self, FLUSH_BYTES);
        }
    }
    return rc;
}

static bool has_chunks(const struct index_writer *self, const struct state_tensor *tensor)
{
    return self->raw || tensor->kind != KIND_BYTES;
}

static int put_tensors(struct index_writer *self, const struct layout *layout, struct item_groups *groups)
{
    int rc = 0;
    for (uint32_t i = 0; i < layout_tensor_count(layout) && !rc; i++) {
        const struct state_tensor *tensor = layout_tensor(layout, i);
        rc = item_groups_select(groups, i, self->err);
        struct stored_tensor stored = {.fqn = (char *)tensor->fqn,
                                       .is_bytes = tensor->kind == KIND_BYTES,
                                       .dtype = tensor->dtype,
                                       .dims = tensor->dims,
                                       .chunk_count =
                                           has_chunks(self, tensor) ? (uint32_t)item_groups_count(groups) : 0,
                                       .literal = (char *)tensor->literal,
                                       .path = (char *)tensor->path};
        memcpy(stored.shape, tensor->shape, sizeof stored.shape);
        put_tensor(&self->out, &stored, self->raw);
        rc = rc ? rc : flush(self, FLUSH_BYTES);
    }
    for (uint32_t i = 0; i < layout_tensor_count(layout) && !rc; i++) {
        if (!has_chunks(self, layout_tensor(layout, i)))
            continue;
        rc = item_groups_select(groups, i, self->err);
        rc = rc ? rc : put_items(self, groups);
    }
    return rc;
}

static int put_head(struct index_writer *self, const struct layout *layout, struct item_groups *groups,
                    uint64_t save_id)
{
    uint64_t tensors = layout_tensor_count(layout), chunks = 0;
    int rc = 0;
    for (uint32_t i = 0; i < tensors && !rc; i++) {
        rc = item_groups_select(groups, i, self->err);
        chunks += has_chunks(self, layout_tensor(layout, i)) ? item_groups_count(groups) : 0;
    }
    index_put_head(&self->out, self->raw ? &raw_form : &catalogue_form, save_id);
    if (!self->raw) {
        index_put_u32(&self->out, PLAN_DCP_SAFETENSORS);
        index_put_u32(&self->out, true);
    }
    index_put_counts(&self->out, tensors, chunks, groups->plan->file_count);
    return rc;
}

static int put_files(struct index_writer *self, const struct plan *plan)
{
    int rc = 0;
    for (uint32_t i = 0; i < plan->file_count && !rc; i++) {
        char name[PLAN_NAME_BYTES];
        plan_file_name(plan, i, name);
        index_put_text(&self->out, name);
        rc = flush(self, FLUSH_BYTES);
    }
    return rc;
}

/* A catalogue contains values as literals, and only the payloads of items; raw contains whole items. */
static int write_plan(bool raw, const struct layout *layout, const struct plan *plan, uint64_t save_id,
                      struct metadata_sink *sink, struct cb_err *err)
{
    struct index_writer self = {.sink = sink, .raw = raw, .err = err};
    struct item_groups groups;
    int rc = item_groups_init(&groups, plan, layout_tensor_count(layout), err);
    if (rc)
        return rc;
    buf_init(&self.out, METADATA_MOST_BYTES);
    rc = put_head(&self, layout, &groups, save_id);
    rc = rc ? rc : put_tensors(&self, layout, &groups);
    rc = rc ? rc : put_files(&self, plan);
    rc = rc ? rc : flush(&self, 0);
    index_put_u32(&self.out, self.crc);
    rc = rc ? rc : flush(&self, 0);
    item_groups_release(&groups);
    buf_release(&self.out);
    return rc;
}

int catalogue_write_plan(const struct layout *layout, const struct plan *plan, const char *checkpoint_id,
                         uint64_t save_id, struct metadata_sink *sink, struct cb_err *err)
{
    (void)checkpoint_id;
    return write_plan(false, layout, plan, save_id, sink, err);
}

int raw_index_write(const struct layout *layout, const struct plan *plan, const char *checkpoint_id, uint64_t save_id,
                    struct metadata_sink *sink, struct cb_err *err)
{
    (void)checkpoint_id;
    return write_plan(true, layout, plan, save_id, sink, err);
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
    index_take_tensor(cursor, 1, tensor);
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

int catalogue_pass(const char *name, const struct byte_source *source, const struct stored_sink *sink,
                   struct cb_err *err)
{
    return index_pass(&catalogue_form, name, source, sink, err);
}

bool raw_index_is(const void *bytes, size_t len)
{
    return index_is(&raw_form, bytes, len);
}

int raw_index_pass(const char *name, const struct byte_source *source, const struct stored_sink *sink,
                   struct cb_err *err)
{
    return index_pass(&raw_form, name, source, sink, err);
}
