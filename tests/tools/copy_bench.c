/* The peer for the stall of a save that goes on behind: memcpy of the same bytes by as many threads as
 * there are ranks, between memory that was touched before, again for each line on its standard input.
 * usage: copy_bench THREADS BYTES     prints "ready", then the seconds of each round */
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "core/clock.h"

#define MAX_THREADS 64

struct copier {
    pthread_t thread;
    char *to, *from;
    size_t bytes;
};

static char *touched(size_t bytes, int value)
{
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return NULL;
    (void)madvise(memory, bytes, MADV_HUGEPAGE);
    memset(memory, value, bytes);
    return memory;
}

static void *copy(void *context)
{
    struct copier *self = context;
    memcpy(self->to, self->from, self->bytes);
    return NULL;
}

int main(int argc, char **argv)
{
    struct copier copiers[MAX_THREADS];
    size_t threads = argc == 3 ? strtoull(argv[1], NULL, 10) : 0, bytes = argc == 3 ? strtoull(argv[2], NULL, 10) : 0;
    if (threads < 1 || threads > MAX_THREADS || bytes == 0)
        return 2;
    for (size_t i = 0; i < threads; i++) {
        copiers[i] = (struct copier){.to = touched(bytes, 1), .from = touched(bytes, 2), .bytes = bytes};
        if (!copiers[i].to || !copiers[i].from)
            return 1;
    }
    printf("ready\n");
    fflush(stdout);
    while (getchar() != EOF) {
        uint64_t start = clock_monotonic_ns();
        for (size_t i = 0; i < threads; i++) {
            if (pthread_create(&copiers[i].thread, NULL, copy, &copiers[i]) != 0)
                return 1;
        }
        for (size_t i = 0; i < threads; i++)
            pthread_join(copiers[i].thread, NULL);
        printf("%.9f\n", (double)(clock_monotonic_ns() - start) / (double)NS_PER_S);
        fflush(stdout);
    }
    return 0;
}
