/* Finds the newest commit marker below a folder, and the checkpoint to which a folder refers, by names and times
 * only. */
#include "ckpt/stored/resolve_checkpoint.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "ckpt/format/format.h"
#include "ckpt/format/safetensors.h"
#include "core/alloc.h"
#include "core/buf.h"

#define NAMED_MOST 10         /* number of checkpoints listed in an error message */
#define LOOKED_AT_MOST 200000 /* limit of files in a place of unknown contents */

/* Folders that have a marker. They are collected first, since a store must not be called while it lists. */
struct markers {
    char **names;
    size_t count;
    uint64_t files;
    const char *folder;
    bool plain; /* the folder itself has safetensors files: other writers have no marker */
    bool below; /* for a place of unknown contents: safetensors files below the folder count as markers, too */
    const char *called;
};

static bool is_safetensors(const char *name)
{
    size_t whole = strlen(name), suffix = strlen(SAFETENSORS_SUFFIX);
    return whole > suffix && strcmp(name + whole - suffix, SAFETENSORS_SUFFIX) == 0;
}

static size_t folder_len(const char *name)
{
    const char *last = strrchr(name, '/');
    return last ? (size_t)(last - name) : 0;
}

static bool have_one_folder(const char *a, const char *b)
{
    return folder_len(a) == folder_len(b) && strncmp(a, b, folder_len(a)) == 0;
}

static int collect(void *context, const char *name, uint64_t length, struct cb_err *err)
{
    struct markers *self = context;
    (void)length;
    if (++self->files > LOOKED_AT_MOST && self->below)
        return cb_fail(
            err, CB_ERR_USAGE,
            "%s has more than %d files, which are too many to look through for a checkpoint: name the folder "
            "of one, which has a " STORED_MARKER " or *" SAFETENSORS_SUFFIX,
            self->called, LOOKED_AT_MOST);
    size_t len = strlen(self->folder);
    self->plain |= is_safetensors(name) && folder_len(name) == len && strncmp(name, self->folder, len) == 0;
    /* One file of a folder suffices. Most stores list them together; keep_one_a_folder() drops the others. */
    bool known = self->count > 0 && have_one_folder(self->names[self->count - 1], name);
    if (!format_is_marker(name) && (!self->below || !is_safetensors(name) || known || format_is_fanned_out(name)))
        return 0;
    int rc = alloc_grow(&self->names, self->count, sizeof *self->names, err);
    if (rc)
        return rc;
    self->names[self->count] = strdup(name);
    if (!self->names[self->count])
        return alloc_fail(err, "for the name of a checkpoint");
    self->count++;
    return 0;
}

static void markers_release(struct markers *self)
{
    for (size_t i = 0; i < self->count; i++)
        free(self->names[i]);
    free(self->names);
}

/* The index of the newest marker; a marker that was removed meanwhile does not count. */
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
    return found ? cb_fail(err, found, "there is no complete checkpoint: no " STORED_MARKER) : 0;
}

static int copy_name(const char *from, size_t len, char *name, size_t room, struct cb_err *err)
{
    if (len >= room)
        return cb_fail(err, CB_ERR_USAGE, "the name %s is too long", from);
    memcpy(name, from, len);
    name[len] = '\0';
    return 0;
}

/* Whether a marker is in the folder itself. */
static int find_own_marker(struct store *store, const char *folder, char own[4096])
{
    uint64_t length;
    for (size_t i = 0; format_marker_at(i); i++) {
        int bytes = snprintf(own, 4096, "%s%s%s", folder, *folder ? "/" : "", format_marker_at(i));
        if (bytes > 0 && bytes < 4096 && store_stat(store, own, &length, NULL) == 0)
            return 0;
    }
    return CB_ERR_NOT_FOUND;
}

int resolve_newest_checkpoint(struct store *store, const char *folder, char *name, size_t room, uint64_t *files,
                              struct cb_err *err)
{
    char own[4096];
    struct markers markers = {.folder = folder};
    size_t youngest = 0;
    if (find_own_marker(store, folder, own) == 0)
        return copy_name(own, folder_len(own), name, room, err);
    int rc = store_list(store, folder, collect, &markers, err);
    if (rc == 0) {
        *files = markers.files;
        rc = find_youngest(store, &markers, &youngest, err);
    }
    if (rc == CB_ERR_NOT_FOUND && markers.plain)
        rc = copy_name(folder, strlen(folder), name, room, err);
    else if (rc == 0)
        rc = copy_name(markers.names[youngest], folder_len(markers.names[youngest]), name, room, err);
    markers_release(&markers);
    return rc;
}

/* --- choosing a checkpoint --- */

static const char *inside(const struct markers *self, const char *name)
{
    size_t len = strlen(self->folder);
    return name + len + (len > 0);
}

/* "iteration-7/…": a folder created by runs (folder_checkpoint_name). */
static bool is_made_by_run(const char *below)
{
    static const char iteration[] = "iteration-";
    static const char *const made[] = {"checkpoint/", "checkpoint-0/", "checkpoint-1/"};
    for (size_t i = 0; i < sizeof made / sizeof *made; i++)
        if (strncmp(below, made[i], strlen(made[i])) == 0)
            return true;
    if (strncmp(below, iteration, strlen(iteration)) != 0)
        return false;
    size_t digits = strspn(below + strlen(iteration), "0123456789");
    return digits > 0 && below[strlen(iteration) + digits] == '/';
}

