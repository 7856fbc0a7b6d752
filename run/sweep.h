/* Sweeps: settings with several values become several experiments.
 *
 * Cartesian by default, the last key fastest; `zip: [a, b]` in YAML or `--zip a,b` varies those keys together.
 * In a sweep over workloads, keys that a member's workload does not use have their default.
 * `repeat` copies the whole block: block 1 holds every combination once, in order, block 2 in another order (seeded
 * with the block's number), and so on, so that runs to be compared are close in time. */
#ifndef RUN_SWEEP_H
#define RUN_SWEEP_H

#include <stddef.h>

#include "core/err.h"
#include "run/experiment.h"

struct sweep_member {
    struct experiment *experiment; /* owned */
    size_t block;                  /* from 1 */
    size_t combination;            /* from 0: which combination of values */
};

struct sweep {
    struct sweep_member *members; /* in the order to run */
    size_t count;
    size_t combinations;
    char **varied; /* keys with more than one value */
    size_t varied_count;
};

#define SWEEP_MAX_MEMBERS 100000

int sweep_expand(const struct setting_list *settings, struct sweep *sweep, struct cb_err *err) CB_MUST_CHECK;
void sweep_release(struct sweep *sweep);

#endif
