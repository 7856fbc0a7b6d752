/* Copies the programs of a run to nodes that share no file system with this machine (slurm.sbcast): to a folder on each
 * node, used by agents and ranks and removed when the run is over. */
#ifndef AGENT_ATTEMPT_BROADCAST_H
#define AGENT_ATTEMPT_BROADCAST_H

#include "agent/attempt/attempt.h"

/* Fills attempt->programs if the experiment asks for it and Slurm has allocated the nodes; else does nothing. */
int broadcast_programs(struct attempt *attempt, struct cb_err *err) CB_MUST_CHECK;

/* Removes them on every node, if they were sent, however far sending them came. */
void broadcast_remove(struct attempt *attempt);

#endif
