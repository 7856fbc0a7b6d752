/* The optional libraries of this build, from the definitions in the Makefile. */
#include "cli/doctor/libraries.h"

#include "store/kind.h"

/* Whether the Makefile defined a macro: a defined one expands to 1, an undefined one stays its own name. */
#define TEXT_OF(macro) #macro
#define IS_DEFINED(macro) (sizeof TEXT_OF(macro) == sizeof "1")

static const struct library libraries[] = {
    {"liburing", "liburing-dev", IS_DEFINED(HAVE_LIBURING), "io.engine=io_uring",
     "io.engine=io_uring falls back to psync"},
    {"hwloc", "libhwloc-dev", IS_DEFINED(HAVE_HWLOC), "caches, NUMA nodes and devices in the fingerprint",
     "the fingerprint has only what /proc and /sys say"},
    {"zstd", "libzstd-dev", IS_DEFINED(HAVE_ZSTD), "checkpoints that PyTorch compressed can be read",
     "checkpoints that PyTorch compressed cannot be read"},
    {"isa-l", "libisal-dev", IS_DEFINED(HAVE_ISAL), "vectorized CRC-32",
     "checksums use the slower tables of this program"},
    {"libcurl", "libcurl4-openssl-dev", IS_DEFINED(HAVE_CURL), "store=" STORE_S3 "BUCKET/PREFIX", "no stores on S3"},
    {"libssh2", "libssh2-1-dev", IS_DEFINED(HAVE_SSH2), "sites reached over SSH", "no sites but this machine"},
    {"zlib", "zlib1g-dev", IS_DEFINED(HAVE_ZLIB), "compression in the cluster suite",
     "the suite does not measure compression"},
    {"pmix", "libpmix-dev", IS_DEFINED(HAVE_PMIX), "ranks that srun starts wait for each other before they send",
     "ranks that srun starts may fail at their start"},
};

size_t library_count(void)
{
    return sizeof libraries / sizeof *libraries;
}

const struct library *library_at(size_t index)
{
    return &libraries[index];
}
