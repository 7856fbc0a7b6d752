/* Runs that go through a warm pool: chooses the pool, puts runs into its spool, and derives their state. A run of a
 * hold pool has no job of its own: its job and step are those of the pool. */
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

/* The pool of that name. If it accepts no runs, fails with the reason. Queries Slurm if the pool's folder does not
 * contain its state. */
int pool_choose(struct slurm_client *client, const char *name, struct pool_entry *chosen,
                struct cb_err *err) CB_MUST_CHECK;
/* Fails if the pool has too few nodes for the experiment, or sends no programs as the experiment asks for. */
int pool_check_run(const struct pool_entry *pool, const struct experiment *experiment,
                   struct cb_err *err) CB_MUST_CHECK;

/* touch: selects `wanted` of the pool's nodes, "n1,n2", preferring nodes that are up and free. Run number `index`
 * starts after the nodes of the run before it, so that runs spread. "" if the pool's nodes are not known yet. */
int pool_pick_nodes(struct slurm_client *client, const struct pool_entry *pool, size_t index, uint64_t wanted,
                    char *list, size_t bytes, struct cb_err *err) CB_MUST_CHECK;

/* hold: puts the run into the spool, after writing its record. CB_ERR_EXISTS if another controller holds the run. */
int pool_put_run(const struct pool_entry *pool, const char *run, const char *run_folder, uint64_t nodes,
                 struct job_record *record, struct history *history, struct cb_err *err) CB_MUST_CHECK;

/* What Slurm would report about the run if it were a job of its own. */
struct pool_run {
    struct slurm_job job;
    char why[512]; /* the reason, for a run that the pool returned */
    bool known;    /* `job` is valid; false: the pool's job is not listed, or the run is in no pool */
    bool nowhere;  /* it never reached the spool */
    struct ticket ticket;
};
/* `jobs` is Slurm's list; NULL if Slurm was not queried or did not reply. If the pool is gone, the run is removed from
 * the spool. */
void pool_look_at_run(const struct job_record *record, const char *run, const struct slurm_jobs *jobs,
                      struct pool_run *found);

/* Ends the run, or removes it from the spool; sets *nowhere if it is not in the pool. */
int pool_cancel_run(const struct job_record *record, const char *run, bool *nowhere, struct cb_err *err) CB_MUST_CHECK;

#endif
