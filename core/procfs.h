/* Reads processes from /proc. All results are snapshots; a process that is gone has no values. */
#ifndef CORE_PROCFS_H
#define CORE_PROCFS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "core/buf.h"

/* Reads /proc/PID/NAME, NUL-terminated; returns the number of bytes read, 0 if it cannot be read. */
size_t procfs_read(pid_t pid, const char *name, char *text, size_t text_bytes);

/* Appends all of /proc/PID/NAME; nothing if it does not exist. */
void procfs_read_all(pid_t pid, const char *name, struct buf *bytes);

/* The value of a variable in the text of /proc/PID/environ, NULL if absent. */
const char *procfs_find_variable(const char *environment, size_t len, const char *name);

/* R, S, D, Z, T, …; 0 if the process is gone. */
char procfs_state(pid_t pid);

/* Whether the command line of the process contains `text`. */
bool procfs_mentions(pid_t pid, const char *text);

/* "state D (io_schedule)": what the process is blocked in, as far as the kernel reports it. */
char *procfs_describe(pid_t pid, char text[64]);

/* All processes, at most `max`. */
size_t procfs_all(pid_t *found, size_t max);

/* Processes whose parent is this one, at most `max`. */
size_t procfs_children(pid_t *children, size_t max);

/* All descendants of a process, at most `max`. */
size_t procfs_descendants(pid_t pid, pid_t *found, size_t max);

#endif
