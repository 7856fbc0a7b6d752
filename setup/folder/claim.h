/* The claim on a run's folder in the store: which run owns it, and whether its checkpoints are to be kept.
 *
 * Only the owner of a claim writes or removes checkpoints in the folder. For one rank; not collective. */
#ifndef SETUP_FOLDER_CLAIM_H
#define SETUP_FOLDER_CLAIM_H

#include <stdbool.h>

#include "core/err.h"
#include "run/experiment.h"
#include "store/store.h"

#define CLAIM_NAME ".ckptbench-run"
#define CLAIM_RUN_BYTES 1024

struct claim {
    char run[CLAIM_RUN_BYTES];
    bool keeps; /* the folder's checkpoints are to be kept: only --replace-kept replaces them */
};

/* Whether the checkpoints of this experiment stay after the run. */
bool claim_is_to_keep(const struct experiment *experiment);

/* CB_ERR_NOT_FOUND if the folder `suffix` has no claim. */
int claim_read(struct store *store, const char *suffix, struct claim *claim, struct cb_err *err) CB_MUST_CHECK;

/* Claims the folder `suffix` of the store at `path` for the run. CB_ERR_EXISTS if another run owns it and the experiment
 * does not take it over, or if it holds a kept checkpoint that may not be replaced. */
int claim_take(struct store *store, const char *path, const char *suffix, const struct experiment *experiment,
               const char *run, struct cb_err *err) CB_MUST_CHECK;

#endif
