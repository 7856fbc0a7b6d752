/* The youngest commit marker below a folder. Knows names and times; opens no checkpoint. */
#include "ckpt/newest.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/format.h"
#include "ckpt/safetensors.h"

/* Folders that have a marker. They are collected first: a store that is being listed is asked nothing else. */
struct markers {
    char **names;
    size_t count;
    uint64_t files;
    const char *folder;
    bool plain; /* safetensors files lie in the folder itself: others write no marker */
};

static bool is_plain_file(const char *folder, const char *name)
{
    size_t len = strlen(folder), whole = strlen(name), suffix = strlen(SAFETENSORS_SUFFIX);
    const char *last = strrchr(name, '/');
    return whole > suffix && strcmp(name + whole - suffix, SAFETENSORS_SUFFIX) == 0 &&
           (last ? (size_t)(last - name) == len && strncmp(name, folder, len) == 0 : len == 0);
}

static int collect(void *context, const char *name, uint64_t length, struct cb_err *err)
{
    struct markers *self = context;
    (void)length;
    self->files++;
    self->plain |= is_plain_file(self->folder, name);
    if (!format_is_marker(name))
        return 0;
    if (!(self->count & (self->count - 1))) { /* it grows at the powers of two */
        char **names = realloc(self->names, (self->count ? 2 * self->count : 1) * sizeof *names);
        if (!names)
            return cb_fail(err, CB_ERR_MEMORY, "no memory for the names of checkpoints");
        self->names = names;
    }
    self->names[self->count] = strdup(name);
    if (!self->names[self->count])
        return cb_fail(err, CB_ERR_MEMORY, "no memory for the name of a checkpoint");
    self->count++;
    return 0;
}

static void markers_release(struct markers *self)
{
    for (size_t i = 0; i < self->count; i++)
        free(self->names[i]);
    free(self->names);
}

/* The index of the youngest; a marker that went away meanwhile is no longer one. */
static int find_youngest(struct store *store, const struct markers *markers, size_t *youngest, struct cb_err *err)
{
    uint64_t best_ns = 0, written_ns;
    int found = CB_ERR_NOT_FOUND;
    for (size_t i = 0; i < markers->count; i++) {
        int rc = store_modified(store, markers->names[i], &written_ns, err);
        if (rc == CB_ERR_NOT_FOUND)
            continue;
        if (rc)
            return rc;
        if (found || written_ns > best_ns) {
            best_ns = written_ns;
            *youngest = i;
        }
        found = 0;
    }
    return found ? cb_fail(err, found, "there is no complete checkpoint: no " FORMAT_MARKER) : 0;
}

static int copy_folder(const char *marker, char *name, size_t room, struct cb_err *err)
{
    const char *last = strrchr(marker, '/');
    size_t len = last ? (size_t)(last - marker) : 0;
    if (len >= room)
        return cb_fail(err, CB_ERR_USAGE, "the name %s is too long", marker);
    memcpy(name, marker, len);
    name[len] = '\0';
    return 0;
}

int newest_checkpoint(struct store *store, const char *folder, char *name, size_t room, uint64_t *files,
                      struct cb_err *err)
{
    char own[4096];
    uint64_t length;
    struct markers markers = {.folder = folder};
    size_t youngest = 0;
    for (size_t i = 0; format_marker_at(i); i++) {
        int bytes = snprintf(own, sizeof own, "%s%s%s", folder, *folder ? "/" : "", format_marker_at(i));
        if (bytes > 0 && (size_t)bytes < sizeof own && store_stat(store, own, &length, NULL) == 0)
            return copy_folder(own, name, room, err);
    }
    int rc = store_list(store, folder, collect, &markers, err);
    if (rc == 0) {
        *files = markers.files;
        rc = find_youngest(store, &markers, &youngest, err);
    }
    if (rc == CB_ERR_NOT_FOUND && markers.plain) {
        int bytes = snprintf(own, sizeof own, "%s%smarker", folder, *folder ? "/" : "");
        rc = bytes > 0 && (size_t)bytes < sizeof own ? copy_folder(own, name, room, err)
                                                     : cb_fail(err, CB_ERR_USAGE, "the name %s is too long", folder);
    } else if (rc == 0) {
        rc = copy_folder(markers.names[youngest], name, room, err);
    }
    markers_release(&markers);
    return rc;
}
