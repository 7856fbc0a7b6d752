/* workload=wait: an allocation that is held and does nothing. */
#ifndef AGENT_ATTEMPT_WAIT_WORKLOAD_H
#define AGENT_ATTEMPT_WAIT_WORKLOAD_H

#include "agent/attempt/attempt.h"

/* Sleeps for wait.for, or until asked to end, and decides the attempt. Starts no rank. */
void wait_workload_run(struct attempt *attempt);

#endif
