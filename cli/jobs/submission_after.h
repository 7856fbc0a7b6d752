/* --after: the run that must have passed before others begin. */
#ifndef CLI_JOBS_SUBMISSION_AFTER_H
#define CLI_JOBS_SUBMISSION_AFTER_H

#include <stdbool.h>

#include "core/err.h"
#include "core/setting.h"
#include "db/history.h"

#define JOB_NUMBER_BYTES 64

/* Whether they only load, and name no checkpoint: then it is that of the run they come after. */
bool submission_lacks_suffix(const struct setting_list *settings);

/* The number of the job of the run that `word` names; `job` stays as it is where that has passed already. Settings that only
 * load take its checkpoint, unless they name another. */
int submission_resolve_after(struct history *history, const char *word, struct setting_list *settings,
                             char job[JOB_NUMBER_BYTES], struct cb_err *err) CB_MUST_CHECK;

#endif
