/* Measured rates: what a rank got in runs here that passed, and which of these runs tells about an experiment.
 * Reads the history; prints nothing. */
#ifndef CLI_PLAN_THROUGHPUT_HISTORY_H
#define CLI_PLAN_THROUGHPUT_HISTORY_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "cli/plan/workload.h"
#include "run/experiment.h"

/* Runs whose ranks wrote less than the plan's share of this are taken only where there is no other: what a small
 * file costs is not what its bytes cost. */
#define RATES_SMALL 16

/* A run that saved. Owned texts. */
struct rate_run {
    char run[64], hash[EXPERIMENT_HASH_LENGTH + 1];
    char *engine, *model, *store, *endpoint, *mount; /* endpoint: of S3; mount: where its file system was mounted */
    uint64_t started_wall_ns;
    uint32_t ranks, nodes;
    bool behind;             /* save.async */
    double bytes_a_rank;     /* of a checkpoint */
    double save, load, wait; /* bytes/s of a rank; wait: while training waits; NAN: not known */
};

/* The newest run of each experiment and store. */
struct throughput_history {
    struct rate_run *runs;
    size_t count;
    bool loaded;
};

/* No history is no error: the book is empty then. */
void throughput_history_load(struct throughput_history *self);
void throughput_history_release(struct throughput_history *self);

/* What a rate is wanted for: the experiment as it would be frozen, and what it comes to. */
struct throughput_query {
    struct experiment *experiment; /* owned */
    char hash[EXPERIMENT_HASH_LENGTH + 1];
    uint32_t ranks, nodes;
    double bytes_a_rank;
};
int throughput_query_init(struct throughput_query *self, const struct experiment *experiment,
                          const struct workload *workload, struct cb_err *err) CB_MUST_CHECK;
void throughput_query_release(struct throughput_query *self);

/* The run that tells most: of the same engine and store (the same folder, without faults, or file system; the same
 * bucket at the same endpoint), behind training if that is wished; then one that is not much smaller, of the same
 * experiment, of the same model and ranks on a node, the nearest in bytes a rank and in ranks, the newest. NULL
 * where there is none. */
const struct rate_run *throughput_history_choose(const struct throughput_history *self,
                                                 const struct throughput_query *wish);

/* Whether its ranks wrote so much less that the rate may be another. */
bool rate_run_is_small(const struct rate_run *run, const struct throughput_query *wish);

#endif
