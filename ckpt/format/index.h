/* The bytes of our own indexes: of the raw format and of a catalogue (ckpt/format/catalogue.c).
 *
 * A magic of 8 bytes, the save id (not in version 1, the magic's last character), a part specific to the index, the
 * counts of tensors, chunks and files, these in sequence, and a CRC-32C of all of it. Numbers are little-endian, like
 * the machines that this runs on; texts start with their length. */
#ifndef CKPT_FORMAT_INDEX_H
#define CKPT_FORMAT_INDEX_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "ckpt/format/byte_source.h"
#include "ckpt/stored_sink.h"
#include "core/buf.h"
#include "core/err.h"

#define INDEX_MAGIC_BYTES 8
#define INDEX_NO_TEXT UINT32_MAX

/* --- writing: to a buffer, which index_end checks --- */

static inline void index_put_u32(struct buf *out, uint32_t value)
{
    buf_append(out, &value, sizeof value);
}

static inline void index_put_u64(struct buf *out, uint64_t value)
{
    buf_append(out, &value, sizeof value);
}

struct index_form;
/* Magic and save id. */
void index_put_head(struct buf *out, const struct index_form *form, uint64_t save_id);
void index_put_numbers(struct buf *out, const uint64_t *values, uint32_t count);
void index_put_text(struct buf *out, const char *text); /* NULL for an absent text */
void index_put_counts(struct buf *out, uint64_t tensors, uint64_t chunks, uint64_t files);
/* Appends the checksum of everything since `begin`. On failure everything since then is removed; `what` names it in
 * messages: "the index of the checkpoint". */
int index_end(struct buf *out, size_t begin, const char *what, struct cb_err *err) CB_MUST_CHECK;

/* --- reading: a cursor that stays failed --- */

struct index_cursor {
    struct byte_window window;
    bool failed;
    struct cb_err *err; /* of a read that failed */
};

static inline uint64_t index_take(struct index_cursor *self, size_t bytes)
{
    uint64_t value = 0;
    const unsigned char *at = self->failed ? NULL : byte_window_take(&self->window, bytes, self->err);
    if (at)
        memcpy(&value, at, bytes);
    self->failed |= !at;
    return value;
}

void index_take_numbers(struct index_cursor *self, uint64_t *values, uint32_t count);
/* NULL if absent (which is an error unless `optional`), and after a failure. */
char *index_take_text(struct index_cursor *self, bool optional);
/* A tensor's name, kind, type and shape; kind, type and number of dimensions have `width` bytes each. */
void index_take_tensor(struct index_cursor *self, size_t width, struct stored_tensor *tensor);

/* The part that is specific to an index. */
struct index_form {
    const char *what;              /* "index", "catalogue": for messages */
    char magic[INDEX_MAGIC_BYTES]; /* "CKPTRAW2" */
    /* Reads the part before the counts; sets format and mark. */
    void (*take_head)(struct index_cursor *cursor, struct stored_checkpoint *self);
    /* All members except the start of its chunks. */
    void (*take_tensor)(struct index_cursor *cursor, struct stored_tensor *tensor);
    /* All members except the dimensions of its region, which are set. */
    void (*take_chunk)(struct index_cursor *cursor, struct stored_chunk *chunk);
};
bool index_is(const struct index_form *form, const void *bytes, size_t len);
/* For input that index_is accepts. Passes nothing on if its checksum is wrong. */
int index_pass(const struct index_form *form, const char *name, const struct byte_source *source,
               const struct stored_sink *sink, struct cb_err *err) CB_MUST_CHECK;

#endif
