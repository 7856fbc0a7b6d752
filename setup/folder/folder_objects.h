/* Claims in object stores, where folder.c cannot use open(O_EXCL) and mkdir. For one rank; not collective. */
#ifndef SETUP_FOLDER_FOLDER_OBJECTS_H
#define SETUP_FOLDER_FOLDER_OBJECTS_H

#include <stdbool.h>

#include "core/err.h"
#include "store/store.h"

/* Marks an empty store as ours, and claims the folder `suffix` for the run. If two runs claim a suffix at the same time,
 * both write their claim and read it back; the run that reads the other's claim fails. */
int folder_objects_claim(struct store *store, const char *path, const char *suffix, const char *run, bool overwrite,
                         struct cb_err *err) CB_MUST_CHECK;

/* Whether the store has our marker. */
int folder_objects_are_ours(struct store *store, bool *ours, struct cb_err *err) CB_MUST_CHECK;

#endif
