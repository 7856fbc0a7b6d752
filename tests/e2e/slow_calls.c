/* To be preloaded: write and fsync of files whose names end in .distcp wait as long as the program says. Such an
 * fsync does nothing else, so that a busy disk delays nobody. */
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

static int wait_if_shard(int fd, int call)
{
    char link[64], path[4096];
    snprintf(link, sizeof link, "/proc/self/fd/%d", fd);
    ssize_t len = readlink(link, path, sizeof path - 1);
    if (len < 7 || strncmp(path + len - 7, ".distcp", 7) != 0)
        return 0;
    int wait_ms = delayed_calls & call ? delay_ms : 0;
    struct timespec left = {wait_ms / 1000, wait_ms % 1000 * 1000000L};
    while (nanosleep(&left, &left) != 0)
        ;
    return 1;
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
    return wait_if_shard(fd, 2) ? 0 : real(fd);
}
