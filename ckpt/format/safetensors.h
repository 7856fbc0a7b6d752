/* safetensors: writes and reads the header of a file. docs/safetensors.md defines which files make a checkpoint.
 *
 * A file is a length of 8 bytes (little-endian), that many bytes of JSON, and the tensors in sequence without gaps. The
 * JSON may end in spaces. "__metadata__" contains only texts: the save id first; "format" is "pt"; for DCP over
 * safetensors "DCP_VERSION" and "DCP_SHARDING_INFO" (JSON: the place of each part in its tensor); and values that are
 * not tensors as "ckptbench.values" (JSON: name to Python literal). Pure functions; untrusted input is checked. */
#ifndef CKPT_FORMAT_SAFETENSORS_H
#define CKPT_FORMAT_SAFETENSORS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "ckpt/dtype.h"
#include "ckpt/format/metadata_sink.h"
#include "ckpt/layout/layout.h"
#include "ckpt/plan.h"
#include "ckpt/region.h"
#include "core/buf.h"
#include "core/err.h"

#define SAFETENSORS_SUFFIX ".safetensors"
#define SAFETENSORS_INDEX "model.safetensors.index.json"
#define SAFETENSORS_MAX_HEADER 100000000 /* of JSON, as in the format's own readers */
#define SAFETENSORS_LENGTH_BYTES 8

/* --- writing --- */

/* Appends the header of the file that contains `items`, all of one file and in order: length and JSON, padded so that
 * the tensors begin at a multiple of `alignment`. Offsets of tensors follow from their order and sizes. */
int safetensors_put_header(const struct layout *layout, const struct plan_item *items, size_t count, bool parts,
                           uint32_t alignment, uint64_t save_id, struct buf *out, struct cb_err *err) CB_MUST_CHECK;
/* Writes the index that says which file has which tensor, and which files only have values: write_metadata of
 * ckpt/format/format_ops.h. */
int safetensors_write_index(const struct layout *layout, const struct plan *plan, const char *checkpoint_id,
                            uint64_t save_id, struct metadata_sink *sink, struct cb_err *err) CB_MUST_CHECK;

/* --- reading --- */

/* The format of files that contain parts of tensors, or no parts. */
enum plan_format safetensors_format_of(bool has_parts);

struct safetensors_entry {
    char *fqn;
    enum dtype dtype;
    struct region region;   /* its place in the whole tensor; 0 if the file has no sharding info */
    uint64_t offset, bytes; /* in the file */
};

struct safetensors_value {
    char *fqn, *literal;
};

struct safetensors_header {
    struct safetensors_entry *entries; /* by offset */
    size_t entry_count;
    struct safetensors_value *values;
    size_t value_count;
    bool parts;         /* it has sharding info */
    char *marker;       /* only in our files: the commit marker of the checkpoint; else NULL */
    uint64_t end_bytes; /* required length of the file */
};

/* The save id in a file's first bytes; 0 if there is none, as in files of other programs. */
uint64_t safetensors_read_save_id(const void *front, size_t len);
/* Parses the length of the JSON from the file's first 8 bytes; fails if it exceeds `file_bytes`. */
int safetensors_header_bytes(const char *name, const void *bytes, uint64_t file_bytes, uint64_t *json_bytes,
                             struct cb_err *err) CB_MUST_CHECK;
/* `json` is the header without its length. Tensors must follow each other without gaps and have the bytes of their
 * type and shape. */
int safetensors_read_header(const char *name, const char *json, size_t len, struct safetensors_header *header,
                            struct cb_err *err) CB_MUST_CHECK;
void safetensors_header_release(struct safetensors_header *self);

struct safetensors_index_entry {
    char *fqn, *file;
};

/* An index file; each file's name is inside the folder. */
struct safetensors_index {
    struct safetensors_index_entry *entries; /* of weight_map, in its order */
    size_t count;
    char **value_files; /* without tensors; only our indexes name such files */
    size_t value_file_count;
    uint64_t save_id; /* 0: unknown */
};
int safetensors_read_index(const char *name, const char *json, size_t len, struct safetensors_index *index,
                           struct cb_err *err) CB_MUST_CHECK;
void safetensors_index_release(struct safetensors_index *self);

#endif
