/* The programs of a run on nodes that share no file system with this machine (slurm.sbcast): sent to a folder that each
 * node has for itself, used from there by agents and ranks, removed when the run is over. */
#ifndef AGENT_ATTEMPT_BROADCAST_H
#define AGENT_ATTEMPT_BROADCAST_H

#include "agent/attempt/attempt.h"

/* Fills attempt->programs, where the experiment asks for it and Slurm has given the nodes; else does nothing. */
int broadcast_programs(struct attempt *attempt, struct cb_err *err) CB_MUST_CHECK;

/* What agents of nodes do not remove: where not all of them came, or the job has nodes that this run did not take. */
void broadcast_remove(const struct attempt *attempt, bool all_came);

/* Removes the folder in which this program was sent here; for an agent of a node, when all is over. */
void broadcast_remove_own(void);

#endif
