/* Watches another process through /proc. */
#include "engine/external/child_activity.h"

#include <dirent.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/procfs.h"

#define MAX_PROCESSES 256
#define LOOK_EVERY_NS NS_PER_S
#define CPU_WINDOW_NS (10 * NS_PER_S)
#define BUSY_FRACTION 50 /* one fiftieth of a core */

struct seen {
    uint64_t moved, cpu_ticks;
    bool syncs;
};

/* The value after "NAME: ". */
static uint64_t line_value(const char *text, const char *name)
{
    const char *at = strstr(text, name);
    return at ? strtoull(at + strlen(name), NULL, 10) : 0;
}

static bool waits_for_disk(const char *text)
{
    char *end;
    long call = strtol(text, &end, 10);
    return end != text && (call == SYS_fsync || call == SYS_fdatasync || call == SYS_sync || call == SYS_syncfs ||
                           call == SYS_sync_file_range || call == SYS_msync);
}

static bool any_thread_syncs(pid_t pid)
{
    char path[64], text[256], name[320];
    bool syncs = false;
    snprintf(path, sizeof path, "/proc/%d/task", (int)pid);
    DIR *threads = opendir(path);
    for (struct dirent *entry; threads && !syncs && (entry = readdir(threads));) {
        snprintf(name, sizeof name, "task/%s/syscall", entry->d_name);
        syncs = entry->d_name[0] != '.' && procfs_read(pid, name, text, sizeof text) && waits_for_disk(text);
    }
    if (threads)
        closedir(threads);
    return syncs;
}

static void add_process(struct seen *seen, pid_t pid)
{
    char text[1024];
    unsigned long long user, system;
    procfs_read(pid, "io", text, sizeof text);
    seen->moved += line_value(text, "rchar: ") + line_value(text, "wchar: ");
    procfs_read(pid, "stat", text, sizeof text);
    const char *end = strrchr(text, ')'); /* after the name: state, 10 numbers, user and system time */
    if (end && sscanf(end + 1, " %*c %*d %*d %*d %*d %*d %*u %*u %*u %*u %*u %llu %llu", &user, &system) == 2)
        seen->cpu_ticks += user + system;
    seen->syncs = seen->syncs || any_thread_syncs(pid);
}

static bool computes(struct child_activity *self, uint64_t cpu_ticks, uint64_t now_ns)
{
    uint64_t passed_ns = now_ns - self->cpu_marked_ns;
    uint64_t tick_ns = NS_PER_S / (uint64_t)sysconf(_SC_CLK_TCK);
    /* Less than before means that a child has ended. */
    uint64_t used = cpu_ticks > self->cpu_marked_ticks ? cpu_ticks - self->cpu_marked_ticks : 0;
    bool busy = used * tick_ns * BUSY_FRACTION > CPU_WINDOW_NS;
    if (busy || passed_ns > CPU_WINDOW_NS || cpu_ticks < self->cpu_marked_ticks) {
        self->cpu_marked_ns = now_ns;
        self->cpu_marked_ticks = cpu_ticks;
    }
    return busy;
}

void child_activity_look(struct child_activity *self, pid_t pid, struct status_page *page, uint64_t now_ns)
{
    pid_t processes[MAX_PROCESSES] = {pid};
    struct seen seen = {0};
    if (now_ns - self->checked_ns < LOOK_EVERY_NS)
        return;
    size_t count = 1 + procfs_descendants(pid, processes + 1, MAX_PROCESSES - 1);
    for (size_t i = 0; i < count; i++)
        add_process(&seen, processes[i]);
    bool first = self->checked_ns == 0, moved = seen.moved != self->moved;
    self->checked_ns = now_ns;
    self->moved = seen.moved;
    bool active = computes(self, seen.cpu_ticks, now_ns) || moved || first;
    enum rank_state state = seen.syncs ? STATE_FSYNC : active ? STATE_OTHER : STATE_WAIT;
    atomic_store_explicit(&page->state, state, memory_order_relaxed);
    if (active)
        atomic_store_explicit(&page->progress_ns, now_ns, memory_order_relaxed);
}
