/* Bytes that a parser reads in order: all in memory, or in pieces from a file, of which a window is in memory. */
#ifndef CKPT_FORMAT_BYTE_SOURCE_H
#define CKPT_FORMAT_BYTE_SOURCE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

#ifdef FUZZING_BUILD_MODE_UNSAFE_FOR_PRODUCTION /* small inputs have several pieces, too */
#define BYTE_PIECE ((size_t)4096)
#else
#define BYTE_PIECE ((size_t)4 << 20)
#endif

struct byte_source {
    uint64_t len;
    const void *bytes; /* all of them; NULL: `read` reads them */
    /* Reads bytes at an offset that is a multiple of BYTE_PIECE, to memory aligned to 4 KiB. */
    int (*read)(void *context, uint64_t offset, void *memory, uint64_t bytes, struct cb_err *err);
    void *context;
};

struct byte_source byte_source_of(const void *bytes, size_t len);

/* A position in a source, and the bytes around it. */
struct byte_window {
    const struct byte_source *source;
    const unsigned char *bytes; /* in memory: `have` of them, of which `at` have been taken */
    size_t have, at;
    uint64_t offset; /* of bytes[have] in the source: what is read next */
    char *memory;    /* BYTE_PIECE for what was not taken of the last piece, and then a piece; NULL: all is in memory */
    int code;        /* of a read that failed */
};

int byte_window_init(struct byte_window *self, const struct byte_source *source, struct cb_err *err) CB_MUST_CHECK;
void byte_window_release(struct byte_window *self);
void byte_window_rewind(struct byte_window *self);

/* The position in the source. */
static inline uint64_t byte_window_position(const struct byte_window *self)
{
    return self->offset - (self->have - self->at);
}

static inline uint64_t byte_window_left(const struct byte_window *self)
{
    return self->source->len - byte_window_position(self);
}

/* Reads on until `count` bytes are there. False if the source ends before, if a read fails (`code`), or if they are
 * more than BYTE_PIECE and not in memory anyway. */
bool byte_window_fill(struct byte_window *self, uint64_t count, struct cb_err *err);
/* The next `count` bytes, valid until the next call; NULL as above. */
static inline const unsigned char *byte_window_take(struct byte_window *self, uint64_t count, struct cb_err *err)
{
    if (count > self->have - self->at && !byte_window_fill(self, count, err))
        return NULL;
    self->at += count;
    return self->bytes + self->at - count;
}
/* Passes over any number of bytes. */
bool byte_window_skip(struct byte_window *self, uint64_t count, struct cb_err *err);

#endif
