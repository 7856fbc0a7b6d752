/* The place in the store where a run's checkpoints go: names, markers, claims. */
#include "setup/folder/folder.h"

#include <dirent.h>
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
#include "core/buf.h"
#include "core/units.h"
#include "run/workload_kind.h"
#include "setup/folder/folder_objects.h"
#include "setup/s3_keys.h"
#include "store/kind.h"

#define CLAIM_MAX_BYTES 4096
#define PLAIN_DEPTH 4

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
        return 0;
    if (errno == ENOENT)
        return cb_fail(err, CB_ERR_NOT_FOUND, "store %s does not exist, nor does the folder above it: make that first",
                       path);
    return cb_fail_errno(err, errno, "making the store folder %s", path);
}

/* The contents of the store's folder, ignoring what file systems put there themselves. */
struct survey {
    bool marker;
    uint32_t others;
    char first_other[256], first_file[256]; /* the first entry; the first that is not a folder */
};

static int survey_folder(const char *path, struct survey *survey, struct cb_err *err)
{
    DIR *stream = opendir(path);
    if (!stream)
        return cb_fail_errno(err, errno, "store %s cannot be listed", path);
    memset(survey, 0, sizeof *survey);
    for (const struct dirent *entry = readdir(stream); entry; entry = readdir(stream)) {
        const char *name = entry->d_name;
        struct stat found;
        if (strcmp(name, ".") == 0 || strcmp(name, "..") == 0 || strcmp(name, "lost+found") == 0)
            continue;
        if (strcmp(name, FOLDER_MARKER) == 0)
            continue;
        if (survey->others++ == 0)
            snprintf(survey->first_other, sizeof survey->first_other, "%s", name);
        if (!survey->first_file[0] && fstatat(dirfd(stream), name, &found, AT_SYMLINK_NOFOLLOW) == 0 &&
            !S_ISDIR(found.st_mode))
            snprintf(survey->first_file, sizeof survey->first_file, "%s", name);
    }
    /* Checked last, so that files of another run that starts now are not taken for foreign ones. */
    survey->marker = faccessat(dirfd(stream), FOLDER_MARKER, F_OK, AT_SYMLINK_NOFOLLOW) == 0;
    closedir(stream);
    return 0;
}

/* Creates a file; CB_ERR_EXISTS if another run was faster. */
static int create_text(const char *path, const char *text, struct cb_err *err)
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

static int replace_text(const char *path, const char *text, struct cb_err *err)
{
    struct buf bytes;
    buf_init(&bytes, CLAIM_MAX_BYTES);
    buf_append_text(&bytes, text);
    int rc = buf_check(&bytes, "the marker", err);
    if (!rc)
        rc = buf_write_file(&bytes, path, 0644, err);
    buf_release(&bytes);
    return rc;
}

static int join_path(char *text, size_t text_bytes, const char *folder, const char *name, struct cb_err *err)
{
    int length = snprintf(text, text_bytes, "%s/%s", folder, name);
    if (length < 0 || (size_t)length >= text_bytes)
        return cb_fail(err, CB_ERR_USAGE, "the name %s/%s is too long", folder, name);
    return 0;
}

