/* Opens the store of a checkpoint given on the command line: a path, s3://BUCKET/PREFIX, or fault:SPEC:STORE. */
#ifndef CLI_PLAN_CHECKPOINT_H
#define CLI_PLAN_CHECKPOINT_H

#include "core/err.h"
#include "store/store.h"

#define CHECKPOINT_NAME_BYTES 4096
#define CHECKPOINT_HOW_BYTES 64

/* Opens it for reading only. A run folder contains a checkpoint for each iteration, of which the last is used; any
 * other folder may contain one (ckpt/stored/resolve_checkpoint.h). `opened` is the place that was opened, `how` the
 * reason for choosing it, or "". A place without a complete checkpoint is opened too; then *nothing contains an
 * error that says what was searched for (otherwise its code is 0), because the reader may know better what is
 * missing. */
int checkpoint_open(const char *place, struct store **store, char opened[CHECKPOINT_NAME_BYTES],
                    char how[CHECKPOINT_HOW_BYTES], struct cb_err *nothing, struct cb_err *err) CB_MUST_CHECK;

#endif
