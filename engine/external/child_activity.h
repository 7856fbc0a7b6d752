/* Observes a process from outside: whether it and its descendants transfer bytes, compute, or wait for a disk. */
#ifndef ENGINE_EXTERNAL_CHILD_ACTIVITY_H
#define ENGINE_EXTERNAL_CHILD_ACTIVITY_H

#include <stdint.h>
#include <sys/types.h>

#include "run/status_page.h"

/* Starts as zeros. */
struct child_activity {
    uint64_t checked_ns;    /* monotonic time of the last check; 0 before the first */
    uint64_t moved;         /* bytes of read and write calls up to then, without sockets */
    uint64_t cpu_ticks;     /* CPU time up to then */
    uint64_t cpu_marked_ns; /* when cpu_marked_ticks was read: CPU time is compared over several checks */
    uint64_t cpu_marked_ticks;
};

/* Checks process `pid` at most once a second, and reports to the agent through the rank's page: in fsync (or another
 * call that waits for a disk), working, or waiting. Working means that it moved bytes since the last check, or used a
 * fiftieth of a core: a send to a server and a computation show as CPU time only. A process that waits for another rank
 * cannot be distinguished from one that hangs. */
void child_activity_look(struct child_activity *self, pid_t pid, struct status_page *page, uint64_t now_ns);

#endif
