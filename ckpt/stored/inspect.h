/* What is in a stored checkpoint, who wrote what, and what of its bytes is neither. From its metadata and the lengths
 * of its files alone: no data is read. */
#ifndef CKPT_STORED_INSPECT_H
#define CKPT_STORED_INSPECT_H

#include "ckpt/stored/stored.h"
#include "store/store.h"

#define INSPECT_NO_RANK UINT32_MAX

struct inspect_file {
    const char *name;
    uint32_t rank; /* as its name says; INSPECT_NO_RANK where it does not */
    bool missing;
    uint64_t bytes, items;
    uint64_t payload_bytes; /* of tensors and values */
    uint64_t outside_bytes; /* in no item */
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
    uint64_t outside_bytes; /* of files, in no item */
    uint64_t file_bytes, missing_files;
    uint64_t overlap_bytes; /* that two items share */
    struct inspect_type types[DTYPE_COUNT];
    struct inspect_file *files; /* as in the checkpoint */
    struct inspect_rank *ranks; /* ascending; those that files name */
    size_t rank_count;
    double imbalance; /* largest rank over the mean; 0 where names tell no ranks */
    char layout[256]; /* a guess, as a sentence */
};

int inspect_checkpoint(struct store *store, const struct stored_checkpoint *checkpoint, struct inspection *inspection,
                       struct cb_err *err) CB_MUST_CHECK;
void inspection_release(struct inspection *self);

#endif
