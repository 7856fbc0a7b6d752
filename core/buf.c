/* A growable byte buffer with a maximum. */
#include "core/buf.h"

#include "core/path.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* The contents of an empty buffer, so that `data` is always a valid string. Never written to. */
static char empty_text[1] = "";

void buf_init(struct buf *self, size_t max_bytes)
{
    *self = (struct buf){.data = empty_text, .max = max_bytes};
}

void buf_release(struct buf *self)
{
    if (self->capacity)
        free(self->data);
    buf_init(self, self->max);
}

void buf_clear(struct buf *self)
{
    self->len = 0;
    self->code = 0;
    if (self->capacity)
        self->data[0] = '\0';
}

/* Makes room for `more` bytes and a NUL. On failure returns false and keeps the reason. */
static bool reserve(struct buf *self, size_t more)
{
    if (self->code)
        return false;
    if (more > self->max - self->len) {
        self->code = CB_ERR_MEMORY;
        return false;
    }
    size_t needed = self->len + more + 1;
    if (needed <= self->capacity)
        return true;
    size_t capacity = self->capacity ? self->capacity : 64;
    while (capacity < needed)
        capacity = capacity > SIZE_MAX / 2 ? needed : capacity * 2;
    char *data = realloc(self->capacity ? self->data : NULL, capacity);
    if (!data) {
        self->code = CB_ERR_MEMORY;
        return false;
    }
    self->data = data;
    self->capacity = capacity;
    return true;
}

void *buf_extend(struct buf *self, size_t len)
{
    if (!reserve(self, len))
        return NULL;
    char *place = self->data + self->len;
    self->len += len;
    self->data[self->len] = '\0';
    return place;
}

void buf_append(struct buf *self, const void *bytes, size_t len)
{
    void *place = buf_extend(self, len);
    if (place && len)
        memcpy(place, bytes, len);
}

void buf_append_text(struct buf *self, const char *text)
{
    buf_append(self, text, strlen(text));
}

void buf_append_char(struct buf *self, char c)
{
    buf_append(self, &c, 1);
}

void buf_vprintf(struct buf *self, const char *format, va_list arguments)
{
    va_list again;
    va_copy(again, arguments);
    int len = vsnprintf(NULL, 0, format, arguments);
    if (len < 0)
        self->code = CB_ERR_INTERNAL;
    else if (reserve(self, (size_t)len)) {
        vsnprintf(self->data + self->len, (size_t)len + 1, format, again);
        self->len += (size_t)len;
    }
    va_end(again);
}

void buf_printf(struct buf *self, const char *format, ...)
{
    va_list arguments;
    va_start(arguments, format);
    buf_vprintf(self, format, arguments);
    va_end(arguments);
}

void buf_append_quoted(struct buf *self, const char *text)
{
    buf_append_char(self, '\'');
    for (; *text; text++) {
        if (*text == '\'')
            buf_append_text(self, "'\\''");
        else
            buf_append_char(self, *text);
    }
    buf_append_char(self, '\'');
}

void text_last_line(const char *text, const char *frame, char *line, size_t bytes)
{
    line[0] = '\0';
    for (const char *at = text; *at;) {
        size_t len = strcspn(at, "\n");
        if (strspn(at, frame) < len)
            snprintf(line, bytes, "%.*s", (int)(len < bytes ? len : bytes - 1), at);
        at += len + (at[len] == '\n');
    }
}

int buf_check(const struct buf *self, const char *what, struct cb_err *err)
{
    if (!self->code)
        return 0;
    return cb_fail(err, self->code, "%s does not fit: no memory, or over its limit of %zu bytes", what, self->max);
}

char *buf_take(struct buf *self)
{
    char *data = self->capacity ? self->data : strdup("");
    self->capacity = 0;
    buf_init(self, self->max);
    return data;
}

static int read_all(struct buf *self, int fd, const char *path, struct cb_err *err)
{
    char chunk[65536];
    for (;;) {
        ssize_t got = read(fd, chunk, sizeof chunk);
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            return cb_fail_errno(err, errno, "reading %s", path);
        if (got == 0)
            return buf_check(self, path, err);
        buf_append(self, chunk, (size_t)got);
        if (self->code)
            return buf_check(self, path, err);
    }
}

int buf_read_file(struct buf *self, const char *path, struct cb_err *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return cb_fail_errno(err, errno, "opening %s", path);
    size_t before = self->len;
    int rc = read_all(self, fd, path, err);
    if (rc)
        self->len = before;
    close(fd);
    return rc;
}

bool fd_write_all(int fd, const void *bytes, size_t len)
{
    for (size_t done = 0; done < len;) {
        ssize_t written = write(fd, (const char *)bytes + done, len - done);
        if (written < 0 && errno != EINTR)
            return false;
        done += written > 0 ? (size_t)written : 0;
    }
    return true;
}

static int sync_folder_of(const char *path, struct cb_err *err)
{
    const char *slash = strrchr(path, '/');
    char folder[PATH_MAX];
    size_t len = slash ? (size_t)(slash - path) : 0;
    if (len >= sizeof folder)
        return cb_fail(err, CB_ERR_USAGE, "the path %s is too long", path);
    memcpy(folder, path, len);
    folder[len] = '\0';
    if (!slash)
        strcpy(folder, ".");
    else if (len == 0)
        strcpy(folder, "/");
    int fd = open(folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0)
        return cb_fail_errno(err, errno, "opening the folder %s", folder);
    int rc = 0;
    if (fsync(fd) < 0 && errno != EINVAL) /* some file systems cannot sync a folder */
        rc = cb_fail_errno(err, errno, "syncing the folder %s", folder);
    close(fd);
    return rc;
}

int buf_write_file(const struct buf *self, const char *path, unsigned mode, struct cb_err *err)
{
    int rc = buf_check(self, path, err);
    if (rc)
        return rc;
    char temporary[PATH_MAX];
    if (path_format(temporary, sizeof temporary, err, "%s.tmp", path))
        return CB_ERR_USAGE;
    int fd = open(temporary, O_WRONLY | O_CREAT | O_TRUNC | O_CLOEXEC, (mode_t)mode);
    if (fd < 0)
        return cb_fail_errno(err, errno, "creating %s", temporary);
    if (!fd_write_all(fd, self->data, self->len))
        rc = cb_fail_errno(err, errno, "writing %s", temporary);
    else if (fsync(fd) < 0)
        rc = cb_fail_errno(err, errno, "syncing %s", temporary);
    close(fd);
    if (!rc && rename(temporary, path) < 0)
        rc = cb_fail_errno(err, errno, "renaming %s to %s", temporary, path);
    if (rc) {
        unlink(temporary);
        return rc;
    }
    return sync_folder_of(path, err);
}
