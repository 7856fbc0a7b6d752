/* Finds the location of a store, and checks that it can be used. */
#include "cli/plan/store_location.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#include "ckpt/model/model.h"
#include "cli/workload_table.h"
#include "run/workload_kind.h"
#include "setup/s3_keys.h"
#include "store/s3/s3_uri.h"

#define PROBE_ALIGNMENT 4096

/* "a/b" becomes "/current/folder/a/b"; "." and ".." are resolved only if the path exists. */
static int absolute_path(const char *path, struct buf *out, struct cb_err *err)
{
    char resolved[PATH_MAX];
    if (realpath(path, resolved)) {
        buf_append_text(out, resolved);
        return 0;
    }
    if (path[0] != '/') {
        if (!getcwd(resolved, sizeof resolved))
            return cb_fail_errno(err, errno, "finding the working folder");
        buf_printf(out, "%s/", strcmp(resolved, "/") == 0 ? "" : resolved);
        while (strncmp(path, "./", 2) == 0)
            path += 2;
    }
    buf_append_text(out, path);
    return 0;
}

/* Makes the path in a key absolute, because ranks have another working folder. `path` is the part of the key's value
 * after its prefix, which stays. */
static int freeze_path(struct experiment *experiment, enum option_id id, const char *path, const char *what,
                       struct cb_err *err)
{
    const char *key = option_row(id)->name, *value = experiment_text(experiment, id);
    struct buf text;
    buf_init(&text, 65536);
    buf_append(&text, value, (size_t)(path - value));
    int rc = absolute_path(path, &text, err);
    if (rc == 0)
        rc = buf_check(&text, what, err);
    if (rc == 0)
        rc = experiment_set(experiment, key, text.data, key, err);
    buf_release(&text);
    return rc;
}

static int freeze_mounts(struct experiment *experiment, const char *mounts, struct cb_err *err)
{
    const char *store = experiment_text(experiment, OPT_STORE);
    char path[PATH_MAX];
    struct buf text;
    buf_init(&text, 65536);
    buf_append(&text, store, (size_t)(mounts - store));
    int rc = 0;
    for (const char *rest = mounts; rest && !rc;) {
        buf_append_text(&text, rest > mounts ? "+" : "");
        rc = store_next_mount(&rest, path, err);
        if (!rc)
            rc = absolute_path(path, &text, err);
    }
    if (!rc)
        rc = buf_check(&text, "the store's paths", err);
    if (!rc)
        rc = experiment_set(experiment, "store", text.data, "store", err);
    buf_release(&text);
    if (!rc)
        mounts = store_uri_of(experiment_text(experiment, OPT_STORE)).inner;
    return rc ? rc : store_uri_of(mounts).kind->check(mounts, err);
}

static int freeze_store(struct experiment *experiment, struct cb_err *err)
{
    const char *store = experiment_text(experiment, OPT_STORE);
    struct store_uri uri;
    if (store_uri_parse(store, &uri, err))
        return cb_context(err, "store=%s", store);
    if (uri.kind->is_path)
        return freeze_path(experiment, OPT_STORE, uri.inner, "the store's path", err);
    if (uri.kind->is_mounts)
        return freeze_mounts(experiment, uri.inner, err);
    return uri.kind->check ? uri.kind->check(uri.inner, err) : 0;
}

static bool is_preset(const char *model)
{
    for (size_t i = 0; i < model_preset_count(); i++)
        if (strcmp(model_preset_name(i), model) == 0)
            return true;
    return false;
}

