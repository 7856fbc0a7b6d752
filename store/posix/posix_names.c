/* Names under the store's folder: folders, small objects, lists, removal. All calls block. */
#include "store/posix/posix.h"

#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"

static int copy_name(const char *name, size_t len, char path[PATH_MAX], struct cb_err *err)
{
    if (len >= PATH_MAX)
        return cb_fail(err, CB_ERR_USAGE, "the name '%.60s…' is longer than %d bytes", name, PATH_MAX - 1);
    memcpy(path, name, len);
    path[len] = 0;
    return 0;
}

/* Creates the first `len` bytes of `name` as a folder, with its parents. */
/* A folder behind a symbolic link is refused: nothing in it could be removed (unlink_inside). */
static int check_folder(const struct posix_names *self, const char *path, struct cb_err *err)
{
    struct stat status = {0};
    if (fstatat(self->root_fd, path, &status, AT_SYMLINK_NOFOLLOW) == 0 && S_ISDIR(status.st_mode))
        return 0;
    return cb_fail(err, CB_ERR_EXISTS, "making folder %s in store '%s': %s has that name", path, self->root,
                   S_ISLNK(status.st_mode) ? "a symbolic link" : "something else");
}

static int make_folders(const struct posix_names *self, const char *name, size_t len, struct cb_err *err)
{
    char path[PATH_MAX] = "";
    int rc = copy_name(name, len, path, err);
    for (char *end = path; !rc && end && *end;) {
        end = strchr(end + 1, '/');
        if (end)
            *end = 0;
        if (mkdirat(self->root_fd, path, 0777) != 0)
            rc = errno == EEXIST ? check_folder(self, path, err)
                                 : cb_fail_errno(err, errno, "making folder %s in store '%s'", path, self->root);
        if (end)
            *end = '/';
    }
    return rc;
}

int posix_names_make_parents(const struct posix_names *self, const char *name, struct cb_err *err)
{
    const char *slash = strrchr(name, '/');
    return slash ? make_folders(self, name, (size_t)(slash - name), err) : 0;
}

int posix_names_make_folder(const struct posix_names *self, const char *folder, struct cb_err *err)
{
    return make_folders(self, folder, strlen(folder), err);
}

/* Returns an errno. */
static int sync_fd(const struct posix_names *self, int fd)
{
    if (self->watch)
        self->watch->begins(self->watch);
    if (fsync(fd) != 0)
        return errno;
    if (self->watch)
        self->watch->is_durable(self->watch, fd);
    return 0;
}

