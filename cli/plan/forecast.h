/* Predicts the throughput and duration of an experiment. `plan` shows the prediction, `submit` derives the time
 * limit from it. */
#ifndef CLI_PLAN_FORECAST_H
#define CLI_PLAN_FORECAST_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/plan/throughput_history.h"
#include "cli/plan/workload.h"
#include "core/err.h"
#include "run/experiment.h"

struct rates {
    double save, load; /* bytes/s of one rank */
    double stage;      /* bytes/s of one rank: copying its part while training waits, with save.async */
    double store;      /* bytes/s of all ranks together; INFINITY if unlimited */
    bool assumed;      /* neither given nor measured */
    bool small;        /* measured by a run that wrote much less */
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

/* `largest_state_bytes`: bytes of the fullest rank; `all_state_bytes`: bytes of all ranks together. */
void forecast_predict(const struct experiment *experiment, const struct plan *plan, const struct rates *rates,
                      uint64_t largest_state_bytes, uint64_t all_state_bytes, struct prediction *predicted);

/* Bytes of the fullest rank of the layout, and of all ranks together. */
void forecast_sum_states(const struct layout *layout, uint64_t *largest_bytes, uint64_t *all_bytes);

/* Time limit divided by predicted duration. */
int forecast_margin(const struct rates *rates);

/* A generous upper estimate of a run's duration, for a time limit. */
int forecast_run_ns(const struct experiment *experiment, const struct throughput_history *book, uint64_t *duration_ns,
                    struct cb_err *err) CB_MUST_CHECK;

#endif
