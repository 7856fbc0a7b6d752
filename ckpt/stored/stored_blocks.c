/* Entries of a block: a kind, and then
 *   head    format, mark, save id, counts of tensors, chunks, files and duplicates; the first entry
 *   tensor  its members
 *   run     chunks of the last tensor: their number, the box around them, the bytes that follow, and the chunks
 *   file    its name; in order, after all chunks
 * A receiver that needs nothing of a box skips the run. */
#include "ckpt/stored/stored_blocks.h"

#include <stdlib.h>
#include <string.h>

#include "ckpt/format/index.h"
#include "core/alloc.h"

#define RUN_CHUNKS 256

enum entry { ENTRY_HEAD = 1, ENTRY_TENSOR, ENTRY_RUN, ENTRY_FILE };

/* --- sending --- */

static void put_head(struct buf *out, const struct stored_checkpoint *checkpoint)
{
    buf_append_char(out, ENTRY_HEAD);
    index_put_u32(out, (uint32_t)checkpoint->format);
    index_put_u32(out, checkpoint->marked);
    index_put_u64(out, checkpoint->save_id);
    index_put_counts(out, checkpoint->tensor_count, checkpoint->chunk_count, checkpoint->file_count);
    index_put_u64(out, checkpoint->duplicates);
}

static void put_tensor(struct buf *out, const struct stored_tensor *tensor)
{
    buf_append_char(out, ENTRY_TENSOR);
    index_put_text(out, tensor->fqn);
    index_put_u32(out, tensor->is_bytes);
    index_put_u32(out, tensor->dtype);
    index_put_u32(out, tensor->dims);
    index_put_numbers(out, tensor->shape, tensor->dims);
    index_put_text(out, tensor->literal);
    index_put_text(out, tensor->path);
}

static struct region box_around(const struct stored_chunk *chunks, uint32_t count)
{
    struct region box = chunks->region;
    for (uint32_t i = 1; i < count; i++) {
        for (uint32_t d = 0; d < box.dims; d++) {
            uint64_t begin = chunks[i].region.offset[d], end = begin + chunks[i].region.size[d];
            uint64_t least = begin < box.offset[d] ? begin : box.offset[d];
            uint64_t most = end > box.offset[d] + box.size[d] ? end : box.offset[d] + box.size[d];
            box.offset[d] = least;
            box.size[d] = most - least;
        }
    }
    return box;
}

static void put_region(struct buf *out, const struct region *region)
{
    index_put_numbers(out, region->offset, region->dims);
    index_put_numbers(out, region->size, region->dims);
}

static void put_run(struct buf *out, const struct stored_chunk *chunks, uint32_t count)
{
    struct region box = box_around(chunks, count);
    buf_append_char(out, ENTRY_RUN);
    index_put_u32(out, count);
    put_region(out, &box);
    size_t bytes_at = out->len;
    index_put_u32(out, 0);
    for (uint32_t i = 0; i < count; i++) {
        index_put_u32(out, chunks[i].file);
        index_put_u32(out, chunks[i].compressed);
        index_put_u64(out, chunks[i].offset);
        index_put_u64(out, chunks[i].length);
        put_region(out, &chunks[i].region);
    }
    uint32_t bytes = (uint32_t)(out->len - bytes_at - sizeof bytes);
    if (!out->code)
        memcpy(out->data + bytes_at, &bytes, sizeof bytes);
}

static void put_next_of_tensor(struct stored_sender *self, struct buf *out)
{
    const struct stored_tensor *tensor = &self->checkpoint->tensors[self->tensor];
    if (self->chunk == 0)
        put_tensor(out, tensor);
    uint32_t left = tensor->chunk_count - self->chunk, count = left < RUN_CHUNKS ? left : RUN_CHUNKS;
    if (count > 0)
        put_run(out, self->checkpoint->chunks + tensor->first_chunk + self->chunk, count);
    self->chunk += count;
    if (self->chunk == tensor->chunk_count) {
        self->chunk = 0;
        self->tensor++;
    }
}

