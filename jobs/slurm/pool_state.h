/* Warm pools as Slurm has them: how long its nodes stay up, and in which state a pool is. */
#ifndef JOBS_SLURM_POOL_STATE_H
#define JOBS_SLURM_POOL_STATE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "core/err.h"
#include "jobs/slurm/slurm.h"
#include "jobs/slurm/slurm_client.h"
#include "run/pool.h"

/* When nodes are powered down, and how long they may take to come back. */
struct slurm_power {
    bool saves;              /* false: nodes that are idle stay up */
    uint64_t suspend_ns;     /* idle for so long, a node is powered down */
    uint64_t resume_most_ns; /* ResumeTimeout */
};
/* `partition` may be "": the default one. */
int slurm_ask_power(struct slurm_client *client, const char *partition, struct slurm_power *power,
                    struct cb_err *err) CB_MUST_CHECK;
/* The same from `scontrol show config` and `scontrol show partition -o`, whose SuspendTime and ResumeTimeout count
 * before the former's. */
void slurm_parse_power(const char *config, const char *partitions, const char *partition, struct slurm_power *power);

/* From one touch to the next: half of what a node may be idle. */
uint64_t pool_touch_period_ns(const struct slurm_power *power);

enum pool_state {
    POOL_SUBMITTED, /* sent, and not seen by Slurm yet */
    POOL_PENDING,
    POOL_BOOTING,
    POOL_UP,
    POOL_ENDING, /* somebody has asked for it, or its time is over */
    POOL_ENDED,
};
const char *pool_state_name(enum pool_state state);

struct pool_sight {
    const struct slurm_jobs *jobs; /* what Slurm lists */
    bool asked;                    /* Slurm answered */
    bool stopping;
    const struct pool_end *end; /* NULL: not said */
    struct pool_usage usage;
    uint64_t now_wall_ns;
};

struct pool_verdict {
    enum pool_state state;
    bool give_up;   /* its nodes do not come up: end it */
    size_t listed;  /* jobs of it that are in the queue or run */
    char job[64];   /* one of them, one that runs if any does; "" for none */
    char note[600]; /* for people */
};
/* Pure. */
void pool_judge(const struct pool *pool, const struct pool_sight *sight, struct pool_verdict *verdict);

#endif