int store_location_freeze(struct experiment *experiment, struct cb_err *err)
{
    static const enum option_id files[] = {OPT_TRAIN_DATA, OPT_S3_TLS_CA,   OPT_S3_TLS_CERT,
                                           OPT_S3_TLS_KEY, OPT_TRAIN_VOCAB, OPT_TRAIN_MERGES};
    const char *model = experiment_text(experiment, OPT_MODEL);
    int rc = freeze_store(experiment, err);
    for (size_t i = 0; i < sizeof files / sizeof *files && rc == 0; i++) {
        const char *file = experiment_text(experiment, files[i]);
        if (*file && strcmp(file, option_row(files[i])->fallback) != 0)
            rc = freeze_path(experiment, files[i], file, "the path of a file", err);
    }
    if (rc || is_preset(model) || access(model, F_OK) < 0)
        return rc; /* loading the model reports an invalid name */
    return freeze_path(experiment, OPT_MODEL, model, "the model's path", err);
}

/* A run that only loads needs read access, any other run write access. Root has both, except on a file system mounted
 * read-only. */
static int check_access(const char *path, const char *folder, bool loads, struct cb_err *err)
{
    if (access(folder, loads ? R_OK | X_OK : W_OK | X_OK) == 0)
        return 0;
    return cb_fail_errno(err, errno, "store=%s: %s cannot be %s; choose another folder, or ask who owns it", path,
                         folder, loads ? "read" : "written to");
}

static int check_folder(const char *path, bool loads, struct cb_err *err)
{
    struct stat status;
    char above[PATH_MAX];
    if (stat(path, &status) == 0)
        return S_ISDIR(status.st_mode) ? check_access(path, path, loads, err)
                                       : cb_fail(err, CB_ERR_USAGE, "store=%s is not a folder", path);
    if (loads)
        return cb_fail(err, CB_ERR_NOT_FOUND, "store=%s does not exist: there is nothing to load", path);
    snprintf(above, sizeof above, "%s", path);
    for (size_t len = strlen(above); len > 1 && above[len - 1] == '/'; len--)
        above[len - 1] = '\0';
    char *slash = strrchr(above, '/');
    if (slash)
        *slash = '\0';
    if (slash && slash > above && stat(above, &status) < 0 && errno == ENOENT)
        return cb_fail(err, CB_ERR_NOT_FOUND,
                       "store=%s does not exist, nor does the folder above it: is it mounted? else mkdir -p %s", path,
                       above);
    return check_access(path, slash == above ? "/" : above, loads, err);
}

/* Rejects keys that are invalid for any server. Settings that depend on the environment of the ranks are checked
 * there. */
static int check_s3_keys(const struct experiment *experiment, struct cb_err *err)
{
    struct s3_options options;
    struct s3_endpoint unused;
    uint32_t endpoints = 1;
    int rc = s3_keys_read(experiment, &options, err);
    if (rc || !options.endpoint[0])
        return rc;
    rc = s3_endpoint_of_rank(options.endpoint, 0, options.endpoint, sizeof options.endpoint, &endpoints, err);
    if (!rc && endpoints > 1 && !experiment_is(experiment, OPT_ENGINE, "native"))
        rc = cb_fail(err, CB_ERR_USAGE, "s3.endpoint has %u URLs, and engine=%s uses one", endpoints,
                     experiment_text(experiment, OPT_ENGINE));
    return rc ? rc : s3_endpoint_make(options.endpoint, "", "bucket", 1, &unused, err);
}

static bool only_loads(const struct experiment *experiment)
{
    return workload_kind_of(experiment)->inspects_checkpoint ||
           (workload_kind_of(experiment)->uses_engine && experiment_is(experiment, OPT_OPS, "load"));
}

/* Only our engine knows in which mount a file is, and files that all ranks share would all be in the first. */
static int check_mounts(const struct experiment *experiment, const char *mounts, struct cb_err *err)
{
    char path[PATH_MAX];
    if (!experiment_is(experiment, OPT_ENGINE, "native"))
        return cb_fail(err, CB_ERR_USAGE, "store=%s has several folders, and engine=%s writes to one", mounts,
                       experiment_text(experiment, OPT_ENGINE));
    if (strcmp(experiment_text(experiment, OPT_IO_FILES), "shared") == 0)
        return cb_fail(err, CB_ERR_USAGE, "io.files=shared is one file, which cannot be spread over store=%s", mounts);
    for (const char *rest = mounts; rest;) {
        int rc = store_next_mount(&rest, path, err);
        if (!rc)
            rc = check_folder(path, only_loads(experiment), err);
        if (rc)
            return rc;
    }
    return 0;
}

