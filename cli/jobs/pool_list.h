/* The pools of this home, brought up to date: what their folders hold, what Slurm says, what they cost. */
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
    size_t runs;             /* submitted through it, in either mode */
    double saved_s;          /* boot time that they did not wait for */
};

struct pool_list {
    struct pool_entry *items; /* owned; oldest first */
    size_t count;
    bool asked;
    char trouble[512]; /* why Slurm did not answer; "" where it did, or was not needed */
};

/* Reads every pool and asks Slurm once for those that have not ended. One whose nodes do not come up is given up
 * here, and one that Slurm has dropped is said to have ended. */
int pool_list_load(struct pool_list *self, struct slurm_client *client, struct cb_err *err) CB_MUST_CHECK;
/* The same from the folders alone, without what was saved: no verdicts, and nobody is asked. */
int pool_list_glance(struct pool_list *self, struct cb_err *err) CB_MUST_CHECK;
void pool_list_release(struct pool_list *self);

/* The newest of that name; CB_ERR_NOT_FOUND names those there are. */
int pool_list_find(const struct pool_list *self, const char *name, struct pool_entry **entry,
                   struct cb_err *err) CB_MUST_CHECK;

/* Appends the table or, with cli->json, the array: those that have not ended, and what ended within a day. */
int pool_list_write(struct cli *cli, const struct pool_list *self, struct cb_err *err) CB_MUST_CHECK;

/* Puts what every pool of this home has cost and saved into the history; asks nobody but their folders. */
int pool_list_keep(struct history *history, struct cb_err *err) CB_MUST_CHECK;

/* Ends a pool: says so in its folder, takes its jobs out of the queue, and waits some seconds for their end. */
int pool_stop(struct slurm_client *client, struct pool_entry *entry, struct cb_err *err) CB_MUST_CHECK;

/* Keeps that a run goes through the pool, for what it saves. */
int pool_note_run(const char *folder, const char *run, struct cb_err *err) CB_MUST_CHECK;

#endif
