/* A busy workload for the cores of a rank, and how fast it goes: what stands in for training where
 * nothing but a save's cost to it is wanted. From one thread. */
#ifndef WORKER_COMPUTE_H
#define WORKER_COMPUTE_H

#include <stdint.h>

#include "core/err.h"

struct compute;

/* Computes with `threads` threads, the caller's among them. */
int compute_new(uint32_t threads, struct compute **compute, struct cb_err *err) CB_MUST_CHECK;
void compute_free(struct compute *self);

/* Computes on all threads until the monotonic time; returns the units of work done, all the same size. */
uint64_t compute_until(struct compute *self, uint64_t until_ns);

#endif
