/* In what two sides of runs differ: experiment keys (what is compared) and fingerprints (what confounds).
 * Pure; used by cli/compare/comparison.c alone. */
#ifndef CLI_COMPARE_DIFFERENCES_H
#define CLI_COMPARE_DIFFERENCES_H

#include "cli/compare/comparison.h"

/* Fills differs, confounded and same. */
int differences_find(const struct comparison_side *base, const struct comparison_side *other,
                     struct comparison *comparison, struct cb_err *err) CB_MUST_CHECK;
void differences_release(struct comparison_differences *self);

/* The runs of one block that agree in every key but those that differ between the sides have the same
 * text; "" for a run outside of any sweep. Owned by the caller. */
int differences_block_key(const struct run_info *run, const struct comparison_differences *differs, char **text,
                          struct cb_err *err) CB_MUST_CHECK;

#endif
