/* Reads processes from /proc. */
#include "core/procfs.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#define CHILDREN_MAX_BYTES (16 << 20)

size_t procfs_read(pid_t pid, const char *name, char *text, size_t text_bytes)
{
    char path[64];
    text[0] = '\0';
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0)
        return 0;
    ssize_t len = read(fd, text, text_bytes - 1);
    close(fd);
    if (len < 0)
        len = 0;
    text[len] = '\0';
    return (size_t)len;
}

void procfs_read_all(pid_t pid, const char *name, struct buf *bytes)
{
    char path[384];
    snprintf(path, sizeof path, "/proc/%d/%s", (int)pid, name);
    (void)!buf_read_file(bytes, path, NULL);
}

const char *procfs_find_variable(const char *environment, size_t len, const char *name)
{
    size_t name_len = strlen(name);
    for (size_t at = 0; at < len; at += strnlen(environment + at, len - at) + 1) {
        const char *variable = environment + at;
        if (len - at > name_len && memcmp(variable, name, name_len) == 0 && variable[name_len] == '=')
            return variable + name_len + 1;
    }
    return NULL;
}

/* State and parent follow the name, which is in parentheses and may contain any character. */
static char read_stat(pid_t pid, pid_t *parent)
{
    char text[512], state;
    int number;
    procfs_read(pid, "stat", text, sizeof text);
    const char *end = strrchr(text, ')');
    if (!end || sscanf(end + 1, " %c %d", &state, &number) != 2)
        return '\0';
    *parent = (pid_t)number;
    return state;
}

char procfs_state(pid_t pid)
{
    pid_t parent;
    return read_stat(pid, &parent);
}

char *procfs_describe(pid_t pid, char text[64])
{
    char place[40], state = procfs_state(pid);
    size_t len = procfs_read(pid, "wchan", place, sizeof place);
    if (!state)
        snprintf(text, 64, "no process");
    else if (len == 0 || strcmp(place, "0") == 0)
        snprintf(text, 64, "state %c", state);
    else
        snprintf(text, 64, "state %c (%s)", state, place);
    return text;
}

/* All processes, or the children of one. */
static size_t list(pid_t parent, pid_t *found, size_t max)
{
    size_t count = 0;
    DIR *entries = opendir("/proc");
    if (!entries)
        return 0;
    for (struct dirent *entry; count < max && (entry = readdir(entries));) {
        pid_t own_parent, pid = (pid_t)strtol(entry->d_name, NULL, 10);
        if (isdigit((unsigned char)entry->d_name[0]) &&
            (parent == 0 || (read_stat(pid, &own_parent) && own_parent == parent)))
            found[count++] = pid;
    }
    closedir(entries);
    return count;
}

bool procfs_mentions(pid_t pid, const char *text)
{
    char words[4096];
    size_t len = procfs_read(pid, "cmdline", words, sizeof words);
    return memmem(words, len, text, strlen(text)) != NULL;
}

size_t procfs_all(pid_t *found, size_t max)
{
    return list(0, found, max);
}

size_t procfs_children(pid_t *children, size_t max)
{
    return list(getpid(), children, max);
}

/* Reads the kernel's list of children, thread by thread; some kernels are built without that file. */
static bool list_children(pid_t parent, pid_t *children, size_t max, size_t *count)
{
    char path[64];
    snprintf(path, sizeof path, "/proc/%d/task", (int)parent);
    DIR *threads = opendir(path);
    struct buf text;
    bool known = false;
    buf_init(&text, CHILDREN_MAX_BYTES);
    for (struct dirent *entry; threads && (entry = readdir(threads));) {
        char name[320];
        snprintf(name, sizeof name, "task/%s/children", entry->d_name);
        if (!isdigit((unsigned char)entry->d_name[0]))
            continue;
        snprintf(path, sizeof path, "/proc/%d/task/%.20s/children", (int)parent, entry->d_name);
        known = known || access(path, R_OK) == 0;
        procfs_read_all(parent, name, &text);
    }
    if (threads)
        closedir(threads);
    char *next = text.data;
    for (long pid; *count < max && (pid = strtol(next, &next, 10)) > 0;)
        children[(*count)++] = (pid_t)pid;
    buf_release(&text);
    return known;
}

size_t procfs_descendants(pid_t pid, pid_t *found, size_t max)
{
    size_t count = 0;
    if (!list_children(pid, found, max, &count))
        count = list(pid, found, max);
    for (size_t i = 0; i < count; i++)
        if (!list_children(found[i], found, max, &count))
            count += list(found[i], found + count, max - count);
    return count;
}
