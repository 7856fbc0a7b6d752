/* Sweeps: settings with several values become several experiments.
 *
 * Cartesian by default, the last key fastest; `zip: [a, b]` in YAML or `--zip a,b` walks those keys
 * together. `repeat` copies the whole block: block 1 holds every member once, in order, then block 2
 * in another order (seeded by the block's number), so that what is compared shares its evening. */
#ifndef RUN_SWEEP_H
#define RUN_SWEEP_H

#include <stddef.h>

#include "core/err.h"
#include "run/experiment.h"

struct sweep_member {
    struct experiment *experiment; /* owned */
    size_t block;                  /* from 1 */
    size_t combination;            /* from 0: which of the compared things */
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
