/* Small files written together and made durable together.
 *
 * Each file is written at once under a temporary name. The commit makes all files durable, renames them, and makes
 * the renames durable: file by file and folder by folder if there are few, else with two syncs of their file system.
 * As with buf_write_file, readers see the old file or the complete new one; files that are not committed do not
 * appear. */
#ifndef CORE_FILE_BATCH_H
#define CORE_FILE_BATCH_H

#include <stddef.h>

#include "core/buf.h"
#include "core/err.h"

struct file_batch {
    char **paths; /* owned: final names of the files */
    size_t count;
};

/* A zeroed batch is empty. Release removes what was not committed; it accepts an empty batch. */
void file_batch_release(struct file_batch *self);

/* Adding the same path twice is a caller's mistake. */
int file_batch_add(struct file_batch *self, const struct buf *text, const char *path, unsigned mode,
                   struct cb_err *err) CB_MUST_CHECK;

/* Afterwards the batch is empty, also after a failure; each file then has its new or its old content. */
int file_batch_commit(struct file_batch *self, struct cb_err *err) CB_MUST_CHECK;

/* Adds to the batch; if the batch is NULL, writes the file durably and immediately. */
int file_write(struct file_batch *batch, const struct buf *text, const char *path, unsigned mode,
               struct cb_err *err) CB_MUST_CHECK;

#endif
