/* The page cache of a file: drops it, and measures what is left.
 *
 * Dirty pages are written first, since they cannot be dropped. For a file that we neither own nor may write, the kernel
 * hides what mincore(2) would report, so its residency is unknown. */
#include "store/posix/posix.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#define CHUNK (UINT64_C(1) << 30)

static bool kernel_tells(const struct posix_names *names, const char *name, const struct stat *status)
{
    return status->st_uid == geteuid() || faccessat(names->root_fd, name, W_OK, AT_EACCESS) == 0;
}

/* Resident pages of one chunk; negative errno if the kernel does not report them. */
static int64_t count_resident(int fd, uint64_t offset, uint64_t length, unsigned char *vector, size_t page)
{
    void *map = mmap(NULL, length, PROT_READ, MAP_SHARED, fd, (off_t)offset);
    if (map == MAP_FAILED)
        return -errno;
    int64_t resident = 0;
    if (mincore(map, length, vector) != 0)
        resident = -errno;
    else
        for (size_t i = 0; i < (length + page - 1) / page; i++)
            resident += vector[i] & 1;
    munmap(map, length);
    return resident;
}

static double resident_share(int fd, uint64_t length)
{
    size_t page = (size_t)sysconf(_SC_PAGESIZE);
    unsigned char *vector = malloc(CHUNK / page);
    uint64_t pages = (length + page - 1) / page, resident = 0;
    bool known = vector != NULL;
    for (uint64_t at = 0; at < length && known; at += CHUNK) {
        int64_t count = count_resident(fd, at, length - at < CHUNK ? length - at : CHUNK, vector, page);
        known = count >= 0;
        resident += known ? (uint64_t)count : 0;
    }
    free(vector);
    return known ? (double)resident / (double)pages : (double)NAN;
}

int posix_cache_drop(const struct posix_names *names, const char *name, double *resident_fraction, struct cb_err *err)
{
    int fd = openat(names->root_fd, name, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return cb_fail_errno(err, errno, "opening %s in store '%s' to drop its cache", name, names->root);
    struct stat status;
    int rc = 0;
    if (fstat(fd, &status) != 0 || fdatasync(fd) != 0)
        rc = cb_fail_errno(err, errno, "syncing %s in store '%s' to drop its cache", name, names->root);
    if (!rc) {
        int refused = posix_fadvise(fd, 0, 0, POSIX_FADV_DONTNEED); /* what is left is measured below */
        if (status.st_size == 0)
            *resident_fraction = 0;
        else if (refused || !kernel_tells(names, name, &status))
            *resident_fraction = (double)NAN;
        else
            *resident_fraction = resident_share(fd, (uint64_t)status.st_size);
    }
    close(fd);
    return rc;
}
