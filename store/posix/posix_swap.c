/* Replaces a small file only if it has the expected contents: an exclusive link creates it, and a record lock guards
 * its replacement. Unlike a lock of flock(), a record lock on a file of a distributed file system holds between its
 * machines. */
#include "store/posix/posix.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/hash.h"
#include "core/path.h"

#define MOST_BYTES 65536
/* A lock is held for a few system calls; a holder that takes longer is stopped or disconnected. */
#define LOCK_NS (10 * NS_PER_S)
#define LOCK_RETRY_NS (5 * NS_PER_MS)

static int refuse(const struct posix_names *self, const char *name, struct cb_err *err)
{
    return cb_fail(err, CB_ERR_EXISTS, "%s in store '%s' is not what it was: another process has changed it", name,
                   self->root);
}

static int publish_text(const struct posix_names *self, const char *name, const char *text, struct cb_err *err)
{
    struct iovec whole = {.iov_base = (void *)text, .iov_len = strlen(text)}; /* read-only */
    return posix_names_publish(self, name, backend_pass_whole, &whole, err);
}

/* ---- creating ---- */

/* Without hard links: an exclusively created empty file first decides who may create it. */
static int create_and_rename(const struct posix_names *self, const char *temporary, const char *name)
{
    int fd = openat(self->root_fd, name, O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0666);
    if (fd < 0)
        return errno;
    close(fd);
    return renameat(self->root_fd, temporary, self->root_fd, name) == 0 ? 0 : errno;
}

/* A network file system repeats a link whose reply was lost, and then reports that the name exists: the first try made
 * it. */
static bool has_two_links(const struct posix_names *self, const char *temporary)
{
    struct stat status;
    return fstatat(self->root_fd, temporary, &status, 0) == 0 && status.st_nlink == 2;
}

static int create(const struct posix_names *self, const char *name, const char *text, struct cb_err *err)
{
    unsigned char random[8];
    char digits[2 * sizeof random + 1], temporary[PATH_MAX];
    random_bytes(random, sizeof random);
    hash_hex(random, sizeof random, digits);
    int rc = path_format(temporary, sizeof temporary, err, "%s.%s", name, digits);
    if (!rc)
        rc = publish_text(self, temporary, text, err);
    if (rc)
        return rc;
    int failed = linkat(self->root_fd, temporary, self->root_fd, name, 0) == 0 ? 0 : errno;
    if (failed == EEXIST && has_two_links(self, temporary))
        failed = 0;
    else if (failed && failed != EEXIST)
        failed = create_and_rename(self, temporary, name);
    unlinkat(self->root_fd, temporary, 0);
    if (failed == EEXIST)
        return refuse(self, name, err);
    if (failed)
        return cb_fail_errno(err, failed, "creating %s in store '%s'", name, self->root);
    char *slash = strrchr(temporary, '/');
    *(slash ? slash : temporary) = '\0';
    return posix_names_sync_folder(self, temporary, err);
}

/* ---- replacing ---- */

/* 0, or an errno. If there are no record locks, *guarded becomes false, which is not an error. */
static int lock(int fd, bool *guarded)
{
    uint64_t give_up_ns = clock_monotonic_ns() + LOCK_NS;
    struct flock whole = {.l_type = F_WRLCK, .l_whence = SEEK_SET};
    while (fcntl(fd, F_OFD_SETLK, &whole) != 0) {
        if (errno == ENOLCK || errno == ENOSYS || errno == EOPNOTSUPP || errno == EINVAL) {
            *guarded = false;
            return 0;
        }
        if ((errno != EAGAIN && errno != EACCES && errno != EINTR) || clock_monotonic_ns() > give_up_ns)
            return errno;
        clock_sleep_ns(LOCK_RETRY_NS);
    }
    return 0;
}

/* A close alone is not enough. A FUSE file system learns of it after close() has returned, and frees the lock then, by the
 * number of its owner. The kernel may have given that number to the next file that was opened, whose lock is freed
 * instead. On two ceph-fuse mounts, two processes held the lock at once in 2 of about 5,000 rounds of swap_race. */
static void unlock_and_close(int fd)
{
    struct flock whole = {.l_type = F_UNLCK, .l_whence = SEEK_SET};
    fcntl(fd, F_OFD_SETLK, &whole);
    close(fd);
}

/* Opens and locks the file, then checks that the name still belongs to it. */
static int open_locked(const struct posix_names *self, const char *name, int *locked, bool *guarded, struct cb_err *err)
{
    for (;;) {
        int fd = openat(self->root_fd, name, O_RDWR | O_CLOEXEC);
        if (fd < 0)
            return errno == ENOENT ? refuse(self, name, err)
                                   : cb_fail_errno(err, errno, "opening %s in store '%s'", name, self->root);
        int failed = lock(fd, guarded);
        bool is_it = !failed && posix_names_leads_to(self, name, fd);
        if (is_it) {
            *locked = fd;
            return 0;
        }
        unlock_and_close(fd);
        if (failed)
            return cb_fail_errno(err, failed, "locking %s in store '%s'", name, self->root);
    }
}

static bool holds(int fd, const char *text)
{
    char found[MOST_BYTES];
    ssize_t got = pread(fd, found, sizeof found, 0);
    return got >= 0 && (size_t)got == strlen(text) && memcmp(found, text, (size_t)got) == 0;
}

int posix_names_swap(const struct posix_names *self, const char *name, const char *before, const char *after,
                     bool *guarded, struct cb_err *err)
{
    int fd = -1;
    *guarded = true;
    if (!before)
        return create(self, name, after, err);
    int rc = open_locked(self, name, &fd, guarded, err);
    if (rc)
        return rc;
    if (!holds(fd, before))
        rc = refuse(self, name, err);
    else if (strcmp(before, after) != 0)
        rc = publish_text(self, name, after, err);
    else if (futimens(fd, NULL) != 0)
        rc = cb_fail_errno(err, errno, "setting the time of %s in store '%s'", name, self->root);
    unlock_and_close(fd);
    return rc;
}
