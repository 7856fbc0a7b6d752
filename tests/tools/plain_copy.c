/* The peer for memory file systems: writes a fresh file from a filled source in memory, with nothing but
 * write(2), again for each line on its standard input. One process a rank, driven together by the bench.
 * usage: plain_copy FILE BYTES BLOCK     prints "ready", then the seconds of each round and its CPU seconds */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include "core/clock.h"

static int write_all(int fd, const char *memory, size_t bytes, size_t block)
{
    for (size_t done = 0; done < bytes;) {
        size_t want = bytes - done < block ? bytes - done : block;
        ssize_t moved = write(fd, memory + done, want);
        if (moved <= 0)
            return -1;
        done += (size_t)moved;
    }
    return 0;
}

static double cpu_s(void)
{
    struct timespec used;
    return clock_gettime(CLOCK_PROCESS_CPUTIME_ID, &used) == 0 ? (double)used.tv_sec + (double)used.tv_nsec / 1e9 : 0;
}

/* Seconds of one fresh file, negative where it failed. */
static double round_once(const char *path, const char *memory, size_t bytes, size_t block, double *cpu_seconds)
{
    double cpu_before_s = cpu_s();
    uint64_t start = clock_monotonic_ns();
    int fd = open(path, O_WRONLY | O_CREAT | O_EXCL, 0644);
    if (fd < 0 || write_all(fd, memory, bytes, block) < 0 || close(fd) < 0)
        return -1;
    *cpu_seconds = cpu_s() - cpu_before_s;
    return (double)(clock_monotonic_ns() - start) / (double)NS_PER_S;
}

int main(int argc, char **argv)
{
    if (argc != 4)
        return 2;
    size_t bytes = strtoull(argv[2], NULL, 10), block = strtoull(argv[3], NULL, 10);
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 1;
    for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        uint64_t value = i * UINT64_C(0x9E3779B97F4A7C15);
        memcpy(memory + i, &value, sizeof value);
    }
    printf("ready\n");
    fflush(stdout);
    while (getchar() != EOF) {
        double cpu_seconds = 0, seconds = round_once(argv[1], memory, bytes, block, &cpu_seconds);
        if (seconds < 0) {
            perror(argv[1]);
            return 1;
        }
        unlink(argv[1]); /* its pages are there for the next round, as ours are when a checkpoint is removed */
        printf("%.9f %.9f\n", seconds, cpu_seconds);
        fflush(stdout);
    }
    return 0;
}
