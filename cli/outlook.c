/* Rates and the times that follow from them. Knows experiments, layouts and the history; prints nothing. */
#include "cli/outlook.h"

#include <math.h>
#include <stdio.h>

#include "cli/place.h"
#include "core/clock.h"
#include "core/stats.h"
#include "core/units.h"
#include "db/history.h"

#define DEFAULT_RATE ((double)GIB) /* of a rank, where nothing was measured here */
#define DEFAULT_STAGE_RATE ((double)(5 * GIB))
#define LATEST_RUNS 20                        /* looked at for a measured rate */
#define START_NS (10 * 60 * NS_PER_S)         /* for launch, set-up and sealing */
#define SUITE_ROUND_NS (20.0 * 60 * NS_PER_S) /* of the cluster suite */
#define WAIT_MARGIN_NS (2 * 60 * NS_PER_S)    /* behind a wait, which is as long as it is */
#define MARGIN 3                              /* times what is predicted, where a rate is known */
#define BLIND_MARGIN 20                       /* where it is only assumed */

/* ---- rates ---- */

static double median_of(const struct run_info *info, enum metric_id metric)
{
    for (size_t i = 0; i < info->metric_count; i++)
        if (info->metrics[i].metric == metric && info->metrics[i].summary.n > 0)
            return info->metrics[i].summary.median;
    return NAN;
}

static uint32_t ranks_of(const struct experiment *experiment)
{
    struct model *model = NULL;
    struct layout_pair layouts = {0};
    uint32_t ranks = 0;
    if (workload_load_model(experiment, &model, NULL) == 0 && layout_pair_new(model, experiment, &layouts, NULL) == 0)
        ranks = layouts.ranks;
    layout_pair_release(&layouts);
    model_free(model);
    return ranks;
}

/* Takes the rates of a run that saved; false where it did not. */
static bool take_rates(const struct run_info *info, struct rates *rates)
{
    double save = median_of(info, METRIC_SAVE_BYTES_PER_S), load = median_of(info, METRIC_LOAD_BYTES_PER_S);
    uint32_t ranks = isfinite(save) ? ranks_of(info->experiment) : 0;
    if (ranks == 0)
        return false;
    rates->save = save / ranks;
    rates->load = (isfinite(load) ? load : save) / ranks;
    double stall_s = median_of(info, METRIC_STALL_S), save_s = median_of(info, METRIC_SAVE_S);
    if (experiment_bool(info->experiment, OPT_SAVE_ASYNC) && stall_s > 0)
        rates->stage = rates->save * save_s / stall_s;
    rates->assumed = false;
    snprintf(rates->from, sizeof rates->from, "run %s", info->run);
    return true;
}

/* The newest run here of our own engine that passed and saved to a real store, behind training if that
 * is asked about. No history is no error. */
static void measured_rates(bool async, struct rates *rates)
{
    static const char *const words[] = {"outcome=pass"};
    struct history *history = NULL;
    struct run_selection selection = {0};
    if (history_open_read_only(NULL, &history, NULL))
        return;
    bool found = false;
    if (history_select(history, words, 1, &selection, NULL) == 0) {
        for (size_t i = 0; !found && i < selection.count && i < LATEST_RUNS; i++) {
            struct run_info *info;
            if (history_load_run(history, selection.runs[i], &info, NULL))
                continue;
            bool real = experiment_text(info->experiment, OPT_STORE)[0] == '/'; /* fault: and null: only pretend */
            real = real && (!async || experiment_bool(info->experiment, OPT_SAVE_ASYNC));
            found = real && experiment_is(info->experiment, OPT_ENGINE, "native") && take_rates(info, rates);
            run_info_free(info);
        }
        run_selection_release(&selection);
    }
    history_close(history);
}

void outlook_choose_rates(const struct experiment *experiment, struct rates *rates)
{
    uint64_t rank = experiment_u64(experiment, OPT_RATE_RANK), store = experiment_u64(experiment, OPT_RATE_STORE);
    *rates = (struct rates){.save = DEFAULT_RATE,
                            .load = DEFAULT_RATE,
                            .stage = DEFAULT_STAGE_RATE,
                            .store = store ? (double)store : INFINITY};
    snprintf(rates->from, sizeof rates->from, "assumed; no run here says better");
    rates->assumed = true;
    if (rank) {
        rates->save = rates->load = (double)rank;
        rates->assumed = false;
        snprintf(rates->from, sizeof rates->from, "given");
    } else {
        measured_rates(experiment_bool(experiment, OPT_SAVE_ASYNC), rates);
    }
}

void outlook_sum_states(const struct layout *layout, uint64_t *largest_bytes, uint64_t *all_bytes)
{
    uint64_t largest = 0, all = 0;
    for (uint32_t rank = 0; rank < layout_world_size(layout); rank++) {
        uint64_t bytes = layout_rank_bytes(layout, rank);
        all += bytes;
        largest = bytes > largest ? bytes : largest;
    }
    *largest_bytes = largest;
    *all_bytes = all;
}

void outlook_predict(const struct experiment *experiment, const struct plan *plan, const struct rates *rates,
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

int outlook_run_ns(const struct experiment *experiment, const struct rates *rates, uint64_t *duration_ns,
                   struct cb_err *err)
{
    struct workload workload;
    struct prediction predicted;
    uint64_t largest, all, limit_ns = experiment_u64(experiment, OPT_TIMEOUT_RUN);
    if (limit_ns) { /* the agent ends the run then */
        *duration_ns = limit_ns + START_NS;
        return 0;
    }
    if (experiment_is(experiment, OPT_WORKLOAD, "wait")) {
        *duration_ns = experiment_u64(experiment, OPT_WAIT_FOR) + WAIT_MARGIN_NS;
        return 0;
    }
    int rc = workload_init(&workload, experiment, err);
    if (rc)
        return rc;
    double iterations = (double)(experiment_u64(experiment, OPT_ITERATIONS) + experiment_u64(experiment, OPT_WARMUP));
    if (experiment_is(experiment, OPT_WORKLOAD, "train")) { /* how long a step takes is what the run is to find out */
        workload_release(&workload);
        return cb_fail(err, CB_ERR_USAGE,
                       "workload=train: how long it takes cannot be told before; give slurm.time or timeout.run");
    }
    if (experiment_is(experiment, OPT_WORKLOAD, "verify")) { /* what looking once may take at most */
        *duration_ns = START_NS + experiment_u64(experiment, OPT_TIMEOUT_OP);
        workload_release(&workload);
        return 0;
    }
    if (!workload.layout) { /* the suite has no state whose bytes would tell */
        *duration_ns = START_NS + (uint64_t)(iterations * SUITE_ROUND_NS);
        workload_release(&workload);
        return 0;
    }
    outlook_sum_states(workload.layout, &largest, &all);
    outlook_predict(experiment, workload.plan, rates, largest, all, &predicted);
    workload_release(&workload);
    double once_s = predicted.save_s + 3 * predicted.load_s; /* a load, and verifying what was loaded */
    double run_s = (iterations + 1) * once_s;                /* one more for the baseline */
    double at_least_s = (double)experiment_u64(experiment, OPT_DURATION) / 1e9;
    run_s = (run_s > at_least_s ? run_s : at_least_s + once_s) * (rates->assumed ? BLIND_MARGIN : MARGIN);
    const double most_s = 365.0 * 24 * 3600;
    *duration_ns = START_NS + (uint64_t)((run_s < most_s ? run_s : most_s) * 1e9);
    return 0;
}
