/* Reads tar archives. */
#include "jobs/ssh/archive.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/buf.h"
#include "core/path.h"

#define BLOCK_BYTES 512
#define DEPTH_MAX 16 /* limit of nested folders, as when copying file by file */
#define PAX_NUMBER_MAX 20

/* Offsets and sizes of the header's members. */
enum {
    NAME = 0,
    NAME_BYTES = 100,
    MODE = 100,
    MODE_BYTES = 8,
    SIZE = 124,
    SIZE_BYTES = 12,
    SUM = 148,
    SUM_BYTES = 8,
    TYPE = 156,
    MAGIC = 257,
    PREFIX = 345,
    PREFIX_BYTES = 155,
};

/* Extension headers that precede an entry and extend its header. */
struct extras {
    char path[PATH_MAX]; /* "" if absent */
    bool has_size;
    uint64_t size;
};

static int no_archive(const struct archive *self, const char *what, struct cb_err *err)
{
    return cb_fail(err, CB_ERR_FORMAT, "the archive is damaged at byte %zu: %s", self->at, what);
}

/* Octal digits between blanks and zero bytes or, if the first bit is set, a binary number. */
static bool read_number(const char *field, size_t bytes, uint64_t *value)
{
    const unsigned char *at = (const unsigned char *)field, *end = at + bytes;
    uint64_t sum = 0;
    if (*at & 0x80) {
        if (*at++ != 0x80)
            return false; /* negative, or larger than any valid size */
        for (; at < end; at++) {
            if (sum >> 56)
                return false;
            sum = sum << 8 | *at;
        }
        *value = sum;
        return true;
    }
    while (at < end && *at == ' ')
        at++;
    for (; at < end && *at >= '0' && *at <= '7'; at++) {
        if (sum >> 60)
            return false;
        sum = sum << 3 | (uint64_t)(*at - '0');
    }
    *value = sum;
    return at == end || *at == ' ' || *at == '\0';
}

/* The sum of a header's bytes, with its own field counted as blanks. */
static bool sum_is_right(const char *header)
{
    uint64_t wanted, sum = 0;
    for (size_t i = 0; i < BLOCK_BYTES; i++)
        sum += i >= SUM && i < SUM + SUM_BYTES ? ' ' : (unsigned char)header[i];
    return read_number(header + SUM, SUM_BYTES, &wanted) && wanted == sum;
}

static bool is_empty(const char *block)
{
    for (size_t i = 0; i < BLOCK_BYTES; i++)
        if (block[i])
            return false;
    return true;
}

/* Strips trailing slashes; false if it is not a plain relative path. */
static bool tidy_path(char *path)
{
    size_t len = strlen(path), depth = 0;
    while (len > 1 && path[len - 1] == '/')
        path[--len] = '\0';
    for (const char *at = path;; at++) {
        size_t part = strcspn(at, "/");
        bool dots = (part == 1 && at[0] == '.') || (part == 2 && at[0] == '.' && at[1] == '.');
        if (part == 0 || part > NAME_MAX || dots || ++depth > DEPTH_MAX + 2)
            return false;
        at += part;
        if (!*at)
            return true;
    }
}

/* Copies bytes that may end in a zero to a text; false if they do not fit or contain another zero. */
static bool take_text(const char *bytes, size_t len, char *text, size_t room)
{
    size_t used = strnlen(bytes, len);
    if (used >= room)
        return false;
    for (size_t i = used; i < len; i++)
        if (bytes[i])
            return false;
    memcpy(text, bytes, used);
    text[used] = '\0';
    return true;
}

/* Records "LENGTH key=value\n", one after the other. */
static bool read_pax(const char *bytes, size_t len, struct extras *extras)
{
    while (len) {
        char number[PAX_NUMBER_MAX + 1], *end;
        const char *blank = memchr(bytes, ' ', len);
        if (!blank || blank == bytes || blank - bytes > PAX_NUMBER_MAX)
            return false;
        snprintf(number, sizeof number, "%.*s", (int)(blank - bytes), bytes);
        unsigned long record = strtoul(number, &end, 10);
        size_t before = (size_t)(blank - bytes) + 1;
        if (*end || record <= before || record > len || bytes[record - 1] != '\n')
            return false;
        const char *key = blank + 1, *stop = bytes + record - 1;
        const char *equals = memchr(key, '=', (size_t)(stop - key));
        if (!equals)
            return false;
        size_t value_len = (size_t)(stop - equals) - 1;
        if (equals - key == 4 && memcmp(key, "path", 4) == 0) {
            if (value_len == 0 || !take_text(equals + 1, value_len, extras->path, sizeof extras->path))
                return false;
        } else if (equals - key == 4 && memcmp(key, "size", 4) == 0) {
            if (!take_text(equals + 1, value_len, number, sizeof number) || !*number)
                return false;
            extras->size = strtoull(number, &end, 10);
            extras->has_size = true;
            if (*end || *number == '-')
                return false;
        }
        bytes += record;
        len -= record;
    }
    return true;
}

