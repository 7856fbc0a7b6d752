/* One job of a warm pool, as its agent sees it: which job it is, what it costs, and how the pool ends. Shared by touch
 * and hold. */
#ifndef AGENT_POOL_POOL_JOB_H
#define AGENT_POOL_POOL_JOB_H

#include <signal.h>
#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/buf.h"
#include "core/err.h"
#include "run/pool.h"

struct pool_job {
    const char *folder; /* absolute, borrowed */
    struct pool pool;
    struct pool_share share;
    const volatile sig_atomic_t *signals, *time_is_up;
    pid_t parent; /* salloc, if the pool is led from here */
};

/* Reads the pool, asks Slurm for nodes and boot time, and writes the job's share. */
int pool_job_begin(struct pool_job *self, const char *folder, const volatile sig_atomic_t *signals,
                   const volatile sig_atomic_t *time_is_up, struct cb_err *err) CB_MUST_CHECK;
/* Rewrites the share with the current time. */
int pool_job_tell(struct pool_job *self, bool ended, struct cb_err *err) CB_MUST_CHECK;

/* Whether the pool is led from here (slurm.sbcast), and not by jobs on its nodes. */
bool pool_job_is_led_here(const struct pool_job *self);
/* Whether salloc has died, which would release the nodes. */
bool pool_job_is_orphaned(const struct pool_job *self);
/* The job's end: releases the nodes if nobody else will (agent/give_back.h), and then marks the share as ended. */
int pool_job_leave(struct pool_job *self, struct cb_err *err) CB_MUST_CHECK;

/* Appends a line with time and job to the pool's log. */
void pool_job_log(const struct pool_job *self, const char *format, ...) CB_PRINTF(2, 3);
/* Records the end of the pool and its reason, in the log and in end.json. */
void pool_job_end(struct pool_job *self, const char *reason);

/* touch: submits the next job, or ends the pool. */
int touch_run(struct pool_job *self, struct cb_err *err) CB_MUST_CHECK;
/* hold: starts the spool's runs until the pool ends. */
int hold_run(struct pool_job *self, struct cb_err *err) CB_MUST_CHECK;

/* In a process that hold started for a run, a step of its own unless the pool is led from here: records itself in the
 * ticket, leaves the variables of the run's nodes in the environment, and returns the run's folder. */
int hold_enter_step(const char *pool_folder, const char *ticket, const char *job_nodes, char run_folder[4096],
                    struct cb_err *err) CB_MUST_CHECK;

/* Parses `scontrol show job -o`; false if a member is missing. For tests. */
bool pool_job_read_details(const char *text, struct pool_share *share, uint64_t *boot_s);

#endif
