/* Whose file a rank loads, after how many ranks. */
#ifndef WORKER_LOAD_SHIFT_H
#define WORKER_LOAD_SHIFT_H

#include <stdint.h>

#include "comm/comm.h"
#include "run/experiment.h"

/* load.shift; on several nodes its default of 1 is the ranks of a node, so that a rank loads what another
 * node saved: what its own node wrote may still be in that node's memory, below the page cache, too. */
uint32_t load_shift(const struct experiment *experiment, const struct comm *comm);

#endif