/* An empty folder becomes ours; any other folder must have our marker. */
static int claim_store(const char *path, struct cb_err *err)
{
    struct survey survey;
    int rc = survey_folder(path, &survey, err);
    if (rc)
        return rc;
    if (survey.marker && survey.first_file[0])
        return cb_fail(err, CB_ERR_EXISTS,
                       "store %s holds %s, which is not ours: use a folder of its own for benchmarks, or move the file",
                       path, survey.first_file);
    if (survey.marker)
        return 0;
    if (survey.others > 0)
        return cb_fail(err, CB_ERR_EXISTS,
                       "store %s holds %s%s, which this program did not write: use an empty or a new folder", path,
                       survey.first_other, survey.others > 1 ? " and more" : "");
    char marker[FOLDER_NAME_BYTES + 256];
    rc = join_path(marker, sizeof marker, path, FOLDER_MARKER, err);
    if (!rc)
        rc = create_text(marker, "This folder holds checkpoints of ckptbench runs, which ckptbench removes.\n", err);
    if (rc == CB_ERR_EXISTS)
        return 0; /* another run made it ours */
    return rc ? cb_context(err, "store %s cannot be written to", path) : 0;
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

/* Reads the run's id from a claim. */
static int read_claim(const char *folder, struct buf *text, struct cb_err *err)
{
    char path[2 * FOLDER_NAME_BYTES];
    int rc = join_path(path, sizeof path, folder, FOLDER_CLAIM, err);
    if (!rc)
        rc = buf_read_file(text, path, err);
    if (!rc)
        text->data[strcspn(text->data, "\n")] = '\0';
    return rc;
}

/* Whether an existing folder may be used: it is from an earlier attempt, or may be overwritten. */
static int check_claim(const char *folder, const char *run, bool overwrite, struct cb_err *err)
{
    struct stat found;
    if (stat(folder, &found) != 0)
        return 0;
    struct buf text;
    buf_init(&text, CLAIM_MAX_BYTES);
    int rc = read_claim(folder, &text, NULL);
    if (rc)
        rc =
            cb_fail(err, CB_ERR_EXISTS, "%s is there already and was not made by a run: choose another suffix", folder);
    else if (strcmp(text.data, run) != 0 && !overwrite)
        rc = cb_fail(err, CB_ERR_EXISTS,
                     "%s holds a checkpoint of run %s: choose another suffix, remove it, or use folder=overwrite",
                     folder, text.data);
    buf_release(&text);
    return rc;
}

static int make_folders(const char *root, const char *suffix, struct cb_err *err)
{
    char path[2 * FOLDER_NAME_BYTES];
    for (const char *end = suffix; *end; end += *end == '/') {
        end += strcspn(end, "/");
        int length = snprintf(path, sizeof path, "%s/%.*s", root, (int)(end - suffix), suffix);
        if (length < 0 || (size_t)length >= sizeof path)
            return cb_fail(err, CB_ERR_USAGE, "the name %s/%s is too long", root, suffix);
        if (mkdir(path, 0777) != 0 && errno != EEXIST)
            return cb_fail_errno(err, errno, "making the folder %s", path);
    }
    return 0;
}

/* A training that resumes takes over the checkpoints of the run before. */
static bool takes_over(const struct experiment *experiment)
{
    bool resumes = workload_kind_of(experiment)->trains && experiment_is(experiment, OPT_TRAIN_RESUME, "latest");
    return resumes || !experiment_is(experiment, OPT_FOLDER, "per_iteration");
}

static int claim_suffix(const struct experiment *experiment, const char *path, const char *run, struct cb_err *err)
{
    char suffix[FOLDER_NAME_BYTES], folder[2 * FOLDER_NAME_BYTES], claim[3 * FOLDER_NAME_BYTES];
    bool overwrite = takes_over(experiment);
    int rc = read_suffix(experiment, run, suffix, err);
    if (!rc)
        rc = join_path(folder, sizeof folder, path, suffix, err);
    if (!rc)
        rc = check_claim(folder, run, overwrite, err);
    if (!rc)
        rc = make_folders(path, suffix, err);
    if (!rc)
        rc = join_path(claim, sizeof claim, folder, FOLDER_CLAIM, err);
    if (rc)
        return rc;
    rc = create_text(claim, run, err);
    if (rc != CB_ERR_EXISTS)
        return rc;
    rc = check_claim(folder, run, overwrite, err); /* again: another run may have been faster */
    return rc ? rc : replace_text(claim, run, err);
}

static int open_plain(const struct experiment *experiment, const char *inner, struct store **store, struct cb_err *err)
{
    struct s3_options s3;
    struct store_options options = {
        .direct = STORE_DIRECT_NO, .depth = PLAIN_DEPTH, .threads = 1, .durable = true, .s3 = &s3};
    int rc = s3_keys_read(experiment, &s3, err);
    return rc ? rc : store_open(inner, &options, store, err);
}

static int claim_objects(const struct experiment *experiment, const char *path, const char *run, struct cb_err *err)
{
    char suffix[FOLDER_NAME_BYTES];
    struct store *store;
    int rc = read_suffix(experiment, run, suffix, err);
    if (!rc)
        rc = open_plain(experiment, path, &store, err);
    if (rc)
        return rc;
    rc = folder_objects_claim(store, path, suffix, run, takes_over(experiment), err);
    store_free(store);
    return rc;
}

static int check_space(const struct experiment *experiment, const char *path, uint64_t needed_bytes, struct cb_err *err)
{
    struct store *store;
    uint64_t free_bytes = 0;
    int rc = open_plain(experiment, path, &store, err);
    if (rc)
        return rc;
    rc = store_free_bytes(store, &free_bytes, err);
    store_free(store);
    if (rc || needed_bytes <= free_bytes)
        return rc;
    char need[32], have[32];
    bool is_suite = workload_kind_of(experiment)->measures_cluster;
    return cb_fail(err, CB_ERR_NO_SPACE,
                   "this run needs about %s in store %s, but only %s is free: use %s, or another store",
                   units_format_bytes((double)needed_bytes, need), path, units_format_bytes((double)free_bytes, have),
                   is_suite ? "less of suite.file_bytes" : "a smaller model, layers=N");
}

int folder_prepare(const struct experiment *experiment, const char *run, uint64_t needed_bytes, struct cb_err *err)
{
    struct store_uri uri = store_uri_of(experiment_text(experiment, OPT_STORE));
    const char *path = uri.inner;
    if (!uri.kind->keeps_data && experiment_is(experiment, OPT_OPS, "save"))
        return 0;
    if (!uri.kind->keeps_data)
        return cb_fail(err, CB_ERR_USAGE, "store %s keeps nothing that could be loaded: use ops=save",
                       experiment_text(experiment, OPT_STORE));
    if (experiment_is(experiment, OPT_OPS, "load")) {
        char suffix[FOLDER_NAME_BYTES];
        struct stat found;
        if (uri.kind->is_path && stat(path, &found) != 0)
            return cb_fail_errno(err, errno, "store %s", path);
        return read_suffix(experiment, run, suffix, err);
    }
    if (!uri.kind->is_path)
        return claim_objects(experiment, path, run, err);
    int rc = make_store_folder(path, err);
    if (!rc)
        rc = claim_store(path, err);
    if (!rc)
        rc = check_space(experiment, path, needed_bytes, err);
    return rc ? rc : claim_suffix(experiment, path, run, err);
}

int folder_open(struct folder *self, const struct experiment *experiment, const char *run, struct cb_err *err)
{
    struct store_uri uri = store_uri_of(experiment_text(experiment, OPT_STORE));
    struct folder made = {.path = uri.kind->keeps_data ? uri.inner : NULL,
                          .reads_only = experiment_is(experiment, OPT_OPS, "load"),
                          .overwrite = !experiment_is(experiment, OPT_FOLDER, "per_iteration")};
    struct survey survey = {0};
    int rc = read_suffix(experiment, run, made.suffix, err);
    if (!rc && uri.kind->is_path)
        rc = survey_folder(made.path, &survey, err);
    if (!rc)
        rc = open_plain(experiment, uri.inner, &made.plain, err);
    if (!rc && made.path && !uri.kind->is_path && made.reads_only) /* else rank 0 has claimed it */
        rc = folder_objects_are_ours(made.plain, &survey.marker, err);
    if (rc) {
        folder_release(&made);
        return rc;
    }
    made.ours = survey.marker;
    snprintf(made.run, sizeof made.run, "%s", run);
    *self = made;
    return 0;
}

void folder_release(struct folder *self)
{
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
    if (rc == 0 && strcmp(newest, slot) == 0)
        self->first = 1;
    return rc == CB_ERR_NOT_FOUND ? 0 : rc;
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

int folder_leave(const struct folder *self, struct cb_err *err)
{
    if (self->reads_only || !self->path)
        return 0;
    char claim[FOLDER_NAME_BYTES + 32];
    snprintf(claim, sizeof claim, "%s/" FOLDER_CLAIM, self->suffix);
    uint64_t bytes = 0, files = 0;
    int rc = store_measure(self->plain, self->suffix, &bytes, &files, err);
    if (rc || files > 1)
        return rc; /* a checkpoint is kept, and so is its claim */
    rc = store_remove(self->plain, claim, err);
    return rc ? rc : store_remove_folder(self->plain, self->suffix, err);
}
