/* Slurm's answer by number and by name: many runs find their jobs in it. */
#ifndef JOBS_SLURM_JOB_INDEX_H
#define JOBS_SLURM_JOB_INDEX_H

#include <stddef.h>

#include "core/err.h"
#include "jobs/slurm/slurm.h"
#include "run/job_record.h"

struct job_index {
    const struct slurm_jobs *jobs; /* borrowed; not changed meanwhile */
    const struct slurm_job **by_id, **by_name;
};

int job_index_make(struct job_index *self, const struct slurm_jobs *jobs, struct cb_err *err) CB_MUST_CHECK;
void job_index_release(struct job_index *self); /* fine on zero, and twice */

/* The last one of that number; NULL: none. */
const struct slurm_job *job_index_find_id(const struct job_index *self, const char *id);
/* A run's job: by its number, and where that is not known, by its name and its place in an array. */
const struct slurm_job *job_index_find(const struct job_index *self, const struct job_record *record);

#endif