static int fill_entry(const struct archive *self, const char *header, const struct extras *extras,
                      struct archive_entry *entry, struct cb_err *err)
{
    uint64_t mode;
    const char type = header[TYPE];
    bool posix = memcmp(header + MAGIC, "ustar\0", 6) == 0;
    int prefix = posix ? (int)strnlen(header + PREFIX, PREFIX_BYTES) : 0;
    if (*extras->path)
        snprintf(entry->path, sizeof entry->path, "%s", extras->path);
    else
        snprintf(entry->path, sizeof entry->path, "%.*s%s%.*s", prefix, header + PREFIX, prefix ? "/" : "",
                 (int)strnlen(header + NAME, NAME_BYTES), header + NAME);
    size_t len = strlen(entry->path);
    bool ends_in_slash = len && entry->path[len - 1] == '/';
    if (!read_number(header + MODE, MODE_BYTES, &mode))
        return no_archive(self, "permissions", err);
    if (!tidy_path(entry->path))
        return no_archive(self, "a name that leads elsewhere", err);
    entry->mode = (unsigned)(mode & 0777);
    switch (type) {
    case '0':
    case '\0':
    case '7':
        entry->kind = ends_in_slash ? ARCHIVE_FOLDER : ARCHIVE_FILE;
        return 0;
    case '5':
        entry->kind = ARCHIVE_FOLDER;
        return 0;
    case '2':
    case '3':
    case '4':
    case '6':
        entry->kind = ARCHIVE_OTHER;
        return 0;
    default:
        return cb_fail(err, CB_ERR_UNSUPPORTED, "%s is of a kind ('%c') that is not read from archives", entry->path,
                       type > ' ' && type < 0x7f ? type : '?');
    }
}

int archive_next(struct archive *self, struct archive_entry *entry, bool *more, struct cb_err *err)
{
    struct extras extras = {.path = ""};
    for (;;) {
        const char *header = self->bytes + self->at, *bytes = header + BLOCK_BYTES;
        uint64_t size;
        if (self->len - self->at < BLOCK_BYTES)
            return no_archive(self, "it is cut", err);
        *more = !is_empty(header);
        if (!*more)
            return 0;
        if (!sum_is_right(header) || !read_number(header + SIZE, SIZE_BYTES, &size))
            return no_archive(self, "no header", err);
        const char type = header[TYPE];
        bool is_extra = type && strchr("LKxg", type); /* of the next entry; K: a link's target, g: the whole archive */
        if (extras.has_size && !is_extra)
            size = extras.size;
        size_t left = self->len - self->at - BLOCK_BYTES;
        if (size > left || (size + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES > left)
            return no_archive(self, "it is cut", err);
        if (type == 'L' && !take_text(bytes, (size_t)size, extras.path, sizeof extras.path))
            return no_archive(self, "a long name", err);
        if (type == 'x' && !read_pax(bytes, (size_t)size, &extras))
            return no_archive(self, "an extended header", err);
        int rc = is_extra ? 0 : fill_entry(self, header, &extras, entry, err);
        if (rc)
            return rc;
        self->at += BLOCK_BYTES + ((size_t)size + BLOCK_BYTES - 1) / BLOCK_BYTES * BLOCK_BYTES;
        if (!is_extra) {
            entry->bytes = bytes;
            entry->len = (size_t)size;
            return 0;
        }
    }
}

static int write_file(const char *path, const struct archive_entry *entry, struct cb_err *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_TRUNC | O_NOFOLLOW | O_CLOEXEC, 0600);
    if (fd < 0)
        return cb_fail_errno(err, errno, "creating %s", path);
    int rc = 0;
    if (!fd_write_all(fd, entry->bytes, entry->len) || fchmod(fd, entry->mode) < 0)
        rc = cb_fail_errno(err, errno, "writing %s", path);
    if (close(fd) < 0 && rc == 0)
        rc = cb_fail_errno(err, errno, "writing %s", path);
    return rc;
}

static bool is_below(const char *path, const char *const *names, size_t count)
{
    size_t part = strcspn(path, "/");
    for (size_t i = 0; i < count; i++)
        if (strlen(names[i]) == part && memcmp(names[i], path, part) == 0)
            return true;
    return false;
}

static int unpack_entry(const struct archive_entry *entry, const char *folder, struct cb_err *err)
{
    char path[PATH_MAX];
    if (entry->kind == ARCHIVE_OTHER)
        return 0;
    if (path_format(path, sizeof path, err, "%s/%s", folder, entry->path))
        return CB_ERR_USAGE;
    int rc = path_make_folders(path, 0755, err);
    if (rc || entry->kind == ARCHIVE_FILE)
        return rc ? rc : write_file(path, entry, err);
    return mkdir(path, 0755) < 0 && errno != EEXIST ? cb_fail_errno(err, errno, "creating the folder %s", path) : 0;
}

int archive_unpack(const char *bytes, size_t len, const char *folder, const char *const *names, size_t name_count,
                   struct cb_err *err)
{
    struct archive archive = {.bytes = bytes, .len = len};
    struct archive_entry entry;
    bool more = true;
    int rc = 0;
    while (rc == 0) {
        rc = archive_next(&archive, &entry, &more, err);
        if (rc || !more)
            break;
        rc = is_below(entry.path, names, name_count)
                 ? unpack_entry(&entry, folder, err)
                 : cb_fail(err, CB_ERR_FORMAT, "the archive holds %s, which was not asked for", entry.path);
    }
    return rc;
}
