/* Slurm's listing indexed by number and by name, for looking up the jobs of many runs. */
#ifndef JOBS_SLURM_JOB_INDEX_H
#define JOBS_SLURM_JOB_INDEX_H

#include <stddef.h>

#include "core/err.h"
#include "jobs/slurm/slurm.h"
#include "run/job_record.h"

struct job_index {
    const struct slurm_jobs *jobs; /* borrowed; must not change while indexed */
    const struct slurm_job **by_id, **by_name;
};

int job_index_make(struct job_index *self, const struct slurm_jobs *jobs, struct cb_err *err) CB_MUST_CHECK;
void job_index_release(struct job_index *self); /* accepts a zeroed index; may be called twice */

/* The last job with that number; NULL if there is none. */
const struct slurm_job *job_index_find_id(const struct job_index *self, const char *id);
/* A run's job: by its number or, if that is unknown, by its name and index in an array. */
const struct slurm_job *job_index_find(const struct job_index *self, const struct job_record *record);

#endif
