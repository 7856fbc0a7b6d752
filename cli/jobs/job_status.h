/* Prints jobs as the table and JSON of status, and waits until they end. */
#ifndef CLI_JOBS_JOB_STATUS_H
#define CLI_JOBS_JOB_STATUS_H

#include "cli/cli.h"
#include "cli/jobs/job_list.h"
#include "core/err.h"

/* Appends the table, or with cli->json the array, of a list that has been synchronised. */
int job_status_write(struct cli *cli, const struct job_list *list, struct cb_err *err) CB_MUST_CHECK;

/* With cli->json: appends the document of submit, the runs and their jobs; `sweep` and `site` may be NULL. */
int job_status_write_submitted(struct cli *cli, const struct job_list *list, const char *sweep, const char *site,
                               struct cb_err *err) CB_MUST_CHECK;

/* Synchronises until every run is final or the user interrupts; prints changes to stderr. Sets the exit code to that
 * of the runs. */
int job_status_wait(struct cli *cli, struct job_list *list, struct cb_err *err) CB_MUST_CHECK;

/* The lowest and the highest job number, as Slurm writes them: runs are not always submitted in order. */
struct job_range {
    const char *first, *last; /* borrowed; NULL while empty */
};
void job_range_add(struct job_range *self, const char *job);

#endif