int store_location_check(const struct experiment *experiment, struct cb_err *err)
{
    const char *store = experiment_text(experiment, OPT_STORE);
    struct store_uri uri = store_uri_of(store);
    if (!workload_row_of(experiment)->needs_store)
        return 0;
    int rc = store_uri_check_faults(store, err);
    if (rc)
        return cb_context(err, "store=%s", store);
    bool has_folders = uri.kind->is_path || uri.kind->is_mounts;
    if (!has_folders && *experiment_text(experiment, OPT_STORE_PREPARE))
        return cb_fail(err, CB_ERR_USAGE, "store.prepare requires a store in a file system, not %s", store);
    if (!has_folders && *experiment_text(experiment, OPT_STORE_RECORD))
        return cb_fail(err, CB_ERR_USAGE, "store.record requires a store in a file system, not %s", store);
    if (*experiment_text(experiment, OPT_STORE_RECORD) && !workload_kind_of(experiment)->uses_engine &&
        !workload_kind_of(experiment)->trains)
        return cb_fail(err, CB_ERR_USAGE, "store.record is for a checkpoint's files, and this workload saves none");
    if (only_loads(experiment) && *experiment_text(experiment, OPT_STORE_PREPARE))
        return cb_fail(err, CB_ERR_USAGE, "store.prepare is for a new folder, and ops=load makes no folder");
    if (uri.kind->is_objects)
        return check_s3_keys(experiment, err);
    if (uri.kind->is_path)
        return check_folder(uri.inner, only_loads(experiment), err);
    if (uri.kind->is_mounts)
        return check_mounts(experiment, uri.inner, err);
    if (uri.kind->keeps_data)
        return 0;
    if (workload_kind_of(experiment)->inspects_checkpoint)
        return cb_fail(err, CB_ERR_USAGE, "store=%s keeps nothing that could be looked at", store);
    if (experiment_is(experiment, OPT_OPS, "save") || workload_kind_of(experiment)->trains ||
        workload_kind_of(experiment)->measures_cluster)
        return 0; /* the suite skips its storage section and reports that */
    return cb_fail(err, CB_ERR_USAGE, "store=%s keeps nothing that could be loaded: use ops=save", store);
}

/* The longest existing prefix of the path. */
static void find_existing(const char *path, char existing[4096])
{
    snprintf(existing, 4096, "%s", path);
    while (access(existing, F_OK) < 0) {
        char *slash = strrchr(existing, '/');
        if (!slash || slash == existing) {
            snprintf(existing, 4096, "%s", slash ? "/" : ".");
            return;
        }
        *slash = '\0';
    }
}

int store_location_free_bytes(const char *path, uint64_t *bytes)
{
    struct statvfs space;
    char existing[PATH_MAX];
    find_existing(path, existing);
    if (statvfs(existing, &space) < 0)
        return CB_ERR_SYSTEM;
    if (space.f_blocks == 0)
        return CB_ERR_UNSUPPORTED;
    *bytes = (uint64_t)space.f_bavail * space.f_frsize;
    return 0;
}

bool store_location_room(const struct store_uri *uri, uint64_t *bytes, char fullest[4096])
{
    char path[PATH_MAX];
    uint64_t found, count = 0;
    *bytes = UINT64_MAX;
    *fullest = '\0';
    if ((!uri->kind->is_path && !uri->kind->is_mounts) || uri->inner[0] != '/')
        return false;
    for (const char *rest = uri->inner; rest; count++) {
        if (store_next_mount(&rest, path, NULL) || store_location_free_bytes(path, &found))
            return false;
        if (found < *bytes)
            snprintf(fullest, 4096, "%s", path);
        *bytes = found < *bytes ? found : *bytes;
    }
    *bytes = *bytes < UINT64_MAX / count ? *bytes * count : UINT64_MAX;
    return true;
}

