/* A submitted run followed through its folder: reading its state, and sealing on behalf of an agent that is gone.
 * Does not query Slurm. */
#ifndef JOBS_SLURM_RUN_FOLLOW_H
#define JOBS_SLURM_RUN_FOLLOW_H

#include <stdbool.h>

#include "core/err.h"
#include "jobs/slurm/job_state.h"

int job_folder_look(const char *run_folder, struct job_folder *folder, struct cb_err *err) CB_MUST_CHECK;

/* Only one controller at a time may write to a run: *fd is the lock, or -1 if another one holds it. */
int job_folder_lock(const char *run_folder, int *fd, struct cb_err *err) CB_MUST_CHECK;

/* Seals the last attempt with `outcome`, or a new one if none has begun. Succeeds if another process seals it first.
 * `run` is the run's id. */
int job_folder_seal(const char *run_folder, const char *run, const struct job_folder *folder, enum outcome outcome,
                    const char *message, struct cb_err *err) CB_MUST_CHECK;

/* Seals attempts before the last one that nobody sealed: their job was requeued before their agent could. */
int job_folder_seal_earlier(const char *run_folder, const char *run, const struct job_folder *folder,
                            struct cb_err *err) CB_MUST_CHECK;

/* Names in RUN_FOLDER: the job's log, its script, an array's links. */
#define JOB_LOG "job.log"
#define JOB_SCRIPT "job.sbatch"
#define JOB_ALLOCATION "job.salloc" /* the log of a run that is led from the submitting machine */
#define JOB_ARRAY "array"

#endif
