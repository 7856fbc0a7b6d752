/* A tar archive in memory: many folders and files received as one stream.
 *
 * Reads POSIX ustar with the extensions of GNU (long names) and pax (path, size). The bytes come from another
 * machine: every number and name is checked, and no path leaves the target folder. Plain values; not thread-safe. */
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
    ARCHIVE_OTHER, /* a symbolic link or special file: its contents are ignored */
};

struct archive_entry {
    enum archive_kind kind;
    char path[PATH_MAX]; /* relative, without "." and ".." and without a trailing slash */
    unsigned mode;       /* permissions */
    const char *bytes;   /* of a file; borrowed from the archive */
    size_t len;
};

struct archive {
    const char *bytes; /* borrowed */
    size_t len, at;
};

/* The next entry; *more is false at the end. CB_ERR_FORMAT for a truncated or malformed archive, CB_ERR_UNSUPPORTED
 * for entries that only tar itself can read (hard links, sparse files). */
int archive_next(struct archive *self, struct archive_entry *entry, bool *more, struct cb_err *err) CB_MUST_CHECK;

/* Extracts into `folder`, which exists. Every entry must be one of `names` or below it. Files are overwritten; after
 * a failure the entries before it remain. Nothing is synced. */
int archive_unpack(const char *bytes, size_t len, const char *folder, const char *const *names, size_t name_count,
                   struct cb_err *err) CB_MUST_CHECK;

#endif
