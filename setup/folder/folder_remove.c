/* Removes what runs have created in their folder of the store, and nothing else: markers first, without following links. */
#include <stdbool.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/format/format.h"
#include "core/alloc.h"
#include "setup/folder/claim.h"
#include "setup/folder/folder.h"
#include "store/name_list.h"

static int collect_name(void *context, const char *name, uint64_t length, struct cb_err *err)
{
    (void)length;
    return name_list_add(context, name, err);
}

/* Removes commit markers first and durably, so that a crash leaves no valid checkpoint. Syncs the folder even if it has
 * no marker: the process that removed it may have been killed before its sync. */
static int remove_files(struct store *store, const char *folder, const struct name_list *names, struct cb_err *err)
{
    int rc = 0;
    for (size_t i = 0; i < names->count && !rc; i++)
        if (format_is_marker(names->names[i]))
            rc = store_remove(store, names->names[i], err);
    if (names->count > 0 && !rc)
        rc = store_sync_folder(store, folder, err);
    if (rc)
        return rc;
    const char **others = malloc((names->count + 1) * sizeof *others);
    size_t count = 0;
    if (!others)
        return alloc_fail(err, "for the names of %zu files", names->count);
    for (size_t i = 0; i < names->count; i++) {
        if (!format_is_marker(names->names[i]))
            others[count++] = names->names[i];
    }
    rc = store_remove_many(store, others, count, err);
    free(others);
    return rc;
}

static int remove_listed(struct store *store, const char *folder, struct name_list *names, struct cb_err *err)
{
    name_list_sort(names);
    int rc = remove_files(store, folder, names, err);
    if (!rc)
        name_list_remove_folders(names, store, folder);
    return rc;
}

static int remove_tree(struct store *store, const char *folder, struct cb_err *err)
{
    struct name_list names = {0};
    int rc = store_list(store, folder, collect_name, &names, err);
    if (!rc)
        rc = remove_listed(store, folder, &names, err);
    if (!rc)
        rc = store_remove_folder(store, folder, err);
    name_list_release(&names);
    return rc == CB_ERR_NOT_FOUND ? 0 : rc;
}

/* Whether a file is in a folder of folder_checkpoint_name or folder_scratch_name. */
static bool is_in_our_folder(const char *suffix, const char *name)
{
    static const char *const made[] = {"baseline/", "checkpoint/", "checkpoint-0/", "checkpoint-1/"};
    static const char iteration[] = "iteration-";
    const char *inside = name + strlen(suffix) + 1;
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        if (strncmp(inside, made[i], strlen(made[i])) == 0)
            return true;
    if (strncmp(inside, iteration, strlen(iteration)) != 0)
        return false;
    const char *number = inside + strlen(iteration);
    size_t digits = strspn(number, "0123456789");
    return digits > 0 && number[digits] == '/';
}

/* Keeps names that begin with `kept`, which may be NULL. */
static int clear(const struct folder *self, const char *kept, struct cb_err *err)
{
    if (self->reads_only || !self->path)
        return 0;
    struct name_list names = {0};
    int rc = lease_check(self->lease, err);
    if (!rc)
        rc = store_list(self->plain, self->suffix, collect_name, &names, err);
    size_t ours = 0;
    for (size_t i = 0; i < names.count; i++) {
        bool stays = kept && strncmp(names.names[i], kept, strlen(kept)) == 0;
        if (!stays && is_in_our_folder(self->suffix, names.names[i]))
            names.names[ours++] = names.names[i];
        else
            free(names.names[i]);
    }
    names.count = ours;
    if (!rc)
        rc = remove_listed(self->plain, self->suffix, &names, err);
    name_list_release(&names);
    return rc == CB_ERR_NOT_FOUND ? 0 : rc;
}

int folder_clear(const struct folder *self, struct cb_err *err)
{
    return clear(self, NULL, err);
}

int folder_clear_others(const struct folder *self, const char *checkpoint, struct cb_err *err)
{
    char kept[FOLDER_NAME_BYTES];
    size_t len = strlen(checkpoint);
    bool rotates = len > 0 && checkpoint[len - 1] >= '0' && checkpoint[len - 1] <= '9'; /* checkpoint-0 and -1 */
    snprintf(kept, sizeof kept, "%.*s%s", (int)(len - rotates), checkpoint, rotates ? "" : "/");
    return clear(self, kept, err);
}

int folder_remove(const struct folder *self, const char *name, struct cb_err *err)
{
    if (!self->path)
        return 0;
    char scratch[FOLDER_NAME_BYTES];
    int rc = lease_check(self->lease, err);
    if (rc)
        return rc;
    folder_scratch_name(self, scratch);
    if (strcmp(name, scratch) == 0)
        return remove_tree(self->plain, name, err);
    if (self->reads_only)
        return 0;
    size_t len = strlen(self->suffix);
    if (strncmp(name, self->suffix, len) != 0 || name[len] != '/')
        return cb_fail(err, CB_ERR_INTERNAL, "%s is not in this run's folder %s", name, self->suffix);
    return remove_tree(self->plain, name, err);
}

int folder_leave(const struct folder *self, struct cb_err *err)
{
    if (self->reads_only || !self->path)
        return 0;
    struct name_list names = {0};
    bool keeps = false;
    size_t remains = 0; /* of claims that were being written */
    int rc = store_list(self->plain, self->suffix, collect_name, &names, err);
    for (size_t i = 0; i < names.count; i++) {
        const char *inside = names.names[i] + strlen(self->suffix) + 1;
        keeps |= strncmp(inside, CLAIM_NAME, strlen(CLAIM_NAME)) != 0;
        if (strcmp(inside, CLAIM_NAME) != 0)
            names.names[remains++] = names.names[i];
        else
            free(names.names[i]);
    }
    names.count = remains;
    if (!rc && !keeps) /* a power cut must not leave checkpoints without a claim */
        rc = store_sync_folder(self->plain, self->suffix, err);
    if (!rc)
        rc = lease_release(self->lease, keeps, err);
    if (!rc && !keeps) {
        rc = remove_listed(self->plain, self->suffix, &names, err);
        if (!rc || rc == CB_ERR_NOT_FOUND)
            rc = store_remove_folder(self->plain, self->suffix, err);
        if (rc == CB_ERR_EXISTS || rc == CB_ERR_NOT_FOUND) /* another run has come, or has left */
            rc = 0;
    }
    name_list_release(&names);
    return rc;
}
