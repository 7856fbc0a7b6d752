/* A tar archive in memory: many folders and files that came as one stream.
 *
 * Reads POSIX ustar with what GNU (long names) and pax (path, size) add. The bytes are another machine's: every
 * number and name is checked, and no path leads out of where it is unpacked. Values; not thread-safe. */
#ifndef JOBS_SSH_ARCHIVE_H
#define JOBS_SSH_ARCHIVE_H

#include <limits.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"

enum archive_kind {
    ARCHIVE_FILE,
    ARCHIVE_FOLDER,
    ARCHIVE_OTHER, /* a symbolic link or special file: nothing of it is read */
};

struct archive_entry {
    enum archive_kind kind;
    char path[PATH_MAX]; /* relative, without "." and "..", nor a slash at its end */
    unsigned mode;       /* permissions */
    const char *bytes;   /* of a file; borrowed from the archive */
    size_t len;
};

struct archive {
    const char *bytes; /* borrowed */
    size_t len, at;
};

/* The next entry; *more is false at the archive's end. CB_ERR_FORMAT where it is cut or no archive,
 * CB_ERR_UNSUPPORTED for what only the archive's own program could read (hard links, sparse files). */
int archive_next(struct archive *self, struct archive_entry *entry, bool *more, struct cb_err *err) CB_MUST_CHECK;

/* Puts its folders and files below `folder`, which exists. Every entry must be one of `names` or below it.
 * Files are written over; what came before a failure stays. Nothing is made durable. */
int archive_unpack(const char *bytes, size_t len, const char *folder, const char *const *names, size_t name_count,
                   struct cb_err *err) CB_MUST_CHECK;

#endif
