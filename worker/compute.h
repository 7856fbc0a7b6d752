/* A CPU workload for the cores of a rank, and its speed. It stands in for training, to measure what a save costs it.
 * Used from one thread. */
#ifndef WORKER_COMPUTE_H
#define WORKER_COMPUTE_H

#include <stdint.h>

#include "core/err.h"

struct compute;

/* Uses `threads` threads, including the caller's. */
int compute_new(uint32_t threads, struct compute **compute, struct cb_err *err) CB_MUST_CHECK;
void compute_free(struct compute *self);

/* Computes on all threads until the monotonic time; returns the number of units of work done. */
uint64_t compute_until(struct compute *self, uint64_t until_ns);

#endif
