/* Asking a cluster's Slurm: a few commands through a transport, their answers as values.
 *
 * A controller that is down is noticed by `scontrol ping` in milliseconds, before commands that would wait
 * for it. One squeue and at most one scontrol answer for any number of jobs. */
#ifndef JOBS_SLURM_SLURM_CLIENT_H
#define JOBS_SLURM_SLURM_CLIENT_H

#include <stdbool.h>
#include <stddef.h>

#include "core/err.h"
#include "jobs/slurm/slurm.h"
#include "jobs/transport.h"

struct slurm_client {
    struct transport *transport; /* borrowed */
    bool without_accounting;     /* sacct said that there is none */
};

/* CB_ERR_SYSTEM where no controller answers, CB_ERR_NOT_FOUND where there is no Slurm at all. */
int slurm_ping(struct slurm_client *self, struct cb_err *err) CB_MUST_CHECK;

/* Every job of this user that Slurm remembers. */
int slurm_look(struct slurm_client *self, struct slurm_jobs *jobs, struct cb_err *err) CB_MUST_CHECK;
/* The same by scontrol, with restarts, ends and exit codes; of all users. */
int slurm_look_closely(struct slurm_client *self, struct slurm_jobs *jobs, struct cb_err *err) CB_MUST_CHECK;
/* How accounting says that `ids` (with commas) have ended; nothing where there is none. What it holds for unfinished is
 * left out: it does so for ever where it has missed the end. CB_ERR_SYSTEM where there is one that does not answer. */
int slurm_look_back(struct slurm_client *self, const char *ids, struct slurm_jobs *jobs,
                    struct cb_err *err) CB_MUST_CHECK;

/* How many tasks an array may have: MaxArraySize; 0 where there are to be no arrays. */
int slurm_most_array_tasks(struct slurm_client *self, size_t *most, struct cb_err *err) CB_MUST_CHECK;

/* Which of `nodes` ("n[1-4]") are down, with commas; "" where none is. */
int slurm_down_nodes(struct slurm_client *self, const char *nodes, char *names, size_t bytes,
                     struct cb_err *err) CB_MUST_CHECK;

enum submit_answer {
    SUBMIT_ACCEPTED,
    SUBMIT_REFUSED,  /* it was not sent, or not taken: `err` says why */
    SUBMIT_UNCERTAIN /* no answer: it may have been taken all the same. Never to be sent again unseen */
};
/* sbatch with the script on its stdin. With `test_only` nothing is queued, and ACCEPTED means that it could
 * be. Fails only through *answer. */
int slurm_submit(struct slurm_client *self, const char *script, bool test_only, char id[64], char cluster[64],
                 enum submit_answer *answer, struct cb_err *err) CB_MUST_CHECK;

/* Starts `script`, a file that becomes salloc, as a process that outlives this one; what it says is appended to `log`.
 * Answers as above once Slurm has given the allocation a number, granted or not; `name` is the job's, of which none is
 * left behind when it is refused. */
int slurm_allocate(struct slurm_client *self, const char *script, const char *log, const char *name, char id[64],
                   enum submit_answer *answer, struct cb_err *err) CB_MUST_CHECK;

/* scancel; ids that have ended are no mistake. */
int slurm_cancel(struct slurm_client *self, const char *const *ids, size_t count, struct cb_err *err) CB_MUST_CHECK;

#endif
