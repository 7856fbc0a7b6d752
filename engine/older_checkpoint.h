/* Removes what an older checkpoint left in the folder of a save. For one rank. */
#ifndef ENGINE_OLDER_CHECKPOINT_H
#define ENGINE_OLDER_CHECKPOINT_H

#include "core/err.h"
#include "store/store.h"

/* Removes the marker of every format, durably: the folder has no checkpoint from then on. */
int older_checkpoint_uncommit(struct store *store, const char *path, struct cb_err *err) CB_MUST_CHECK;
/* After that: removes data files of every format, of any number of ranks and copies, wherever they are in the folder.
 * Files with other names stay. */
int older_checkpoint_remove_files(struct store *store, const char *path, struct cb_err *err) CB_MUST_CHECK;

#endif
