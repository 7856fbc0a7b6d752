/* Names of objects from a store's list, and their removal. */
#ifndef STORE_NAME_LIST_H
#define STORE_NAME_LIST_H

#include <stddef.h>

#include "core/err.h"
#include "store/store.h"

struct name_list {
    char **names; /* owned */
    size_t count, capacity;
};

int name_list_add(struct name_list *self, const char *name, struct cb_err *err) CB_MUST_CHECK;
void name_list_release(struct name_list *self);
void name_list_sort(struct name_list *self);
/* Removes the folders of the sorted names that are now empty, innermost first, up to `root`. Shortens the names. */
void name_list_remove_folders(struct name_list *self, struct store *store, const char *root);

#endif
