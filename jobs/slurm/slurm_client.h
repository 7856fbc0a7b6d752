/* Queries a cluster's Slurm with a few commands through a transport, and returns values.
 *
 * `scontrol ping` detects a controller that is down within milliseconds, before other commands would wait for it. One
 * squeue and at most one scontrol serve any number of jobs. */
#ifndef JOBS_SLURM_SLURM_CLIENT_H
#define JOBS_SLURM_SLURM_CLIENT_H

#include <stdbool.h>
#include <stddef.h>

#include "core/err.h"
#include "jobs/slurm/slurm.h"
#include "jobs/transport.h"

struct slurm_client {
    struct transport *transport; /* borrowed */
    bool without_accounting;     /* sacct reported that there is no accounting */
};

/* CB_ERR_SYSTEM if no controller responds, CB_ERR_NOT_FOUND if there is no Slurm at all. */
int slurm_ping(struct slurm_client *self, struct cb_err *err) CB_MUST_CHECK;

/* Every job of this user that Slurm remembers. */
int slurm_look(struct slurm_client *self, struct slurm_jobs *jobs, struct cb_err *err) CB_MUST_CHECK;
/* The same by scontrol, with restarts, ends and exit codes; of all users. */
int slurm_look_closely(struct slurm_client *self, struct slurm_jobs *jobs, struct cb_err *err) CB_MUST_CHECK;
/* How `ids` (separated by commas) ended according to accounting; nothing if there is no accounting. Unfinished jobs
 * are skipped, since accounting keeps them for ever if it missed their end. CB_ERR_SYSTEM if accounting exists but
 * does not respond. */
int slurm_look_back(struct slurm_client *self, const char *ids, struct slurm_jobs *jobs,
                    struct cb_err *err) CB_MUST_CHECK;

/* How many tasks an array may have: MaxArraySize; 0 if arrays are disabled. */
int slurm_most_array_tasks(struct slurm_client *self, size_t *most, struct cb_err *err) CB_MUST_CHECK;

/* Which of `nodes` ("n[1-4]") are down, separated by commas; "" if all are up. */
int slurm_down_nodes(struct slurm_client *self, const char *nodes, char *names, size_t bytes,
                     struct cb_err *err) CB_MUST_CHECK;

enum submit_answer {
    SUBMIT_ACCEPTED,
    SUBMIT_REFUSED,  /* not submitted, or rejected: `err` has the reason */
    SUBMIT_UNCERTAIN /* no reply: it may have been accepted. Never submit again without checking */
};
/* Runs sbatch with the script on its stdin. With `test_only` nothing is queued, and ACCEPTED means that it could be.
 * Fails only through *answer. */
int slurm_submit(struct slurm_client *self, const char *script, bool test_only, char id[64], char cluster[64],
                 enum submit_answer *answer, struct cb_err *err) CB_MUST_CHECK;

/* Starts `script`, a file that becomes salloc, as a process that outlives this one; its output is appended to `log`.
 * Returns as above once the allocation has a number, granted or not. `name` is the job's; if the request is rejected,
 * no job of that name is left. */
int slurm_allocate(struct slurm_client *self, const char *script, const char *log, const char *name, char id[64],
                   enum submit_answer *answer, struct cb_err *err) CB_MUST_CHECK;

/* scancel; ids that have ended are not an error. */
int slurm_cancel(struct slurm_client *self, const char *const *ids, size_t count, struct cb_err *err) CB_MUST_CHECK;

#endif
