/* From records to the figures people see: metrics per iteration over all ranks, and summaries of a run.
 *
 * Used by the table after a run, the history, the exports and JSON. Warm-up and failed samples are excluded from all
 * summaries. docs/metrics.md defines the metrics. */
#ifndef RUN_RESULTS_H
#define RUN_RESULTS_H

#include "core/stats.h"
#include "run/record.h"

struct result_row {    /* one metric of one operation, over the measured iterations */
    enum operation op; /* OP_NONE for metrics of the run */
    enum metric_id metric;
    struct summary summary; /* n is 1 for metrics of the run */
    double *iterations;     /* the values in order of iteration; summary.n of them; owned by results */
};

struct results {
    struct result_row *rows;
    size_t count;
    double state_share[OP_COUNT][STATE_COUNT]; /* mean over ranks and iterations; sums to 1 if the operation ran */
    int slowest_rank[OP_COUNT];                /* the rank that most often finished its own work last; -1 if none */
    double slowest_rank_share[OP_COUNT];       /* share of iterations in which it was the slowest */
    double slowest_rank_excess
        [OP_COUNT]; /* own_s / mean of ranks - 1, median over the iterations in which it was the slowest */
    /* The reason: the state in which it exceeded the ranks' average by most, over those iterations. STATE_COUNT if that
     * is less than half of its excess, or if its excess is below 2 %. */
    enum rank_state slowest_rank_state[OP_COUNT];
    uint32_t iterations_verified, iterations_to_verify;
    uint32_t suspected_cache, coldness_unknown; /* number of loads with that flag */
};

int results_compute(const struct record *record, struct results *results, struct cb_err *err) CB_MUST_CHECK;
void results_release(struct results *self);
const struct result_row *results_find(const struct results *self, enum operation op, enum metric_id metric);

#endif
