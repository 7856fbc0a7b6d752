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
/* Calls for every two chunks of the tensor that have elements in common, with how many; ends with the first failure. */
typedef int (*stored_overlap_fn)(void *context, const struct stored_chunk *a, const struct stored_chunk *b,
                                 uint64_t elements, struct cb_err *err);
int stored_each_overlap(const struct stored_checkpoint *self, const struct stored_tensor *tensor,
                        stored_overlap_fn each, void *context, struct cb_err *err) CB_MUST_CHECK;

/* What people are told of any checkpoint, by whichever verb. */
struct stored_counts {
    uint64_t tensors, values, items, files;
    uint64_t tensor_bytes; /* each element once */
};
void stored_count(const struct stored_checkpoint *self, struct stored_counts *counts);
/* "dcp, 112 tensors (11 MiB), 6 values, 127 items in 3 files" */
#define STORED_TEXT_BYTES 192
void stored_describe(const char *format, const struct stored_counts *counts, char text[STORED_TEXT_BYTES]);
/* Order of chunks in a tensor. */
int stored_chunk_compare(const void *a, const void *b);

#endif
