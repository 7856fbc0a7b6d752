/* Which parts of a stored checkpoint have the same bytes, whatever they are called: tied weights that were stored twice,
 * what several ranks wrote under names of their own, states that are still zero. Reads data: all parts that have type
 * and shape in common with another. */
#ifndef CKPT_PLAN_DUPLICATES_H
#define CKPT_PLAN_DUPLICATES_H

#include "ckpt/stored/stored.h"
#include "core/hash.h"
#include "store/store.h"

#define SAME_LEAST_BYTES 4096 /* smaller parts are not worth a word */

struct same_part {
    uint32_t chunk; /* index into the checkpoint's chunks */
    unsigned char digest[HASH_SHA256_BYTES];
};

struct same {
    struct same_part
        *parts; /* those that have another's bytes: equal ones together, the first of them in the checkpoint first */
    size_t count, groups;
    uint64_t extra_bytes; /* of all but one of each group */
    uint64_t read_bytes;
};

/* `store` as for stored_reader_new; `memory_bytes` bounds what is held of the data at once. */
int same_find(struct store *store, const struct stored_checkpoint *checkpoint, uint64_t memory_bytes, struct same *same,
              struct cb_err *err) CB_MUST_CHECK;
void same_release(struct same *self);

#endif
