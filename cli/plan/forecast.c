/* Chooses rates and predicts the times that follow from them. */
#include "cli/plan/forecast.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <time.h>

#include "cli/plan/store_location.h"
#include "core/clock.h"
#include "core/stats.h"
#include "core/units.h"
#include "run/workload_kind.h"

#define DEFAULT_RATE ((double)GIB) /* of one rank, if nothing was measured here */
#define DEFAULT_STAGE_RATE ((double)(5 * GIB))
#define START_NS (10 * 60 * NS_PER_S)         /* for launch, set-up and sealing */
#define SUITE_ROUND_NS (20.0 * 60 * NS_PER_S) /* of the cluster suite */
#define WAIT_MARGIN_NS (2 * 60 * NS_PER_S)    /* beyond a wait, whose length is known */
#define MARGIN 3                              /* time limit / prediction, if the rate is known */
#define SMALL_MARGIN 10                       /* the same, if the measuring run wrote much less */
#define BLIND_MARGIN 20                       /* the same, if the rate is only assumed */

/* ---- rates ---- */

/* "run ID (gpt2 on 4 ranks, 118 MiB a rank, /scratch/ckpt, 2026-11-21)". */
static void name_run(const struct rate_run *run, struct rates *rates)
{
    char bytes[32], store[256], date[16];
    struct tm day;
    time_t seconds = (time_t)(run->started_wall_ns / NS_PER_S);
    if (!gmtime_r(&seconds, &day) || strftime(date, sizeof date, "%Y-%m-%d", &day) == 0)
        date[0] = '\0';
    snprintf(rates->from, sizeof rates->from, "run %s (%.80s on %" PRIu32 " rank%s, %s a rank, %.240s, %s)%s", run->run,
             run->model, run->ranks, units_plural(run->ranks), units_format_bytes(run->bytes_a_rank, bytes),
             store_location_shorten(run->store, store, sizeof store), date,
             rates->small ? ", much smaller than this: with more bytes a rank it may be another" : "");
}

static void take_rates(const struct rate_run *run, const struct throughput_query *wish, struct rates *rates)
{
    rates->save = run->save;
    rates->load = isfinite(run->load) ? run->load : run->save;
    if (run->behind && isfinite(run->wait))
        rates->stage = run->wait;
    rates->assumed = false;
    rates->small = rate_run_is_small(run, wish);
    name_run(run, rates);
}

static void measured_rates(const struct experiment *experiment, const struct workload *workload,
                           const struct throughput_history *book, struct rates *rates)
{
    struct throughput_query wish;
    struct cb_err ignored; /* verbs that use the store report errors in it */
    const struct rate_run *run = NULL;
    if (throughput_query_init(&wish, experiment, workload, &ignored) == 0)
        run = throughput_history_choose(book, &wish);
    if (run)
        take_rates(run, &wish, rates);
    throughput_query_release(&wish);
}

void forecast_choose_rates(const struct experiment *experiment, const struct workload *workload,
                           const struct throughput_history *book, struct rates *rates)
{
    uint64_t rank = experiment_u64(experiment, OPT_RATE_RANK), store = experiment_u64(experiment, OPT_RATE_STORE);
    *rates = (struct rates){.save = DEFAULT_RATE,
                            .load = DEFAULT_RATE,
                            .stage = DEFAULT_STAGE_RATE,
                            .store = store ? (double)store : INFINITY};
    snprintf(rates->from, sizeof rates->from, "assumed: no run on this store yet");
    rates->assumed = true;
    if (rank) {
        rates->save = rates->load = (double)rank;
        rates->assumed = false;
        snprintf(rates->from, sizeof rates->from, "given");
    } else {
        measured_rates(experiment, workload, book, rates);
    }
}

void forecast_sum_states(const struct layout *layout, uint64_t *largest_bytes, uint64_t *all_bytes)
{
    uint64_t largest = 0, all = 0;
    struct layout_sizes sizes;
    layout_sizes_init(&sizes, layout);
    for (uint32_t rank = 0; rank < layout_world_size(layout); rank++) {
        uint64_t bytes = layout_sizes_of(&sizes, rank);
        all += bytes;
        largest = bytes > largest ? bytes : largest;
    }
    layout_sizes_release(&sizes);
    *largest_bytes = largest;
    *all_bytes = all;
}

