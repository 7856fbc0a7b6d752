/* What an experiment will take: rates, and the times that follow. Shared by `plan`, which shows them, and by
 * `submit`, which asks Slurm for as much time. */
#ifndef CLI_PLAN_FORECAST_H
#define CLI_PLAN_FORECAST_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/plan/throughput_history.h"
#include "cli/plan/workload.h"
#include "core/err.h"
#include "run/experiment.h"

struct rates {
    double save, load; /* bytes/s of a rank */
    double stage;      /* of a rank: copying its part while training waits, with save.async */
    double store;      /* of all; INFINITY where unlimited */
    bool assumed;      /* neither given nor measured */
    bool small;        /* measured by a run that wrote much less */
    char from[512];    /* "given", "run 20261121-k3f9 (gpt2 on 4 ranks, …)", "assumed: …" */
};

struct prediction {
    double save_s, load_s;
    double stall_s; /* what a save keeps training from going on: all of it, or the copy with save.async */
    bool store_binds_save, store_binds_load;
    double interval_s, goodput, mtbf_s;
};

/* rate.rank where it is given, else what the run in the book that tells most of the experiment measured on its store,
 * else 1 GiB/s. The workload has a plan. */
void forecast_choose_rates(const struct experiment *experiment, const struct workload *workload,
                           const struct throughput_history *book, struct rates *rates);

/* `largest_state_bytes` is what the fullest rank holds, `all_state_bytes` all ranks together. */
void forecast_predict(const struct experiment *experiment, const struct plan *plan, const struct rates *rates,
                      uint64_t largest_state_bytes, uint64_t all_state_bytes, struct prediction *predicted);

/* The most that any rank holds of the layout, and what all hold. */
void forecast_sum_states(const struct layout *layout, uint64_t *largest_bytes, uint64_t *all_bytes);

/* How many times what is predicted a time limit is. */
int forecast_margin(const struct rates *rates);

/* How long a run may take, with a generous margin: for a time limit. */
int forecast_run_ns(const struct experiment *experiment, const struct throughput_history *book, uint64_t *duration_ns,
                    struct cb_err *err) CB_MUST_CHECK;

#endif
