/* A growable byte buffer with a maximum, always NUL-terminated.
 *
 * Appends return no error: the first failure (maximum reached, or no memory) is kept, later appends do nothing, and
 * buf_check() reports the failure once at the end. Not thread-safe. */
#ifndef CORE_BUF_H
#define CORE_BUF_H

#include <stdarg.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

struct buf {
    char *data; /* never NULL after buf_init; data[len] == 0 */
    size_t len;
    size_t capacity;
    size_t max; /* bytes; an append beyond this fails */
    int code;   /* 0, or the code of the first failed append */
};

void buf_init(struct buf *self, size_t max_bytes);
void buf_release(struct buf *self);
void buf_clear(struct buf *self); /* len = 0; clears the failure, keeps the memory */

void buf_append(struct buf *self, const void *bytes, size_t len);
void buf_append_text(struct buf *self, const char *text);
void buf_append_char(struct buf *self, char c);
void buf_printf(struct buf *self, const char *format, ...) CB_PRINTF(2, 3);
void buf_vprintf(struct buf *self, const char *format, va_list arguments);
/* Appends `text` as one word of a POSIX shell; any bytes but NUL. */
void buf_append_quoted(struct buf *self, const char *text);

/* Appends `len` bytes for the caller to fill, and returns their address; NULL after a failure. The pointer is valid
 * until the next append. */
void *buf_extend(struct buf *self, size_t len);

/* Copies the last line of a text that has a character not in `frame`, truncated to `bytes`; "" if no line has one. */
void text_last_line(const char *text, const char *frame, char *line, size_t bytes);

/* 0, or CB_ERR_MEMORY with a message that contains `what` and the maximum. */
int buf_check(const struct buf *self, const char *what, struct cb_err *err) CB_MUST_CHECK;

/* Transfers the bytes to the caller, who frees them with free(); the buffer is empty afterwards. */
char *buf_take(struct buf *self);

/* Appends a whole file of at most self->max bytes. */
int buf_read_file(struct buf *self, const char *path, struct cb_err *err) CB_MUST_CHECK;

/* Writes all bytes to a descriptor; false with errno. */
bool fd_write_all(int fd, const void *bytes, size_t len);

/* Writes the bytes to PATH.tmp, fsyncs, renames to PATH and fsyncs the folder: readers see the old file or the
 * complete new one. `mode` as for open(2). */
int buf_write_file(const struct buf *self, const char *path, unsigned mode, struct cb_err *err) CB_MUST_CHECK;

#endif
