#include "lib/claims.h"

#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/format/format.h"
#include "ckpt/format/safetensors.h"
#include "ckpt/format/save_id.h"
#include "core/alloc.h"
#include "core/path.h"
#include "setup/folder/lease.h"
#include "setup/open_store.h"
#include "store/kind.h"

#define FOLDER ".ckptbench-saving-" /* and the name of the checkpoint: a folder that exists during a save */

struct claims {
    struct experiment *experiment;
    bool one_machine, replaces; /* replaces: a complete checkpoint, too */
    struct lease *lease;        /* during a save */
    struct store *store;        /* the same, to remove the claim afterwards */
    char folder[PATH_MAX];
};

int claims_new(const struct experiment *experiment, bool one_machine, struct claims **claims, struct cb_err *err)
{
    struct claims *self = calloc(1, sizeof *self);
    int rc = self ? experiment_copy(experiment, &self->experiment, err) : alloc_fail(err, "for claims");
    if (!rc) /* the claim of a program that has died may be taken over */
        rc = experiment_set(self->experiment, "folder", "overwrite", "a claim", err);
    if (rc) {
        claims_free(self);
        return rc;
    }
    self->one_machine = one_machine;
    self->replaces = experiment_is(experiment, OPT_FOLDER, "overwrite");
    *claims = self;
    return 0;
}

void claims_free(struct claims *self)
{
    if (!self)
        return;
    lease_free(self->lease);
    store_free(self->store);
    experiment_free(self->experiment);
    free(self);
}

/* Small files, of which nobody needs to know after a power cut. */
static int open_small(const struct claims *self, struct store **store, struct cb_err *err)
{
    struct s3_options s3;
    struct store_options options;
    int rc = store_options_read(self->experiment, 0, &s3, &options, err);
    options.use_io_uring = false;
    options.direct = STORE_DIRECT_NO;
    options.durable = false;
    options.in_caller = true;
    return rc ? rc : store_open(store_uri_of(experiment_text(self->experiment, OPT_STORE)).plain, &options, store, err);
}

/* Runs of ckptbench remove what lies in their folders. A process that works for a run (engine=torch-native) has its name
 * in the environment, and is protected by the run's own claim: *is_ours. */
static int refuse_folder_of_run(struct store *store, const char *name, bool *is_ours, struct cb_err *err)
{
    const char *our_run = getenv("CKPTBENCH_WORKS_FOR_RUN");
    struct buf text;
    struct claim owner;
    char own[PATH_MAX];
    buf_init(&text, CLAIM_TEXT_BYTES - 1);
    int rc = store_read_small(store, CLAIM_NAME, &text, err);
    if (rc == CB_ERR_NOT_FOUND) {
        rc = claim_name(name, own, err);
        if (!rc)
            rc = store_read_small(store, own, &text, err);
    }
    if (!rc) {
        claim_parse(text.data, &owner);
        *is_ours = our_run && strcmp(our_run, owner.run) == 0;
        if (!*is_ours)
            rc = cb_fail(err, CB_ERR_EXISTS, "%.300s lies in the folder of run %.128s: choose another path", name,
                         owner.run);
    }
    buf_release(&text);
    return rc == CB_ERR_NOT_FOUND ? 0 : rc;
}

/* In the folder itself. Other programs' safetensors files have no marker. Files of ours without one are those of a save
 * that failed or was killed; they are replaced. */
static int refuse_complete(void *context, const char *name, uint64_t length, struct cb_err *err)
{
    const char *folder = context, *file = name + strlen(folder) + 1, *dot = strrchr(file, '.');
    (void)length;
    if (strchr(file, '/') || !(format_is_marker(file) || (dot && strcmp(dot, SAFETENSORS_SUFFIX) == 0)))
        return 0;
    return cb_fail(err, CB_ERR_EXISTS, "%.300s holds a complete checkpoint; folder=overwrite replaces it", folder);
}

static int take(struct claims *self, const char *name, struct cb_err *err)
{
    struct store *store = NULL;
    char run[64];
    const char *uri = store_uri_of(experiment_text(self->experiment, OPT_STORE)).plain;
    snprintf(run, sizeof run, "libckptbench-%016" PRIx64, save_id_draw());
    int rc = path_format(self->folder, sizeof self->folder, err, FOLDER "%s", name);
    if (!rc)
        rc = open_small(self, &store, err);
    const struct lease_owner owner = {.run = run, .run_folder = "", .one_machine = self->one_machine, .uploads = name};
    if (!rc)
        rc = lease_take(store, uri, self->folder, self->experiment, &owner, &self->lease, err);
    if (rc && rc != CB_ERR_EXISTS) /* as on a full disk: the folder was made, and the claim could not be written */
        (void)!store_remove_folder(self->store, self->folder, NULL);
    return rc == CB_ERR_EXISTS ? cb_context(err, "%s is being saved by another program", name) : rc;
}

void claims_leave(void *context)
{
    struct claims *self = context;
    if (self->lease && lease_release(self->lease, false, NULL) == 0)
        (void)!store_remove_folder(self->store, self->folder, NULL); /* another one may be entering already */
    lease_free(self->lease);
    store_free(self->store);
    self->lease = NULL;
    self->store = NULL;
}

int claims_enter(void *context, const char *name, struct cb_err *err)
{
    struct claims *self = context;
    if (!store_uri_of(experiment_text(self->experiment, OPT_STORE)).kind->keeps_data)
        return 0;
    bool is_ours = false;
    int rc = open_small(self, &self->store, err);
    if (!rc)
        rc = refuse_folder_of_run(self->store, name, &is_ours, err);
    if (!rc && !is_ours)
        rc = take(self, name, err);
    if (!rc && !self->replaces)
        rc = store_list_near(self->store, name, 0, refuse_complete, (void *)name, err);
    if (rc)
        claims_leave(self);
    return rc;
}

int claims_check(void *context, struct cb_err *err)
{
    struct claims *self = context;
    return lease_check(self->lease, err);
}
