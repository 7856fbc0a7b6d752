/* Predicts the throughput and duration of an experiment from the throughput of earlier runs in the history. `plan`
 * prints the prediction, `submit` derives the time limit from it. */
#ifndef CLI_PLAN_FORECAST_H
#define CLI_PLAN_FORECAST_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/plan/workload.h"
#include "core/err.h"
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
    bool is_async;           /* save.async */
    double bytes_a_rank;     /* bytes of a checkpoint for each rank */
    double save, load, wait; /* bytes/s of one rank, NAN if unknown; wait: while training waits */
};

/* The newest run of each experiment and store. */
struct throughput_history {
    struct rate_run *runs;
    size_t count;
    bool loaded;
};

/* A missing history is not an error: there are then no earlier runs. */
void throughput_history_load(struct throughput_history *self);
void throughput_history_release(struct throughput_history *self);

/* The experiment to predict, frozen as for a run. */
struct throughput_query {
    struct experiment *experiment; /* owned */
    char hash[EXPERIMENT_HASH_LENGTH + 1];
    uint32_t ranks, nodes;
    double bytes_a_rank;
};
void throughput_query_release(struct throughput_query *self);

/* The closest earlier run: of the same engine and store (the same folder or file system, without injected faults; the
 * same bucket and endpoint), and asynchronous if the experiment is. Among those it prefers, in this order: same
 * save.async, not much smaller, same experiment, same model and ranks per node, nearest in bytes per rank and in ranks,
 * newest. NULL if no earlier run qualifies. */
const struct rate_run *throughput_history_choose(const struct throughput_history *self,
                                                 const struct throughput_query *query);

struct rates {
    double save, load; /* bytes/s of one rank */
    double stage;      /* bytes/s of one rank: copying its part while training waits, with save.async */
    double store;      /* bytes/s of all ranks together; INFINITY if unlimited */
    bool assumed;      /* assumed: neither given nor measured */
    bool small;        /* from a run that wrote much less */
    char from[512];    /* "given", "run 20261121-k3f9 (gpt2 on 4 ranks, …)", "assumed: …" */
};

struct prediction {
    double save_s, load_s;
    double stall_s; /* how long a save stops training: all of the save, or only the copy with save.async */
    bool store_binds_save, store_binds_load;
    double interval_s, goodput, mtbf_s;
};

/* rate.rank if given, else the throughput of the closest earlier run on the same store, else 1 GiB/s. The workload
 * must have a plan. */
void forecast_choose_rates(const struct experiment *experiment, const struct workload *workload,
                           const struct throughput_history *book, struct rates *rates);

/* `largest_state_bytes`: bytes of the fullest rank; `all_state_bytes`: bytes of all ranks together. Rank 0 writes the
 * metadata after all data, and reads it before all data, both alone. */
void forecast_predict(const struct experiment *experiment, const struct plan *plan, const struct rates *rates,
                      uint64_t largest_state_bytes, uint64_t all_state_bytes, uint64_t metadata_bytes,
                      struct prediction *predicted);

/* Bytes of the fullest rank of the layout, and the sum of all ranks. */
void forecast_sum_states(const struct layout *layout, uint64_t *largest_bytes, uint64_t *all_bytes);

/* Time limit divided by predicted duration. */
int forecast_margin(const struct rates *rates);

/* A generous upper estimate of a run's duration, for a time limit. */
int forecast_run_ns(const struct experiment *experiment, const struct throughput_history *book, uint64_t *duration_ns,
                    struct cb_err *err) CB_MUST_CHECK;

#endif
