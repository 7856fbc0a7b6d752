/* Keeps two programs from saving to one path at the same time: a claim beside the checkpoint, with a lease, for as long as a
 * save lasts. For rank 0; the functions have the forms that engine/engine.h asks for. */
#ifndef LIB_CLAIMS_H
#define LIB_CLAIMS_H

#include <stdbool.h>

#include "core/err.h"
#include "run/experiment.h"

struct claims;

/* For saves to the store of the experiment. `one_machine`: all ranks run on this one, and end with this process. */
int claims_new(const struct experiment *experiment, bool one_machine, struct claims **claims,
               struct cb_err *err) CB_MUST_CHECK;
void claims_free(struct claims *self); /* accepts NULL */

/* CB_ERR_EXISTS, with the name of the other one, if the checkpoint is being saved by another program or lies in the folder
 * of a run of ckptbench, or, without folder=overwrite, if it is complete. */
int claims_enter(void *self, const char *name, struct cb_err *err) CB_MUST_CHECK;
/* Fails if another program has taken the claim over, after this one had not renewed it for the length of a lease. */
int claims_check(void *self, struct cb_err *err) CB_MUST_CHECK;
void claims_leave(void *self);

#endif
