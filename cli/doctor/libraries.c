/* The optional libraries of this build, from the definitions in the Makefile. */
#include "cli/doctor/libraries.h"

#include "store/kind.h"

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
#ifdef HAVE_CURL
#define CURL_PRESENT true
#else
#define CURL_PRESENT false
#endif
#ifdef HAVE_SSH2
#define SSH2_PRESENT true
#else
#define SSH2_PRESENT false
#endif
#ifdef HAVE_ZLIB
#define ZLIB_PRESENT true
#else
#define ZLIB_PRESENT false
#endif
#ifdef HAVE_PMIX
#define PMIX_PRESENT true
#else
#define PMIX_PRESENT false
#endif

static const struct library libraries[] = {
    {"liburing", "liburing-dev", URING_PRESENT, "io.engine=io_uring", "io.engine=io_uring falls back to psync"},
    {"hwloc", "libhwloc-dev", HWLOC_PRESENT, "caches, NUMA nodes and devices in the fingerprint",
     "the fingerprint has only what /proc and /sys say"},
    {"zstd", "libzstd-dev", ZSTD_PRESENT, "checkpoints that PyTorch compressed can be read",
     "checkpoints that PyTorch compressed cannot be read"},
    {"isa-l", "libisal-dev", ISAL_PRESENT, "vectorized CRC-32", "checksums use the slower tables of this program"},
    {"libcurl", "libcurl4-openssl-dev", CURL_PRESENT, "store=" STORE_S3 "BUCKET/PREFIX", "no stores on S3"},
    {"libssh2", "libssh2-1-dev", SSH2_PRESENT, "sites reached over SSH", "no sites but this machine"},
    {"zlib", "zlib1g-dev", ZLIB_PRESENT, "compression in the cluster suite", "the suite does not measure compression"},
    {"pmix", "libpmix-dev", PMIX_PRESENT, "ranks that srun starts wait for each other before they send",
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
