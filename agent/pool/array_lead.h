/* The runs of a job array, led from the machine that submitted it (slurm.sbcast). */
#ifndef AGENT_POOL_ARRAY_LEAD_H
#define AGENT_POOL_ARRAY_LEAD_H

#include <signal.h>

#include "core/err.h"

/* Starts `ckptbench-agent run LINKS/K` for each task K of the job once it has its nodes, ends it with the task, and the
 * task with it. Returns when no task waits or runs; a signal cancels the job first. A job with this number and another
 * name is left alone. */
int array_lead(const char *links, const char *job, const char *name, const volatile sig_atomic_t *signals,
               struct cb_err *err) CB_MUST_CHECK;

#endif
