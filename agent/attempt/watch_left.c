#include "agent/attempt/watch_left.h"

#include <limits.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>

#include "core/clock.h"
#include "core/foreground.h"
#include "core/procfs.h"
#include "core/units.h"

#define PROCESSES_MOST 65536
#define ENVIRONMENT_MAX_BYTES (1u << 20)
#define GRACE_NS (2 * NS_PER_S) /* helpers of Python end moments after the process that started them */
#define LOOK_NS (20 * NS_PER_MS)

/* The folder may have several names. */
static bool has_folder(pid_t pid, const struct stat *folder)
{
    struct buf environment;
    struct stat own;
    buf_init(&environment, ENVIRONMENT_MAX_BYTES);
    procfs_read_all(pid, "environ", &environment);
    const char *value = procfs_find_variable(environment.data, environment.len, "CKPTBENCH_WATCH");
    bool has = value && stat(value, &own) == 0 && own.st_ino == folder->st_ino && own.st_dev == folder->st_dev;
    buf_release(&environment);
    return has;
}

/* How many there are, and the first of them. */
static size_t count_left(const struct stat *folder, pid_t *all, pid_t *first)
{
    size_t count = procfs_all(all, PROCESSES_MOST), left = 0;
    for (size_t i = 0; i < count; i++)
        if (has_folder(all[i], folder) && left++ == 0)
            *first = all[i];
    return left;
}

void watch_left_note(const char *folder, struct status_page *page)
{
    uint64_t end_ns = clock_monotonic_ns() + GRACE_NS;
    int requests = foreground_requests();
    pid_t first = 0, *all = calloc(PROCESSES_MOST, sizeof *all);
    struct stat about;
    size_t left = all && stat(folder, &about) == 0 ? count_left(&about, all, &first) : 0;
    char name[32], text[256];
    while (left && foreground_requests() == requests && clock_monotonic_ns() < end_ns) {
        clock_sleep_ns(LOOK_NS);
        left = count_left(&about, all, &first);
    }
    free(all);
    if (!left)
        return;
    procfs_read(first, "comm", name, sizeof name);
    name[strcspn(name, "\n")] = '\0';
    snprintf(text, sizeof text,
             "what %zu process%s of the command save%s from now on: still running when it ended (%s, %d)", left,
             left == 1 ? "" : "es", left == 1 ? "s" : "", name, (int)first);
    status_page_add_fact(page, "watch.unseen.left", text);
}
