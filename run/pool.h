/* A warm pool as stored in its folder, HOME/pools/ID, which the controller and the pool's own jobs share.
 *
 * pool.json holds what was asked for; only the controller writes it. Each job of the pool writes its own share,
 * jobs/JOB.RESTARTS, of the node time that it used, so no locking is needed; the pool's cost is the sum of the shares.
 * `stop` exists once the end was requested, and `end.json` with the reason once the pool has ended; its first writer
 * wins. run/spool.h holds the waiting runs. Files are replaced by rename, never changed in place. */
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
#define POOL_MOST_FAILURES 3                              /* failed boots after which a pool ends */
#define POOL_DEADLINE_NS (10 * 60 * UINT64_C(1000000000)) /* after the expiry: Slurm then removes jobs that still run */
#define POOL_MARGIN_NS                                                                                                 \
    (2 * 60 * UINT64_C(1000000000)) /* a hold job that does not end itself: Slurm ends it so much later */
#define POOL_SCRIPT "job.sbatch"
#define POOL_ALLOCATION "job.salloc" /* instead of it, for a pool that is led from where it was started */
#define POOL_LOG "job.log"

enum pool_mode {
    POOL_TOUCH, /* a chain of short jobs: nodes are idle in between, but stay up */
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
    uint64_t budget_node_ns; /* limit of node time */
    uint64_t period_ns;      /* from one touch to the next; 0 for hold */
    uint64_t boot_most_ns;   /* ResumeTimeout: the cost counted for a failed boot; 0 if nodes do not boot */
    uint64_t intent_wall_ns; /* when the submission of its first job began */
    char job[64];            /* number of that job; "" until sbatch has replied */
    char sbcast[256]; /* slurm.sbcast: its jobs are led from the machine that started it; "": they run on the nodes */
};

/* Letters, digits, '.', '_' and '-', at most POOL_NAME_BYTES - 1 of them, starting with a letter or digit. */
int pool_check_name(const char *name, struct cb_err *err) CB_MUST_CHECK;

/* HOME/pools, or HOME/pools/ID with an id. */
int pool_folder(const char *id, struct buf *path, struct cb_err *err) CB_MUST_CHECK;
/* Creates the folder and its subfolders. */
int pool_create(const struct pool *self, const char *folder, struct cb_err *err) CB_MUST_CHECK;
int pool_write(const struct pool *self, const char *folder, struct cb_err *err) CB_MUST_CHECK;
int pool_read(const char *folder, struct pool *self, struct cb_err *err) CB_MUST_CHECK;
/* Parses it from bytes. */
int pool_parse(const char *name, const char *text, size_t len, struct pool *self, struct cb_err *err) CB_MUST_CHECK;

/* Calls `fn` for every pool of this home, oldest first; folders without a pool are skipped. `fn` may stop the
 * iteration. */
typedef int (*pool_fn)(void *context, const char *folder, const struct pool *pool, struct cb_err *err);
int pool_each(pool_fn fn, void *context, struct cb_err *err) CB_MUST_CHECK;

int pool_ask_stop(const char *folder, struct cb_err *err) CB_MUST_CHECK;
bool pool_is_stopping(const char *folder);

struct pool_end {
    uint64_t at_wall_ns;
    char reason[512];
};
/* Does nothing if the pool has ended already. */
int pool_write_end(const char *folder, const char *reason, struct cb_err *err) CB_MUST_CHECK;
bool pool_has_ended(const char *folder);
/* CB_ERR_NOT_FOUND: it has not ended, or its jobs died before they could record it. */
int pool_read_end(const char *folder, struct pool_end *end, struct cb_err *err) CB_MUST_CHECK;

struct pool_share {
    char job[64];
    uint64_t restarts;
    uint64_t node_count;
    char nodes[512];            /* "n[1-4]" */
    uint64_t allocated_wall_ns; /* when its nodes were allocated: they cost from then on, also while they boot */
    uint64_t began_wall_ns;     /* when the nodes were up */
    uint64_t seen_wall_ns;      /* the job's last heartbeat; its end once it has ended */
    uint64_t kept_ns;           /* touch: how long its nodes stay up afterwards, until the next touch */
    bool ended;
};
int pool_write_share(const char *folder, const struct pool_share *share, struct cb_err *err) CB_MUST_CHECK;

struct pool_usage {
    uint64_t node_ns;      /* total: boots, jobs, idle nodes kept up in between, failed boots */
    uint64_t job_node_ns;  /* node time of its jobs, including their boots */
    uint64_t boot_ns;      /* the longest boot: what a run would have waited for */
    uint64_t jobs;         /* jobs that began */
    uint64_t open_jobs;    /* those that have not marked their share as ended */
    uint64_t failures;     /* failed boots: Slurm restarted a job that had never begun */
    uint64_t seen_wall_ns; /* latest heartbeat of any job */
    char nodes[512];       /* of the first job that began; "" before */
};
/* Sums the shares; malformed files are skipped. */
int pool_sum(const struct pool *pool, const char *folder, struct pool_usage *usage, struct cb_err *err) CB_MUST_CHECK;

/* Whether another touch of `nodes` nodes fits budget and expiry; if not, `reason` says why. Pure. */
bool pool_may_touch(const struct pool *pool, const struct pool_usage *usage, uint64_t nodes, uint64_t now_wall_ns,
                    char *reason, size_t bytes);
/* When the nodes of a hold pool must be released, from its own share and those of earlier jobs. Pure. */
uint64_t pool_hold_end_wall_ns(const struct pool *pool, const struct pool_usage *earlier,
                               const struct pool_share *share);

#endif
