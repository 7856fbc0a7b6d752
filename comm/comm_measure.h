/* Measures messages between ranks over MPI: ping-pong, one-way windows, collectives.
 *
 * Waits spin, like those of programs that move tensors, until the deadline or until comm_check fails; after a failure the
 * communicator is unusable (comm_give_up). Times are in seconds of the monotonic clock. The bytes received are checked:
 * `right` is false if one was wrong. */
#ifndef COMM_COMM_MEASURE_H
#define COMM_COMM_MEASURE_H

#include <stdbool.h>
#include <stdint.h>

#include "comm/comm.h"
#include "core/err.h"

enum collective {
    COLLECTIVE_ALL_REDUCE,
    COLLECTIVE_ALL_GATHER,
    COLLECTIVE_REDUCE_SCATTER,
    COLLECTIVE_ALL_TO_ALL,
    COLLECTIVE_BROADCAST,
    COLLECTIVE_COUNT
};
const char *collective_name(enum collective kind); /* "all_reduce" */
/* Bus bandwidth / algorithm bandwidth (nccl-tests, doc/PERFORMANCE.md). */
double collective_bus_factor(enum collective kind, uint32_t ranks);

/* Half the time of each of `rounds` round trips of `bytes` between this rank and `peer`, which makes the same call. */
int comm_measure_ping_pong(struct comm *comm, uint32_t peer, uint64_t bytes, uint32_t rounds, double *seconds,
                           bool *right, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;

/* The time of each of `rounds` windows: `window` messages of `bytes` one way, then a reply from the receiver. Both
 * ranks get the same times. */
int comm_measure_windows(struct comm *comm, uint32_t peer, bool sends, uint64_t bytes, uint32_t window, uint32_t rounds,
                         double *seconds, bool *right, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;

/* The largest buffer size S up to `bytes` that the collective can divide: a multiple of 8 for an all-reduce or
 * broadcast, else of 8 per rank; at least one such unit. */
uint64_t collective_bytes(enum collective kind, uint64_t bytes, uint32_t ranks);

/* Collective. `bytes` is S of the bandwidths, rounded by collective_bytes: the whole buffer of an all-reduce or
 * broadcast, the sum of what all ranks contribute to an all-gather, else what one rank gives to the others. Each round
 * is `batch` operations in a row after a barrier; seconds[i] is the time of one operation on the slowest rank. */
int comm_measure_collective(struct comm *comm, enum collective kind, uint64_t bytes, uint32_t batch, uint32_t rounds,
                            double *seconds, bool *right, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;

/* An all-reduce of `bytes` beside `work`, which is called until the all-reduce is done or `work` returns false
 * (finished); *both_s is the time until both are done. Collective. */
int comm_measure_overlap(struct comm *comm, uint64_t bytes, bool (*work)(void *context), void *context, double *both_s,
                         uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;

/* Gathers every rank's `bytes` on all ranks, in rank order: `all` has room for comm_size of them. Collective. */
int comm_all_gather(struct comm *comm, const void *mine, uint64_t bytes, void *all, uint64_t deadline_ns,
                    struct cb_err *err) CB_MUST_CHECK;

#endif
