/* The peer for memory file systems: writes a fresh file from a filled source in memory, or reads it
 * back, with nothing but write(2) and read(2). One process a rank, started together by the bench.
 * usage: plain_copy write|read FILE BYTES BLOCK     prints seconds */
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#include "core/clock.h"

static int copy(int fd, int writing, char *memory, size_t bytes, size_t block)
{
    for (size_t done = 0; done < bytes;) {
        size_t want = bytes - done < block ? bytes - done : block;
        ssize_t moved = writing ? write(fd, memory + done, want) : read(fd, memory + done, want);
        if (moved <= 0)
            return -1;
        done += (size_t)moved;
    }
    return 0;
}

int main(int argc, char **argv)
{
    if (argc != 5)
        return 2;
    int writing = strcmp(argv[1], "write") == 0;
    size_t bytes = strtoull(argv[3], NULL, 10), block = strtoull(argv[4], NULL, 10);
    if (writing)
        unlink(argv[2]); /* before any memory is taken: both sides find their pages in the same state */
    char *memory = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (memory == MAP_FAILED)
        return 1;
    for (size_t i = 0; i < bytes; i += sizeof(uint64_t)) {
        uint64_t value = i * UINT64_C(0x9E3779B97F4A7C15);
        memcpy(memory + i, &value, sizeof value);
    }
    printf("ready\n");
    fflush(stdout);
    if (getchar() == EOF) /* the bench starts all ranks at once */
        return 1;
    uint64_t start = clock_monotonic_ns();
    int fd = writing ? open(argv[2], O_WRONLY | O_CREAT | O_EXCL, 0644) : open(argv[2], O_RDONLY);
    if (fd < 0 || copy(fd, writing, memory, bytes, block) < 0 || close(fd) < 0) {
        perror(argv[2]);
        return 1;
    }
    printf("%.9f\n", (double)(clock_monotonic_ns() - start) / 1e9);
    return 0;
}