static int sync_one(const struct posix_names *self, const char *folder, struct cb_err *err)
{
    int fd = openat(self->root_fd, *folder ? folder : ".", O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    int failed = fd < 0 ? errno : sync_fd(self, fd);
    if (failed == EINVAL)
        failed = 0; /* a file system that cannot sync folders cannot make them durable */
    if (fd >= 0)
        close(fd);
    return failed ? cb_fail_errno(err, failed, "syncing folder '%s' in store '%s'", folder, self->root) : 0;
}

static int sync_chain(const struct posix_names *self, const char *folder, size_t len, struct cb_err *err)
{
    char path[PATH_MAX] = "";
    int rc = copy_name(folder, len, path, err);
    while (!rc) {
        rc = sync_one(self, path, err);
        if (rc || !*path)
            break;
        char *slash = strrchr(path, '/');
        *(slash ? slash : path) = 0;
    }
    return rc;
}

int posix_names_sync_folder(const struct posix_names *self, const char *folder, struct cb_err *err)
{
    return self->durable ? sync_chain(self, folder, strlen(folder), err) : 0;
}

static int write_all(int fd, const char *bytes, size_t len)
{
    while (len > 0) {
        ssize_t wrote = write(fd, bytes, len);
        if (wrote < 0 && errno == EINTR)
            continue;
        if (wrote <= 0)
            return wrote < 0 ? errno : EIO;
        bytes += wrote;
        len -= (size_t)wrote;
    }
    return 0;
}

/* The temporary file of an object that is being published. */
struct temporary {
    const struct posix_names *names;
    const char *path;
    int fd;
};

static int fail_writing(const struct temporary *self, int failed, struct cb_err *err)
{
    return cb_fail_errno(err, failed, "writing %s in store '%s'", self->path, self->names->root);
}

static int write_piece(void *to, const void *bytes, size_t len, struct cb_err *err)
{
    const struct temporary *self = to;
    int failed = write_all(self->fd, bytes, len);
    return failed ? fail_writing(self, failed, err) : 0;
}

/* Always a new file: a suspended process may still write to an old one of this name. */
static int open_temporary(struct temporary *self, struct cb_err *err)
{
    int root = self->names->root_fd, flags = O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC;
    self->fd = openat(root, self->path, flags, 0666);
    if (self->fd < 0 && errno == EEXIST && (unlinkat(root, self->path, 0) == 0 || errno == ENOENT))
        self->fd = openat(root, self->path, flags, 0666);
    if (self->fd < 0)
        return cb_fail_errno(err, errno, "creating %s in store '%s'", self->path, self->names->root);
    if (self->names->watch)
        self->names->watch->is_durable(self->names->watch, self->fd);
    return 0;
}

bool posix_names_leads_to(const struct posix_names *self, const char *name, int fd)
{
    struct stat named, opened;
    int again = openat(self->root_fd, name, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    bool found = again >= 0 ? fstat(again, &named) == 0 : fstatat(self->root_fd, name, &named, 0) == 0;
    if (again >= 0)
        close(again);
    return found && fstat(fd, &opened) == 0 && named.st_ino == opened.st_ino && named.st_dev == opened.st_dev;
}

void posix_names_remove_own(const struct posix_names *self, const char *name, int fd)
{
    if (posix_names_leads_to(self, name, fd))
        unlinkat(self->root_fd, name, 0);
}

static int write_temporary(struct temporary *self, store_pass_fn pass, void *context, struct cb_err *err)
{
    int rc = pass(context, write_piece, self, err);
    if (rc)
        return rc;
    int failed = self->names->durable ? sync_fd(self->names, self->fd) : 0;
    int same = dup(self->fd); /* closing it reports what NFS could not write, while the file stays open */
    if (same >= 0 && close(same) != 0 && !failed)
        failed = errno;
    return failed ? fail_writing(self, failed, err) : 0;
}

static int rename_temporary(const struct temporary *self, const char *name, struct cb_err *err)
{
    const struct posix_names *names = self->names;
    if (!posix_names_leads_to(names, self->path, self->fd))
        return cb_fail(err, CB_ERR_EXISTS, "another program has replaced %s in store '%s' meanwhile", self->path,
                       names->root);
    if (renameat(names->root_fd, self->path, names->root_fd, name) != 0)
        return cb_fail_errno(err, errno, "renaming %s to %s in store '%s'", self->path, name, names->root);
    return 0;
}

int posix_names_publish(const struct posix_names *self, const char *name, store_pass_fn pass, void *context,
                        struct cb_err *err)
{
    char temporary[PATH_MAX];
    struct temporary file = {.names = self, .path = temporary};
    if (snprintf(temporary, sizeof(temporary), "%s.tmp", name) >= (int)sizeof(temporary))
        return cb_fail(err, CB_ERR_USAGE, "the name '%.60s…' is longer than %d bytes", name, PATH_MAX - 5);
    int rc = posix_names_make_parents(self, name, err);
    if (!rc)
        rc = open_temporary(&file, err);
    if (rc)
        return rc;
    rc = write_temporary(&file, pass, context, err);
    if (!rc)
        rc = rename_temporary(&file, name, err);
    if (rc) {
        posix_names_remove_own(self, temporary, file.fd);
    } else if (self->durable) {
        const char *slash = strrchr(name, '/');
        rc = sync_chain(self, name, slash ? (size_t)(slash - name) : 0, err);
        if (rc)
            posix_names_remove_own(self, name, file.fd); /* an object whose publication failed must not be visible */
    }
    close(file.fd);
    return rc;
}

static int refuse_kind(const struct posix_names *self, const char *name, int code, struct cb_err *err)
{
    return cb_fail(err, code, "%s in store '%s' is not a regular file", name, self->root);
}

/* Opening a FIFO waits for somebody at its other end, so nothing is opened that waits; that is race-free, as looking first
 * would not be. Requests of io_uring on a file that is open in this way would fail where they have to wait, so the flag is
 * cleared. Both calls after the open stay on this machine. */
int posix_names_open(const struct posix_names *self, const char *name, int flags, int *fd, uint64_t *length,
                     struct cb_err *err)
{
    struct stat status = {0};
    int made = openat(self->root_fd, name, flags | O_NONBLOCK | O_CLOEXEC);
    if (made < 0 && errno == EWOULDBLOCK) /* a regular file that another machine or program has a lease on */
        made = openat(self->root_fd, name, flags | O_CLOEXEC);
    int failure = made < 0 || fstat(made, &status) ? errno : 0;
    if (!failure && S_ISREG(status.st_mode) && fcntl(made, F_SETFL, flags))
        failure = errno;
    bool is_other = !failure && !S_ISREG(status.st_mode);
    if (made < 0 && (failure == ENXIO || failure == EINVAL)) /* a socket, a FIFO nobody reads, no O_DIRECT */
        is_other = fstatat(self->root_fd, name, &status, 0) == 0 && !S_ISREG(status.st_mode);
    if (!failure && !is_other) {
        *fd = made;
        *length = (uint64_t)status.st_size;
        return 0;
    }
    if (made >= 0)
        close(made);
    return is_other ? refuse_kind(self, name, CB_ERR_CORRUPT, err)
                    : cb_fail_errno(err, failure, "opening %s in store '%s'", name, self->root);
}

/* Reads the contents directly into the buffer, since "small" objects had up to 124 MB. If this read fails or is short,
 * the loop below does the same and reports it. */
static void read_known(int fd, uint64_t length, struct buf *out)
{
    if (length == 0 || length > out->max - out->len)
        return;
    size_t begin = out->len, want = (size_t)length, have = 0;
    char *place = buf_extend(out, want);
    while (place && have < want) {
        ssize_t got = read(fd, place + have, want - have);
        if (got < 0 && errno == EINTR)
            continue;
        if (got <= 0)
            break;
        have += (size_t)got;
    }
    if (place) {
        out->len = begin + have;
        out->data[out->len] = '\0';
    }
}

int posix_names_read_small(const struct posix_names *self, const char *name, struct buf *out, struct cb_err *err)
{
    uint64_t length = 0;
    int fd = -1, rc = posix_names_open(self, name, O_RDONLY, &fd, &length, err);
    if (rc)
        return rc;
    char chunk[65536];
    read_known(fd, length, out);
    for (;;) {
        ssize_t got = read(fd, chunk, sizeof(chunk));
        if (got < 0 && errno == EINTR)
            continue;
        if (got < 0)
            rc = cb_fail_errno(err, errno, "reading %s in store '%s'", name, self->root);
        if (got <= 0 || out->code)
            break;
        buf_append(out, chunk, (size_t)got);
    }
    close(fd);
    return rc ? rc : buf_check(out, name, err);
}

static int look_at_file(const struct posix_names *self, const char *name, struct stat *status, struct cb_err *err)
{
    if (fstatat(self->root_fd, name, status, 0) != 0)
        return cb_fail_errno(err, errno, "looking for %s in store '%s'", name, self->root);
    if (!S_ISREG(status->st_mode))
        return refuse_kind(self, name, CB_ERR_NOT_FOUND, err);
    return 0;
}

int posix_names_stat(const struct posix_names *self, const char *name, uint64_t *length, struct cb_err *err)
{
    struct stat status;
    int rc = look_at_file(self, name, &status, err);
    if (rc == 0)
        *length = (uint64_t)status.st_size;
    return rc;
}

int posix_names_modified(const struct posix_names *self, const char *name, uint64_t *wall_ns, struct cb_err *err)
{
    struct stat status;
    int rc = look_at_file(self, name, &status, err);
    if (rc == 0)
        *wall_ns = (uint64_t)status.st_mtim.tv_sec * NS_PER_S + (uint64_t)status.st_mtim.tv_nsec;
    return rc;
}

struct listing {
    const struct posix_names *names;
    store_list_fn each;
    void *context;
    struct cb_err *err;
    uint32_t depth;      /* folders that may still be entered below this one */
    bool searches;       /* folders that we may not enter are skipped */
    char path[PATH_MAX]; /* of the current folder, then of an entry */
};

static int list_folder(struct listing *self);

static int list_below(struct listing *self)
{
    if (self->depth == 0 || (self->searches && faccessat(self->names->root_fd, self->path, R_OK | X_OK, 0) != 0))
        return 0;
    self->depth--;
    int rc = list_folder(self);
    self->depth++;
    return rc;
}

/* `at` is the offset of the entry's name in the path. */
static int list_entry(struct listing *self, size_t at, const char *name)
{
    struct stat status;
    int len = snprintf(self->path + at, sizeof(self->path) - at, "%s", name);
    if (len >= (int)(sizeof(self->path) - at))
        return cb_fail(self->err, CB_ERR_USAGE, "store '%s': the path of '%s' is too long", self->names->root, name);
    if (fstatat(self->names->root_fd, self->path, &status, AT_SYMLINK_NOFOLLOW) != 0)
        return errno == ENOENT || self->searches
                   ? 0
                   : cb_fail_errno(self->err, errno, "looking at %s in store '%s'", self->path, self->names->root);
    if (S_ISDIR(status.st_mode))
        return list_below(self);
    if (S_ISLNK(status.st_mode) && fstatat(self->names->root_fd, self->path, &status, 0) != 0)
        return 0; /* a dangling link: not an object */
    return S_ISREG(status.st_mode) ? self->each(self->context, self->path, (uint64_t)status.st_size, self->err) : 0;
}

static int list_folder(struct listing *self)
{
    const char *folder = *self->path ? self->path : ".";
    int fd = openat(self->names->root_fd, folder, O_RDONLY | O_DIRECTORY | O_CLOEXEC);
    if (fd < 0 && errno == ENOENT)
        return 0;
    DIR *stream = fd < 0 ? NULL : fdopendir(fd);
    if (!stream) {
        int failed = errno;
        if (fd >= 0)
            close(fd);
        return cb_fail_errno(self->err, failed, "listing '%s' in store '%s'", folder, self->names->root);
    }
    size_t len = strlen(self->path), at = len;
    if (len > 0 && len + 1 < sizeof(self->path))
        self->path[at++] = '/';
    int rc = 0;
    for (struct dirent *entry; !rc && (entry = readdir(stream)) != NULL;)
        if (strcmp(entry->d_name, ".") != 0 && strcmp(entry->d_name, "..") != 0)
            rc = list_entry(self, at, entry->d_name);
    self->path[len] = 0;
    closedir(stream);
    return rc;
}

int posix_names_list(const struct posix_names *self, const char *folder, store_list_fn each, void *context,
                     struct cb_err *err)
{
    struct listing listing = {.names = self, .each = each, .context = context, .err = err, .depth = UINT32_MAX};
    int rc = copy_name(folder, strlen(folder), listing.path, err);
    return rc ? rc : list_folder(&listing);
}

int posix_names_list_near(const struct posix_names *self, const char *folder, uint32_t depth, store_list_fn each,
                          void *context, struct cb_err *err)
{
    struct listing listing = {
        .names = self, .each = each, .context = context, .err = err, .depth = depth, .searches = true};
    int rc = copy_name(folder, strlen(folder), listing.path, err);
    return rc ? rc : list_folder(&listing);
}

/* unlinkat that never follows a symbolic link, since the store does not own what it points to. Returns -1 and sets
 * errno. */
static int unlink_inside(const struct posix_names *self, const char *name, int flags)
{
    char part[PATH_MAX];
    const char *slash;
    int fd = self->root_fd;
    for (; fd >= 0 && (slash = strchr(name, '/')) != NULL; name = slash + 1) {
        snprintf(part, sizeof part, "%.*s", (int)(slash - name), name);
        int next = openat(fd, part, O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC), failure = errno;
        if (fd != self->root_fd)
            close(fd);
        errno = failure;
        fd = next;
    }
    if (fd < 0)
        return -1;
    int rc = unlinkat(fd, name, flags), failure = errno;
    if (fd != self->root_fd)
        close(fd);
    errno = failure;
    return rc;
}

int posix_names_remove(const struct posix_names *self, const char *name, struct cb_err *err)
{
    if (unlink_inside(self, name, 0) != 0)
        return cb_fail_errno(err, errno, "removing %s from store '%s'", name, self->root);
    return 0;
}

int posix_names_remove_folder(const struct posix_names *self, const char *folder, struct cb_err *err)
{
    if (unlink_inside(self, folder, AT_REMOVEDIR) == 0)
        return 0;
    if (errno == ENOTEMPTY || errno == EEXIST)
        return cb_fail(err, CB_ERR_EXISTS, "removing folder %s from store '%s': it is not empty", folder, self->root);
    return cb_fail_errno(err, errno, "removing folder %s from store '%s'", folder, self->root);
}
