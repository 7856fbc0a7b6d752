/* Submits planned runs to Slurm, each exactly once.
 *
 * The intent is written to disk before sbatch is called. If a reply is lost, the job is searched for and never
 * submitted again. Once the first sbatch has been accepted, several run at a time. */
#ifndef CLI_JOBS_SUBMIT_JOBS_H
#define CLI_JOBS_SUBMIT_JOBS_H

#include <stdbool.h>
#include <stddef.h>

#include "cli/jobs/submission.h"

/* A run that is submitted as a job of its own. */
struct sending {
    const char *run, *folder;
    const struct experiment *experiment;
    struct job_record *record; /* initialised, or read from disk for a resubmission; written to the folder */
};

/* Submits in order until one is refused or `was_stopped` (may be NULL) returns true; the rest stays planned. *sent is
 * the number that Slurm has accepted; it can be less than `count` even if 0 is returned. CB_ERR_TIMEOUT: there was no
 * reply, and Slurm does not list the job (yet); it is not submitted again, and `status` finds it when it appears. */
int submission_send(const struct submission *self, const struct sending *items, size_t count, bool (*was_stopped)(void),
                    size_t *sent, struct cb_err *err) CB_MUST_CHECK;

/* The same for planned runs. `as_one`: equal runs become one array, or with slurm.one_job one job. */
int submission_send_planned(const struct submission *self, const struct planned *members, size_t count, bool as_one,
                            bool (*was_stopped)(void), size_t *sent, struct cb_err *err) CB_MUST_CHECK;

#endif
