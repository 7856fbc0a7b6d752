/* Finds parts of a stored checkpoint with equal bytes, whatever their names: tied weights stored twice, copies by
 * several ranks under different names, state that is still zero. Reads the data of all parts whose type and shape
 * match another part's. */
#ifndef CKPT_PLAN_DUPLICATES_H
#define CKPT_PLAN_DUPLICATES_H

#include "ckpt/stored.h"
#include "core/hash.h"
#include "store/store.h"

#define SAME_LEAST_BYTES 4096 /* smaller parts are not reported */

struct duplicate_part {
    uint32_t chunk; /* index into the checkpoint's chunks */
    unsigned char digest[HASH_SHA256_BYTES];
};

struct duplicates {
    struct duplicate_part
        *parts; /* parts with duplicates: equal ones together, the first of them in checkpoint order */
    size_t count, groups;
    uint64_t extra_bytes; /* of all but one of each group */
    uint64_t read_bytes;
};

/* `store` as for stored_reader_new; `memory_bytes` limits the data in memory. */
int duplicates_find(struct store *store, const struct stored_checkpoint *checkpoint, uint64_t memory_bytes,
                    struct duplicates *same, struct cb_err *err) CB_MUST_CHECK;
void duplicates_release(struct duplicates *self);

#endif
