/* Memory: STREAM (McCalpin, 1995), page faults, pinned pages. All ranks of a node run simultaneously, as they will in
 * training. */
#include <errno.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "suite/suite.h"

#define LEAST_ARRAY_BYTES (UINT64_C(32) << 20)
#define ROUNDS 5 /* as in STREAM: the best round counts, without the first */
#define SCALAR 3.0
#define FAULT_BYTES (UINT64_C(128) << 20)
#define PAGE_BYTES 4096

/* Each of the three arrays is at least four times the last-level cache, shared by the ranks. */
uint64_t suite_array_bytes(const struct suite *self)
{
    long cache = sysconf(_SC_LEVEL3_CACHE_SIZE);
    if (cache <= 0)
        cache = sysconf(_SC_LEVEL2_CACHE_SIZE);
    uint64_t bytes = cache > 0 ? 4 * (uint64_t)cache / self->nodes.local_size : 0;
    return bytes < LEAST_ARRAY_BYTES ? LEAST_ARRAY_BYTES : bytes / 64 * 64;
}

enum kernel { KERNEL_COPY, KERNEL_SCALE, KERNEL_ADD, KERNEL_TRIAD, KERNEL_COUNT };

static void run_kernel(enum kernel kernel, double *restrict a, const double *restrict b, const double *restrict c,
                       size_t n)
{
    switch (kernel) {
    case KERNEL_COPY:
        for (size_t i = 0; i < n; i++)
            a[i] = b[i];
        break;
    case KERNEL_SCALE:
        for (size_t i = 0; i < n; i++)
            a[i] = SCALAR * b[i];
        break;
    case KERNEL_ADD:
        for (size_t i = 0; i < n; i++)
            a[i] = b[i] + c[i];
        break;
    default:
        for (size_t i = 0; i < n; i++)
            a[i] = b[i] + SCALAR * c[i];
    }
}

static double expected(enum kernel kernel, double b, double c)
{
    switch (kernel) {
    case KERNEL_COPY:
        return b;
    case KERNEL_SCALE:
        return SCALAR * b;
    case KERNEL_ADD:
        return b + c;
    default:
        return b + SCALAR * c;
    }
}

static bool is_right(enum kernel kernel, const double *a, const double *b, const double *c, size_t n)
{
    for (size_t i = 0; i < n; i++)
        if (a[i] != expected(kernel, b[i], c[i]))
            return false;
    return true;
}

/* Bytes per second of this rank's best round; all ranks of the node start together. */
static int time_kernel(struct suite *self, enum kernel kernel, double *arrays[3], size_t n, double *bytes_per_s,
                       struct cb_err *err)
{
    uint64_t moved = (kernel == KERNEL_ADD || kernel == KERNEL_TRIAD ? 3 : 2) * n * sizeof(double);
    double best_s = 0;
    for (unsigned round = 0; round < ROUNDS; round++) {
        int rc = suite_join(self, 0, err);
        if (rc)
            return rc;
        uint64_t start_ns = clock_monotonic_ns();
        run_kernel(kernel, arrays[0], arrays[1], arrays[2], n);
        double seconds = (double)(clock_monotonic_ns() - start_ns) / 1e9;
        if (round > 0 && (best_s == 0 || seconds < best_s))
            best_s = seconds;
    }
    *bytes_per_s = (double)moved / best_s;
    if (!is_right(kernel, arrays[0], arrays[1], arrays[2], n))
        return cb_fail(err, CB_ERR_CORRUPT, "memory: a sum over %zu numbers is wrong on rank %u", n,
                       comm_rank(self->comm));
    return 0;
}

static int measure_stream(struct suite *self, struct sample *sample, struct cb_err *err)
{
    static const enum metric_id metrics[KERNEL_COUNT] = {METRIC_MEMORY_COPY_BYTES_PER_S,
                                                         METRIC_MEMORY_SCALE_BYTES_PER_S, METRIC_MEMORY_ADD_BYTES_PER_S,
                                                         METRIC_MEMORY_TRIAD_BYTES_PER_S};
    uint64_t bytes = suite_array_bytes(self);
    size_t n = bytes / sizeof(double);
    double *arrays[3] = {NULL};
    char *memory = aligned_alloc(PAGE_BYTES, (3 * bytes + PAGE_BYTES - 1) / PAGE_BYTES * PAGE_BYTES);
    int rc = memory ? 0 : alloc_fail(err, "for three arrays of %llu bytes", (unsigned long long)bytes);
    rc = suite_join(self, rc, err);
    if (rc || !memory) {
        free(memory);
        return rc;
    }
    for (unsigned k = 0; k < 3 && !rc; k++) {
        arrays[k] = (double *)(void *)(memory + k * bytes);
        for (size_t i = 0; i < n; i++)
            arrays[k][i] = k == 0 ? 0.0 : (double)(i % 1000) + k;
    }
    for (unsigned kernel = 0; kernel < KERNEL_COUNT && !rc; kernel++) {
        double mine = 0;
        rc = suite_join(self, time_kernel(self, (enum kernel)kernel, arrays, n, &mine, err), err);
        if (!rc)
            rc = suite_sum_of_node(self, mine, &sample->values[metrics[kernel]], err);
    }
    free(memory);
    return rc;
}

/* Touches fresh pages, or maps locked ones. *bytes_per_s is 0 if locking is not permitted. */
static int map_pages(bool locked, double *bytes_per_s, struct cb_err *err)
{
    uint64_t start_ns = clock_monotonic_ns();
    char *memory = mmap(NULL, FAULT_BYTES, PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | (locked ? MAP_LOCKED | MAP_POPULATE : 0), -1, 0);
    if (memory == MAP_FAILED && locked && (errno == EPERM || errno == EAGAIN)) {
        *bytes_per_s = 0;
        return 0;
    }
    if (memory == MAP_FAILED)
        return cb_fail_errno(err, errno, "mapping %llu bytes", (unsigned long long)FAULT_BYTES);
    for (uint64_t i = 0; i < FAULT_BYTES && !locked; i += PAGE_BYTES)
        ((volatile char *)memory)[i] = 1;
    *bytes_per_s = (double)FAULT_BYTES / ((double)(clock_monotonic_ns() - start_ns) / 1e9);
    munmap(memory, FAULT_BYTES);
    return 0;
}

static int measure_pages(struct suite *self, struct sample *sample, bool locked, bool last, struct cb_err *err)
{
    double mine = 0;
    struct agreement least;
    enum metric_id metric = locked ? METRIC_MEMORY_PINNED_BYTES_PER_S : METRIC_MEMORY_FAULT_BYTES_PER_S;
    int rc = suite_join(self, 0, err);
    if (!rc)
        rc = suite_join(self, map_pages(locked, &mine, err), err);
    if (!rc)
        rc = comm_agree(self->comm, 0, (uint64_t)mine, suite_deadline(self), &least, err);
    if (rc)
        return rc;
    if (least.min == 0) {
        if (last)
            suite_skip(self, "memory.pinned", "locking pages is not allowed here: raise `ulimit -l`");
        return 0;
    }
    return suite_sum_of_node(self, mine, &sample->values[metric], err);
}

int suite_memory(struct suite *self, struct sample *sample, bool last, struct cb_err *err)
{
    int rc = measure_stream(self, sample, err);
    if (!rc)
        rc = measure_pages(self, sample, false, last, err);
    return rc ? rc : measure_pages(self, sample, true, last, err);
}
