/* A barrier right after MPI has started, which ranks started by srun need (see comm_fence.c). */
#ifndef COMM_COMM_FENCE_H
#define COMM_COMM_FENCE_H

#include "core/err.h"

/* Waits until every rank of the job has started MPI. Call after MPI has started and before the first message. Returns
 * immediately under mpirun and in builds without PMIx. Collective; only the launcher bounds the wait, as for the start of
 * MPI. */
int comm_fence_wait(struct cb_err *err) CB_MUST_CHECK;

#endif
