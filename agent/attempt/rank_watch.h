/* Watches the ranks of an attempt until their launcher has ended or must be ended. */
#ifndef AGENT_ATTEMPT_RANK_WATCH_H
#define AGENT_ATTEMPT_RANK_WATCH_H

#include "agent/attempt/attempt.h"

/* Returns when the launcher has ended, or when it has been asked to and did not in time; the caller
 * ends what is left. Decides on timeouts, second signals and ranks that vanished. */
void watch_run(struct attempt *attempt);

#endif
