/* The table of all kinds of stores. */
#include "store/kind.h"

#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

#include "store/backend.h"
#include "store/fault/fault_spec.h"
#include "store/fault/power_cut.h"
#include "store/s3/s3.h"
#include "store/s3/s3_uri.h"

#ifdef HAVE_CURL
#define S3_BACKEND &s3_backend
#else
#define S3_BACKEND NULL
int s3_open(const char *where, const struct store_options *options, struct backend **backend, struct cb_err *err)
{
    (void)options, (void)backend;
    return cb_fail(err, CB_ERR_UNSUPPORTED,
                   "store '" STORE_S3 "%s': this program was built without libcurl; install libcurl4-openssl-dev and "
                   "build it again",
                   where);
}
#endif

static int s3_check(const char *uri, struct cb_err *err)
{
    char bucket[S3_BUCKET_BYTES], prefix[S3_KEY_BYTES];
    return s3_uri_parse(uri, bucket, prefix, err);
}

static int s3_abort_leftovers(const char *uri, const struct s3_options *options, const char *folder,
                              bool (*is_theirs)(const char *name), uint64_t *count, struct cb_err *err)
{
    struct s3_client *client;
    int rc = s3_client_open(uri, options, 0, &client, err);
    if (rc)
        return rc;
    rc = s3_client_abort_uploads(client, folder, is_theirs, count, err);
    s3_client_free(client);
    return rc;
}

static int fault_open(const char *where, const struct store_options *options, struct backend **backend,
                      struct cb_err *err);

static const struct store_kind null_kind = {
    .name = "null",
    .scheme = STORE_NULL,
    .ops = &null_backend,
    .block_option = "io.block",
    .open = null_open,
};

static const struct store_kind fault_kind = {
    .name = "fault",
    .scheme = STORE_FAULT,
    .ops = &fault_backend,
    .open = fault_open,
};

static const struct store_kind s3_kind = {
    .name = "s3",
    .scheme = STORE_S3,
    .ops = S3_BACKEND,
    .is_objects = true,
    .keeps_data = true,
    .block_option = "s3.part_size",
    .open = s3_open,
    .check = s3_check,
    .abort_leftovers = s3_abort_leftovers,
};

/* Whether the first `len` bytes name a folder that is there. */
static bool is_folder(const char *path, size_t len)
{
    char name[PATH_MAX];
    struct stat about;
    return len < sizeof name && snprintf(name, sizeof name, "%.*s", (int)len, path) > 0 && stat(name, &about) == 0 &&
           S_ISDIR(about.st_mode);
}

/* The '+' after the first of several folders; NULL if there is one folder. */
static const char *find_join(const char *paths)
{
    for (const char *plus = strchr(paths, '+'); plus; plus = strchr(plus + 1, '+'))
        if (plus > paths && plus[-1] != '+' && plus[1 + (plus[1] == '.') + (plus[1] == '.' && plus[2] == '.')] == '/' &&
            !is_folder(paths, (size_t)(plus + 1 - paths)))
            return plus;
    return NULL;
}

int store_next_mount(const char **rest, char path[PATH_MAX], struct cb_err *err)
{
    const char *join = find_join(*rest);
    size_t len = join ? (size_t)(join - *rest) : strlen(*rest);
    if (len >= PATH_MAX)
        return cb_fail(err, CB_ERR_USAGE, "the store's path '%.60s…' is longer than %d bytes", *rest, PATH_MAX - 1);
    memcpy(path, *rest, len);
    path[len] = '\0';
    *rest = join ? join + 1 : NULL;
    return 0;
}

/* Rejects what is no folder, and a folder given twice. */
static int mounts_check(const char *uri, struct cb_err *err)
{
    const char *rest = uri;
    for (uint32_t i = 0; rest; i++) {
        char path[PATH_MAX], other[PATH_MAX];
        int rc = store_next_mount(&rest, path, err);
        if (!rc && i == STORE_MOST_MOUNTS)
            rc = cb_fail(err, CB_ERR_USAGE, "store '%s' has more than %d mounts", uri, STORE_MOST_MOUNTS);
        const char *later = rest;
        while (!rc && later) {
            rc = store_next_mount(&later, other, err);
            if (!rc && strcmp(path, other) == 0)
                rc = cb_fail(err, CB_ERR_USAGE, "store '%s' has the folder %s twice", uri, path);
        }
        if (rc)
            return rc;
    }
    return 0;
}

static const struct store_kind mounts_kind = {
    .name = "mounts",
    .scheme = "",
    .ops = &posix_backend,
    .is_mounts = true,
    .keeps_data = true,
    .block_option = "io.block",
    .open = posix_open,
    .check = mounts_check,
};

static const struct store_kind posix_kind = {
    .name = "posix",
    .scheme = "",
    .ops = &posix_backend,
    .is_path = true,
    .keeps_data = true,
    .block_option = "io.block",
    .open = posix_open,
};

/* Returns the first kind whose scheme matches the URI: the path, which matches everything, is last. */
static const struct store_kind *const kinds[] = {&null_kind, &fault_kind, &s3_kind, &posix_kind};

static bool has_prefix(const char *text, const char *prefix)
{
    return strncmp(text, prefix, strlen(prefix)) == 0;
}