int stored_block_write(struct stored_sender *self, struct buf *out, struct cb_err *err)
{
    const struct stored_checkpoint *checkpoint = self->checkpoint;
    size_t begin = out->len;
    if (!self->begun)
        put_head(out, checkpoint);
    self->begun = true;
    while (!out->code && out->len - begin < STORED_BLOCK_BYTES && self->tensor < checkpoint->tensor_count)
        put_next_of_tensor(self, out);
    while (!out->code && out->len - begin < STORED_BLOCK_BYTES && self->file < checkpoint->file_count) {
        buf_append_char(out, ENTRY_FILE);
        index_put_text(out, checkpoint->files[self->file++]);
    }
    return buf_check(out, "a block of what the checkpoint has", err);
}

/* --- receiving --- */

static void take_head(struct stored_receiver *self, struct index_cursor *cursor)
{
    struct stored_checkpoint *made = calloc(1, sizeof *made);
    uint64_t format = index_take(cursor, 4);
    if (self->checkpoint || !made || format >= PLAN_FORMATS) {
        free(made);
        cursor->failed = true;
        return;
    }
    self->checkpoint = made;
    made->format = (enum plan_format)format;
    made->marked = index_take(cursor, 4) != 0;
    made->save_id = index_take(cursor, 8);
    self->tensor_count = index_take(cursor, 8);
    self->chunk_count = index_take(cursor, 8);
    self->file_count = index_take(cursor, 8);
    made->duplicates = index_take(cursor, 8);
    made->tensors = calloc(self->tensor_count + 1, sizeof *made->tensors);
    cursor->failed |= !made->tensors;
}

static void take_tensor(struct stored_receiver *self, struct index_cursor *cursor)
{
    struct stored_checkpoint *made = self->checkpoint;
    if (!made || made->tensor_count >= self->tensor_count) {
        cursor->failed = true;
        return;
    }
    struct stored_tensor *tensor = &made->tensors[made->tensor_count++];
    index_take_tensor(cursor, 4, tensor);
    tensor->literal = index_take_text(cursor, true);
    tensor->path = index_take_text(cursor, true);
    tensor->first_chunk = (uint32_t)made->chunk_count;
}

static void take_region(struct index_cursor *cursor, uint32_t dims, struct region *region)
{
    region->dims = dims;
    index_take_numbers(cursor, region->offset, dims);
    index_take_numbers(cursor, region->size, dims);
}

static bool is_needed(const struct stored_receiver *self, const struct stored_tensor *tensor, const struct region *box)
{
    return !self->need || self->need(self->context, tensor, box);
}

static void take_run(struct stored_receiver *self, struct index_cursor *cursor, struct cb_err *err)
{
    struct stored_checkpoint *made = self->checkpoint;
    if (!made || made->tensor_count == 0) {
        cursor->failed = true;
        return;
    }
    struct stored_tensor *tensor = &made->tensors[made->tensor_count - 1];
    struct region box = {0};
    uint64_t count = index_take(cursor, 4);
    take_region(cursor, tensor->dims, &box);
    uint64_t bytes = index_take(cursor, 4);
    cursor->failed |= count > self->chunk_count - self->chunks_come || bytes > cursor->left;
    if (cursor->failed)
        return;
    self->chunks_come += count;
    if (!is_needed(self, tensor, &box)) {
        cursor->at += bytes;
        cursor->left -= bytes;
        return;
    }
    for (uint64_t i = 0; i < count && !cursor->failed; i++) {
        struct stored_chunk chunk = {.tensor = (uint32_t)(made->tensor_count - 1)};
        chunk.file = (uint32_t)index_take(cursor, 4);
        chunk.compressed = index_take(cursor, 4) != 0;
        chunk.offset = index_take(cursor, 8);
        chunk.length = index_take(cursor, 8);
        take_region(cursor, tensor->dims, &chunk.region);
        if (cursor->failed || !is_needed(self, tensor, &chunk.region))
            continue;
        cursor->failed |= alloc_grow(&made->chunks, made->chunk_count, sizeof *made->chunks, err) != 0;
        if (cursor->failed)
            return;
        made->chunks[made->chunk_count++] = chunk;
        tensor->chunk_count++;
    }
}

