/* Claims on folders in stores: reading, checking and taking them. */
#include "setup/folder/claim.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "core/buf.h"
#include "run/workload_kind.h"
#include "store/kind.h"

#define CLAIM_MAX_BYTES 4096
#define PATH_BYTES 4096

static const char temporary[] = "temporary";

bool claim_is_to_keep(const struct experiment *experiment)
{
    return workload_kind_of(experiment)->trains || experiment_is(experiment, OPT_KEEP, "true") ||
           (experiment_is(experiment, OPT_KEEP, "auto") && experiment_is(experiment, OPT_OPS, "save"));
}

static bool resumes(const struct experiment *experiment)
{
    return workload_kind_of(experiment)->trains && experiment_is(experiment, OPT_TRAIN_RESUME, "latest");
}

/* The run's id, then "kept" or "temporary". Earlier versions wrote the id alone: such checkpoints count as kept. */
static void format_claim(const struct claim *claim, char *text, size_t text_bytes)
{
    snprintf(text, text_bytes, "%s\n%s\n", claim->run, claim->keeps ? "kept" : temporary);
}

int claim_read(struct store *store, const char *suffix, struct claim *claim, struct cb_err *err)
{
    char name[PATH_BYTES];
    struct buf text;
    snprintf(name, sizeof name, "%.2000s/" CLAIM_NAME, suffix);
    buf_init(&text, CLAIM_MAX_BYTES);
    int rc = store_read_small(store, name, &text, err);
    if (!rc) {
        size_t len = strcspn(text.data, "\n");
        snprintf(claim->run, sizeof claim->run, "%.*s", (int)len, text.data);
        claim->keeps = text.data[len] == '\0' || strncmp(text.data + len + 1, temporary, strlen(temporary)) != 0;
    }
    buf_release(&text);
    return rc;
}

/* Another run's claim on a folder above would remove what this run saves. */
static int check_folders_above(struct store *store, const char *path, const char *suffix, const char *run,
                               struct cb_err *err)
{
    char above[CLAIM_RUN_BYTES];
    for (const char *slash = strchr(suffix, '/'); slash; slash = strchr(slash + 1, '/')) {
        struct claim owner;
        snprintf(above, sizeof above, "%.*s", (int)(slash - suffix), suffix);
        int rc = claim_read(store, above, &owner, err);
        if (rc == 0 && strcmp(owner.run, run) != 0)
            return cb_fail(err, CB_ERR_EXISTS, "%.300s/%.300s lies in the folder of run %.128s: choose another suffix",
                           path, suffix, owner.run);
        if (rc && rc != CB_ERR_NOT_FOUND)
            return rc;
    }
    return 0;
}

/* Whether a folder with `owner`'s claim may be taken over. */
static int check_owner(struct store *store, const char *path, const char *suffix, const struct experiment *experiment,
                       const struct claim *owner, struct claim *mine, struct cb_err *err)
{
    uint64_t bytes, files = 0;
    bool takes_over = resumes(experiment) || !experiment_is(experiment, OPT_FOLDER, "per_iteration");
    if (strcmp(owner->run, mine->run) != 0 && !takes_over)
        return cb_fail(
            err, CB_ERR_EXISTS,
            "%.300s/%.300s holds a checkpoint of run %.128s: choose another suffix, remove it, or use folder=overwrite",
            path, suffix, owner->run);
    int rc = store_measure(store, suffix, &bytes, &files, err);
    if (rc || !owner->keeps || files < 2)
        return rc; /* nothing but the claim itself is there */
    mine->keeps = true;
    if (strcmp(owner->run, mine->run) == 0 || resumes(experiment) || experiment_bool(experiment, OPT_KEEP_REPLACE))
        return 0;
    return cb_fail(err, CB_ERR_EXISTS,
                   "%.300s/%.300s holds a checkpoint of run %.128s that is kept: choose another suffix, remove it, or "
                   "use --replace-kept",
                   path, suffix, owner->run);
}

