/* How jobs look: the table and JSON of status, and waiting for their end. */
#ifndef CLI_JOBS_JOB_STATUS_H
#define CLI_JOBS_JOB_STATUS_H

#include "cli/cli.h"
#include "cli/jobs/job_list.h"
#include "core/err.h"

/* Appends the table (or, with cli->json, the array) of a list that is in sync. */
int job_status_write(struct cli *cli, const struct job_list *list, struct cb_err *err) CB_MUST_CHECK;

/* Syncs until every run is final or the user stops it; changes are told on stderr. The exit code becomes the
 * runs'. */
int job_status_wait(struct cli *cli, struct job_list *list, struct cb_err *err) CB_MUST_CHECK;

/* The lowest and the highest number of jobs, as Slurm writes them: runs need not be sent in their order. */
struct job_range {
    const char *first, *last; /* borrowed; NULL before there is one */
};
void job_range_add(struct job_range *self, const char *job);

#endif
