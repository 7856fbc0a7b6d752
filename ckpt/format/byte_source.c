/* Reads a source in pieces. A piece is read behind what is left of the one before, at an aligned address. */
#include "ckpt/format/byte_source.h"

#include <assert.h>
#include <string.h>

#include "core/alloc.h"

#define ALIGNMENT 4096

struct byte_source byte_source_of(const void *bytes, size_t len)
{
    return (struct byte_source){.len = len, .bytes = bytes ? bytes : ""};
}

int byte_window_init(struct byte_window *self, const struct byte_source *source, struct cb_err *err)
{
    *self = (struct byte_window){.source = source};
    if (!source->bytes) {
        self->memory = aligned_alloc(ALIGNMENT, 2 * BYTE_PIECE);
        if (!self->memory)
            return alloc_fail(err, "to read %llu bytes in pieces", (unsigned long long)source->len);
    }
    byte_window_rewind(self);
    return 0;
}

void byte_window_release(struct byte_window *self)
{
    free(self->memory);
    self->memory = NULL;
}

void byte_window_rewind(struct byte_window *self)
{
    bool in_memory = self->source->bytes;
    self->bytes = in_memory ? self->source->bytes : (const unsigned char *)self->memory + BYTE_PIECE;
    self->have = in_memory ? (size_t)self->source->len : 0;
    self->offset = self->have;
    self->at = 0;
}

/* The next piece, behind what is left. */
static bool read_piece(struct byte_window *self, struct cb_err *err)
{
    uint64_t left = self->source->len - self->offset, bytes = left < BYTE_PIECE ? left : BYTE_PIECE;
    size_t kept = self->have - self->at;
    char *piece = self->memory + BYTE_PIECE;
    assert(self->memory); /* a source in memory has no next piece */
    memmove(piece - kept, self->bytes + self->at, kept);
    self->bytes = (const unsigned char *)piece - kept;
    self->at = 0;
    self->have = kept;
    self->code = self->source->read(self->source->context, self->offset, piece, bytes, err);
    if (self->code)
        return false;
    self->have += bytes;
    self->offset += bytes;
    return true;
}

bool byte_window_fill(struct byte_window *self, uint64_t count, struct cb_err *err)
{
    if (count > byte_window_left(self) || (self->memory && count > BYTE_PIECE) || self->code)
        return false;
    while (self->have - self->at < count) {
        if (!read_piece(self, err))
            return false;
    }
    return true;
}

bool byte_window_skip(struct byte_window *self, uint64_t count, struct cb_err *err)
{
    if (count > byte_window_left(self) || self->code)
        return false;
    while (count > self->have - self->at) {
        count -= self->have - self->at;
        self->at = self->have;
        if (!read_piece(self, err))
            return false;
    }
    self->at += count;
    return true;
}
