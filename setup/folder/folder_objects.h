/* Whose a place in a store is that is no folder of a file system: what folder.c does with open(O_EXCL) and mkdir, done
 * with whole objects alone. For the calling rank alone. */
#ifndef SETUP_FOLDER_FOLDER_OBJECTS_H
#define SETUP_FOLDER_FOLDER_OBJECTS_H

#include <stdbool.h>

#include "core/err.h"
#include "store/store.h"

/* Makes the store ours where it is empty, and the folder `suffix` the run's. Two runs that want one suffix at the same
 * moment both write their claim; each reads it back, and the one that finds the other's fails. */
int folder_objects_claim(struct store *store, const char *path, const char *suffix, const char *run, bool overwrite,
                         struct cb_err *err) CB_MUST_CHECK;

/* Whether the store has our marker. */
int folder_objects_are_ours(struct store *store, bool *ours, struct cb_err *err) CB_MUST_CHECK;

#endif
