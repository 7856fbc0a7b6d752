/* The spool of a hold pool: runs that wait for their turn in the pool's allocation, one file each.
 *
 * POOL/spool/NAME is taken by renaming it into POOL/claimed by the pool's job, or into POOL/returned by whoever
 * takes it back: a rename has one winner, so a run is started once or not at all. What was started goes on to
 * POOL/done; what is no ticket, to POOL/rejected. NAME is the time it was put there and the run's id, so names sort
 * as runs came. POOL/cancel/RUN asks for the end of a run that was started. All on one file system. */
#ifndef RUN_SPOOL_H
#define RUN_SPOOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "run/run_folder.h"

#define SPOOL_TICKET_BYTES 96
#define SPOOL_PATH_BYTES 4096

enum ticket_state {
    TICKET_WAITS,
    TICKET_CLAIMED,
    TICKET_DONE,
    TICKET_RETURNED,
};

struct ticket {
    char name[SPOOL_TICKET_BYTES]; /* of the file */
    char run[64];
    char run_folder[SPOOL_PATH_BYTES];
    enum ticket_state state;
    size_t before;                           /* how many wait in front of it */
    uint64_t put_wall_ns;                    /* into the spool */
    uint64_t started_wall_ns, ended_wall_ns; /* 0: not yet */
    char job[64], step[32];                  /* of Slurm, "4711" and "0"; "" before it starts */
    uint64_t pid;                            /* of its agent, on the node of the pool's job; 0 before */
    uint64_t exit_status;                    /* of the step, once done: 128 + number for a signal */
    char note[512];                          /* why it was returned, or ended without a word */
};

int spool_create(const char *pool_folder, struct cb_err *err) CB_MUST_CHECK;

/* CB_ERR_EXISTS where that run is in the pool already, in whatever state but returned. */
int spool_put(const char *pool_folder, const char *run, const char *run_folder, struct cb_err *err) CB_MUST_CHECK;

/* Claims the oldest ticket; CB_ERR_NOT_FOUND: none waits. Files that are no ticket, and runs that have ended
 * already, are rejected: `rejected` (of `bytes`) then says which and why, "" for none. */
int spool_claim(const char *pool_folder, struct ticket *ticket, char *rejected, size_t bytes,
                struct cb_err *err) CB_MUST_CHECK;
/* What is known of a claimed one. */
int spool_update(const char *pool_folder, const struct ticket *ticket, struct cb_err *err) CB_MUST_CHECK;
/* By name: its step reads it, and writes to it, too. */
int spool_read_claimed(const char *pool_folder, const char *name, struct ticket *ticket,
                       struct cb_err *err) CB_MUST_CHECK;
int spool_finish(const char *pool_folder, const struct ticket *ticket, struct cb_err *err) CB_MUST_CHECK;

/* Takes a run back that waits; CB_ERR_NOT_FOUND where it does not (any more). */
int spool_return(const char *pool_folder, const char *run, const char *note, struct cb_err *err) CB_MUST_CHECK;
/* Takes all back that wait; those claimed by a job that is gone are done, without a word. */
int spool_return_all(const char *pool_folder, const char *note, struct cb_err *err) CB_MUST_CHECK;
int spool_abandon_claimed(const char *pool_folder, const char *note, struct cb_err *err) CB_MUST_CHECK;

/* Where a run is; CB_ERR_NOT_FOUND: nowhere in this pool. */
int spool_find(const char *pool_folder, const char *run, struct ticket *ticket, struct cb_err *err) CB_MUST_CHECK;
/* How many wait, and how many were started. */
void spool_count(const char *pool_folder, size_t *waiting, size_t *started);

/* A ticket from bytes; `name` is its file's. */
int spool_parse(const char *name, const char *text, size_t len, struct ticket *ticket,
                struct cb_err *err) CB_MUST_CHECK;

int spool_ask_cancel(const char *pool_folder, const char *run, struct cb_err *err) CB_MUST_CHECK;
bool spool_is_cancelled(const char *pool_folder, const char *run);

#endif