/* Type and source of the mount with this device number (proc(5), mountinfo). */
static void find_mount(const char *path, struct store_location *place)
{
    struct stat status;
    FILE *mounts = stat(path, &status) == 0 ? fopen("/proc/self/mountinfo", "re") : NULL;
    char *line = NULL;
    size_t room = 0;
    while (mounts && getline(&line, &room, mounts) > 0) {
        unsigned major_number, minor_number;
        char *rest = strstr(line, " - ");
        if (!rest || sscanf(line, "%*d %*d %u:%u", &major_number, &minor_number) != 2)
            continue;
        if (makedev(major_number, minor_number) == status.st_dev)
            sscanf(rest + 3, "%63s %255s", place->filesystem, place->device);
    }
    free(line);
    if (mounts)
        fclose(mounts);
}

static void ask_direct(int fd, struct store_location *place)
{
#ifdef STATX_DIOALIGN
    struct statx status;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) == 0 && (status.stx_mask & STATX_DIOALIGN)) {
        place->direct_offset_alignment = status.stx_dio_offset_align;
        place->direct_memory_alignment = status.stx_dio_mem_align;
    }
#else
    (void)fd, (void)place;
#endif
}

/* Opens an unnamed temporary file with O_DIRECT; if the file system has none, a named one that is unlinked at once. */
static void probe_direct(const char *folder, struct store_location *place)
{
    char name[4200];
    int fd = open(folder, O_TMPFILE | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
    if (fd < 0 && (errno == EOPNOTSUPP || errno == EISDIR || errno == EINVAL)) {
        snprintf(name, sizeof name, "%s/.ckptbench-probe-%d", folder, (int)getpid());
        fd = open(name, O_CREAT | O_EXCL | O_RDWR | O_DIRECT | O_CLOEXEC, 0600);
        if (fd >= 0 || errno == EINVAL)
            unlink(name);
    }
    if (fd < 0)
        return;
    void *block = NULL;
    ask_direct(fd, place);
    if (posix_memalign(&block, PROBE_ALIGNMENT, PROBE_ALIGNMENT) == 0) {
        memset(block, 0, PROBE_ALIGNMENT);
        place->direct_works = pwrite(fd, block, PROBE_ALIGNMENT, 0) == PROBE_ALIGNMENT;
    }
    free(block);
    close(fd);
}

int store_location_find(const char *store, struct store_location *place, struct cb_err *err)
{
    struct store_location found = {0};
    struct store_uri uri;
    if (store_uri_parse(store, &uri, err))
        return cb_context(err, "store=%s", store);
    if (!uri.kind->is_path) {
        *place = found;
        return 0;
    }
    found.is_path = true;
    snprintf(found.path, sizeof found.path, "%s", uri.inner);
    find_existing(found.path, found.existing);
    if (store_location_free_bytes(found.existing, &found.free_bytes) == CB_ERR_SYSTEM)
        return cb_fail_errno(err, errno, "looking at %s", found.existing);
    find_mount(found.existing, &found);
    found.writable = access(found.existing, W_OK | X_OK) == 0;
    if (found.writable)
        probe_direct(found.existing, &found);
    *place = found;
    return 0;
}

char *store_location_shorten(const char *path, char *text, size_t bytes)
{
    const char *home = getenv("HOME");
    size_t len = home ? strlen(home) : 0;
    bool under = len > 1 && strncmp(path, home, len) == 0 && path[len] == '/';
    snprintf(text, bytes, "%s%s", under ? "~" : "", under ? path + len : path);
    return text;
}
