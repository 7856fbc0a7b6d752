/* A checkpoint named by a user, as a path, s3://BUCKET/PREFIX, or fault:SPEC:STORE: its folder, a run folder (the last
 * checkpoint is used), a folder with a checkpoint directly below it, or a safetensors file. */
#ifndef CLI_PLAN_CHECKPOINT_ARG_H
#define CLI_PLAN_CHECKPOINT_ARG_H

#include "ckpt/format/format.h"
#include "core/buf.h"
#include "core/err.h"
#include "store/store.h"

#define CHECKPOINT_PATH_BYTES 4096

struct checkpoint_arg {
    char path[CHECKPOINT_PATH_BYTES]; /* path of the checkpoint found */
    char how[64];                     /* "the last of 3" if the user named a folder around it; else "" */
    char file[CHECKPOINT_PATH_BYTES]; /* name in the store of a single safetensors file; else "" */
    struct store *store;              /* opened at the folder for buffered reading */
    struct cb_err nothing;            /* error if there is no complete checkpoint; otherwise its code is 0 */
};

/* Finds the checkpoint and opens its store; does not check that it is complete. */
int checkpoint_arg_open(struct checkpoint_arg *self, const char *path, struct cb_err *err) CB_MUST_CHECK;
/* Reads its metadata, or the headers of its files if it has none. */
int checkpoint_arg_read(const struct checkpoint_arg *self, struct stored_checkpoint **checkpoint,
                        struct cb_err *err) CB_MUST_CHECK;
void checkpoint_arg_release(struct checkpoint_arg *self);
/* "PATH", or "PATH (the last of 3)". */
void checkpoint_arg_write_name(const struct checkpoint_arg *self, struct buf *out);

#endif
