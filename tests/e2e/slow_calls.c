/* To be preloaded: write and fsync of files whose names end in .distcp wait as long as the program says. Such an
 * fsync does nothing else, so that a busy disk delays nobody. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

static int delayed_calls, delay_ms;
static unsigned long long waited;

void slow_calls(int calls, int milliseconds);
unsigned long long slow_calls_waited_ns(void); /* in all calls since it was last asked */

static unsigned long long now_ns(void)
{
    struct timespec now;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (unsigned long long)now.tv_sec * 1000000000 + (unsigned long long)now.tv_nsec;
}

unsigned long long slow_calls_waited_ns(void)
{
    unsigned long long answer = waited;
    waited = 0;
    return answer;
}

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
    unsigned long long begin_ns = now_ns();
    while (wait_ms > 0 && nanosleep(&left, &left) != 0)
        ;
    waited += wait_ms > 0 ? now_ns() - begin_ns : 0;
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
