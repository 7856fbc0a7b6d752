/* What an experiment will take: rates, and the times that follow. Shared by `plan`, which shows them, and by
 * `submit`, which asks Slurm for as much time. */
#ifndef CLI_OUTLOOK_H
#define CLI_OUTLOOK_H

#include <stdbool.h>
#include <stdint.h>

#include "cli/workload.h"
#include "core/err.h"
#include "core/experiment.h"

struct rates {
    double save, load; /* bytes/s of a rank */
    double stage;      /* of a rank: copying its part while training waits, with save.async */
    double store;      /* of all; INFINITY where unlimited */
    bool assumed;      /* neither given nor measured */
    char from[80];     /* "given", "run 20261121-k3f9", "assumed" */
};

struct prediction {
    double save_s, load_s;
    double stall_s; /* what a save keeps training from going on: all of it, or the copy with save.async */
    bool store_binds_save, store_binds_load;
    double interval_s, goodput, mtbf_s;
};

/* rate.rank where it is given, else the newest run here that passed, else 1 GiB/s. */
void outlook_choose_rates(const struct experiment *experiment, struct rates *rates);

/* `largest_state_bytes` is what the fullest rank holds, `all_state_bytes` all ranks together. */
void outlook_predict(const struct experiment *experiment, const struct plan *plan, const struct rates *rates,
                     uint64_t largest_state_bytes, uint64_t all_state_bytes, struct prediction *predicted);

/* The most that any rank holds of the layout, and what all hold. */
void outlook_sum_states(const struct layout *layout, uint64_t *largest_bytes, uint64_t *all_bytes);

/* How long a run may take, with a generous margin: for a time limit. */
int outlook_run_ns(const struct experiment *experiment, const struct rates *rates, uint64_t *duration_ns,
                   struct cb_err *err) CB_MUST_CHECK;

#endif
