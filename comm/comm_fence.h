/* What ranks that srun has started lack when MPI has: that all of them have. */
#ifndef COMM_COMM_FENCE_H
#define COMM_COMM_FENCE_H

#include "core/err.h"

/* After MPI's start and before the first message: returns when every rank of the job has come so far. Ranks that
 * mpirun has started, and builds without PMIx, return at once. Collective; as bounded in time as MPI's start is,
 * which is by the launcher. */
int comm_fence_wait(struct cb_err *err) CB_MUST_CHECK;

#endif
