/* Removes what an older checkpoint left in the folder of a save. For one rank. */
#ifndef ENGINE_OLDER_CHECKPOINT_H
#define ENGINE_OLDER_CHECKPOINT_H

#include <stdbool.h>

#include "core/err.h"
#include "store/store.h"

/* Removes the marker of every format, durably: after that the folder has no checkpoint. */
int older_checkpoint_uncommit(struct store *store, const char *path, struct cb_err *err) CB_MUST_CHECK;
/* Call after that: removes data files of every format, of any number of ranks and copies. Files with other names stay.
 * `owns_all`: all folders in the folder are the caller's, too, as those of s3.prefixes in a run's; else folders that may
 * be other checkpoints stay. */
int older_checkpoint_remove_files(struct store *store, const char *path, bool owns_all,
                                  struct cb_err *err) CB_MUST_CHECK;

#endif
