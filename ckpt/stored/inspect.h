/* The contents of a stored checkpoint: items, which rank wrote them, and bytes that belong to no item. Uses only
 * metadata and file lengths, no data. */
#ifndef CKPT_STORED_INSPECT_H
#define CKPT_STORED_INSPECT_H

#include "ckpt/stored.h"
#include "store/store.h"

#define INSPECT_NO_RANK UINT32_MAX

struct inspect_file {
    const char *name;
    uint32_t rank; /* from its name; INSPECT_NO_RANK if the name has none */
    bool missing;
    uint64_t bytes, items;
    uint64_t payload_bytes;                /* of tensors and values */
    uint64_t covered_bytes, outside_bytes; /* in items; outside of items */
};

struct inspect_type {
    uint64_t tensors, bytes;
};

struct inspect_rank {
    uint32_t rank, files;
    uint64_t payload_bytes;
};

struct inspection {
    struct stored_counts counts;
    uint64_t compressed;    /* items */
    uint64_t payload_bytes; /* stored, of tensors and values */
    uint64_t frame_bytes;   /* of items, around payloads */
    uint64_t outside_bytes; /* of files, outside of items */
    uint64_t file_bytes, missing_files;
    uint64_t overlap_bytes; /* that two items share */
    struct inspect_type types[DTYPE_COUNT];
    struct inspect_file *files; /* as in the checkpoint */
    struct inspect_rank *ranks; /* of the ranks in file names, ascending */
    size_t rank_count;
    double imbalance; /* largest rank / mean; 0 if names contain no ranks */
    char layout[256]; /* a guess, as a sentence */
};

int inspect_checkpoint(struct store *store, const struct stored_checkpoint *checkpoint, struct inspection *inspection,
                       struct cb_err *err) CB_MUST_CHECK;
void inspection_release(struct inspection *self);

#endif
