/* The lock of a run's folder. Owns the file and who is in it; knows nothing of checkpoints. */
#include "worker/folder_lock.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <signal.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#define HOST_BYTES 128
#define TEXT_BYTES 2048

struct holder {
    char run[1024], host[HOST_BYTES];
    int pid; /* 0: the file says nothing */
};

static void own_host(char host[HOST_BYTES])
{
    if (gethostname(host, HOST_BYTES - 1) < 0)
        snprintf(host, HOST_BYTES, "unknown");
    host[HOST_BYTES - 1] = '\0';
}

static struct holder read_holder(int fd)
{
    char text[TEXT_BYTES];
    struct holder holder = {.run = "unknown", .host = "unknown"};
    ssize_t len = pread(fd, text, sizeof text - 1, 0);
    text[len > 0 ? len : 0] = '\0';
    if (sscanf(text, "run %1023s\nhost %127s\nprocess %d\n", holder.run, holder.host, &holder.pid) != 3)
        holder.pid = 0;
    return holder;
}

/* Where there are no locks: what the file says. */
static bool is_held(const struct holder *holder)
{
    char host[HOST_BYTES];
    own_host(host);
    if (holder->pid <= 0 || holder->pid == getpid())
        return false;
    return strcmp(holder->host, host) != 0 || kill(holder->pid, 0) == 0 || errno == EPERM;
}

static int refuse(const char *path, const struct holder *holder, bool by_text, struct cb_err *err)
{
    return cb_fail(err, CB_ERR_EXISTS,
                   "run %s (process %d on %s) is writing to the same folder: wait for it, or choose another suffix or "
                   "store. Its lock is %s%s",
                   holder->run, holder->pid, holder->host, path, by_text ? "; remove that if the process is gone" : "");
}

static int write_holder(int fd, const char *path, const char *run, struct cb_err *err)
{
    char text[TEXT_BYTES], host[HOST_BYTES];
    own_host(host);
    int len = snprintf(text, sizeof text, "run %.1000s\nhost %s\nprocess %d\n", run, host, (int)getpid());
    if (ftruncate(fd, 0) < 0 || pwrite(fd, text, (size_t)len, 0) != len)
        return cb_fail_errno(err, errno, "writing the lock %s", path);
    return 0;
}

/* Whether the file that is open is still the one with that name: its holder removes it. */
static bool has_name(int fd, const char *path)
{
    struct stat own, named;
    return fstat(fd, &own) == 0 && stat(path, &named) == 0 && own.st_dev == named.st_dev && own.st_ino == named.st_ino;
}

static int lock(int fd, const char *path, struct cb_err *err)
{
    struct holder holder;
    if (flock(fd, LOCK_EX | LOCK_NB) == 0)
        return 0;
    int failure = errno;
    holder = read_holder(fd);
    if (failure == EWOULDBLOCK)
        return refuse(path, &holder, false, err);
    return is_held(&holder) ? refuse(path, &holder, true, err) : 0;
}

int folder_lock_take(struct folder_lock *self, const char *folder, const char *run, struct cb_err *err)
{
    char *path = NULL;
    if (asprintf(&path, "%s/" FOLDER_LOCK, folder) < 0)
        return cb_fail(err, CB_ERR_MEMORY, "no memory for the name of a lock");
    for (;;) {
        int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC | O_NOFOLLOW, 0644);
        int rc = fd < 0 ? cb_fail_errno(err, errno, "creating the lock %s", path) : lock(fd, path, err);
        bool ours = !rc && has_name(fd, path);
        if (ours)
            rc = write_holder(fd, path, run, err);
        if (ours && !rc) {
            *self = (struct folder_lock){.path = path, .fd = fd};
            return 0;
        }
        if (fd >= 0)
            close(fd);
        if (rc) {
            free(path);
            return rc;
        }
    }
}

void folder_lock_release(struct folder_lock *self)
{
    if (!self->path)
        return;
    if (has_name(self->fd, self->path))
        unlink(self->path);
    close(self->fd);
    free(self->path);
    *self = (struct folder_lock){0};
}
