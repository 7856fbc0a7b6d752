/* The optional libraries of this build. Knows what the build was told, and asks nobody. */
#include "cli/doctor/libraries.h"

#ifdef HAVE_LIBURING
#define URING_PRESENT true
#else
#define URING_PRESENT false
#endif
#ifdef HAVE_HWLOC
#define HWLOC_PRESENT true
#else
#define HWLOC_PRESENT false
#endif
#ifdef HAVE_ZSTD
#define ZSTD_PRESENT true
#else
#define ZSTD_PRESENT false
#endif
#ifdef HAVE_ISAL
#define ISAL_PRESENT true
#else
#define ISAL_PRESENT false
#endif

static const struct library libraries[] = {
    {"liburing", "liburing-dev", URING_PRESENT, "io.engine=io_uring", "io.engine=io_uring falls back to psync"},
    {"hwloc", "libhwloc-dev", HWLOC_PRESENT, "caches, NUMA nodes and devices in the fingerprint",
     "the fingerprint has only what /proc and /sys say"},
    {"zstd", "libzstd-dev", ZSTD_PRESENT, "checkpoints that PyTorch compressed can be read",
     "checkpoints that PyTorch compressed cannot be read"},
    {"isa-l", "libisal-dev", ISAL_PRESENT, "vectorized CRC-32", "checksums use the slower tables of this program"},
};

size_t library_count(void)
{
    return sizeof libraries / sizeof *libraries;
}

const struct library *library_at(size_t index)
{
    return &libraries[index];
}
