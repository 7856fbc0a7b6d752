/* A submitted run followed through its folder: what is in there, and sealing for an agent that is gone.
 * Knows files; asks no Slurm. */
#ifndef JOBS_SLURM_RUN_FOLLOW_H
#define JOBS_SLURM_RUN_FOLLOW_H

#include <stdbool.h>

#include "core/err.h"
#include "jobs/slurm/job_state.h"

int job_folder_look(const char *run_folder, struct job_folder *folder, struct cb_err *err) CB_MUST_CHECK;

/* One controller at a time may write about a run: *fd is the lock, or -1 where another one holds it. */
int job_folder_lock(const char *run_folder, int *fd, struct cb_err *err) CB_MUST_CHECK;
void job_folder_unlock(int fd); /* fine on -1 */

/* Seals the last attempt as `outcome`, or a new one where none has begun; one that somebody else has sealed
 * meanwhile is as good. `run` is the run's id. */
int job_folder_seal(const char *run_folder, const char *run, const struct job_folder *folder, enum outcome outcome,
                    const char *message, struct cb_err *err) CB_MUST_CHECK;

/* Attempts before the last one that nobody sealed: their job was requeued while their agent could not. */
int job_folder_seal_earlier(const char *run_folder, const char *run, const struct job_folder *folder,
                            struct cb_err *err) CB_MUST_CHECK;

/* The job's own log, and an array's links: RUN_FOLDER/job.log, RUN_FOLDER/array. */
#define JOB_LOG "job.log"
#define JOB_SCRIPT "job.sbatch"
#define JOB_ALLOCATION "job.salloc" /* in its place where the run is led from where it was submitted */
#define JOB_ARRAY "array"

#endif