/* Ends the list at its first object. */
static int stop_at_first(void *context, const char *name, uint64_t length, struct cb_err *err)
{
    (void)context, (void)name, (void)length, (void)err;
    return CB_ERR_EXISTS;
}

/* Fails if the folder may not be claimed; *owned says whether it has a claim now. */
static int check(struct store *store, const char *path, const char *suffix, const struct experiment *experiment,
                 struct claim *mine, bool *owned, struct cb_err *err)
{
    struct claim owner;
    int rc = check_folders_above(store, path, suffix, mine->run, err);
    if (rc)
        return rc;
    rc = claim_read(store, suffix, &owner, err);
    *owned = rc == 0;
    if (rc == 0)
        return check_owner(store, path, suffix, experiment, &owner, mine, err);
    if (rc == CB_ERR_NOT_FOUND)
        rc = store_list(store, suffix, stop_at_first, NULL, err);
    if (rc == CB_ERR_EXISTS)
        return cb_fail(err, CB_ERR_EXISTS,
                       "%.300s/%.300s is there already and was not made by a run: choose another suffix", path, suffix);
    return rc;
}

/* CB_ERR_EXISTS if another run was faster. */
static int create_file(const char *path, const char *text, struct cb_err *err)
{
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644);
    if (fd < 0 && errno == EEXIST)
        return cb_fail(err, CB_ERR_EXISTS, "%s is there already", path);
    if (fd < 0)
        return cb_fail_errno(err, errno, "creating %s", path);
    ssize_t written = write(fd, text, strlen(text));
    int failure = written < 0 || fsync(fd) ? errno : (size_t)written < strlen(text) ? ENOSPC : 0;
    close(fd);
    if (failure)
        unlink(path);
    return failure ? cb_fail_errno(err, failure, "writing %s", path) : 0;
}

/* Writes the claim and reads it back: of two runs that take over at the same time, the later one owns the folder. */
static int write_claim(struct store *store, const char *path, const char *suffix, const struct claim *mine,
                       struct cb_err *err)
{
    char name[PATH_BYTES], text[CLAIM_RUN_BYTES + 32];
    struct claim owner;
    snprintf(name, sizeof name, "%.2000s/" CLAIM_NAME, suffix);
    format_claim(mine, text, sizeof text);
    int rc = store_publish(store, name, text, strlen(text), err);
    if (!rc)
        rc = claim_read(store, suffix, &owner, err);
    if (rc || strcmp(owner.run, mine->run) == 0)
        return rc;
    return cb_fail(err, CB_ERR_EXISTS, "run %.128s has claimed %.300s/%.300s just now: choose another suffix",
                   owner.run, path, suffix);
}

int claim_take(struct store *store, const char *path, const char *suffix, const struct experiment *experiment,
               const char *run, struct cb_err *err)
{
    struct claim mine = {.keeps = claim_is_to_keep(experiment)};
    char file[PATH_BYTES], text[CLAIM_RUN_BYTES + 32];
    bool owned;
    snprintf(mine.run, sizeof mine.run, "%s", run);
    int rc = check(store, path, suffix, experiment, &mine, &owned, err);
    if (!rc)
        rc = store_make_folder(store, suffix, err);
    if (!rc && !owned && store_uri_of(path).kind->is_path) {
        format_claim(&mine, text, sizeof text);
        if (snprintf(file, sizeof file, "%s/%s/" CLAIM_NAME, path, suffix) >= (int)sizeof file)
            return cb_fail(err, CB_ERR_USAGE, "the name %s/%s is too long", path, suffix);
        rc = create_file(file, text, err);
        if (rc != CB_ERR_EXISTS)
            return rc;
        rc = check(store, path, suffix, experiment, &mine, &owned, err);
    }
    return rc ? rc : write_claim(store, path, suffix, &mine, err);
}