/* The folder part of a name. */
static const char *last_folder(const char *name)
{
    size_t begin = folder_len(name);
    while (begin > 0 && name[begin - 1] != '/')
        begin--;
    return name + begin;
}

/* Whether all markers are in the folder of one run, RUN/iteration-N. */
static bool is_one_run(const struct markers *self)
{
    const char *first = self->count > 0 ? inside(self, self->names[0]) : "";
    size_t len = strcspn(first, "/") + 1;
    for (size_t i = 0; i < self->count; i++) {
        const char *below = inside(self, self->names[i]), *last = last_folder(self->names[i]);
        if (strncmp(below, first, len) != 0 || last != below + len || !is_made_by_run(last))
            return false;
    }
    return self->count > 0;
}

static int compare_names(const void *a, const void *b)
{
    const char *x = *(const char *const *)a, *y = *(const char *const *)b;
    size_t x_len = folder_len(x), y_len = folder_len(y);
    int order = strncmp(x, y, x_len < y_len ? x_len : y_len);
    if (order == 0 && x_len != y_len)
        order = x_len < y_len ? -1 : 1;
    return order ? order : (int)format_is_marker(y) - (int)format_is_marker(x);
}

/* One name per folder: its marker, if it has one. Unmarked files of a run are not a checkpoint yet. */
static void keep_one_a_folder(struct markers *self)
{
    size_t kept = 0;
    if (self->count > 0)
        qsort(self->names, self->count, sizeof *self->names, compare_names);
    for (size_t i = 0; i < self->count; i++) {
        char *name = self->names[i];
        if ((kept > 0 && have_one_folder(self->names[kept - 1], name)) ||
            (!format_is_marker(name) && is_made_by_run(last_folder(name))))
            free(name);
        else
            self->names[kept++] = name;
    }
    self->count = kept;
}

/* Moves checkpoints directly below the folder to the front and returns their number; *of_run: created by a run. */
static size_t put_direct_first(struct markers *self, size_t *of_run)
{
    size_t direct = 0;
    *of_run = 0;
    for (size_t i = 0; i < self->count; i++) {
        char *name = self->names[i];
        const char *slash = strchr(inside(self, name), '/');
        if (!slash || strchr(slash + 1, '/'))
            continue;
        *of_run += is_made_by_run(last_folder(name));
        memmove(&self->names[direct + 1], &self->names[direct], (i - direct) * sizeof name);
        self->names[direct++] = name;
    }
    return direct;
}

static int refuse(const struct markers *self, const char *called, struct cb_err *err)
{
    struct buf list;
    buf_init(&list, 1u << 16);
    for (size_t i = 0; i < self->count && i < NAMED_MOST; i++) {
        const char *below = inside(self, self->names[i]);
        buf_printf(&list, "%s%.*s", i ? ", " : "", (int)folder_len(below), below);
    }
    if (self->count > NAMED_MOST)
        buf_printf(&list, " and %zu more", self->count - NAMED_MOST);
    int rc = cb_fail(err, CB_ERR_USAGE, "%s is no checkpoint, but %zu lie%s below it: name one of %s", called,
                     self->count, self->count == 1 ? "s" : "", list.data);
    buf_release(&list);
    return rc;
}

int resolve_checkpoint(struct store *store, const char *folder, const char *called, char *name, size_t room,
                       uint64_t *of, struct cb_err *err)
{
    char own[4096];
    struct markers markers = {.folder = folder, .below = true, .called = called};
    size_t of_run, youngest = 0;
    *of = 0;
    if (find_own_marker(store, folder, own) == 0)
        return copy_name(own, folder_len(own), name, room, err);
    int rc = store_list_near(store, folder, MEANT_DEPTH, collect, &markers, err);
    if (rc == 0 && markers.plain) {
        rc = copy_name(folder, strlen(folder), name, room, err);
    } else if (rc == 0) {
        keep_one_a_folder(&markers);
        size_t all = markers.count, direct = put_direct_first(&markers, &of_run);
        if (all == 0)
            rc =
                cb_fail(err, CB_ERR_NOT_FOUND,
                        "there is no complete checkpoint in %s: of %" PRIu64 " files in it and in %d levels of folders "
                        "below it none is a " STORED_MARKER " or *" SAFETENSORS_SUFFIX,
                        called, markers.files, MEANT_DEPTH);
        else if (direct == 0 && is_one_run(&markers))
            direct = all;
        else if (direct == 0 || (direct > 1 && of_run < direct))
            rc = refuse(&markers, called, err);
        struct markers near = {.names = markers.names, .count = direct};
        if (rc == 0)
            rc = find_youngest(store, &near, &youngest, err);
        if (rc == 0)
            rc = copy_name(markers.names[youngest], folder_len(markers.names[youngest]), name, room, err);
        *of = direct;
    }
    markers_release(&markers);
    return rc;
}
