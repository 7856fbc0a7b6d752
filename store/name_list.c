/* Collects names, and removes the folders that become empty. */
#include "store/name_list.h"

#include <stdlib.h>
#include <string.h>

#include "core/alloc.h"

int name_list_add(struct name_list *self, const char *name, struct cb_err *err)
{
    if (self->count == self->capacity) {
        size_t capacity = self->capacity ? 2 * self->capacity : 64;
        char **names = realloc(self->names, capacity * sizeof *names);
        if (!names)
            return alloc_fail(err, "for the names of %zu files", capacity);
        self->names = names;
        self->capacity = capacity;
    }
    self->names[self->count] = strdup(name);
    if (!self->names[self->count])
        return alloc_fail(err, "for the name of a file");
    self->count++;
    return 0;
}

void name_list_release(struct name_list *self)
{
    for (size_t i = 0; i < self->count; i++)
        free(self->names[i]);
    free(self->names);
}

static int compare_names(const void *a, const void *b)
{
    return strcmp(*(char *const *)a, *(char *const *)b);
}

void name_list_sort(struct name_list *self)
{
    if (self->count > 0)
        qsort(self->names, self->count, sizeof *self->names, compare_names);
}

void name_list_remove_folders(struct name_list *self, struct store *store, const char *root)
{
    for (size_t i = self->count; i-- > 0;) {
        char *name = self->names[i];
        for (char *slash = strrchr(name, '/'); slash && strlen(root) < (size_t)(slash - name);
             slash = strrchr(name, '/')) {
            *slash = '\0';
            if (store_remove_folder(store, name, NULL))
                break; /* not yet empty: its folders come later in this loop */
        }
    }
}
