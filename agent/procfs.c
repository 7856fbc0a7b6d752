/* What /proc says about processes. Knows its formats alone. */
#include "agent/procfs.h"

#include <ctype.h>
#include <dirent.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

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

/* State and parent follow the name, which is in parentheses and may hold anything. */
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

size_t procfs_children(pid_t *children, size_t max)
{
    size_t count = 0;
    DIR *entries = opendir("/proc");
    if (!entries)
        return 0;
    for (struct dirent *entry; count < max && (entry = readdir(entries));) {
        pid_t parent, pid = (pid_t)strtol(entry->d_name, NULL, 10);
        if (isdigit((unsigned char)entry->d_name[0]) && read_stat(pid, &parent) && parent == getpid())
            children[count++] = pid;
    }
    closedir(entries);
    return count;
}
