/* Opens the store of one checkpoint that a verb was given: a path, s3://BUCKET/PREFIX, or fault:SPEC:STORE. */
#ifndef CLI_PLAN_CHECKPOINT_H
#define CLI_PLAN_CHECKPOINT_H

#include "core/err.h"
#include "store/store.h"

#define CHECKPOINT_NAME_BYTES 4096
#define CHECKPOINT_HOW_BYTES 64

/* For reading alone. The folder of a run holds a checkpoint for each iteration: the last one is meant then; any other
 * folder may hold one (ckpt/stored/resolve_checkpoint.h). `opened` gets the place itself, or that of the one that is meant, and `how` why
 * it is that one, or "". A place that has no complete checkpoint is opened all the same, and *nothing says what was looked
 * for (its code is 0 elsewhere): who reads it may know better what is missing. */
int checkpoint_open(const char *place, struct store **store, char opened[CHECKPOINT_NAME_BYTES],
                    char how[CHECKPOINT_HOW_BYTES], struct cb_err *nothing, struct cb_err *err) CB_MUST_CHECK;

#endif
