/* Removes what an older checkpoint left. It may have had another format, other ranks and more copies, so its files are
 * found by listing. */
#include "engine/older_checkpoint.h"

#include <limits.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/format/format.h"
#include "store/name_list.h"

int older_checkpoint_uncommit(struct store *store, const char *path, struct cb_err *err)
{
    for (size_t i = 0; format_marker_at(i); i++) {
        char name[PATH_MAX];
        if (snprintf(name, sizeof name, "%s/%s", path, format_marker_at(i)) >= (int)sizeof name)
            return cb_fail(err, CB_ERR_USAGE, "the name %s/%s is too long", path, format_marker_at(i));
        int rc = store_remove(store, name, err);
        if (rc && rc != CB_ERR_NOT_FOUND)
            return rc;
    }
    /* Even without a marker: the process that removed it may have been killed before its sync. */
    int rc = store_sync_folder(store, path, err);
    return rc == CB_ERR_NOT_FOUND ? 0 : rc; /* the folder does not exist yet */
}

struct data_files {
    struct name_list names;
    size_t skip; /* bytes of a name up to the checkpoint's folder and its slash */
    bool owns_all;
};

static int collect_data_file(void *context, const char *name, uint64_t length, struct cb_err *err)
{
    struct data_files *self = context;
    (void)length;
    bool is_ours = self->owns_all ? format_is_data_file(name) : format_is_data_file_within(name + self->skip);
    return is_ours ? name_list_add(&self->names, name, err) : 0;
}

int older_checkpoint_remove_files(struct store *store, const char *path, bool owns_all, struct cb_err *err)
{
    struct data_files files = {.skip = strlen(path) + 1, .owns_all = owns_all};
    struct name_list *names = &files.names;
    int rc = store_list(store, path, collect_data_file, &files, err);
    if (!rc && names->count > 0)
        rc = store_remove_many(store, (const char *const *)names->names, names->count, err);
    if (!rc && names->count > 0) {
        name_list_sort(names);
        name_list_remove_folders(names, store, path);
    }
    name_list_release(names);
    return rc;
}
