/* OpenBLAS called as one calls it by hand, one thread, one product of N x N. The peer of the suite's cores section
 * in `make bench-suite`.
 * usage: plain_gemm N */
#include <dlfcn.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/clock.h"

typedef void gemm_fn(int, int, int, int, int, int, double, const double *, int, const double *, int, double, double *,
                     int);
typedef void threads_fn(int);

int main(int argc, char **argv)
{
    if (argc != 2)
        return fprintf(stderr, "usage: plain_gemm N\n"), 2;
    int n = atoi(argv[1]);
    size_t cells = (size_t)n * (size_t)n;
    void *library = dlopen("libopenblas.so.0", RTLD_NOW);
    if (!library)
        return fprintf(stderr, "%s\n", dlerror()), 1;
    gemm_fn *gemm;
    threads_fn *set_threads;
    *(void **)&gemm = dlsym(library, "cblas_dgemm");
    *(void **)&set_threads = dlsym(library, "openblas_set_num_threads");
    double *a = aligned_alloc(64, cells * sizeof *a), *b = aligned_alloc(64, cells * sizeof *b),
           *c = aligned_alloc(64, cells * sizeof *c);
    if (!gemm || !set_threads || !a || !b || !c)
        return fprintf(stderr, "no cblas_dgemm, or no memory\n"), 1;
    set_threads(1);
    for (size_t i = 0; i < cells; i++) {
        a[i] = (double)(i % 1000) / 1000.0;
        b[i] = (double)(i % 777) / 777.0;
        c[i] = 0;
    }
    int small = n < 512 ? n : 512;
    gemm(101, 111, 111, small, small, small, 1.0, a, n, b, n, 0.0, c, n);
    uint64_t start_ns = clock_monotonic_ns();
    gemm(101, 111, 111, n, n, n, 1.0, a, n, b, n, 0.0, c, n);
    double seconds = (double)(clock_monotonic_ns() - start_ns) / 1e9;
    printf("{\"flops\": %.17g}\n", 2.0 * n * n * n / seconds);
    free(a), free(b), free(c);
    return 0;
}
