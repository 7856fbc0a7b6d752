/* Small files written together and made durable together.
 *
 * Each is written beside its name at once; the commit makes all of them durable, gives them their names, and makes
 * those durable: file by file and folder by folder where they are few, else with two syncs of their file system. As
 * with buf_write_file, readers see the old file or the whole new one; what is not committed is not there. */
#ifndef CORE_FILE_BATCH_H
#define CORE_FILE_BATCH_H

#include <stddef.h>

#include "core/buf.h"
#include "core/err.h"

struct file_batch {
    char **paths; /* owned: names that the files get */
    size_t count;
};

/* Zero is an empty one. Removes what was not committed; fine on one that is empty. */
void file_batch_release(struct file_batch *self);

/* The same path twice is a mistake of the caller. */
int file_batch_add(struct file_batch *self, const struct buf *text, const char *path, unsigned mode,
                   struct cb_err *err) CB_MUST_CHECK;

/* Afterwards the batch is empty, also after a failure: then files have their new names or their old ones. */
int file_batch_commit(struct file_batch *self, struct cb_err *err) CB_MUST_CHECK;

/* Into the batch, or, where that is NULL, written and durable at once. */
int file_write(struct file_batch *batch, const struct buf *text, const char *path, unsigned mode,
               struct cb_err *err) CB_MUST_CHECK;

#endif
