/* What /proc says about processes. All answers are of the moment; a process that is gone has none. */
#ifndef AGENT_PROCFS_H
#define AGENT_PROCFS_H

#include <stdbool.h>
#include <stddef.h>
#include <sys/types.h>

#include "core/buf.h"

/* Reads /proc/PID/NAME, NUL-terminated; returns the bytes read, 0 where there is none. */
size_t procfs_read(pid_t pid, const char *name, char *text, size_t text_bytes);

/* Appends all of /proc/PID/NAME; nothing where there is none. */
void procfs_read_all(pid_t pid, const char *name, struct buf *bytes);

/* The value of a variable in an environment as /proc/PID/environ has it, NULL where it is not there. */
const char *procfs_find_variable(const char *environment, size_t len, const char *name);

/* R, S, D, Z, T, …; 0 where the process is gone. */
char procfs_state(pid_t pid);

/* Whether the process has `text` somewhere in its command line. */
bool procfs_mentions(pid_t pid, const char *text);

/* "state D (io_schedule)": what the process is blocked in, as far as the kernel tells. */
char *procfs_describe(pid_t pid, char text[64]);

/* Every process there is, at most `max`. */
size_t procfs_all(pid_t *found, size_t max);

/* Processes whose parent is this one, at most `max`. */
size_t procfs_children(pid_t *children, size_t max);

/* Children of a process, their children, and so on, at most `max`. */
size_t procfs_descendants(pid_t pid, pid_t *found, size_t max);

#endif
