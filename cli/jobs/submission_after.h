/* Implements --after: a run that must have passed before others start. */
#ifndef CLI_JOBS_SUBMISSION_AFTER_H
#define CLI_JOBS_SUBMISSION_AFTER_H

#include <stdbool.h>

#include "core/err.h"
#include "core/setting.h"
#include "db/history.h"

#define JOB_NUMBER_BYTES 64

/* Whether the settings only load and name no checkpoint; they then load that of the --after run. */
bool submission_lacks_suffix(const struct setting_list *settings);

/* The job number of the run `word`; leaves `job` unchanged if the run has already passed. Settings that only load
 * use its checkpoint unless they name another. */
int submission_resolve_after(struct history *history, const char *word, struct setting_list *settings,
                             char job[JOB_NUMBER_BYTES], struct cb_err *err) CB_MUST_CHECK;

#endif
