/* The device's limit of a watched command that ran on nodes of our Slurm allocation: a step with a task on each of them
 * measures together (agent/attempt/watch_nodes.h), led by the agent. */
#ifndef AGENT_ATTEMPT_WATCH_JOB_H
#define AGENT_ATTEMPT_WATCH_JOB_H

#include "agent/attempt/attempt.h"
#include "agent/attempt/watch_limit.h"

/* Starts the tasks and leads them. What they have measured is in their lines afterwards. Fails with the reason if they
 * measured nothing. `look` (NULL: nobody) can end it; so does a request to end (foreground_requests). */
int watch_job_measure(struct attempt *attempt, const char *lines, const struct limit_look *look,
                      struct cb_err *err) CB_MUST_CHECK;

/* A task of the step: measures what the processes of its node wrote. */
int watch_job_take_part(const char *run_folder, const char *attempt, struct cb_err *err) CB_MUST_CHECK;

#endif
