/* Slurm's view of warm pools: how long nodes stay up, and the state of a pool. */
#ifndef JOBS_SLURM_POOL_STATE_H
#define JOBS_SLURM_POOL_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "jobs/slurm/slurm.h"
#include "jobs/slurm/slurm_client.h"
#include "run/pool.h"

/* When Slurm powers nodes down, and how long they may take to boot. */
struct slurm_power {
    bool saves;              /* false: idle nodes stay up */
    uint64_t suspend_ns;     /* a node is powered down after this idle time */
    uint64_t resume_most_ns; /* ResumeTimeout */
};
/* `partition` may be "": the default one. */
int slurm_ask_power(struct slurm_client *client, const char *partition, struct slurm_power *power,
                    struct cb_err *err) CB_MUST_CHECK;
/* The same from `scontrol show config` and `scontrol show partition -o`; SuspendTime and ResumeTimeout of the
 * partition take precedence. */
void slurm_parse_power(const char *config, const char *partitions, const char *partition, struct slurm_power *power);

/* Time between two touches: half of the idle time after which a node is powered down. */
uint64_t pool_touch_period_ns(const struct slurm_power *power);

enum pool_state {
    POOL_SUBMITTED, /* submitted, not listed by Slurm yet */
    POOL_PENDING,
    POOL_BOOTING,
    POOL_UP,
    POOL_ENDING, /* its end was requested, or its time is over */
    POOL_ENDED,
};
const char *pool_state_name(enum pool_state state);

struct pool_observation {
    const struct slurm_jobs *jobs; /* Slurm's listing */
    bool asked;                    /* Slurm responded */
    bool stopping;
    const struct pool_end *end; /* NULL: not ended */
    struct pool_usage usage;
    uint64_t now_wall_ns;
};

struct pool_verdict {
    enum pool_state state;
    bool give_up;   /* its nodes do not boot: give it up */
    size_t listed;  /* its jobs in the queue or running */
    char job[64];   /* one of its jobs, preferably a running one; "" if none */
    char note[600]; /* for people */
};
/* Pure. */
void pool_state_judge(const struct pool *pool, const struct pool_observation *observation,
                      struct pool_verdict *verdict);

#endif
