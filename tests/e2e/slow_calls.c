/* To be preloaded: write and fsync of files whose names end in .distcp wait as long as the program says. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int delayed_calls, delay_ms;

void slow_calls(int calls, int milliseconds);
void slow_calls(int calls, int milliseconds)
{
    delayed_calls = calls;
    delay_ms = milliseconds;
}

static void wait_if_shard(int fd, int call)
{
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = delayed_calls & call && delay_ms ? readlink(link, path, sizeof path - 1) : 0;
    if (len < 7 || strncmp(path + len - 7, ".distcp", 7) != 0)
        return;
    struct timespec left = {delay_ms / 1000, delay_ms % 1000 * 1000000L};
    while (nanosleep(&left, &left) != 0)
        ;
}

ssize_t write(int fd, const void *bytes, size_t len)
{
    static ssize_t (*real)(int, const void *, size_t);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "write");
    wait_if_shard(fd, 1);
    return real(fd, bytes, len);
}

int fsync(int fd)
{
    static int (*real)(int);
    if (!real)
        *(void **)&real = dlsym(RTLD_NEXT, "fsync");
    wait_if_shard(fd, 2);
    return real(fd);
}
