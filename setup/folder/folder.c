/* The place in the store where a run's checkpoints go: names, markers, claims. */
#include "setup/folder/folder.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "ckpt/format/format.h"
#include "ckpt/stored/resolve_checkpoint.h"
#include "core/path.h"
#include "core/units.h"
#include "run/workload_kind.h"
#include "setup/folder/folder_command.h"
#include "setup/s3_keys.h"
#include "store/kind.h"

#define PLAIN_DEPTH 4
#define DATA_DEPTH 4                  /* folders between the suffix and the files of a checkpoint */
#define FOLDER_PART ".ckptbench-part" /* in the other mounts of a store of several */
#define PART_BYTES (PATH_MAX + 128)

/* A power cut loses a new folder and its contents unless the parent folder has been synced. */
static int sync_folder_above(const char *path, struct cb_err *err)
{
    char above[PATH_MAX];
    int rc = path_format(above, sizeof above, err, "%s/..", path);
    if (rc)
        return rc;
    int fd = open(above, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int failed = fd < 0 || (fsync(fd) != 0 && errno != EINVAL) ? errno : 0; /* EINVAL: it cannot be synced */
    if (fd >= 0)
        close(fd);
    return failed ? cb_fail_errno(err, failed, "syncing the folder above the store folder %s", path) : 0;
}

static int make_store_folder(const char *path, struct cb_err *err)
{
    struct stat found;
    if (stat(path, &found) == 0) {
        if (!S_ISDIR(found.st_mode))
            return cb_fail(err, CB_ERR_USAGE, "store %s is not a folder", path);
        return 0;
    }
    if (errno != ENOENT)
        return cb_fail_errno(err, errno, "store %s", path);
    if (mkdir(path, 0777) == 0 || errno == EEXIST)
        return sync_folder_above(path, err);
    if (errno == ENOENT)
        return cb_fail(err, CB_ERR_NOT_FOUND, "store %s does not exist, nor does the folder above it: make that first",
                       path);
    return cb_fail_errno(err, errno, "making the store folder %s", path);
}

static int make_store_folders(const struct store_uri *uri, struct cb_err *err)
{
    char path[PATH_MAX];
    int rc = 0;
    for (const char *rest = uri->inner; rest && !rc;) {
        rc = store_next_mount(&rest, path, err);
        if (!rc)
            rc = make_store_folder(path, err);
    }
    return rc;
}

/* Marks the store as one in which runs create folders. Files of other programs in it are not touched. */
static int mark_store(struct store *store, struct cb_err *err)
{
    static const char text[] = "ckptbench makes folders here for its runs, and removes their checkpoints again.\n";
    uint64_t length;
    int rc = store_stat(store, FOLDER_MARKER, &length, err);
    if (rc != CB_ERR_NOT_FOUND)
        return rc;
    rc = store_publish(store, FOLDER_MARKER, text, sizeof text - 1, err);
    if (rc == CB_ERR_EXISTS || (rc && store_stat(store, FOLDER_MARKER, &length, NULL) == 0))
        return 0; /* another run that starts now creates it */
    return rc;
}

static int check_suffix(const char *suffix, struct cb_err *err)
{
    if (strlen(suffix) >= FOLDER_NAME_BYTES - 64)
        return cb_fail(err, CB_ERR_USAGE, "suffix is too long (%zu bytes)", strlen(suffix));
    for (const char *part = suffix; part; part = strchr(part, '/') ? strchr(part, '/') + 1 : NULL) {
        size_t len = strcspn(part, "/");
        if (len == 0 || part[0] == '.')
            return cb_fail(err, CB_ERR_USAGE,
                           "suffix=%s: it must be a name under the store, as nightly or 20261121-k3f9/iteration-5",
                           suffix);
    }
    return 0;
}

static int read_suffix(const struct experiment *experiment, const char *run, char suffix[FOLDER_NAME_BYTES],
                       struct cb_err *err)
{
    const char *given = experiment_text(experiment, OPT_SUFFIX);
    if (experiment_is(experiment, OPT_OPS, "load") && !given[0])
        return cb_fail(err, CB_ERR_USAGE, "ops=load needs suffix=NAME, the checkpoint under the store to load");
    const char *name = given[0] ? given : run;
    int rc = check_suffix(name, err);
    if (!rc)
        snprintf(suffix, FOLDER_NAME_BYTES, "%s", name);
    return rc;
}

static int open_plain(const struct experiment *experiment, const char *inner, struct store **store, struct cb_err *err)
{
    struct s3_options s3;
    struct store_options options = {
        .direct = STORE_DIRECT_NO, .depth = PLAIN_DEPTH, .threads = 1, .durable = true, .s3 = &s3};
    int rc = s3_keys_read(experiment, &s3, err);
    return rc ? rc : store_open(inner, &options, store, err);
}

static int check_space(const struct experiment *experiment, struct store *store, const char *path,
                       uint64_t needed_bytes, struct cb_err *err)
{
    uint64_t free_bytes = 0;
    int rc = store_free_bytes(store, &free_bytes, err);
    if (rc || needed_bytes <= free_bytes)
        return rc;
    char need[32], have[32];
    bool is_suite = workload_kind_of(experiment)->measures_cluster;
    return cb_fail(err, CB_ERR_NO_SPACE,
                   "this run needs about %s in store %s, but only %s is free: use %s, or another store",
                   units_format_bytes((double)needed_bytes, need), path, units_format_bytes((double)free_bytes, have),
                   is_suite ? "less of suite.file_bytes" : "a smaller model, layers=N");
}

/* The text of FOLDER_PART in mount `number` of a store of several mounts. */
static void describe_part(const char *first, uint32_t number, uint32_t count, char text[PART_BYTES])
{
    snprintf(text, PART_BYTES, "mount %u of %u of the ckptbench store that begins with %s\n", number + 1, count, first);
}

/* Claims are in the first mount, so the other mounts must belong to this store alone: FOLDER_PART says so. A folder
 * that is a store of its own cannot be one of them. */
static int join_mount(const struct experiment *experiment, const char *path, const char *part, bool marks,
                      struct cb_err *err)
{
    uint64_t length;
    struct store *store;
    struct buf found;
    bool guarded, came_second = false;
    int rc = open_plain(experiment, path, &store, err);
    if (rc)
        return rc;
    buf_init(&found, PART_BYTES);
    rc = store_read_small(store, FOLDER_PART, &found, err);
    if (rc == 0 && strcmp(found.data, part) != 0)
        rc = cb_fail(err, CB_ERR_EXISTS, "%s is %.*s: name the same folders in the same order, or use an empty folder",
                     path, (int)strcspn(found.data, "\n"), found.data);
    else if (rc == CB_ERR_NOT_FOUND && store_stat(store, FOLDER_MARKER, &length, NULL) == 0)
        rc = cb_fail(err, CB_ERR_EXISTS,
                     "%s is a store of its own, whose runs may use the same folders: use an empty folder there", path);
    else if (rc == CB_ERR_NOT_FOUND) {
        rc = marks ? store_swap(store, FOLDER_PART, NULL, part, &guarded, err) : 0;
        came_second = rc == CB_ERR_EXISTS; /* another run that starts now has created it */
    }
    buf_release(&found);
    store_free(store);
    return came_second ? join_mount(experiment, path, part, false, err) : rc;
}

/* Without `marks` only checks, so that a store that is refused leaves no mark. */
static int join_mounts(const struct experiment *experiment, const struct store_uri *uri, bool marks, struct cb_err *err)
{
    char first[PATH_MAX], path[PATH_MAX], part[PART_BYTES];
    uint32_t count = 0;
    int rc = 0;
    for (const char *rest = uri->inner; rest && !rc; count++)
        rc = store_next_mount(&rest, count ? path : first, err);
    const char *rest = uri->inner;
    for (uint32_t i = 0; i < count && !rc; i++) {
        rc = store_next_mount(&rest, path, err);
        describe_part(first, i, count, part);
        if (!rc && i > 0)
            rc = join_mount(experiment, path, part, marks, err);
    }
    return rc;
}

/* The first mount, and a store of one folder, must not be another mount of a store. */
static int refuse_part(struct store *store, const char *path, struct cb_err *err)
{
    struct buf found;
    buf_init(&found, PART_BYTES);
    int rc = store_read_small(store, FOLDER_PART, &found, err);
    if (rc == 0)
        rc = cb_fail(err, CB_ERR_EXISTS, "%s is %.*s, which keeps its claims there: use another folder", path,
                     (int)strcspn(found.data, "\n"), found.data);
    buf_release(&found);
    return rc == CB_ERR_NOT_FOUND ? 0 : rc;
}

int folder_prepare(struct folder *self, const struct experiment *experiment, const struct lease_owner *owner,
                   uint64_t needed_bytes, struct cb_err *err)
{
    struct store_uri uri = store_uri_of(experiment_text(experiment, OPT_STORE));
    const char *path = uri.inner;
    if (!uri.kind->keeps_data && experiment_is(experiment, OPT_OPS, "save"))
        return 0;
    if (!uri.kind->keeps_data)
        return cb_fail(err, CB_ERR_USAGE, "store %s keeps nothing that could be loaded: use ops=save",
                       experiment_text(experiment, OPT_STORE));
    if (experiment_bool(experiment, OPT_KEEP_REPLACE) && experiment_is(experiment, OPT_FOLDER, "per_iteration"))
        return cb_fail(err, CB_ERR_USAGE, "--replace-kept needs folder=overwrite or folder=rotate, which replace");
    char suffix[FOLDER_NAME_BYTES];
    struct store *store;
    int rc = read_suffix(experiment, owner->run, suffix, err);
    if (rc)
        return rc;
    if (experiment_is(experiment, OPT_OPS, "load")) {
        struct stat found;
        return uri.kind->is_path && stat(path, &found) != 0 ? cb_fail_errno(err, errno, "store %s", path) : 0;
    }
    if (uri.kind->is_path || uri.kind->is_mounts)
        rc = make_store_folders(&uri, err);
    if (!rc && uri.kind->is_mounts)
        rc = join_mounts(experiment, &uri, false, err);
    if (!rc)
        rc = open_plain(experiment, uri.plain, &store, err);
    if (rc)
        return rc;
    rc = refuse_part(store, path, err);
    if (!rc)
        rc = mark_store(store, err);
    if (!rc && uri.kind->is_mounts) /* the mark shows a mount that is the first folder by another name */
        rc = join_mounts(experiment, &uri, true, err);
    if (rc)
        rc = rc == CB_ERR_EXISTS ? rc : cb_context(err, "store %s cannot be written to", path);
    if (!rc)
        rc = check_space(experiment, store, path, needed_bytes, err);
    if (rc) {
        store_free(store);
        return rc;
    }
    rc = lease_take(store, path, suffix, experiment, owner, &self->lease, err);
    return rc || (!uri.kind->is_path && !uri.kind->is_mounts)
               ? rc
               : folder_run_command(experiment, OPT_STORE_PREPARE, STORE_PREPARE_FILE, path, suffix, owner, err);
}

int folder_open(struct folder *self, const struct experiment *experiment, const char *run, struct cb_err *err)
{
    struct store_uri uri = store_uri_of(experiment_text(experiment, OPT_STORE));
    struct folder made = {.lease = self->lease,
                          .path = uri.kind->keeps_data ? uri.inner : NULL,
                          .reads_only = experiment_is(experiment, OPT_OPS, "load"),
                          .overwrite = !experiment_is(experiment, OPT_FOLDER, "per_iteration")};
    uint64_t length;
    int rc = read_suffix(experiment, run, made.suffix, err);
    if (!rc)
        rc = open_plain(experiment, uri.plain, &made.plain, err);
    if (!rc && made.path && made.reads_only) { /* else rank 0 has marked it */
        rc = store_stat(made.plain, FOLDER_MARKER, &length, err);
        made.ours = rc == 0;
        rc = rc == CB_ERR_NOT_FOUND ? 0 : rc;
    }
    if (rc) {
        made.lease = NULL; /* still the caller's */
        folder_release(&made);
        return rc;
    }
    snprintf(made.run, sizeof made.run, "%s", run);
    *self = made;
    return 0;
}

void folder_release(struct folder *self)
{
    lease_free(self->lease);
    if (self->plain)
        store_free(self->plain);
    memset(self, 0, sizeof *self);
}

int folder_choose_slot(struct folder *self, struct cb_err *err)
{
    char newest[FOLDER_NAME_BYTES], slot[FOLDER_NAME_BYTES];
    uint64_t files;
    self->first = 0;
    if (!self->path)
        return 0;
    int rc = resolve_newest_checkpoint(self->plain, self->suffix, newest, sizeof newest, &files, err);
    snprintf(slot, sizeof slot, "%.900s/checkpoint-0", self->suffix);
    if (rc)
        return rc == CB_ERR_NOT_FOUND ? 0 : rc;
    if (strcmp(newest, slot) == 0)
        self->first = 1;
    return store_sync_folder(self->plain, newest, err); /* its writer may have been killed before the sync */
}

void folder_checkpoint_name(const struct folder *self, const struct experiment *experiment, uint32_t iteration,
                            char name[FOLDER_NAME_BYTES])
{
    char last[64];
    if (experiment_is(experiment, OPT_FOLDER, "overwrite"))
        snprintf(last, sizeof last, "checkpoint");
    else if (experiment_is(experiment, OPT_FOLDER, "rotate"))
        snprintf(last, sizeof last, "checkpoint-%u", (self->first + iteration) % 2);
    else
        snprintf(last, sizeof last, "iteration-%u", iteration);
    snprintf(name, FOLDER_NAME_BYTES, "%.900s/%s", self->suffix, last);
}

void folder_scratch_name(const struct folder *self, char name[FOLDER_NAME_BYTES])
{
    if (self->reads_only)
        snprintf(name, FOLDER_NAME_BYTES, "baseline-%.900s", self->run);
    else
        snprintf(name, FOLDER_NAME_BYTES, "%.900s/baseline", self->suffix);
}

int folder_find_checkpoint(const struct folder *self, char name[FOLDER_NAME_BYTES], struct cb_err *err)
{
    uint64_t files = 0;
    int rc = resolve_newest_checkpoint(self->plain, self->suffix, name, FOLDER_NAME_BYTES, &files, err);
    if (rc != CB_ERR_NOT_FOUND)
        return rc;
    if (files == 0)
        return cb_fail(err, CB_ERR_NOT_FOUND, "there is no checkpoint %s in store %s", self->suffix, self->path);
    return cb_fail(err, CB_ERR_NOT_FOUND,
                   "%s in store %s is no complete checkpoint: it has %" PRIu64 " files, but no " STORED_MARKER,
                   self->suffix, self->path, files);
}

/* The first name that is not hidden ends the list. */
static int take_data_file(void *context, const char *name, uint64_t length, struct cb_err *err)
{
    const char *slash = strrchr(name, '/');
    (void)length, (void)err;
    if (*(slash ? slash + 1 : name) == '.')
        return 0;
    snprintf(context, PATH_MAX, "%s", name);
    return CB_ERR_EXISTS;
}

int folder_find_file(const struct folder *self, char name[PATH_MAX], struct cb_err *err)
{
    *name = '\0';
    if (!self->reads_only)
        return claim_name(self->suffix, name, err);
    int rc = store_list_near(self->plain, self->suffix, DATA_DEPTH, take_data_file, name, err);
    return *name ? 0 : rc;
}

int folder_record(const struct folder *self, const struct experiment *experiment, const char *run_folder,
                  uint32_t attempt, struct cb_err *err)
{
    const struct lease_owner owner = {.run_folder = run_folder, .attempt = attempt};
    return folder_run_command(experiment, OPT_STORE_RECORD, STORE_RECORD_FILE, self->path, self->suffix, &owner, err);
}

int folder_check_owner(void *self, struct cb_err *err)
{
    const struct folder *folder = self;
    return lease_check(folder->lease, err);
}

const char *folder_weakness(const struct folder *self)
{
    if (!self->lease || lease_is_guarded(self->lease))
        return NULL;
    return "weak: the store has no record locks or conditional writes, so two runs may claim a folder at the same "
           "moment";
}
