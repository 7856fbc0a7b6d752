/* Building a stored_checkpoint from what a metadata file says, checked; shared by the readers. */
#ifndef CKPT_STORED_H
#define CKPT_STORED_H

#include "ckpt/format.h"

/* Sorts tensors by name and the chunks of each by where they lie in it, drops chunks that are listed
 * twice, and checks names, shapes, boxes, places and file names. On entry chunks of a tensor are
 * together, first_chunk and chunk_count set. */
int stored_checkpoint_settle(struct stored_checkpoint *self, const char *name, struct cb_err *err) CB_MUST_CHECK;

/* Refuses a file's name that is empty, absolute or leaves the folder. */
int stored_check_file_name(const char *name, const char *file, struct cb_err *err) CB_MUST_CHECK;
/* Whether each element of the tensor is in exactly one chunk; else what is wrong, naming the tensor. */
int stored_check_coverage(const struct stored_checkpoint *self, const struct stored_tensor *tensor,
                          struct cb_err *err) CB_MUST_CHECK;
/* Order of chunks in a tensor. */
int stored_chunk_compare(const void *a, const void *b);

#endif
