/* See fault_bucket.h. Owns the shared file in /dev/shm; its users are counted under flock. */
#include "store/fault_bucket.h"

#include <errno.h>
#include <fcntl.h>
#include <stdatomic.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/file.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

struct shared {
    _Atomic uint64_t free_at_ns;
    uint32_t users; /* under the file's lock */
};

struct fault_bucket {
    struct shared *shared;
    struct shared private_one;
    uint64_t bytes_per_s;
    int fd; /* -1: private */
    char path[128];
};

/* Opens and locks the file; again if another process removed it between the two. */
static int open_locked(const char *path)
{
    for (;;) {
        struct stat status;
        int fd = shm_open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
        if (fd < 0)
            return -errno;
        while (flock(fd, LOCK_EX) != 0 && errno == EINTR)
            ;
        if (fstat(fd, &status) == 0 && status.st_nlink > 0)
            return fd;
        close(fd);
    }
}

static int map_shared(struct fault_bucket *self)
{
    int fd = open_locked(self->path);
    if (fd < 0)
        return -fd;
    if (ftruncate(fd, sizeof(struct shared)) == 0) {
        void *map = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
        if (map != MAP_FAILED) {
            self->shared = map;
            self->shared->users++;
            self->fd = fd;
            flock(fd, LOCK_UN);
            return 0;
        }
    }
    int failed = errno;
    close(fd);
    return failed;
}

int fault_bucket_new(const char *name, uint64_t bytes_per_s, struct fault_bucket **bucket, struct cb_err *err)
{
    struct fault_bucket *self = calloc(1, sizeof(*self));
    if (!self)
        return cb_fail(err, CB_ERR_MEMORY, "no memory for a fault store");
    self->bytes_per_s = bytes_per_s;
    self->fd = -1;
    self->shared = &self->private_one;
    if (name) {
        snprintf(self->path, sizeof(self->path), "/ckptbench-fault-%s", name);
        for (char *at = self->path + 1; *at; at++)
            if (*at == '/')
                *at = '_';
        int failed = map_shared(self);
        if (failed) {
            int rc =
                cb_fail_errno(err, failed, "sharing the bandwidth of a fault store through /dev/shm%s", self->path);
            free(self);
            return rc;
        }
    }
    *bucket = self;
    return 0;
}

void fault_bucket_free(struct fault_bucket *self)
{
    if (!self)
        return;
    if (self->fd >= 0) {
        while (flock(self->fd, LOCK_EX) != 0 && errno == EINTR)
            ;
        if (--self->shared->users == 0)
            shm_unlink(self->path);
        munmap(self->shared, sizeof(*self->shared));
        close(self->fd);
    }
    free(self);
}

uint64_t fault_bucket_reserve(struct fault_bucket *self, uint64_t bytes, uint64_t now_ns)
{
    uint64_t taken_ns = (uint64_t)((double)bytes / (double)self->bytes_per_s * 1e9);
    uint64_t before = atomic_load(&self->shared->free_at_ns), through;
    do
        through = (before > now_ns ? before : now_ns) + taken_ns;
    while (!atomic_compare_exchange_weak(&self->shared->free_at_ns, &before, through));
    return through;
}
