/* Finds the most recently committed checkpoint in a folder (a run keeps several below its own), or the one that a user
 * means. */
#ifndef CKPT_STORED_RESOLVE_CHECKPOINT_H
#define CKPT_STORED_RESOLVE_CHECKPOINT_H

#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "store/store.h"

/* The folder, relative to the store, with the newest commit marker: `folder` itself if it has one, else one below it;
 * without any marker, `folder` itself if it contains safetensors files, whose other writers have no marker.
 * CB_ERR_NOT_FOUND if there is no checkpoint; *files is then the number of files. `name` may be "" (the store itself),
 * and `folder` too. */
int resolve_newest_checkpoint(struct store *store, const char *folder, char *name, size_t room, uint64_t *files,
                              struct cb_err *err) CB_MUST_CHECK;

#define MEANT_DEPTH 4 /* levels of folders below the given one */
/* The checkpoint that a user means by `folder`: the folder itself (*of is 0); the newest of *of checkpoints if all of
 * them belong to one run; else the only checkpoint directly below the folder (*of is 1). CB_ERR_USAGE lists the
 * contents if there is a choice, or says that there are too many files to search; CB_ERR_NOT_FOUND if there is no
 * checkpoint. `called` is the user's name for the folder. */
int resolve_checkpoint(struct store *store, const char *folder, const char *called, char *name, size_t room,
                       uint64_t *of, struct cb_err *err) CB_MUST_CHECK;

#endif
