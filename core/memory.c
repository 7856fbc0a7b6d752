/* How much memory this machine has available: /proc/meminfo and the limits of our control groups. */
#include "core/memory.h"

#include <errno.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/buf.h"

#define PROC_TEXT_BYTES (64 * 1024)
#define GROUP_PATH_BYTES 4096

int memory_parse_meminfo(const char *text, const char *name, uint64_t *bytes, struct cb_err *err)
{
    size_t name_len = strlen(name);
    for (const char *line = text; line && *line; line = strchr(line, '\n') ? strchr(line, '\n') + 1 : NULL) {
        if (strncmp(line, name, name_len) != 0 || line[name_len] != ':')
            continue;
        char *end = NULL;
        errno = 0;
        unsigned long long kibibytes = strtoull(line + name_len + 1, &end, 10);
        if (errno || end == line + name_len + 1 || kibibytes > UINT64_MAX / 1024)
            break;
        *bytes = (uint64_t)kibibytes * 1024;
        return 0;
    }
    return cb_fail(err, CB_ERR_FORMAT, "/proc/meminfo has no readable line %s", name);
}

/* Reads a file with one number; UINT64_MAX for "max" and if it cannot be read. */
static uint64_t read_number(const char *folder, const char *file)
{
    char path[GROUP_PATH_BYTES + 64];
    snprintf(path, sizeof path, "%s/%s", folder, file);
    struct buf text;
    buf_init(&text, 128);
    uint64_t number = UINT64_MAX;
    if (!buf_read_file(&text, path, NULL) && text.len > 0 && text.data[0] >= '0' && text.data[0] <= '9')
        number = strtoull(text.data, NULL, 10);
    buf_release(&text);
    return number;
}

/* Bytes that the group at `folder` and its parents up to `root` leave available. */
static uint64_t group_leaves(char *folder, const char *root, const char *limit_file, const char *usage_file)
{
    uint64_t left = UINT64_MAX;
    for (;;) {
        uint64_t limit = read_number(folder, limit_file), used = read_number(folder, usage_file);
        if (limit != UINT64_MAX && used != UINT64_MAX) {
            uint64_t here = limit > used ? limit - used : 0;
            left = here < left ? here : left;
        }
        char *slash = strrchr(folder, '/');
        if (!slash || strlen(folder) <= strlen(root))
            return left;
        *slash = '\0';
    }
}

/* Lines of /proc/self/cgroup are "0::/path" (v2) and "N:memory:/path" (v1). */
static uint64_t groups_leave(void)
{
    struct buf text;
    buf_init(&text, PROC_TEXT_BYTES);
    uint64_t left = UINT64_MAX;
    if (buf_read_file(&text, "/proc/self/cgroup", NULL))
        text.len = 0;
    char *rest = NULL;
    for (char *line = text.len ? strtok_r(text.data, "\n", &rest) : NULL; line; line = strtok_r(NULL, "\n", &rest)) {
        char folder[GROUP_PATH_BYTES];
        uint64_t here = UINT64_MAX;
        const char *path = strrchr(line, ':') ? strrchr(line, ':') + 1 : "";
        if (strncmp(line, "0::", 3) == 0) {
            snprintf(folder, sizeof folder, "/sys/fs/cgroup%s", path);
            here = group_leaves(folder, "/sys/fs/cgroup", "memory.max", "memory.current");
        } else if (strstr(line, ":memory:")) {
            snprintf(folder, sizeof folder, "/sys/fs/cgroup/memory%s", path);
            here = group_leaves(folder, "/sys/fs/cgroup/memory", "memory.limit_in_bytes", "memory.usage_in_bytes");
        }
        left = here < left ? here : left;
    }
    buf_release(&text);
    return left;
}

int memory_mapped(uint64_t *bytes)
{
    struct buf text;
    buf_init(&text, 128);
    int rc = buf_read_file(&text, "/proc/self/statm", NULL);
    if (!rc)
        *bytes = strtoull(text.data, NULL, 10) * (uint64_t)sysconf(_SC_PAGESIZE);
    buf_release(&text);
    return rc;
}

uint64_t memory_left_to_map(void)
{
    struct rlimit limit;
    uint64_t mapped;
    if (getrlimit(RLIMIT_AS, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY || memory_mapped(&mapped))
        return UINT64_MAX;
    return limit.rlim_cur > mapped ? limit.rlim_cur - mapped : 0;
}

uint64_t memory_oom_kills(void)
{
    static const char name[] = "\noom_kill ";
    struct buf text;
    buf_init(&text, PROC_TEXT_BYTES);
    const char *line = buf_read_file(&text, "/proc/vmstat", NULL) == 0 ? strstr(text.data, name) : NULL;
    uint64_t kills = line ? strtoull(line + strlen(name), NULL, 10) : 0;
    buf_release(&text);
    return kills;
}

int memory_available(uint64_t *bytes, struct cb_err *err)
{
    struct buf text;
    buf_init(&text, PROC_TEXT_BYTES);
    int rc = buf_read_file(&text, "/proc/meminfo", err);
    if (!rc)
        rc = memory_parse_meminfo(text.data, "MemAvailable", bytes, err);
    buf_release(&text);
    if (rc)
        return rc;
    uint64_t left = groups_leave();
    *bytes = left < *bytes ? left : *bytes;
    return 0;
}
