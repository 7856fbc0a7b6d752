/* Ranks between their start and their first word: processes that no status page names yet.
 *
 * A launcher may miss the death of a rank that had not reached it, and then waits for ever, as the other
 * ranks do. So what it has started is looked at from outside: which ranks have a process, and which had
 * one. Where ranks are not started below our launcher (another machine's) nothing is seen, nothing said. */
#ifndef AGENT_ATTEMPT_STARTUP_WATCH_H
#define AGENT_ATTEMPT_STARTUP_WATCH_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "agent/attempt/attempt.h"

struct births {
    pid_t *pid;           /* by rank, 0 before it was seen; owned, NULL before the first look */
    uint64_t *missing_ns; /* by rank: since when it has no process, 0 while it has one */
    uint64_t look_ns;     /* the last look */
    uint64_t born_ns;     /* when the last new process was seen, 0 for none */
};

/* Looks a few times a second at ranks that have not reported. True with the lowest rank that died: it had
 * a process and has none since a while, or it has none long after the last other rank got one. */
bool births_find_dead(struct births *self, const struct attempt *attempt, uint64_t now_ns, uint32_t *rank);
void births_release(struct births *self);

#endif
