/* Decides whether a run may claim a folder, from its claim, its checkpoints and whether its owner is running. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/buf.h"
#include "core/clock.h"
#include "core/path.h"
#include "core/units.h"
#include "run/workload_kind.h"
#include "setup/folder/lease.h"

/* A store's times may be in whole seconds. */
#define TIME_STEP_NS NS_PER_S

static bool resumes(const struct experiment *experiment)
{
    return workload_kind_of(experiment)->trains && experiment_is(experiment, OPT_TRAIN_RESUME, "latest");
}

/* ---- is the owner running? ---- */

/* Age of the claim by the store's clock: compared with an object that is written now. */
static int measure_age(struct store *store, const char *name, const char *token, uint64_t *written_ns, uint64_t *age_ns,
                       struct cb_err *err)
{
    char now_name[PATH_MAX];
    uint64_t now_ns = 0;
    int rc = path_format(now_name, sizeof now_name, err, "%s.%s", name, token);
    if (!rc)
        rc = store_modified(store, name, written_ns, err);
    if (!rc)
        rc = store_publish(store, now_name, token, strlen(token), err);
    if (rc)
        return rc;
    rc = store_modified(store, now_name, &now_ns, err);
    int removed = store_remove(store, now_name, rc ? NULL : err);
    *age_ns = now_ns > *written_ns ? now_ns - *written_ns : 0;
    if (rc == CB_ERR_NOT_FOUND || removed == CB_ERR_NOT_FOUND)
        return 0; /* somebody who cleans has removed it: the claim itself is there */
    return rc ? rc : removed;
}

/* Watches the claim for `for_ns`; *lives if it was renewed or changed in that time. */
static int watch(struct store *store, const char *suffix, const char *name, const struct claim *owner,
                 uint64_t written_ns, uint64_t for_ns, bool *lives, struct cb_err *err)
{
    uint64_t until_ns = clock_monotonic_ns() + for_ns, found_ns = written_ns;
    struct claim found = *owner;
    int rc = 0;
    while (!rc && found_ns == written_ns && strcmp(found.lease.token, owner->lease.token) == 0 &&
           !claim_has_ended(&owner->lease) && clock_monotonic_ns() < until_ns) {
        clock_sleep_ns(for_ns / 16 + 1);
        rc = claim_read(store, suffix, &found, err); /* a network file system revalidates a file when it is opened */
        if (!rc)
            rc = store_modified(store, name, &found_ns, err);
    }
    *lives = !rc && (found_ns != written_ns || strcmp(found.lease.token, owner->lease.token) != 0);
    return rc == CB_ERR_NOT_FOUND ? 0 : rc; /* it has ended, and removed its claim */
}

/* CB_ERR_EXISTS while the lease holds. An expired lease is watched for half its length, since some file systems set a
 * file's time from the writer's clock. */
static int check_lease(struct store *store, const char *path, const char *suffix, const struct claim *owner,
                       const struct claim *mine, struct cb_err *err)
{
    char name[PATH_MAX], text[CLAIM_TEXT_BYTES], lasts[32];
    uint64_t written_ns = 0, age_ns = 0, lasts_ns = owner->lease.lasts_ns;
    bool lives = true;
    if (!*owner->lease.token || claim_has_ended(&owner->lease))
        return 0;
    int rc = claim_name(suffix, name, err);
    if (!rc)
        rc = measure_age(store, name, mine->lease.token, &written_ns, &age_ns, err);
    uint64_t left_ns = age_ns < lasts_ns + TIME_STEP_NS ? lasts_ns + TIME_STEP_NS - age_ns : 0;
    if (!rc && (left_ns == 0 || strcmp(owner->run, mine->run) == 0))
        rc = watch(store, suffix, name, owner, written_ns, left_ns + lasts_ns / 2, &lives, err);
    if (rc || !lives)
        return rc == CB_ERR_NOT_FOUND ? 0 : rc;
    return cb_fail(
        err, CB_ERR_EXISTS,
        "%.300s/%.300s is in use by %s: wait until it has ended, or choose another suffix; if it is dead, its "
        "lease runs out %s after its last sign of life",
        path, suffix, claim_describe(owner, text), units_format_duration_exact(lasts_ns, lasts));
}

/* ---- the rules ---- */

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
    bool is_ours = strcmp(owner->run, mine->run) == 0;
    bool takes_over = resumes(experiment) || !experiment_is(experiment, OPT_FOLDER, "per_iteration");
    int rc = store_measure(store, suffix, &bytes, &files, err);
    if (rc)
        return rc;
    bool kept = owner->keeps && files > 1; /* one file is the claim itself */
    bool replaces = resumes(experiment) || experiment_bool(experiment, OPT_KEEP_REPLACE);
    if (!is_ours && !takes_over)
        return cb_fail(err, CB_ERR_EXISTS,
                       "%.300s/%.300s holds a checkpoint of run %.128s%s: choose another suffix, remove it, or use "
                       "folder=overwrite%s",
                       path, suffix, owner->run, kept ? " that is kept" : "",
                       kept && !replaces ? " --replace-kept" : "");
    if (!kept)
        return 0;
    mine->keeps = true;
    if (is_ours || replaces)
        return 0;
    return cb_fail(err, CB_ERR_EXISTS,
                   "%.300s/%.300s holds a checkpoint of run %.128s that is kept: choose another suffix, remove it, or "
                   "use --replace-kept",
                   path, suffix, owner->run);
}

/* Stops the list at its first object. */
static int stop_at_first(void *context, const char *name, uint64_t length, struct cb_err *err)
{
    (void)context, (void)name, (void)length, (void)err;
    return CB_ERR_EXISTS;
}

int lease_check_rules(struct store *store, const char *path, const char *suffix, const struct experiment *experiment,
                      struct claim *mine, struct buf *before, bool *owned, struct cb_err *err)
{
    char name[PATH_MAX];
    struct claim owner;
    buf_clear(before);
    int rc = check_folders_above(store, path, suffix, mine->run, err);
    if (!rc)
        rc = claim_name(suffix, name, err);
    if (rc)
        return rc;
    rc = store_read_small(store, name, before, err);
    *owned = rc == 0;
    if (rc == CB_ERR_NOT_FOUND)
        rc = store_list(store, suffix, stop_at_first, NULL, err);
    if (rc == CB_ERR_EXISTS)
        return cb_fail(err, CB_ERR_EXISTS,
                       "%.300s/%.300s is there already and was not made by a run: choose another suffix", path, suffix);
    if (rc || !*owned)
        return rc;
    claim_parse(before->data, &owner);
    rc = check_lease(store, path, suffix, &owner, mine, err);
    return rc ? rc : check_owner(store, path, suffix, experiment, &owner, mine, err);
}
