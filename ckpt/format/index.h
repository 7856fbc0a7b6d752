/* The bytes of an index of our own: of the raw format (ckpt/format/raw.c) and of a catalogue (ckpt/format/catalogue.c).
 *
 * A magic of 8 bytes, what is particular to it, the counts of tensors, chunks and files, these one after another, and a
 * CRC-32C of all that. Numbers have their least byte first, as the machines have that this runs on; texts begin with
 * their length. */
#ifndef CKPT_FORMAT_INDEX_H
#define CKPT_FORMAT_INDEX_H

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

#include "ckpt/stored/stored.h"
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

void index_put_numbers(struct buf *out, const uint64_t *values, uint32_t count);
void index_put_text(struct buf *out, const char *text); /* NULL: none */
void index_put_counts(struct buf *out, uint64_t tensors, uint64_t chunks, uint64_t files);
/* The checksum of all since `begin`. On failure nothing since then is left; `what` is how messages call it: "the index
 * of the checkpoint". */
int index_end(struct buf *out, size_t begin, const char *what, struct cb_err *err) CB_MUST_CHECK;

/* --- reading: a cursor that stays failed --- */

struct index_cursor {
    const unsigned char *at;
    size_t left;
    bool failed;
};

static inline uint64_t index_take(struct index_cursor *self, size_t bytes)
{
    uint64_t value = 0;
    if (self->failed || bytes > self->left) {
        self->failed = true;
        return 0;
    }
    memcpy(&value, self->at, bytes);
    self->at += bytes;
    self->left -= bytes;
    return value;
}

void index_take_numbers(struct index_cursor *self, uint64_t *values, uint32_t count);
/* NULL where there is none (which is a failure unless `optional`), and after a failure. */
char *index_take_text(struct index_cursor *self, bool optional);

/* What is particular to an index. */
struct index_form {
    const char *what; /* "index", "catalogue": in messages */
    char magic[INDEX_MAGIC_BYTES];
    /* What stands before the counts; sets format and mark. */
    void (*take_head)(struct index_cursor *cursor, struct stored_checkpoint *self);
    /* All but where its chunks begin. */
    void (*take_tensor)(struct index_cursor *cursor, struct stored_tensor *tensor);
    /* All but the dimensions of its box, which are set. */
    void (*take_chunk)(struct index_cursor *cursor, struct stored_chunk *chunk);
};
bool index_is(const struct index_form *form, const void *bytes, size_t len);
/* Of what index_is says yes to. */
int index_read(const struct index_form *form, const char *name, const void *bytes, size_t len,
               struct stored_checkpoint **checkpoint, struct cb_err *err) CB_MUST_CHECK;

#endif
