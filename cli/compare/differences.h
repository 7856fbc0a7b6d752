/* The differences between two sides of runs: experiment keys, which are compared, and fingerprints, which confound.
 * Does no I/O. */
#ifndef CLI_COMPARE_DIFFERENCES_H
#define CLI_COMPARE_DIFFERENCES_H

#include "cli/compare/comparison.h"

/* Fills differs, confounded and same. */
int differences_find(const struct comparison_side *const sides[2], struct comparison *comparison,
                     struct cb_err *err) CB_MUST_CHECK;
void differences_release(struct comparison_differences *self);

/* The block of a run, as text: equal for runs of a sweep that agree in every key except those in `differs`; "" for a
 * run outside of sweeps. Owned by the caller. */
int differences_block_key(const struct run_info *run, const struct comparison_differences *differs, char **text,
                          struct cb_err *err) CB_MUST_CHECK;

#endif
