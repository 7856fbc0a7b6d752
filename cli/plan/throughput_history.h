/* Throughput of earlier runs, used to predict a new one. Reads the history. */
#ifndef CLI_PLAN_THROUGHPUT_HISTORY_H
#define CLI_PLAN_THROUGHPUT_HISTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/plan/workload.h"
#include "run/experiment.h"

/* Runs whose ranks wrote less than 1/16 of the planned bytes are used only if there is no other: the cost of a small
 * file says little about throughput. */
#define RATES_SMALL 16

/* A run that saved. Owned strings. */
struct rate_run {
    char run[64], hash[EXPERIMENT_HASH_LENGTH + 1];
    char *engine, *model, *store, *endpoint, *mount; /* endpoint: of S3; mount: mount point of its file system */
    uint64_t started_wall_ns;
    uint32_t ranks, nodes;
    bool behind;             /* save.async */
    double bytes_a_rank;     /* bytes of a checkpoint for each rank */
    double save, load, wait; /* bytes/s of one rank, NAN if unknown; wait: while training waits */
};

/* The newest run of each experiment and store. */
struct throughput_history {
    struct rate_run *runs;
    size_t count;
    bool loaded;
};

/* A missing history is no error: the book is then empty. */
void throughput_history_load(struct throughput_history *self);
void throughput_history_release(struct throughput_history *self);

/* The experiment to predict, frozen as for a run. */
struct throughput_query {
    struct experiment *experiment; /* owned */
    char hash[EXPERIMENT_HASH_LENGTH + 1];
    uint32_t ranks, nodes;
    double bytes_a_rank;
};
int throughput_query_init(struct throughput_query *self, const struct experiment *experiment,
                          const struct workload *workload, struct cb_err *err) CB_MUST_CHECK;
void throughput_query_release(struct throughput_query *self);

/* The closest earlier run: of the same engine and store (the same folder or file system, without injected faults;
 * the same bucket and endpoint), and asynchronous if the experiment is. Among those it prefers, in this order: not
 * much smaller, same experiment, same model and ranks per node, nearest in bytes per rank and in ranks, newest. NULL
 * if there is none. */
const struct rate_run *throughput_history_choose(const struct throughput_history *self,
                                                 const struct throughput_query *wish);

/* Whether its ranks wrote so much less that its throughput may differ. */
bool rate_run_is_small(const struct rate_run *run, const struct throughput_query *wish);

#endif