static int compare_numbers(const void *a, const void *b)
{
    uint32_t x = *(const uint32_t *)a, y = *(const uint32_t *)b;
    return x < y ? -1 : x > y;
}

/* The files of the chunks that were kept; all files if nothing is left out. */
static int choose_files(struct stored_receiver *self, struct cb_err *err)
{
    struct stored_checkpoint *made = self->checkpoint;
    size_t most = self->need ? made->chunk_count : self->file_count, count = 0;
    free(self->files);
    self->files = malloc((most + 1) * sizeof *self->files);
    if (!self->files)
        return alloc_fail(err, "for the files of %zu chunks", most);
    for (size_t i = 0; i < most; i++)
        self->files[i] = self->need ? made->chunks[i].file : (uint32_t)i;
    if (self->need)
        qsort(self->files, most, sizeof *self->files, compare_numbers);
    for (size_t i = 0; i < most; i++)
        if (count == 0 || self->files[count - 1] != self->files[i])
            self->files[count++] = self->files[i];
    self->files_wanted = count;
    made->files = calloc(count + 1, sizeof *made->files);
    return made->files ? 0 : alloc_fail(err, "for the names of %zu files", count);
}

static void take_file(struct stored_receiver *self, struct index_cursor *cursor, struct cb_err *err)
{
    struct stored_checkpoint *made = self->checkpoint;
    if (made && !made->files)
        cursor->failed |= choose_files(self, err) != 0;
    if (!made || !made->files || self->files_come >= self->file_count)
        cursor->failed = true;
    if (cursor->failed)
        return;
    if (made->file_count < self->files_wanted && self->files[made->file_count] == self->files_come) {
        made->files[made->file_count] = index_take_text(cursor, false);
        made->file_count += !cursor->failed;
    } else {
        uint64_t bytes = index_take(cursor, 4);
        cursor->failed |= bytes > cursor->left;
        cursor->at += cursor->failed ? 0 : bytes;
        cursor->left -= cursor->failed ? 0 : bytes;
    }
    self->files_come++;
}

int stored_block_read(struct stored_receiver *self, const void *bytes, size_t len, struct cb_err *err)
{
    struct index_cursor cursor = {.at = bytes, .left = len};
    struct cb_err why = {0};
    while (cursor.left > 0 && !cursor.failed) {
        switch (index_take(&cursor, 1)) {
        case ENTRY_HEAD:
            take_head(self, &cursor);
            break;
        case ENTRY_TENSOR:
            take_tensor(self, &cursor);
            break;
        case ENTRY_RUN:
            take_run(self, &cursor, &why);
            break;
        case ENTRY_FILE:
            take_file(self, &cursor, &why);
            break;
        default:
            cursor.failed = true;
        }
    }
    if (!cursor.failed)
        return 0;
    if (why.code)
        return cb_fail(err, why.code, "%s", why.message);
    return cb_fail(err, CB_ERR_CORRUPT, "what the checkpoint has did not arrive whole from rank 0");
}

int stored_receiver_take(struct stored_receiver *self, struct stored_checkpoint **checkpoint, struct cb_err *err)
{
    struct stored_checkpoint *made = self->checkpoint;
    if (!made || made->tensor_count != self->tensor_count || self->chunks_come != self->chunk_count ||
        self->files_come != self->file_count || made->file_count != self->files_wanted)
        return cb_fail(err, CB_ERR_CORRUPT, "what the checkpoint has did not arrive whole from rank 0");
    for (size_t i = 0; i < made->chunk_count; i++) {
        const uint32_t *found =
            bsearch(&made->chunks[i].file, self->files, self->files_wanted, sizeof *found, compare_numbers);
        made->chunks[i].file = (uint32_t)(found - self->files);
    }
    *checkpoint = made;
    self->checkpoint = NULL;
    return 0;
}

void stored_receiver_release(struct stored_receiver *self)
{
    stored_checkpoint_free(self->checkpoint);
    free(self->files);
    self->checkpoint = NULL;
    self->files = NULL;
}
