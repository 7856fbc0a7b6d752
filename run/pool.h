/* A warm pool as its folder, HOME/pools/ID, holds it: what controller and the pool's own jobs share.
 *
 * pool.json says what was asked for, and is written by the controller alone. Each job of the pool keeps a share of
 * its own, jobs/JOB.RESTARTS, of the node time that it used, so that nobody has to wait for anybody; the pool's
 * cost is their sum. `stop` is there once somebody has asked for the end, `end.json` once the pool has ended, and
 * why: the first to write it is right. run/spool.h has the runs that wait in it. Replaced by rename, never changed
 * in place. */
#ifndef RUN_POOL_H
#define RUN_POOL_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/buf.h"
#include "core/err.h"
#include "run/run_folder.h"

#define POOL_VERSION 1
#define POOL_NAME_BYTES 48
#define POOL_MOST_FAILURES 3                              /* boots that failed, after which a pool ends */
#define POOL_DEADLINE_NS (10 * 60 * UINT64_C(1000000000)) /* behind the expiry: what has not ended then Slurm removes */
#define POOL_SCRIPT "job.sbatch"
#define POOL_LOG "job.log"

enum pool_mode {
    POOL_TOUCH, /* a chain of short jobs: nodes stay idle between them, and up */
    POOL_HOLD,  /* one job that keeps its nodes and starts runs in its allocation */
};
const char *pool_mode_name(enum pool_mode mode);
bool pool_mode_find(const char *name, enum pool_mode *mode);

struct pool {
    char id[RUN_ID_BYTES]; /* also the name of its jobs in Slurm */
    char name[POOL_NAME_BYTES];
    enum pool_mode mode;
    uint64_t nodes;
    uint64_t created_wall_ns, expires_wall_ns;
    uint64_t budget_node_ns; /* node time it may cost */
    uint64_t period_ns;      /* from one touch to the next; 0 for hold */
    uint64_t boot_most_ns;   /* ResumeTimeout: what a boot that failed counts as; 0 where nodes do not boot */
    uint64_t intent_wall_ns; /* when its first job was about to be sent */
    char job[64];            /* that job's number; "" until sbatch has answered */
};

/* Letters, digits, '.', '_' and '-', at most POOL_NAME_BYTES - 1 of them, beginning with a letter or digit. */
int pool_check_name(const char *name, struct cb_err *err) CB_MUST_CHECK;

/* HOME/pools, or HOME/pools/ID with an id. */
int pool_folder(const char *id, struct buf *path, struct cb_err *err) CB_MUST_CHECK;
/* Makes the folder with all that lies in it. */
int pool_create(const struct pool *self, const char *folder, struct cb_err *err) CB_MUST_CHECK;
int pool_write(const struct pool *self, const char *folder, struct cb_err *err) CB_MUST_CHECK;
int pool_read(const char *folder, struct pool *self, struct cb_err *err) CB_MUST_CHECK;
/* The same from bytes. */
int pool_parse(const char *name, const char *text, size_t len, struct pool *self, struct cb_err *err) CB_MUST_CHECK;

/* Every pool of this home, oldest first; folders that hold none are left out. `fn` may end the walk. */
typedef int (*pool_fn)(void *context, const char *folder, const struct pool *pool, struct cb_err *err);
int pool_each(pool_fn fn, void *context, struct cb_err *err) CB_MUST_CHECK;

/* ---- its end ---- */

int pool_ask_stop(const char *folder, struct cb_err *err) CB_MUST_CHECK;
bool pool_is_stopping(const char *folder);

struct pool_end {
    uint64_t at_wall_ns;
    char reason[512];
};
/* Nothing where it has ended already. */
int pool_write_end(const char *folder, const char *reason, struct cb_err *err) CB_MUST_CHECK;
bool pool_has_ended(const char *folder);
/* CB_ERR_NOT_FOUND: it has not ended (or nobody was left to say so). */
int pool_read_end(const char *folder, struct pool_end *end, struct cb_err *err) CB_MUST_CHECK;

/* ---- what it costs ---- */

struct pool_share {
    char job[64];
    uint64_t restarts;
    uint64_t node_count;
    char nodes[512];            /* "n[1-4]" */
    uint64_t allocated_wall_ns; /* given its nodes: from then they cost, also while they boot */
    uint64_t began_wall_ns;     /* the nodes were up */
    uint64_t seen_wall_ns;      /* when the job last said so; its end once it has ended */
    uint64_t kept_ns;           /* touch: for how long its nodes stay up behind it, until the next touch */
    bool ended;
};
int pool_write_share(const char *folder, const struct pool_share *share, struct cb_err *err) CB_MUST_CHECK;

struct pool_usage {
    uint64_t node_ns;      /* all: boots, jobs, what is kept up between them, failed boots */
    uint64_t job_node_ns;  /* of it, what its jobs held, their boots included */
    uint64_t boot_ns;      /* the longest boot: what a run would have waited for */
    uint64_t jobs;         /* that began */
    uint64_t failures;     /* boots that failed: Slurm ran a job again that had never begun */
    uint64_t seen_wall_ns; /* the newest sign of a job */
    char nodes[512];       /* of the first job that began; "" before */
};
/* Sums the shares; what is no share is left out. */
int pool_sum(const struct pool *pool, const char *folder, struct pool_usage *usage, struct cb_err *err) CB_MUST_CHECK;

/* Whether another touch of `nodes` nodes is within budget and expiry; else `reason` says why not. Pure. */
bool pool_may_touch(const struct pool *pool, const struct pool_usage *usage, uint64_t nodes, uint64_t now_wall_ns,
                    char *reason, size_t bytes);
/* When a held allocation has to end, from its own share and what earlier ones used. Pure. */
uint64_t pool_hold_end_wall_ns(const struct pool *pool, const struct pool_usage *earlier,
                               const struct pool_share *share);

#endif
