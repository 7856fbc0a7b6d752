/* The spool of a hold pool: runs that wait for their turn in the pool's allocation, one file each.
 *
 * The pool's job claims POOL/spool/NAME by renaming it to POOL/claimed; a controller withdraws it by renaming it to
 * POOL/returned. A rename has one winner, so a run starts once or not at all. Started runs move on to POOL/done,
 * malformed files to POOL/rejected. NAME is the submission time and the run's id, so names sort in order of arrival.
 * POOL/cancel/RUN requests the end of a run that has started. All folders are on one file system. */
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
    size_t before;                           /* number of tickets before it */
    uint64_t put_wall_ns;                    /* time of submission to the spool */
    uint64_t started_wall_ns, ended_wall_ns; /* 0: not yet */
    char job[64], step[32];                  /* job and step in Slurm, "4711" and "0"; "" before it starts */
    uint64_t pid;                            /* process number of its agent, on the node of the pool's job; 0 before */
    uint64_t exit_status;                    /* exit code of the step once done: 128 + number for a signal */
    char note[512];                          /* why it was returned, or why it ended without a report */
};

int spool_create(const char *pool_folder, struct cb_err *err) CB_MUST_CHECK;

/* CB_ERR_EXISTS if the run is in the pool already, in any state but returned. */
int spool_put(const char *pool_folder, const char *run, const char *run_folder, struct cb_err *err) CB_MUST_CHECK;

/* Claims the oldest ticket; CB_ERR_NOT_FOUND if no ticket waits. Malformed files, and runs that have ended already, are
 * rejected: `rejected` (of `bytes`) then contains their names and the reason, else "". */
int spool_claim(const char *pool_folder, struct ticket *ticket, char *rejected, size_t bytes,
                struct cb_err *err) CB_MUST_CHECK;
/* Rewrites a claimed ticket. */
int spool_update(const char *pool_folder, const struct ticket *ticket, struct cb_err *err) CB_MUST_CHECK;
/* Reads or updates a ticket by name, for the run's own step. */
int spool_read_claimed(const char *pool_folder, const char *name, struct ticket *ticket,
                       struct cb_err *err) CB_MUST_CHECK;
int spool_finish(const char *pool_folder, const struct ticket *ticket, struct cb_err *err) CB_MUST_CHECK;

/* Withdraws a waiting run; CB_ERR_NOT_FOUND if it is not waiting (any more). */
int spool_return(const char *pool_folder, const char *run, const char *note, struct cb_err *err) CB_MUST_CHECK;
/* Returns all waiting runs; runs claimed by a job that is gone become done, without a report. */
int spool_return_all(const char *pool_folder, const char *note, struct cb_err *err) CB_MUST_CHECK;
int spool_abandon_claimed(const char *pool_folder, const char *note, struct cb_err *err) CB_MUST_CHECK;

/* The state of a run; CB_ERR_NOT_FOUND: not in this pool. */
int spool_find(const char *pool_folder, const char *run, struct ticket *ticket, struct cb_err *err) CB_MUST_CHECK;
/* Number of waiting runs, and of started ones. */
void spool_count(const char *pool_folder, size_t *waiting, size_t *started);

/* Parses a ticket from bytes; `name` is its file name. */
int spool_parse(const char *name, const char *text, size_t len, struct ticket *ticket,
                struct cb_err *err) CB_MUST_CHECK;

int spool_ask_cancel(const char *pool_folder, const char *run, struct cb_err *err) CB_MUST_CHECK;
bool spool_is_cancelled(const char *pool_folder, const char *run);

#endif
