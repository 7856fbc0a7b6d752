/* STREAM's triad as one writes it by hand: an OpenMP loop over a = b + s c, the best of its rounds. The peer of
 * the suite's memory section in `make bench-suite`.
 * usage: plain_triad BYTES_OF_AN_ARRAY */
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

#include "core/clock.h"

#define ROUNDS 6 /* without the first */

int main(int argc, char **argv)
{
    if (argc != 2)
        return fprintf(stderr, "usage: plain_triad BYTES_OF_AN_ARRAY\n"), 2;
    size_t n = (size_t)strtoull(argv[1], NULL, 10) / sizeof(double);
    double *a = malloc(n * sizeof *a), *b = malloc(n * sizeof *b), *c = malloc(n * sizeof *c), best_s = 0;
    if (!a || !b || !c)
        return fprintf(stderr, "no memory for three arrays of %zu numbers\n", n), 1;
#pragma omp parallel for
    for (size_t i = 0; i < n; i++) {
        a[i] = 0;
        b[i] = (double)(i % 1000);
        c[i] = 1.0;
    }
    for (unsigned round = 0; round < ROUNDS; round++) {
        uint64_t start_ns = clock_monotonic_ns();
#pragma omp parallel for
        for (size_t i = 0; i < n; i++)
            a[i] = b[i] + 3.0 * c[i];
        double seconds = (double)(clock_monotonic_ns() - start_ns) / 1e9;
        if (round > 0 && (best_s == 0 || seconds < best_s))
            best_s = seconds;
    }
    if (a[n - 1] != b[n - 1] + 3.0)
        return fprintf(stderr, "a sum is wrong\n"), 1;
    printf("{\"bytes_per_s\": %.17g}\n", 3.0 * (double)n * sizeof(double) / best_s);
    free(a), free(b), free(c);
    return 0;
}
