/* What can be seen of a process from outside: whether it and its descendants move bytes, compute, or wait for a disk. */
#ifndef ENGINE_EXTERNAL_CHILD_ACTIVITY_H
#define ENGINE_EXTERNAL_CHILD_ACTIVITY_H

#include <stdint.h>
#include <sys/types.h>

#include "run/status_page.h"

/* Starts as zeros. */
struct child_activity {
    uint64_t looked_ns;     /* monotonic time of the last look; 0: none yet */
    uint64_t moved;         /* bytes given to read and write calls by then, sockets not included */
    uint64_t cpu_ticks;     /* used by then */
    uint64_t cpu_marked_ns; /* when cpu_marked_ticks were used: CPU time is judged over several looks */
    uint64_t cpu_marked_ticks;
};

/* Looks at process `pid` at most once a second, and tells the agent by the rank's page: in fsync (or another call that
 * waits for a disk), at work, or waiting. At work means that bytes moved since the last look, or that it used a
 * fiftieth of a core: a send to a server and a computation show as CPU time only. A process that waits looks the same
 * whether it waits for another rank or for ever. */
void child_activity_look(struct child_activity *self, pid_t pid, struct status_page *page, uint64_t now_ns);

#endif
