/* Files in a folder, or in folders of several mounts: opens the store, chooses how files are accessed, and passes requests to the chosen engine.
 *
 * The choice goes down a ladder: O_DIRECT or buffered; registered buffers, plain io_uring, psync. The description
 * records each step down with its reason. Files in memory and ranks with one core use the same ladder: a kernel worker
 * that alternates with the rank costs no CPU (docs/performance.md). A file gets its final length when it is created,
 * because direct writes that extend a file run one at a time; no blocks are preallocated. */
#include "store/posix/posix.h"
#include "store/kind.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/units.h"

#define MAX_FALLBACK_THREADS 32
#define HUGE_PAGE ((uintptr_t)2 << 20)
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* since Linux 6.1 */
#endif

/* Fits into the second-level cache beside the memory that it was copied from. */
#define CACHED_BYTES (UINT64_C(256) * 1024)

struct posix_store {
    struct backend base;
    struct posix_names roots[STORE_MOST_MOUNTS]; /* names without numbers are in the first */
    uint32_t root_count;
    struct posix_engine *engine;
    struct posix_request *requests;
    struct posix_direct direct;
    struct device_files *device_files; /* or NULL */
    bool read_only, uses_uring, registered, in_caller;
    bool takes_turns; /* in_caller since the caller has one core, and the files are in memory */
    uint32_t threads;
    char engine_reason[160];   /* why io_uring is not used */
    char register_reason[160]; /* why buffers are not registered */
    char description[768];
};

static struct posix_store *posix_of(struct backend *backend)
{
    return (struct posix_store *)backend;
}

/* The mount of an object, by its name alone, so that every rank finds it: files are numbered by rank and by file. Names
 * without a number (metadata, claims, markers) are in the first mount, and so are hidden names. */
static const struct posix_names *root_of(const struct posix_store *self, const char *name)
{
    const char *last = strrchr(name, '/');
    uint64_t sum = 0;
    last = last ? last + 1 : name;
    if (self->root_count == 1 || *last == '.')
        return &self->roots[0];
    for (int numbers = 0; numbers < 2 && *(last += strcspn(last, "0123456789")); numbers++) {
        char *end;
        sum += strtoull(last, &end, 10);
        last = end;
    }
    return &self->roots[sum % self->root_count];
}

static void describe_again(struct posix_store *self)
{
    char engine[64];
    if (self->uses_uring)
        snprintf(engine, sizeof(engine), "io_uring%s", self->registered ? " registered-buffers" : "");
    else if (self->in_caller)
        snprintf(engine, sizeof(engine), "psync in the caller");
    else
        snprintf(engine, sizeof(engine), "psync %u thread%s", self->threads, units_plural(self->threads));
    int len = snprintf(self->description, sizeof(self->description), "%s %s%s", engine,
                       self->direct.possible ? "O_DIRECT" : "buffered", self->device_files ? " cuFile" : "");
    const char *const steps[][2] = {
        {"no io_uring", self->engine_reason},
        {"no registered buffers", self->register_reason},
        {"no O_DIRECT", self->direct.reason},
    };
    const char *separator = " (";
    for (size_t i = 0; i < 3; i++) {
        if (!*steps[i][1])
            continue;
        len += snprintf(self->description + len, sizeof(self->description) - (size_t)len, "%s%s: %s", separator,
                        steps[i][0], steps[i][1]);
        separator = "; ";
    }
    if (*separator == ';')
        snprintf(self->description + len, sizeof(self->description) - (size_t)len, ")");
}

