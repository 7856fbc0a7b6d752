/* One job of a warm pool, from within: which it is, what it costs, and how the pool ends. Shared by touch and
 * hold. */
#ifndef AGENT_POOL_POOL_JOB_H
#define AGENT_POOL_POOL_JOB_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/err.h"
#include "run/pool.h"

struct pool_job {
    const char *folder; /* absolute, borrowed */
    struct pool pool;
    struct pool_share share;
    const volatile sig_atomic_t *signals, *time_is_up;
};

/* Reads the pool, asks Slurm which job this is, and writes its share. */
int pool_job_begin(struct pool_job *self, const char *folder, const volatile sig_atomic_t *signals,
                   const volatile sig_atomic_t *time_is_up, struct cb_err *err) CB_MUST_CHECK;
/* Writes the share again, as of now. */
int pool_job_tell(struct pool_job *self, bool ended, struct cb_err *err) CB_MUST_CHECK;

/* A line with time and job in the pool's log. */
void pool_job_log(const struct pool_job *self, const char *format, ...) CB_PRINTF(2, 3);
/* Says, for the log and for all who look, that the pool has ended, and why. */
void pool_job_end(struct pool_job *self, const char *reason);

/* touch: submits what comes next, or ends the pool. */
int touch_run(struct pool_job *self, struct cb_err *err) CB_MUST_CHECK;
/* hold: starts what the spool has until the pool ends. */
int hold_run(struct pool_job *self, struct cb_err *err) CB_MUST_CHECK;

/* In the step that hold started: says who it is in the ticket, and cleans the environment of what is about the
 * step and not about the job. Gives the run's folder. */
int hold_enter_step(const char *pool_folder, const char *ticket, const char *job_nodes, char run_folder[4096],
                    struct cb_err *err) CB_MUST_CHECK;

/* What `scontrol show job -o` says; false where a member is missing. For tests. */
bool pool_job_read_details(const char *text, struct pool_share *share, uint64_t *boot_s);

#endif
