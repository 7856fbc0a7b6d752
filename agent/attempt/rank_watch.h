/* Watches the ranks of an attempt until their launcher has ended or must be ended. */
#ifndef AGENT_ATTEMPT_RANK_WATCH_H
#define AGENT_ATTEMPT_RANK_WATCH_H

#include "agent/attempt/attempt.h"

/* Returns when the launcher has ended, or when it did not end in time after a request; the caller then kills the
 * remaining processes. Decides the attempt on timeouts, second signals and vanished ranks. */
void rank_watch_run(struct attempt *attempt);

#endif
