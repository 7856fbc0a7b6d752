/* Planned runs on their way to Slurm, each sent once and only once.
 *
 * What is intended is on disk before sbatch is called, and a lost answer is looked for, never sent again. Several
 * sbatch are under way at a time, once the first one was taken. */
#ifndef CLI_JOBS_SUBMIT_JOBS_H
#define CLI_JOBS_SUBMIT_JOBS_H

#include <stdbool.h>
#include <stddef.h>

#include "cli/jobs/submission.h"

/* A run that is sent as a job of its own. */
struct sending {
    const char *run, *folder;
    const struct experiment *experiment;
    struct job_record *record; /* init before; what was read for one that is sent again. Written to the folder */
};

/* In order, until one is refused or `was_stopped` (may be NULL) says so: then the rest stays planned, and *sent, which
 * counts those that Slurm has taken, is less than `count` also where 0 is returned. CB_ERR_TIMEOUT: of one no answer
 * came, and Slurm does not list the job (yet); it is not sent again, and `status` finds it when it appears. */
int submission_send(const struct submission *self, const struct sending *items, size_t count, bool (*was_stopped)(void),
                    size_t *sent, struct cb_err *err) CB_MUST_CHECK;

/* Equal planned runs as one array, or with slurm.one_job as one job: members first … first+count-1. */
int submission_send_array(const struct submission *self, const struct run_plan *run_plan, size_t first, size_t count,
                          struct cb_err *err) CB_MUST_CHECK;

#endif
