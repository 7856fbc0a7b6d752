/* The warm pools of this home: their folders, their jobs in Slurm, and what they cost. */
#ifndef CLI_JOBS_POOL_LIST_H
#define CLI_JOBS_POOL_LIST_H

#include <stdbool.h>
#include <stddef.h>

#include "cli/cli.h"
#include "core/err.h"
#include "db/history.h"
#include "jobs/slurm/pool_state.h"
#include "jobs/slurm/slurm_client.h"
#include "run/pool.h"

struct pool_entry {
    char folder[4096];
    struct pool pool;
    struct pool_usage usage;
    bool has_end;
    struct pool_end end;
    struct pool_verdict verdict;
    size_t waiting, started; /* runs in the spool, and those that were started */
    size_t runs;             /* submitted through the pool, in either mode */
    double saved_s;          /* boot time that its runs did not have to wait */
};

struct pool_list {
    struct pool_entry *items; /* owned; oldest first */
    size_t count;
    bool asked;
    char trouble[512]; /* why Slurm did not reply; "" if it did or was not queried */
};

/* Reads every pool and queries Slurm once about those that have not ended, or within the last day. A pool whose nodes do
 * not come up is given up; a pool that Slurm no longer lists is marked as ended; jobs that are still there a minute after
 * their pool's end are cancelled. */
int pool_list_load(struct pool_list *self, struct slurm_client *client, struct cb_err *err) CB_MUST_CHECK;
/* The same from the folders alone: without verdicts and savings, and without querying Slurm. */
int pool_list_glance(struct pool_list *self, struct cb_err *err) CB_MUST_CHECK;
void pool_list_release(struct pool_list *self);
/* Cancels jobs that have outlived their pools, as above. Queries Slurm only if a pool has ended while one of its jobs has
 * not recorded its own end; a failure is logged. */
void pool_list_cancel_outlived(void);

/* The newest pool of that name. CB_ERR_NOT_FOUND lists the existing names. */
int pool_list_find(const struct pool_list *self, const char *name, struct pool_entry **entry,
                   struct cb_err *err) CB_MUST_CHECK;

/* Appends the table, or the array with cli->json: pools that have not ended, or that ended within a day. */
int pool_list_write(struct cli *cli, const struct pool_list *self, struct cb_err *err) CB_MUST_CHECK;

/* Stores the cost and savings of every pool of this home in the history; reads only their folders. */
int pool_list_keep(struct history *history, struct cb_err *err) CB_MUST_CHECK;

/* The names of the runs that were submitted through the pool. Free with alloc_free_texts, also after a failure. */
int pool_runs(const struct pool_entry *entry, char ***runs, size_t *count, struct cb_err *err) CB_MUST_CHECK;

/* Ends a pool: marks its folder, cancels its jobs, and waits some seconds until they have ended. */
int pool_stop(struct slurm_client *client, struct pool_entry *entry, struct cb_err *err) CB_MUST_CHECK;

/* Records that a run uses the pool, to compute what the pool saves. */
int pool_note_run(const char *folder, const char *run, struct cb_err *err) CB_MUST_CHECK;

#endif
