/* Copies the programs of a run to nodes that share no file system with this machine (slurm.sbcast): to a folder on each
 * node, used by agents and ranks and removed when the run is over. */
#ifndef AGENT_ATTEMPT_BROADCAST_H
#define AGENT_ATTEMPT_BROADCAST_H

#include "agent/attempt/attempt.h"

/* Fills attempt->programs if the experiment asks for it and Slurm has allocated the nodes; else does nothing. */
int broadcast_programs(struct attempt *attempt, struct cb_err *err) CB_MUST_CHECK;

/* Removes the programs that no node agent removes: if some nodes did not join, or the job has nodes that this run does
 * not use. */
void broadcast_remove(const struct attempt *attempt, bool all_came);

#endif
