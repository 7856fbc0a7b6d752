/* Which rank's file a rank loads. */
#ifndef WORKER_LOAD_SHIFT_H
#define WORKER_LOAD_SHIFT_H

#include <stdint.h>

#include "comm/comm.h"
#include "run/experiment.h"

/* load.shift: rank r loads what rank r + shift saved. On several nodes the default of 1 becomes the number of ranks on
 * a node, so that a rank loads what another node saved; its own node may still have its files in memory. */
uint32_t load_shift(const struct experiment *experiment, const struct comm *comm);

#endif