static int open_root(struct posix_names *names, bool read_only, struct cb_err *err)
{
    const char *path = names->root;
    names->root_fd = open(path, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (names->root_fd >= 0)
        return 0;
    switch (errno) {
    case ENOENT:
        if (read_only)
            return cb_fail(err, CB_ERR_NOT_FOUND, "there is no folder '%s'", path);
        return cb_fail(err, CB_ERR_NOT_FOUND, "store '%s' does not exist; make it with: mkdir -p '%s'", path, path);
    case ENOTDIR:
        return cb_fail(err, CB_ERR_USAGE, "store '%s' is not a folder; name a folder for the files to go to", path);
    case EACCES:
        return cb_fail(err, CB_ERR_SYSTEM,
                       "store '%s' may not be opened by this user; change its mode or name "
                       "another folder",
                       path);
    default:
        return cb_fail_errno(err, errno, "opening store '%s'", path);
    }
}

/* An unnamed file, or one that has a name for a moment, to find out whether and how files can be written. */
static int open_probe_file(const struct posix_names *names)
{
    int fd = openat(names->root_fd, ".", O_TMPFILE | O_RDWR | O_CLOEXEC, 0600);
    if (fd >= 0 || errno == EACCES || errno == EROFS || errno == ENOSPC || errno == EDQUOT)
        return fd;
    char name[64];
    snprintf(name, sizeof(name), ".ckptbench-probe-%ld-%" PRIu64, (long)getpid(), clock_wall_ns());
    fd = openat(names->root_fd, name, O_RDWR | O_CREAT | O_EXCL | O_CLOEXEC, 0600);
    if (fd >= 0)
        unlinkat(names->root_fd, name, 0);
    return fd;
}

static int refuse_read_only(const struct posix_names *self, int sys_errno, struct cb_err *err)
{
    if (sys_errno == EROFS)
        (void)cb_fail(err, CB_ERR_SYSTEM,
                      "store '%s' is on a file system that is mounted read-only; remount it "
                      "writable or name another folder",
                      self->root);
    else if (sys_errno == EACCES || sys_errno == EPERM)
        (void)cb_fail(err, CB_ERR_SYSTEM,
                      "store '%s' is not writable for this user; change its owner or mode, or "
                      "name another folder",
                      self->root);
    else
        return cb_fail_errno(err, sys_errno, "creating a file in store '%s'", self->root);
    if (err)
        err->sys_errno = sys_errno;
    return CB_ERR_SYSTEM;
}

/* Finds out whether a mount supports O_DIRECT, and whether it is writable. */
static int probe_root(const struct posix_names *names, const struct store_options *options, struct posix_direct *direct,
                      struct cb_err *err)
{
    int fd = options->read_only ? -1 : open_probe_file(names);
    if (fd < 0 && !options->read_only)
        return refuse_read_only(names, errno, err);
    if (options->direct == STORE_DIRECT_NO)
        snprintf(direct->reason, sizeof(direct->reason), "not asked for");
    else if (options->read_only)
        posix_direct_guess(names->root_fd, direct);
    else
        posix_direct_probe(fd, direct);
    if (fd >= 0)
        close(fd);
    if (options->direct == STORE_DIRECT_YES && !direct->possible)
        return cb_fail(err, CB_ERR_UNSUPPORTED,
                       "store '%s' cannot do O_DIRECT: %s; use io.direct=auto or another "
                       "file system",
                       names->root, direct->reason);
    return 0;
}

/* Uses O_DIRECT if all mounts support it, with the largest of their alignments. */
static int decide_direct(struct posix_store *self, const struct store_options *options, struct cb_err *err)
{
    int rc = probe_root(&self->roots[0], options, &self->direct, err);
    for (uint32_t i = 1; i < self->root_count && !rc; i++) {
        struct posix_direct other = {0};
        rc = probe_root(&self->roots[i], options, &other, err);
        if (self->direct.possible && !other.possible)
            self->direct = other;
        if (!self->direct.possible)
            continue;
        self->direct.block = other.block > self->direct.block ? other.block : self->direct.block;
        if (other.memory_alignment > self->direct.memory_alignment)
            self->direct.memory_alignment = other.memory_alignment;
    }
    return rc;
}

static bool is_in_memory(const struct posix_store *self)
{
    bool all = true;
    for (uint32_t i = 0; i < self->root_count; i++)
        all = all && posix_is_in_memory(self->roots[i].root_fd);
    return all;
}

static void set_capabilities(struct posix_store *self, uint32_t depth)
{
    bool direct = self->direct.possible;
    self->base.capabilities = (struct store_capabilities){
        .offset_alignment = direct ? self->direct.block : 1,
        .memory_alignment = direct ? self->direct.memory_alignment : 1,
        .length_alignment = direct ? self->direct.block : 1,
        .tail_unaligned = true,
        .max_segments = POSIX_MAX_SEGMENTS,
        .max_depth = depth,
        .atomic_publish = true,
        .ranged_reads = true,
        .page_cache = !direct,
        .direct = direct,
        .read_bytes = self->takes_turns ? CACHED_BYTES : 0,
        .device_memory = self->device_files != NULL,
    };
    if (self->device_files && self->base.capabilities.memory_alignment < POSIX_MIN_BLOCK)
        self->base.capabilities.memory_alignment = POSIX_MIN_BLOCK;
}

/* If io_uring was requested but is unavailable, or cannot be used because device_files block their caller, uses as many
 * threads as there are requests in flight. */
static int start_engine(struct posix_store *self, const struct store_options *options, struct cb_err *err)
{
    struct posix_engine_setup setup = {
        .depth = options->depth,
        .threads = options->threads,
        .durable = options->durable,
        .requests = self->requests,
    };
    self->takes_turns = options->use_io_uring && options->has_one_core && is_in_memory(self);
    self->in_caller = options->in_caller || self->takes_turns;
    if (self->in_caller)
        return in_caller_new(&setup, &self->engine, err);
    if (options->use_io_uring || self->device_files) {
        if (!self->device_files && uring_new(&setup, &self->engine, self->engine_reason) == 0) {
            self->uses_uring = true;
            return 0;
        }
        setup.threads = options->depth < MAX_FALLBACK_THREADS ? options->depth : MAX_FALLBACK_THREADS;
    }
    self->threads = setup.threads > 0 ? setup.threads : 1;
    return psync_new(&setup, &self->engine, err);
}

static void posix_free(struct backend *backend)
{
    struct posix_store *self = posix_of(backend);
    if (self->engine)
        self->engine->ops->free(self->engine);
    posix_requests_free(self->requests);
    for (uint32_t i = 0; i < self->root_count; i++) {
        if (self->roots[i].root_fd >= 0)
            close(self->roots[i].root_fd);
        free(self->roots[i].root);
    }
    free(self);
}

static int open_roots(struct posix_store *self, const char *where, const struct store_options *options,
                      struct cb_err *err)
{
    char path[PATH_MAX];
    for (const char *rest = where; rest;) {
        int rc = store_next_mount(&rest, path, err);
        if (rc)
            return rc;
        struct posix_names *names = &self->roots[self->root_count];
        *names = (struct posix_names){
            .root_fd = -1, .root = strdup(path), .durable = options->durable, .watch = options->watch};
        if (!names->root)
            return alloc_fail(err, "for store '%s'", where);
        self->root_count++;
        rc = open_root(names, options->read_only, err);
        if (rc)
            return rc;
        if (rest && self->root_count == STORE_MOST_MOUNTS)
            return cb_fail(err, CB_ERR_USAGE, "store '%s' has more than %d mounts", where, STORE_MOST_MOUNTS);
    }
    return 0;
}

int posix_open(const char *where, const struct store_options *options, struct backend **backend, struct cb_err *err)
{
    if (!*where)
        return cb_fail(err, CB_ERR_USAGE,
                       "the store's path is empty; name a folder, " STORE_NULL " or " STORE_FAULT "SPEC:STORE");
    struct posix_store *self = calloc(1, sizeof(*self));
    if (!self)
        return alloc_fail(err, "for store '%s'", where);
    self->base.ops = &posix_backend;
    self->read_only = options->read_only;
    self->device_files = options->device_files;
    int rc = open_roots(self, where, options, err);
    if (!rc)
        rc = decide_direct(self, options, err);
    if (!rc && self->device_files && !self->direct.possible)
        rc = cb_fail(err, CB_ERR_UNSUPPORTED, "store '%s' cannot do O_DIRECT: %s", self->roots[0].root,
                     self->direct.reason);
    if (!rc)
        rc = posix_requests_new(options->depth, self->direct.possible ? self->direct.block : 1, &self->requests, err);
    if (!rc)
        rc = start_engine(self, options, err);
    if (rc) {
        posix_free(&self->base);
        return rc;
    }
    set_capabilities(self, options->depth);
    describe_again(self);
    *backend = &self->base;
    return 0;
}

static const char *posix_describe(const struct backend *backend)
{
    return ((const struct posix_store *)backend)->description;
}

/* Direct I/O from scattered small pages falls apart into many device requests; huge pages keep it whole (reads at 4 MiB
 * were twice as fast on virtio). Memory not yet touched will be allocated as huge pages; existing pages are collapsed.
 * If the kernel cannot do that, only the speed is lost. */
static void ask_for_huge_pages(const struct iovec *region)
{
    uintptr_t start = ((uintptr_t)region->iov_base + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE;
    uintptr_t end = ((uintptr_t)region->iov_base + region->iov_len) / HUGE_PAGE * HUGE_PAGE;
    if (end <= start)
        return;
    char *memory = (char *)region->iov_base + (start - (uintptr_t)region->iov_base);
    madvise(memory, end - start, MADV_HUGEPAGE);
    madvise(memory, end - start, MADV_COLLAPSE);
}

static void posix_register(struct backend *backend, const struct iovec *regions, uint32_t count)
{
    struct posix_store *self = posix_of(backend);
    for (uint32_t i = 0; i < count && self->direct.possible; i++)
        ask_for_huge_pages(&regions[i]);
    self->registered = self->engine->ops->register_memory(self->engine, regions, count, self->register_reason) == 0;
    describe_again(self);
}

static void close_device_file(const struct posix_object *object)
{
    if (object && object->device_file)
        object->device_files->ops->close(object->device_files, object->device_file);
}

static int object_new(const struct posix_store *self, const char *name, int fd, uint64_t length,
                      struct posix_object **object, struct cb_err *err)
{
    struct posix_object *made = malloc(sizeof(*made));
    if (!made)
        return alloc_fail(err, "to open %s", name);
    made->base.length = length;
    made->base.mount = self->root_count > 1 ? root_of(self, name)->root : NULL;
    made->fd = fd;
    made->tail_fd = -1;
    made->block = self->direct.possible ? self->direct.block : 1;
    made->watch = self->roots[0].watch;
    made->device_files = self->device_files;
    made->device_file = NULL;
    int rc = made->device_files ? made->device_files->ops->open(made->device_files, fd, &made->device_file, err) : 0;
    if (rc) {
        free(made);
        return cb_context(err, "opening %s", name);
    }
    *object = made;
    return 0;
}

/* Opens for writing, with O_DIRECT if the store does. */
static int open_file(const struct posix_store *self, const char *name, int flags)
{
    int direct = self->direct.possible ? O_DIRECT : 0;
    return openat(root_of(self, name)->root_fd, name, flags | direct | O_CLOEXEC, 0666);
}

/* A second descriptor of the file, without O_DIRECT. Not by its name, which may be another run's file by now, if this run
 * stood still and lost its claim. */
static int open_again(int fd)
{
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    return open(link, O_WRONLY | O_CLOEXEC);
}

/* The object for writing, with the descriptor its tail needs. It owns `fd` from then on. */
static int writable_object(const struct posix_store *self, const char *name, int fd, uint64_t length,
                           struct backend_object **object, struct cb_err *err)
{
    struct posix_object *made = NULL;
    int rc = object_new(self, name, fd, length, &made, err);
    if (!rc && made && length % made->block != 0) {
        made->tail_fd = open_again(fd);
        if (made->tail_fd < 0)
            rc = cb_fail_errno(err, errno, "opening %s in store '%s' for its last bytes", name,
                               root_of(self, name)->root);
    }
    if (rc) {
        close_device_file(made);
        free(made);
        return rc;
    }
    *object = &made->base;
    return 0;
}

static int posix_create(struct backend *backend, const char *name, uint64_t length, struct backend_object **object,
                        struct cb_err *err)
{
    struct posix_store *self = posix_of(backend);
    const struct posix_names *names = root_of(self, name);
    int flags = O_WRONLY | O_CREAT | O_EXCL;
    int fd = open_file(self, name, flags);
    if (fd < 0 && errno == ENOENT) {
        int rc = posix_names_make_parents(names, name, err);
        if (rc)
            return rc;
        fd = open_file(self, name, flags);
    }
    if (fd < 0)
        return cb_fail_errno(err, errno, "creating %s in store '%s'", name, names->root);
    if (names->watch)
        names->watch->is_durable(names->watch, fd);
    int rc;
    if (length > 0 && ftruncate(fd, (off_t)length) != 0) {
        rc = cb_fail_errno(err, errno, "giving %s in store '%s' its length of %" PRIu64 " bytes", name, names->root,
                           length);
    } else {
        rc = writable_object(self, name, fd, length, object, err);
    }
    if (rc) {
        posix_names_remove_own(names, name, fd);
        close(fd);
    }
    return rc;
}

static int posix_open_shared(struct backend *backend, const char *name, uint64_t length, struct backend_object **object,
                             struct cb_err *err)
{
    struct posix_store *self = posix_of(backend);
    int fd = -1, direct = self->direct.possible ? O_DIRECT : 0;
    uint64_t now;
    int rc = posix_names_open(root_of(self, name), name, O_WRONLY | direct, &fd, &now, err);
    if (rc)
        return rc;
    rc = writable_object(self, name, fd, length, object, err);
    if (rc)
        close(fd);
    return rc;
}

static int posix_open_read(struct backend *backend, const char *name, struct backend_object **object,
                           struct cb_err *err)
{
    struct posix_store *self = posix_of(backend);
    const struct posix_names *names = root_of(self, name);
    struct posix_object *made = NULL;
    struct cb_err why = {0};
    uint64_t length = 0;
    int fd = -1,
        rc = posix_names_open(names, name, O_RDONLY | (self->direct.possible ? O_DIRECT : 0), &fd, &length, &why);
    /* In a read-only store, only this open shows whether a file supports O_DIRECT. */
    if (rc && why.sys_errno == EINVAL && self->direct.possible && self->read_only)
        rc = posix_names_open(names, name, O_RDONLY, &fd, &length, &why);
    if (rc && err)
        *err = why;
    if (rc)
        return rc;
    rc = object_new(self, name, fd, length, &made, err);
    if (rc) {
        close(fd);
        return rc;
    }
    *object = &made->base;
    return 0;
}

static void posix_close(struct backend *backend, struct backend_object *object)
{
    (void)backend;
    struct posix_object *self = (struct posix_object *)object;
    close_device_file(self);
    close(self->fd);
    if (self->tail_fd >= 0)
        close(self->tail_fd);
    free(self);
}

static int posix_submit(struct backend *backend, const struct backend_request *requests, size_t count,
                        struct cb_err *err)
{
    struct posix_store *self = posix_of(backend);
    return self->engine->ops->submit(self->engine, requests, count, err);
}

static int posix_poll(struct backend *backend, struct backend_completion *completions, size_t capacity,
                      uint64_t deadline_ns, size_t *count, struct cb_err *err)
{
    struct posix_store *self = posix_of(backend);
    return self->engine->ops->poll(self->engine, completions, capacity, deadline_ns, count, err);
}

static void posix_cancel(struct backend *backend)
{
    struct posix_store *self = posix_of(backend);
    self->engine->ops->cancel(self->engine);
}

static int posix_publish(struct backend *backend, const char *name, store_pass_fn pass, void *context,
                         struct cb_err *err)
{
    return posix_names_publish(root_of(posix_of(backend), name), name, pass, context, err);
}

static int posix_swap(struct backend *backend, const char *name, const char *before, const char *after, bool *guarded,
                      struct cb_err *err)
{
    return posix_names_swap(root_of(posix_of(backend), name), name, before, after, guarded, err);
}

static int posix_sync_folder(struct backend *backend, const char *folder, struct cb_err *err)
{
    const struct posix_store *self = posix_of(backend);
    uint32_t missing = 0;
    int rc = 0;
    for (uint32_t i = 0; i < self->root_count && !rc; i++) {
        rc = posix_names_sync_folder(&self->roots[i], folder, err);
        if (rc == CB_ERR_NOT_FOUND && ++missing < self->root_count)
            rc = 0; /* this mount has none of its files */
    }
    return rc;
}

static int posix_make_folder(struct backend *backend, const char *folder, struct cb_err *err)
{
    const struct posix_store *self = posix_of(backend);
    int rc = 0;
    for (uint32_t i = 0; i < self->root_count && !rc; i++)
        rc = posix_names_make_folder(&self->roots[i], folder, err);
    return rc;
}

static int posix_read_small(struct backend *backend, const char *name, struct buf *out, struct cb_err *err)
{
    return posix_names_read_small(root_of(posix_of(backend), name), name, out, err);
}

static int posix_stat(struct backend *backend, const char *name, uint64_t *length, struct cb_err *err)
{
    return posix_names_stat(root_of(posix_of(backend), name), name, length, err);
}

static int posix_modified(struct backend *backend, const char *name, uint64_t *wall_ns, struct cb_err *err)
{
    return posix_names_modified(root_of(posix_of(backend), name), name, wall_ns, err);
}

static int posix_list(struct backend *backend, const char *folder, store_list_fn each, void *context,
                      struct cb_err *err)
{
    const struct posix_store *self = posix_of(backend);
    int rc = 0;
    for (uint32_t i = 0; i < self->root_count && !rc; i++)
        rc = posix_names_list(&self->roots[i], folder, each, context, err);
    return rc;
}

static int posix_list_near(struct backend *backend, const char *folder, uint32_t depth, store_list_fn each,
                           void *context, struct cb_err *err)
{
    const struct posix_store *self = posix_of(backend);
    int rc = 0;
    for (uint32_t i = 0; i < self->root_count && !rc; i++)
        rc = posix_names_list_near(&self->roots[i], folder, depth, each, context, err);
    return rc;
}

static int posix_remove(struct backend *backend, const char *name, struct cb_err *err)
{
    return posix_names_remove(root_of(posix_of(backend), name), name, err);
}

/* The first mount's folder last: as long as it is there, its claim may be, too. */
static int posix_remove_folder(struct backend *backend, const char *folder, struct cb_err *err)
{
    const struct posix_store *self = posix_of(backend);
    int rc = 0;
    for (uint32_t i = self->root_count; i-- > 0 && !rc;) {
        rc = posix_names_remove_folder(&self->roots[i], folder, err);
        if (rc == CB_ERR_NOT_FOUND && i > 0)
            rc = 0;
    }
    return rc;
}

/* Ranks fill several mounts evenly, so the fullest one limits all. */
static int posix_free_bytes(struct backend *backend, uint64_t *bytes, struct cb_err *err)
{
    const struct posix_store *self = posix_of(backend);
    uint64_t least = UINT64_MAX;
    for (uint32_t i = 0; i < self->root_count; i++) {
        struct statvfs status;
        if (fstatvfs(self->roots[i].root_fd, &status) != 0)
            return cb_fail_errno(err, errno, "asking for the free space of store '%s'", self->roots[i].root);
        uint64_t found = (uint64_t)status.f_bavail * status.f_frsize;
        least = found < least ? found : least;
    }
    *bytes = least * self->root_count;
    return 0;
}

static int posix_drop_cache(struct backend *backend, const char *name, double *resident_fraction, struct cb_err *err)
{
    return posix_cache_drop(root_of(posix_of(backend), name), name, resident_fraction, err);
}

const struct backend_ops posix_backend = {
    .version = BACKEND_VERSION,
    .free = posix_free,
    .describe = posix_describe,
    .register_memory = posix_register,
    .create = posix_create,
    .open_shared = posix_open_shared,
    .open_read = posix_open_read,
    .close = posix_close,
    .submit = posix_submit,
    .poll = posix_poll,
    .cancel = posix_cancel,
    .publish = posix_publish,
    .swap = posix_swap,
    .sync_folder = posix_sync_folder,
    .make_folder = posix_make_folder,
    .read_small = posix_read_small,
    .stat = posix_stat,
    .modified = posix_modified,
    .list = posix_list,
    .list_near = posix_list_near,
    .remove = posix_remove,
    .remove_folder = posix_remove_folder,
    .free_bytes = posix_free_bytes,
    .drop_cache = posix_drop_cache,
};