void forecast_predict(const struct experiment *experiment, const struct plan *plan, const struct rates *rates,
                      uint64_t largest_state_bytes, uint64_t all_state_bytes, struct prediction *predicted)
{
    double save_rank_s = (double)plan->rank_bytes_max / rates->save;
    double save_store_s = (double)plan->payload_bytes / rates->store;
    double load_rank_s = (double)largest_state_bytes / rates->load;
    double load_store_s = (double)all_state_bytes / rates->store;
    predicted->store_binds_save = save_store_s > save_rank_s;
    predicted->store_binds_load = load_store_s > load_rank_s;
    predicted->save_s = fmax(save_rank_s, save_store_s);
    predicted->load_s = fmax(load_rank_s, load_store_s);
    predicted->mtbf_s = (double)experiment_u64(experiment, OPT_MTBF) / 1e9;
    bool async = experiment_bool(experiment, OPT_SAVE_ASYNC);
    predicted->stall_s =
        async ? fmin((double)plan->rank_bytes_max / rates->stage, predicted->save_s) : predicted->save_s;
    predicted->goodput = stats_best_goodput(predicted->stall_s, predicted->save_s - predicted->stall_s,
                                            predicted->load_s, predicted->mtbf_s, &predicted->interval_s);
}

int forecast_margin(const struct rates *rates)
{
    return rates->assumed ? BLIND_MARGIN : rates->small ? SMALL_MARGIN : MARGIN;
}

int forecast_run_ns(const struct experiment *experiment, const struct throughput_history *book, uint64_t *duration_ns,
                    struct cb_err *err)
{
    struct workload workload;
    struct rates rates;
    struct prediction predicted;
    uint64_t largest, all, limit_ns = experiment_u64(experiment, OPT_TIMEOUT_RUN);
    if (limit_ns) { /* the agent ends the run at its limit */
        *duration_ns = limit_ns + START_NS;
        return 0;
    }
    if (!workload_kind_of(experiment)->has_ranks) {
        *duration_ns = experiment_u64(experiment, OPT_WAIT_FOR) + WAIT_MARGIN_NS;
        return 0;
    }
    int rc = workload_init(&workload, experiment, err);
    if (rc)
        return rc;
    double iterations = (double)(experiment_u64(experiment, OPT_ITERATIONS) + experiment_u64(experiment, OPT_WARMUP));
    if (workload_kind_of(experiment)->trains) { /* the duration of a step is what the run measures */
        workload_release(&workload);
        return cb_fail(err, CB_ERR_USAGE,
                       "workload=train: how long it takes cannot be told before; give slurm.time or timeout.run");
    }
    if (workload_kind_of(experiment)->inspects_checkpoint) { /* upper limit for reading everything once */
        *duration_ns = START_NS + experiment_u64(experiment, OPT_TIMEOUT_OP);
        workload_release(&workload);
        return 0;
    }
    if (!workload.layout) { /* the suite has no state whose size could be used */
        *duration_ns = START_NS + (uint64_t)(iterations * SUITE_ROUND_NS);
        workload_release(&workload);
        return 0;
    }
    forecast_sum_states(workload.layout, &largest, &all);
    forecast_choose_rates(experiment, &workload, book, &rates);
    forecast_predict(experiment, workload.plan, &rates, largest, all, &predicted);
    workload_release(&workload);
    double once_s = predicted.save_s + 3 * predicted.load_s; /* a load, and verifying the loaded data */
    double run_s = (iterations + 1) * once_s;                /* one more iteration for the baseline */
    double at_least_s = (double)experiment_u64(experiment, OPT_DURATION) / 1e9;
    run_s = (run_s > at_least_s ? run_s : at_least_s + once_s) * forecast_margin(&rates);
    const double most_s = 365.0 * 24 * 3600;
    *duration_ns = START_NS + (uint64_t)((run_s < most_s ? run_s : most_s) * 1e9);
    return 0;
}
