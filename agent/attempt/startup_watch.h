/* Ranks that are started, not yet reporting: processes that no status page names yet.
 *
 * A launcher may miss the death of a rank that had not connected to it, and then it waits for ever, as the other
 * ranks do. So we check from outside which ranks have, or had, a process. Ranks that do not descend from our launcher
 * (on another machine) are not watched. */
#ifndef AGENT_ATTEMPT_STARTUP_WATCH_H
#define AGENT_ATTEMPT_STARTUP_WATCH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/attempt/attempt.h"

struct startup_watch {
    pid_t *pid;           /* by rank, 0 before it was seen; owned, NULL before the first scan */
    uint64_t *missing_ns; /* by rank: when its process disappeared, 0 while it has one */
    uint64_t look_ns;     /* time of the last scan */
    uint64_t born_ns;     /* when the last new process was seen, 0 if none */
};

/* Scans a few times a second for ranks that have not reported. True with the lowest rank that died: either its
 * process has been gone for a while, or it has had none long after the last other rank started. */
bool startup_watch_find_dead(struct startup_watch *self, const struct attempt *attempt, uint64_t now_ns,
                             uint32_t *rank);
void startup_watch_release(struct startup_watch *self);

#endif
