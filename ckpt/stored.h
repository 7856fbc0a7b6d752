/* The contents of a checkpoint, read from its metadata in any format. Checked before use; shared by the readers of all
 * formats. */
#ifndef CKPT_STORED_H
#define CKPT_STORED_H

#include <stdbool.h>
#include <stdint.h>

#include "ckpt/plan.h"
#include "core/err.h"

#define STORED_MARKER ".metadata" /* the commit marker, except for format=safetensors */

struct stored_chunk {
    uint32_t tensor;      /* index into stored tensors */
    struct region region; /* dims 0 and no shape for bytes items */
    uint32_t file;
    uint64_t offset, length; /* of the item in the file */
    bool compressed;         /* the item is a single zstd stream */
};
struct stored_tensor {
    char *fqn;
    bool is_bytes;
    enum dtype dtype;
    uint32_t dims;
    uint64_t shape[CKPT_MAX_DIMS];
    uint32_t first_chunk, chunk_count; /* chunks of a tensor are together */
    char *literal;                     /* a value stored in the metadata itself, without a chunk; else NULL */
    char *path;                        /* the keys that lead to it in nested dicts, a Python tuple; NULL if unknown */
};
struct stored_checkpoint {
    enum plan_format format;
    struct stored_tensor *tensors; /* sorted by fqn */
    size_t tensor_count;
    struct stored_chunk *chunks;
    size_t chunk_count;
    char **files; /* relative, checked to stay inside the folder */
    size_t file_count;
    uint64_t save_id;  /* of the save; its files contain it, too; 0 if unknown */
    bool marked;       /* a commit marker lists everything */
    size_t duplicates; /* number of duplicate regions, which are left out */
};
void stored_checkpoint_free(struct stored_checkpoint *checkpoint);
const struct stored_tensor *stored_checkpoint_find(const struct stored_checkpoint *checkpoint, const char *fqn);

/* Sorts tensors by name and their chunks by position, drops duplicate chunks, and checks names, shapes, regions, places
 * and file names. On entry the chunks of a tensor are together, with first_chunk and chunk_count set. */
int stored_checkpoint_settle(struct stored_checkpoint *self, const char *name, struct cb_err *err) CB_MUST_CHECK;

/* Rejects a region that is not inside of the tensor. */
int stored_check_region(const char *name, const struct stored_tensor *tensor, const struct region *region,
                        struct cb_err *err) CB_MUST_CHECK;
/* Rejects a file name that is empty, absolute or leaves the folder. */
int stored_check_file_name(const char *name, const char *file, struct cb_err *err) CB_MUST_CHECK;
/* Whether each element of the tensor is in exactly one chunk; else an error that names the tensor. */
int stored_check_coverage(const struct stored_checkpoint *self, const struct stored_tensor *tensor,
                          struct cb_err *err) CB_MUST_CHECK;
/* Calls `each` for every two chunks of the tensor with common elements, with the number of these; stops at the first
 * failure. */
typedef int (*stored_overlap_fn)(void *context, const struct stored_chunk *a, const struct stored_chunk *b,
                                 uint64_t elements, struct cb_err *err);
int stored_each_overlap(const struct stored_checkpoint *self, const struct stored_tensor *tensor,
                        stored_overlap_fn each, void *context, struct cb_err *err) CB_MUST_CHECK;

/* A summary of any checkpoint, for people. */
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
