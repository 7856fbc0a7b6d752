/* Writes and reads the common parts of an index: checksum, counts, tensors, chunks and files. */
#include "ckpt/format/index.h"

#include "core/alloc.h"
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
    char *text = !self->failed && len <= byte_window_left(&self->window) ? malloc(len + 1) : NULL;
    for (size_t done = 0, bytes; text && done < len; done += bytes) { /* a long one does not fit the window */
        bytes = len - done < BYTE_PIECE ? len - done : BYTE_PIECE;
        const unsigned char *at = byte_window_take(&self->window, bytes, self->err);
        if (at && !memchr(at, '\0', bytes)) {
            memcpy(text + done, at, bytes);
        } else {
            free(text);
            text = NULL;
        }
    }
    if (text)
        text[len] = '\0';
    self->failed |= !text;
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

#define CRC_BYTES 4

struct index_reader {
    const struct index_form *form;
    const char *name;
    struct index_cursor cursor;
    const struct stored_sink *sink;
    struct {
        uint32_t dims, chunk_count;
    } * tensors;
    uint64_t tensor_count, chunk_count, file_count;
    struct stored_chunk batch[STORED_AT_ONCE];
    struct cb_err *err;
};

static int check_crc(struct index_reader *self)
{
    struct byte_window *window = &self->cursor.window;
    uint32_t crc = 0, stored;
    uint64_t left;
    if (byte_window_left(window) < INDEX_MAGIC_BYTES + CRC_BYTES)
        return cb_fail(self->err, CB_ERR_CORRUPT, "%s: the %s is cut off", self->name, self->form->what);
    while ((left = byte_window_left(window) - CRC_BYTES) > 0) {
        uint64_t bytes = left < BYTE_PIECE ? left : BYTE_PIECE;
        const unsigned char *at = byte_window_take(window, bytes, self->err);
        if (!at)
            return window->code;
        crc = crc32c(crc, at, bytes);
    }
    const unsigned char *last = byte_window_take(window, CRC_BYTES, self->err);
    if (!last)
        return window->code;
    memcpy(&stored, last, CRC_BYTES);
    byte_window_rewind(window);
    if (stored != crc)
        return cb_fail(self->err, CB_ERR_CORRUPT, "%s: the %s is damaged: its checksum is wrong", self->name,
                       self->form->what);
    return 0;
}

/* The failure of a sink or of reading, or else of the index. */
static int why(const struct index_reader *self, int code)
{
    if (code || self->cursor.window.code)
        return code ? code : self->cursor.window.code;
    return self->cursor.failed
               ? cb_fail(self->err, CB_ERR_FORMAT, "%s: the %s is none of a checkpoint", self->name, self->form->what)
               : 0;
}

static int pass_tensors(struct index_reader *self)
{
    const struct stored_sink *sink = self->sink;
    uint64_t chunks = 0;
    int code = 0;
    for (uint64_t i = 0; i < self->tensor_count && !code && !self->cursor.failed; i++) {
        struct stored_tensor tensor = {0};
        self->form->take_tensor(&self->cursor, &tensor);
        self->tensors[i].dims = tensor.dims;
        self->tensors[i].chunk_count = tensor.chunk_count;
        chunks += tensor.chunk_count;
        if (!self->cursor.failed)
            code = sink->tensor(sink->context, &tensor, self->err);
        if (!code && tensor.path)
            code = sink->path(sink->context, (uint32_t)i, tensor.path, self->err);
        free(tensor.fqn);
        free(tensor.literal);
        free(tensor.path);
    }
    self->cursor.failed |= chunks != self->chunk_count;
    return why(self, code);
}

static int pass_chunks(struct index_reader *self)
{
    int code = 0;
    for (uint64_t i = 0; i < self->tensor_count; i++) {
        for (uint32_t k = 0, count; k < self->tensors[i].chunk_count && !code && !self->cursor.failed; k += count) {
            uint32_t left = self->tensors[i].chunk_count - k;
            count = left < STORED_AT_ONCE ? left : STORED_AT_ONCE;
            for (uint32_t n = 0; n < count; n++) {
                self->batch[n] = (struct stored_chunk){.region.dims = self->tensors[i].dims};
                self->form->take_chunk(&self->cursor, &self->batch[n]);
            }
            if (!self->cursor.failed)
                code = self->sink->chunks(self->sink->context, (uint32_t)i, STORED_ALL, self->batch, count, self->err);
        }
    }
    return why(self, code);
}

static int pass_files(struct index_reader *self)
{
    int code = 0;
    for (uint64_t i = 0; i < self->file_count && !code && !self->cursor.failed; i++) {
        char *file = index_take_text(&self->cursor, false);
        if (file)
            code = self->sink->file(self->sink->context, file, self->err);
        free(file);
    }
    self->cursor.failed |= !code && byte_window_left(&self->cursor.window) != CRC_BYTES;
    return why(self, code);
}

static int pass_all(struct index_reader *self)
{
    struct index_cursor *cursor = &self->cursor;
    struct stored_checkpoint facts = {0};
    char magic[INDEX_MAGIC_BYTES];
    int code = check_crc(self);
    if (code)
        return code;
    for (size_t i = 0; i < sizeof magic; i++)
        magic[i] = (char)index_take(cursor, 1);
    if (magic[VERSION_AT] != WITHOUT_SAVE_ID)
        facts.save_id = index_take(cursor, sizeof facts.save_id);
    self->form->take_head(cursor, &facts);
    self->tensor_count = index_take(cursor, 8);
    self->chunk_count = index_take(cursor, 8);
    self->file_count = index_take(cursor, 8);
    uint64_t left = byte_window_left(&cursor->window);
    if (self->tensor_count > left || self->chunk_count > left || self->file_count > left)
        return cb_fail(self->err, CB_ERR_FORMAT, "%s: the %s counts more than it can hold", self->name,
                       self->form->what);
    self->tensors = calloc(self->tensor_count + 1, sizeof *self->tensors);
    if (!self->tensors)
        return cb_fail(self->err, CB_ERR_MEMORY, "%s: no memory for the %s", self->name, self->form->what);
    code = pass_tensors(self);
    code = code ? code : pass_chunks(self);
    code = code ? code : pass_files(self);
    return code ? code : self->sink->end(self->sink->context, &facts, self->err);
}

int index_pass(const struct index_form *form, const char *name, const struct byte_source *source,
               const struct stored_sink *sink, struct cb_err *err)
{
    struct index_reader *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "to read %s", name);
    self->form = form;
    self->name = name;
    self->sink = sink;
    self->err = self->cursor.err = err;
    int code = byte_window_init(&self->cursor.window, source, err);
    if (!code)
        code = pass_all(self);
    byte_window_release(&self->cursor.window);
    free(self->tensors);
    free(self);
    return code;
}
