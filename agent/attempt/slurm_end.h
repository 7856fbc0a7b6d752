/* Finds out why Slurm ends a job, by querying Slurm: a signal alone does not contain the reason. */
#ifndef AGENT_ATTEMPT_SLURM_END_H
#define AGENT_ATTEMPT_SLURM_END_H

#include "agent/attempt/attempt.h"

/* Decides an attempt whose ranks did not leave normally, from Slurm's view of the job and its nodes: time limit,
 * preemption, a node that is down, a cancellation. Leaves it undecided if Slurm has not ended the job. (Ranks may get
 * Slurm's signal before this agent does.) */
void slurm_end_judge(struct attempt *attempt);
/* The same for an attempt without ranks that received a signal. */
void slurm_end_explain(struct attempt *attempt);

/* Parsers, for tests: of `scontrol show job -o` (the number of restarts when this agent started; a higher number now
 * means REQUEUED), and of `sinfo -h -N -o "%N %T"`. */
bool slurm_end_read_state(const char *job, unsigned long own_restarts, char state[32]);
bool slurm_end_find_down(const char *nodes, char name[NODE_NAME_BYTES], char state[32]);

#endif
