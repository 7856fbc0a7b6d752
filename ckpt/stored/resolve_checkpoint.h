/* Which checkpoint of a folder was committed last, a run keeps several below its own; and which one is meant. */
#ifndef CKPT_STORED_RESOLVE_CHECKPOINT_H
#define CKPT_STORED_RESOLVE_CHECKPOINT_H

#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "store/store.h"

/* The folder, relative to the store, whose commit marker is the youngest: `folder` itself where it has one, else
 * one below it; without any, `folder` itself where safetensors files lie in it, whose writers know no marker.
 * CB_ERR_NOT_FOUND where there is none; *files says how many files lie there then. `name` may be
 * "" (the store itself), and `folder` too. */
int newest_checkpoint(struct store *store, const char *folder, char *name, size_t room, uint64_t *files,
                      struct cb_err *err) CB_MUST_CHECK;

#define MEANT_DEPTH 4 /* levels of folders below the one that a user names */
/* Which one a user means who names `folder`: the folder itself (*of is 0); in the folder of a run, where only
 * iteration-N and its kin are checkpoints, or of a store with one run alone, the youngest of its *of; else the only one
 * directly below (*of is 1).
 * CB_ERR_USAGE names what is there where that leaves a choice, or says that there are too many files to look through;
 * CB_ERR_NOT_FOUND where nothing is. `called` is how the
 * user calls the folder. */
int meant_checkpoint(struct store *store, const char *folder, const char *called, char *name, size_t room, uint64_t *of,
                     struct cb_err *err) CB_MUST_CHECK;

#endif
