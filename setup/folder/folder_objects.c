/* Claims in object stores: which objects are written and read back, in which order. */
#include "setup/folder/folder_objects.h"

#include <stdio.h>
#include <string.h>

#include "core/buf.h"
#include "setup/folder/folder.h"

#define CLAIM_MAX_BYTES 4096

static int is_there(struct store *store, const char *name, bool *there, struct cb_err *err)
{
    uint64_t length;
    int rc = store_stat(store, name, &length, err);
    *there = rc == 0;
    return rc == CB_ERR_NOT_FOUND ? 0 : rc;
}

int folder_objects_are_ours(struct store *store, bool *ours, struct cb_err *err)
{
    return is_there(store, FOLDER_MARKER, ours, err);
}

/* Ends the list at its first object. */
static int take_first(void *context, const char *name, uint64_t length, struct cb_err *err)
{
    (void)length, (void)err;
    snprintf(context, FOLDER_NAME_BYTES, "%s", name);
    return CB_ERR_EXISTS;
}

/* The first object below a folder, or "". */
static int find_first(struct store *store, const char *folder, char name[FOLDER_NAME_BYTES], struct cb_err *err)
{
    name[0] = '\0';
    int rc = store_list(store, folder, take_first, name, err);
    return rc == CB_ERR_EXISTS || rc == CB_ERR_NOT_FOUND ? 0 : rc;
}

static int claim_store(struct store *store, const char *path, struct cb_err *err)
{
    static const char text[] = "This prefix holds checkpoints of ckptbench runs, which ckptbench removes.\n";
    char first[FOLDER_NAME_BYTES];
    bool ours;
    int rc = folder_objects_are_ours(store, &ours, err);
    if (rc || ours)
        return rc;
    rc = find_first(store, "", first, err);
    if (rc)
        return rc;
    if (first[0] && folder_objects_are_ours(store, &ours, NULL) == 0 && ours)
        return 0; /* another run made it ours just now */
    if (first[0])
        return cb_fail(
            err, CB_ERR_EXISTS,
            "store %s holds %.400s, which this program did not write: use a prefix of its own for benchmarks", path,
            first);
    return store_publish(store, FOLDER_MARKER, text, sizeof text - 1, err);
}

static int read_claim(struct store *store, const char *claim, char *run, size_t room, struct cb_err *err)
{
    struct buf text;
    buf_init(&text, CLAIM_MAX_BYTES);
    int rc = store_read_small(store, claim, &text, err);
    if (!rc)
        snprintf(run, room, "%.*s", (int)strcspn(text.data, "\n"), text.data);
    buf_release(&text);
    return rc;
}

static int refuse_claim(const char *path, const char *suffix, const char *run, struct cb_err *err)
{
    return cb_fail(
        err, CB_ERR_EXISTS,
        "%.300s/%.300s holds a checkpoint of run %.128s: choose another suffix, remove it, or use folder=overwrite",
        path, suffix, run);
}

int folder_objects_claim(struct store *store, const char *path, const char *suffix, const char *run, bool overwrite,
                         struct cb_err *err)
{
    char claim[FOLDER_NAME_BYTES + 32], holder[FOLDER_NAME_BYTES] = "", first[FOLDER_NAME_BYTES];
    int rc = claim_store(store, path, err);
    if (rc)
        return rc;
    snprintf(claim, sizeof claim, "%s/" FOLDER_CLAIM, suffix);
    rc = read_claim(store, claim, holder, sizeof holder, err);
    if (!rc && strcmp(holder, run) != 0 && !overwrite)
        return refuse_claim(path, suffix, holder, err);
    if (rc == CB_ERR_NOT_FOUND) {
        rc = find_first(store, suffix, first, err);
        if (!rc && first[0])
            return cb_fail(err, CB_ERR_EXISTS,
                           "%.300s/%.300s is there already and was not made by a run: choose another suffix", path,
                           suffix);
    }
    if (!rc)
        rc = store_make_folder(store, suffix, err);
    if (!rc)
        rc = store_publish(store, claim, run, strlen(run), err);
    if (!rc)
        rc = read_claim(store, claim, holder, sizeof holder, err);
    return rc || strcmp(holder, run) == 0 ? rc : refuse_claim(path, suffix, holder, err);
}
