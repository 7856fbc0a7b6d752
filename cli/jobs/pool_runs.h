/* Runs that go through a warm pool: choosing the pool, putting them into its spool, and what they look like from
 * outside. A run of a hold pool has no job of its own: job and step are the pool's. */
#ifndef CLI_JOBS_POOL_RUNS_H
#define CLI_JOBS_POOL_RUNS_H

#include <stdbool.h>
#include <stddef.h>

#include "cli/jobs/pool_list.h"
#include "core/err.h"
#include "db/history.h"
#include "jobs/slurm/slurm_client.h"
#include "run/experiment.h"
#include "run/job_record.h"
#include "run/spool.h"

/* The pool of that name, if it takes runs; else why it does not. Slurm is asked where the pool's own folder does not
 * say so. */
int pool_choose(struct slurm_client *client, const char *name, struct pool_entry *chosen,
                struct cb_err *err) CB_MUST_CHECK;
/* Whether the pool has nodes enough for it. */
int pool_check_run(const struct pool_entry *pool, const struct experiment *experiment,
                   struct cb_err *err) CB_MUST_CHECK;

/* touch: `wanted` of the pool's nodes as "n1,n2", those that are up and free first; run number `index` begins where
 * the one before ended, so that runs spread. "" where the pool's nodes are not known (yet). */
int pool_pick_nodes(struct slurm_client *client, const struct pool_entry *pool, size_t index, uint64_t wanted,
                    char *list, size_t bytes, struct cb_err *err) CB_MUST_CHECK;

/* hold: into the spool, with its record written before. CB_ERR_EXISTS where another one is at the run. */
int pool_put_run(const struct pool_entry *pool, const char *run, const char *run_folder, uint64_t nodes,
                 struct job_record *record, struct history *history, struct cb_err *err) CB_MUST_CHECK;

/* What Slurm would say of the run if it were a job of its own. */
struct pool_run {
    struct slurm_job job;
    char why[512]; /* for one that was given back */
    bool known;    /* `job` holds; false: its pool's job is not listed, or it is nowhere */
    bool nowhere;  /* it never came into the spool */
    struct ticket ticket;
};
/* `jobs` is what Slurm lists, NULL where it was not asked or did not answer. A run whose pool is gone is taken out
 * of the spool. */
void pool_look_at_run(const struct job_record *record, const char *run, const struct slurm_jobs *jobs,
                      struct pool_run *found);

/* Ends it, or takes it back; *nowhere where it is not in the pool. */
int pool_cancel_run(const struct job_record *record, const char *run, bool *nowhere, struct cb_err *err) CB_MUST_CHECK;

#endif