static int find_kind(const char *uri, const struct store_kind **kind, struct cb_err *err)
{
    size_t i = 0;
    while (!has_prefix(uri, kinds[i]->scheme))
        i++;
    if (kinds[i]->is_path && has_prefix(uri, "s3:"))
        return cb_fail(err, CB_ERR_USAGE, "did you mean " STORE_S3 "%s? A folder of that name is ./%s",
                       uri + 3 + strspn(uri + 3, "/"), uri);
    if (kinds[i]->is_path && strstr(uri, "://"))
        return cb_fail(err, CB_ERR_USAGE,
                       "no such kind of store; known are a path, " STORE_S3 "BUCKET/PREFIX, " STORE_NULL
                       " and " STORE_FAULT "SPEC:STORE");
    *kind = kinds[i]->is_path && find_join(uri) ? &mounts_kind : kinds[i];
    return 0;
}

/* The STORE of "SPEC:STORE"; NULL if it is missing. */
static const char *wrapped_store(const char *where)
{
    const char *colon = strchr(where, ':');
    return colon && colon[1] ? colon + 1 : NULL;
}

static bool cuts_power(const char *text, size_t len)
{
    struct fault_spec spec;
    return fault_spec_parse(text, len, &spec, NULL) == 0 && spec.powercut_at > 0;
}

int store_uri_parse(const char *uri, struct store_uri *parsed, struct cb_err *err)
{
    struct store_uri made = {.inner = uri};
    int rc = find_kind(uri, &made.kind, err);
    while (!rc && made.kind == &fault_kind) {
        const char *spec = made.inner + strlen(made.kind->scheme), *store = wrapped_store(spec);
        if (!store)
            return cb_fail(err, CB_ERR_USAGE, "a fault store is " STORE_FAULT "SPEC:STORE");
        if (!made.plain && cuts_power(spec, (size_t)(store - 1 - spec)))
            made.plain = made.inner;
        made.has_faults = true;
        made.inner = store;
        rc = find_kind(made.inner, &made.kind, err);
    }
    if (!made.plain)
        made.plain = made.inner;
    if (!rc)
        *parsed = made;
    return rc;
}

struct store_uri store_uri_of(const char *uri)
{
    static const struct store_kind unknown = {.block_option = "io.block"};
    struct store_uri parsed;
    return store_uri_parse(uri, &parsed, NULL) ? (struct store_uri){.kind = &unknown, .inner = uri, .plain = uri}
                                               : parsed;
}

int store_uri_check_faults(const char *uri, struct cb_err *err)
{
    struct fault_spec unused;
    int rc = 0;
    while (!rc && uri && has_prefix(uri, STORE_FAULT)) {
        const char *spec = uri + strlen(STORE_FAULT);
        uri = wrapped_store(spec);
        rc = uri ? fault_spec_parse(spec, (size_t)(uri - 1 - spec), &unused, err) : 0;
    }
    return rc;
}

/* The folder that contains all mounts: a power cut hits them together. */
static int find_common_folder(const char *uri, char folder[PATH_MAX], struct cb_err *err)
{
    char path[PATH_MAX];
    int rc = store_next_mount(&uri, folder, err);
    while (!rc && uri) {
        rc = store_next_mount(&uri, path, err);
        size_t same = 0, last = 0;
        for (; !rc && folder[same] && folder[same] == path[same]; same++)
            last = folder[same] == '/' ? same : last;
        folder[last] = '\0';
    }
    if (!rc && !*folder)
        rc = cb_fail(err, CB_ERR_USAGE, "fault powercut_at: the mounts must be in one folder");
    return rc;
}

static int open_power_cut(const char *store, const struct fault_spec *spec, struct power_cut **cut, struct cb_err *err)
{
    struct store_uri uri;
    char folder[PATH_MAX];
    int rc = store_uri_parse(store, &uri, err);
    if (!rc && !uri.kind->is_path && !uri.kind->is_mounts)
        rc = cb_fail(err, CB_ERR_USAGE, "fault powercut_at: '%s' is no folder of a file system", store);
    if (!rc && uri.kind->is_mounts)
        rc = find_common_folder(uri.inner, folder, err);
    return rc ? rc : power_cut_open(uri.kind->is_mounts ? folder : uri.inner, spec->powercut_at, spec->seed, cut, err);
}

static int fault_open(const char *where, const struct store_options *options, struct backend **backend,
                      struct cb_err *err)
{
    const char *store = wrapped_store(where);
    struct fault_spec spec;
    struct backend *inner;
    if (!store)
        return cb_fail(err, CB_ERR_USAGE,
                       "store '" STORE_FAULT "%s': no store follows the faults; write " STORE_FAULT
                       "SPEC:STORE, as " STORE_FAULT "delay=5ms:./ckpt",
                       where);
    int spec_bytes = (int)(store - 1 - where);
    int rc = fault_spec_parse(where, (size_t)spec_bytes, &spec, err);
    struct store_options below = *options;
    struct power_cut *cut = NULL;
    if (!rc && spec.powercut_at > 0 && !options->read_only) {
        rc = open_power_cut(store, &spec, &cut, err);
        below.watch = rc ? NULL : power_cut_watch(cut);
    }
    if (!rc)
        rc = backend_open(store, &below, &inner, err);
    if (rc) {
        power_cut_close(cut);
        return rc;
    }
    return fault_wrap(inner, &spec, cut, where, spec_bytes, options, backend, err);
}

int backend_open(const char *uri, const struct store_options *options, struct backend **backend, struct cb_err *err)
{
    const struct store_kind *kind;
    int rc = find_kind(uri, &kind, err);
    if (rc)
        return err ? cb_context(err, "store '%s'", uri) : rc;
    rc = kind->ops ? backend_check(kind->name, kind->ops, err) : 0;
    return rc ? rc : kind->open(uri + strlen(kind->scheme), options, backend, err);
}
