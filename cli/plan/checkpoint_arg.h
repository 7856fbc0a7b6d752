/* A checkpoint that a user names: the folder of one, the folder of a run (then its last one), a folder that has one
 * directly below it, or a safetensors file. */
#ifndef CLI_PLAN_CHECKPOINT_ARG_H
#define CLI_PLAN_CHECKPOINT_ARG_H

#include "ckpt/format/format.h"
#include "cli/plan/checkpoint.h"
#include "core/buf.h"
#include "core/err.h"
#include "store/store.h"

#define SOURCE_PATH_BYTES CHECKPOINT_NAME_BYTES

struct checkpoint_arg {
    char path[SOURCE_PATH_BYTES];   /* what was found */
    char how[CHECKPOINT_HOW_BYTES]; /* "the last of 3", where the user named a folder around it; else "" */
    char file[SOURCE_PATH_BYTES];   /* of a single safetensors file: its name in the store; else "" */
    struct store *store;            /* opened at the folder, buffered, to be read */
    struct cb_err nothing;          /* that there is no complete checkpoint; its code is 0 where there is */
};

/* Finds it and opens the store; whether it is complete is for the reader to say. */
int checkpoint_arg_open(struct checkpoint_arg *self, const char *path, struct cb_err *err) CB_MUST_CHECK;
/* Its metadata, or what the headers of its files say. */
int checkpoint_arg_read(const struct checkpoint_arg *self, struct stored_checkpoint **checkpoint,
                        struct cb_err *err) CB_MUST_CHECK;
void checkpoint_arg_release(struct checkpoint_arg *self);
/* "PATH", or "PATH (the last of 3)". */
void checkpoint_arg_write_name(const struct checkpoint_arg *self, struct buf *out);

#endif
