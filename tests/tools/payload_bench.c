/* How fast payload is made and checked on one core, in memory that is warm.
 * usage: payload_bench weights|random|zero DTYPE     prints JSON */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "ckpt/payload.h"
#include "core/clock.h"
#include "core/units.h"

enum { ROUNDS = 9 };

static int by_value(const void *a, const void *b)
{
    double x = *(const double *)a, y = *(const double *)b;
    return (x > y) - (x < y);
}

static double median_rate(const struct payload_source *source, void *memory, uint64_t count, uint64_t bytes, bool check)
{
    double rates[ROUNDS];
    for (int round = 0; round < ROUNDS; round++) {
        uint64_t start = clock_monotonic_ns(), wrong = 0;
        if (!check)
            payload_fill(source, 0, memory, count);
        else if (!payload_check(source, 0, memory, count, &wrong))
            return 0;
        rates[round] = (double)bytes / (double)GIB * 1e9 / (double)(clock_monotonic_ns() - start);
    }
    qsort(rates, ROUNDS, sizeof *rates, by_value);
    return rates[ROUNDS / 2];
}

int main(int argc, char **argv)
{
    struct payload_source source = {.key = payload_key(0, "model.w")};
    if (argc != 3 || !dtype_find(argv[2], &source.dtype))
        return 2;
    source.kind = strcmp(argv[1], "weights") == 0  ? PAYLOAD_WEIGHTS
                  : strcmp(argv[1], "random") == 0 ? PAYLOAD_RANDOM
                                                   : PAYLOAD_ZERO;
    uint64_t bytes = 256 * MIB;
    void *memory = aligned_alloc(4096, bytes);
    if (!memory)
        return 1;
    memset(memory, 1, bytes);
    uint64_t count = bytes / dtype_bytes(source.dtype);
    double fill = median_rate(&source, memory, count, bytes, false);
    double check = median_rate(&source, memory, count, bytes, true);
    printf("{\"fill_gib_per_s\": %.3f, \"check_gib_per_s\": %.3f}\n", fill, check);
    free(memory);
    return 0;
}
