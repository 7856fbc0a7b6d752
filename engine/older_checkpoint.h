/* Removes what an older checkpoint left in the folder of a save. For one rank. */
#ifndef ENGINE_OLDER_CHECKPOINT_H
#define ENGINE_OLDER_CHECKPOINT_H

#include "core/err.h"
#include "store/store.h"

/* Removes the marker of every format, durably: after that the folder has no checkpoint. */
int older_checkpoint_uncommit(struct store *store, const char *path, struct cb_err *err) CB_MUST_CHECK;
/* Call after that: removes data files of every format, of any number of ranks and copies, anywhere in the folder. Files
 * with other names stay. */
int older_checkpoint_remove_files(struct store *store, const char *path, struct cb_err *err) CB_MUST_CHECK;

#endif
