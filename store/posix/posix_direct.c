/* Whether files here support O_DIRECT, and with which alignment.
 *
 * statx reports it since Linux 6.1 (STATX_DIOALIGN); otherwise a trial write and read at 512 and 4096 bytes decides.
 * tmpfs accepts the flag but still uses the page cache, which we report. */
#include "store/posix/posix.h"

#include <errno.h>
#include <fcntl.h>
#include <linux/magic.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/vfs.h>
#include <unistd.h>

/* Older headers lack these; the offset in the struct is part of the kernel's ABI. */
#ifndef STATX_DIOALIGN
#define STATX_DIOALIGN 0x00002000U
#endif
#define STATX_DIO_MEMORY_AT 0x98
#define STATX_DIO_OFFSET_AT 0x9c

static void impossible(struct posix_direct *direct, const char *reason)
{
    *direct = (struct posix_direct){.possible = false};
    snprintf(direct->reason, sizeof(direct->reason), "%s", reason);
}

/* Blocks are at least as long as pages, so that the buffered tail never shares a page with a direct write: the page
 * cache would write back what it had read before. */
static void possible(struct posix_direct *direct, uint32_t memory, uint32_t offset)
{
    uint32_t page = (uint32_t)sysconf(_SC_PAGESIZE);
    uint32_t least = page > POSIX_MIN_BLOCK ? page : POSIX_MIN_BLOCK;
    uint32_t block = offset > least ? offset : least;
    if (block > POSIX_MAX_BLOCK || memory > POSIX_MAX_BLOCK || (block & (block - 1)) || (memory & (memory - 1))) {
        impossible(direct, "the file system asks for an unusual alignment");
        return;
    }
    *direct = (struct posix_direct){.possible = true, .memory_alignment = memory, .block = block};
}

/* Returns whether the kernel reported it. */
static bool ask(int fd, struct posix_direct *direct)
{
    struct statx status;
    uint32_t memory, offset;
    if (statx(fd, "", AT_EMPTY_PATH, STATX_DIOALIGN, &status) != 0 || !(status.stx_mask & STATX_DIOALIGN))
        return false;
    memcpy(&memory, (const char *)&status + STATX_DIO_MEMORY_AT, sizeof(memory));
    memcpy(&offset, (const char *)&status + STATX_DIO_OFFSET_AT, sizeof(offset));
    if (offset == 0 || memory == 0)
        impossible(direct, "the file system says that it cannot");
    else
        possible(direct, memory, offset);
    return true;
}

bool posix_is_in_memory(int fd)
{
    struct statfs status;
    return fstatfs(fd, &status) == 0 && (status.f_type == TMPFS_MAGIC || status.f_type == RAMFS_MAGIC);
}

static void try_out(int fd, struct posix_direct *direct)
{
    void *memory = aligned_alloc(POSIX_MIN_BLOCK, POSIX_MIN_BLOCK);
    if (!memory) {
        impossible(direct, "no memory for the trial");
        return;
    }
    memset(memory, 0, POSIX_MIN_BLOCK);
    impossible(direct, "a trial write or read failed");
    for (uint32_t size = 512; size <= POSIX_MIN_BLOCK && !direct->possible; size *= 8)
        if (pwrite(fd, memory, size, size) == (ssize_t)size && pread(fd, memory, size, size) == (ssize_t)size)
            possible(direct, size, size);
    free(memory);
}

void posix_direct_probe(int fd, struct posix_direct *direct)
{
    int flags = fcntl(fd, F_GETFL);
    if (posix_is_in_memory(fd))
        impossible(direct, "the files are in memory (tmpfs)");
    else if (flags < 0 || fcntl(fd, F_SETFL, flags | O_DIRECT) != 0)
        impossible(direct, "the file system refuses the flag");
    else if (!ask(fd, direct))
        try_out(fd, direct);
}

void posix_direct_guess(int folder_fd, struct posix_direct *direct)
{
    if (posix_is_in_memory(folder_fd))
        impossible(direct, "the files are in memory (tmpfs)");
    else
        possible(direct, POSIX_MIN_BLOCK, POSIX_MIN_BLOCK);
}
