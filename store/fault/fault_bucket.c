/* A bandwidth that the processes of a machine share: one word in a shared file. */
#include "store/fault/fault_bucket.h"

#include "core/alloc.h"

#include <errno.h>
#include <fcntl.h>
#include <limits.h>
#include <stdatomic.h>
#include <stdio.h>
#include <sys/mman.h>
#include <unistd.h>

struct shared {
    _Atomic uint64_t free_at_ns;
};

struct fault_bucket {
    struct shared *shared;
    struct shared private_one;
    uint64_t bytes_per_s;
};

/* 0, or an errno. A new file reads as 0: the link is free. */
static int map_shared(struct fault_bucket *self, const char *folder)
{
    char path[PATH_MAX];
    if (snprintf(path, sizeof(path), "%s/fault-bandwidth", folder) >= (int)sizeof(path))
        return ENAMETOOLONG;
    int fd = open(path, O_RDWR | O_CREAT | O_CLOEXEC, 0600);
    if (fd < 0)
        return errno;
    void *map = MAP_FAILED;
    if (ftruncate(fd, sizeof(struct shared)) == 0)
        map = mmap(NULL, sizeof(struct shared), PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    int failed = map == MAP_FAILED ? errno : 0;
    close(fd);
    if (!failed)
        self->shared = map;
    return failed;
}

int fault_bucket_new(const char *folder, uint64_t bytes_per_s, struct fault_bucket **bucket, struct cb_err *err)
{
    struct fault_bucket *self = calloc(1, sizeof(*self));
    if (!self)
        return alloc_fail(err, "for a fault store");
    self->bytes_per_s = bytes_per_s;
    self->shared = &self->private_one;
    int failed = folder ? map_shared(self, folder) : 0;
    if (failed) {
        free(self);
        return cb_fail_errno(err, failed, "sharing the bandwidth of a fault store through %s", folder);
    }
    *bucket = self;
    return 0;
}

void fault_bucket_free(struct fault_bucket *self)
{
    if (!self)
        return;
    if (self->shared != &self->private_one)
        munmap(self->shared, sizeof(*self->shared));
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
