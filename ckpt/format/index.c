/* Writes and reads the common parts of an index: checksum, counts, tensors, chunks and files. */
#include "ckpt/format/index.h"

#include <stdlib.h>

#include "ckpt/stored.h"
#include "core/hash.h"

#define VERSION_AT (INDEX_MAGIC_BYTES - 1) /* in the magic */
#define WITHOUT_SAVE_ID '1'

/* --- writing --- */

void index_put_head(struct buf *out, const struct index_form *form, uint64_t save_id)
{
    buf_append(out, form->magic, sizeof form->magic);
    index_put_u64(out, save_id);
}

void index_put_numbers(struct buf *out, const uint64_t *values, uint32_t count)
{
    buf_append(out, values, count * sizeof *values);
}

void index_put_text(struct buf *out, const char *text)
{
    index_put_u32(out, text ? (uint32_t)strlen(text) : INDEX_NO_TEXT);
    if (text)
        buf_append_text(out, text);
}

void index_put_counts(struct buf *out, uint64_t tensors, uint64_t chunks, uint64_t files)
{
    index_put_u64(out, tensors);
    index_put_u64(out, chunks);
    index_put_u64(out, files);
}

int index_end(struct buf *out, size_t begin, const char *what, struct cb_err *err)
{
    int code = buf_check(out, what, err);
    if (!code) {
        index_put_u32(out, crc32c(0, out->data + begin, out->len - begin));
        code = buf_check(out, what, err);
    }
    if (code)
        out->len = begin;
    return code;
}

/* --- reading --- */

void index_take_numbers(struct index_cursor *self, uint64_t *values, uint32_t count)
{
    for (uint32_t i = 0; i < count; i++)
        values[i] = index_take(self, sizeof values[i]);
}

char *index_take_text(struct index_cursor *self, bool optional)
{
    size_t len = index_take(self, sizeof(uint32_t));
    if (optional && len == INDEX_NO_TEXT)
        return NULL;
    if (self->failed || len > self->left || memchr(self->at, '\0', len)) {
        self->failed = true;
        return NULL;
    }
    char *text = strndup((const char *)self->at, len);
    self->failed = !text;
    self->at += len;
    self->left -= len;
    return text;
}

void index_take_tensor(struct index_cursor *self, size_t width, struct stored_tensor *tensor)
{
    tensor->fqn = index_take_text(self, false);
    tensor->is_bytes = index_take(self, width) != 0;
    uint64_t dtype = index_take(self, width), dims = index_take(self, width);
    if (dtype >= DTYPE_COUNT || dims > CKPT_MAX_DIMS) {
        self->failed = true;
        return;
    }
    tensor->dtype = (enum dtype)dtype;
    tensor->dims = (uint32_t)dims;
    index_take_numbers(self, tensor->shape, tensor->dims);
}

bool index_is(const struct index_form *form, const void *bytes, size_t len)
{
    const char *version = (const char *)bytes + VERSION_AT;
    return len >= INDEX_MAGIC_BYTES && memcmp(bytes, form->magic, VERSION_AT) == 0 &&
           (*version == WITHOUT_SAVE_ID || *version == form->magic[VERSION_AT]);
}

/* Everything after the counts, which cannot exceed the remaining bytes. */
static void take_all(const struct index_form *form, struct index_cursor *cursor, struct stored_checkpoint *self)
{
    uint64_t chunks = 0;
    for (size_t i = 0; i < self->tensor_count && !cursor->failed; i++) {
        struct stored_tensor *tensor = &self->tensors[i];
        form->take_tensor(cursor, tensor);
        tensor->first_chunk = (uint32_t)chunks;
        chunks += tensor->chunk_count;
    }
    if (chunks != self->chunk_count)
        cursor->failed = true;
    for (size_t i = 0; i < self->tensor_count && !cursor->failed; i++) {
        const struct stored_tensor *tensor = &self->tensors[i];
        for (uint32_t k = 0; k < tensor->chunk_count && !cursor->failed; k++) {
            struct stored_chunk *chunk = &self->chunks[tensor->first_chunk + k];
            chunk->region.dims = tensor->dims;
            form->take_chunk(cursor, chunk);
        }
    }
    for (size_t i = 0; i < self->file_count && !cursor->failed; i++)
        self->files[i] = index_take_text(cursor, false);
    if (cursor->left != 0)
        cursor->failed = true;
}

static int take_checkpoint(const struct index_form *form, const char *name, struct index_cursor *cursor,
                           struct stored_checkpoint *self, struct cb_err *err)
{
    char magic[INDEX_MAGIC_BYTES];
    for (size_t i = 0; i < sizeof magic; i++)
        magic[i] = (char)index_take(cursor, 1);
    if (magic[VERSION_AT] != WITHOUT_SAVE_ID)
        self->save_id = index_take(cursor, sizeof self->save_id);
    form->take_head(cursor, self);
    uint64_t tensors = index_take(cursor, 8), chunks = index_take(cursor, 8), files = index_take(cursor, 8);
    if (tensors > cursor->left || chunks > cursor->left || files > cursor->left)
        return cb_fail(err, CB_ERR_FORMAT, "%s: the %s counts more than it can hold", name, form->what);
    self->tensors = calloc(tensors + 1, sizeof *self->tensors);
    self->chunks = calloc(chunks + 1, sizeof *self->chunks);
    self->files = calloc(files + 1, sizeof *self->files);
    if (!self->tensors || !self->chunks || !self->files)
        return cb_fail(err, CB_ERR_MEMORY, "%s: no memory for the %s", name, form->what);
    self->tensor_count = tensors;
    self->chunk_count = chunks;
    self->file_count = files;
    take_all(form, cursor, self);
    if (cursor->failed)
        return cb_fail(err, CB_ERR_FORMAT, "%s: the %s is none of a checkpoint", name, form->what);
    return stored_checkpoint_settle(self, name, err);
}

int index_read(const struct index_form *form, const char *name, const void *bytes, size_t len,
               struct stored_checkpoint **checkpoint, struct cb_err *err)
{
    uint32_t crc = 0;
    if (len < INDEX_MAGIC_BYTES + sizeof crc)
        return cb_fail(err, CB_ERR_CORRUPT, "%s: the %s is cut off", name, form->what);
    memcpy(&crc, (const char *)bytes + len - sizeof crc, sizeof crc);
    if (crc32c(0, bytes, len - sizeof crc) != crc)
        return cb_fail(err, CB_ERR_CORRUPT, "%s: the %s is damaged: its checksum is wrong", name, form->what);
    struct index_cursor cursor = {.at = bytes, .left = len - sizeof crc};
    struct stored_checkpoint *self = calloc(1, sizeof *self);
    int code = self ? take_checkpoint(form, name, &cursor, self, err)
                    : cb_fail(err, CB_ERR_MEMORY, "%s: no memory for the %s", name, form->what);
    if (code)
        stored_checkpoint_free(self);
    else
        *checkpoint = self;
    return code;
}
