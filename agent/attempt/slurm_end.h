/* Why Slurm ends a job: asked of Slurm, since a signal alone does not say. */
#ifndef AGENT_ATTEMPT_SLURM_END_H
#define AGENT_ATTEMPT_SLURM_END_H

#include "agent/attempt/attempt.h"

/* Decides an attempt whose ranks did not leave in order, from what Slurm says of the job and its nodes: time limit,
 * preemption, a node that is down, a cancellation. Leaves it undecided where Slurm has not ended the job. (Ranks may get Slurm's signal before this agent does.) */
void slurm_end_judge(struct attempt *attempt);
/* The same for an attempt without ranks that a signal came for. */
void slurm_end_explain(struct attempt *attempt);

/* Gives the allocation back when the salloc above this agent is gone: else it would stand until its time limit. */
void slurm_end_give_back(const struct attempt *attempt);

/* Parsers, of `scontrol show job -o` (how often Slurm had started this job again when it started this agent: more often now
 * is REQUEUED) and of `sinfo -h -N -o "%N %T"`; for tests. */
bool slurm_end_read_state(const char *job, unsigned long own_restarts, char state[32]);
bool slurm_end_find_down(const char *nodes, char name[NODE_NAME_BYTES], char state[32]);

#endif
