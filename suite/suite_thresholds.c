/* suite.fail_below: whether the medians of this run meet their thresholds. The same computation as in run/results.c:
 * means over the ranks that have a value, medians over measured repetitions. */
#include <math.h>

#include "comm/comm_measure.h"
#include "core/alloc.h"
#include "core/stats.h"
#include "run/results.h"
#include "run/thresholds.h"
#include "suite/suite.h"

/* Values of one metric over this rank's measured repetitions. */
static uint32_t take_values(const struct status_page *page, enum metric_id metric, double *values)
{
    uint32_t samples = atomic_load_explicit(&page->sample_count, memory_order_relaxed), count = 0;
    for (uint32_t i = 0; i < samples; i++)
        if (page->samples[i].op == OP_SUITE && !(page->samples[i].flags & (SAMPLE_WARMUP | SAMPLE_FAILED)))
            values[count++] = page->samples[i].values[metric];
    return count;
}

static double median_over_ranks(const double *all, uint32_t ranks, uint32_t count, bool worst, double *scratch)
{
    struct summary summary;
    size_t used = 0;
    for (uint32_t i = 0; i < count; i++) {
        double sum = 0, most = 0;
        uint32_t known = 0;
        for (uint32_t rank = 0; rank < ranks; rank++) {
            double value = all[(size_t)rank * count + i];
            sum += isnan(value) ? 0 : value;
            most = value > most ? value : most;
            known += isnan(value) ? 0 : 1;
        }
        if (known)
            scratch[used++] = worst ? most : sum / known;
    }
    stats_summarize(scratch, used, &summary);
    return summary.median;
}

static int refuse(const struct threshold *rule, double value, struct cb_err *err)
{
    const struct metric *metric = metric_row(rule->metric);
    const char *most = metric->direction == METRIC_LOWER_IS_BETTER ? "most" : "least";
    if (isnan(value))
        return cb_fail(err, CB_ERR_BELOW,
                       "suite.fail_below: %s was not measured in this run, and must be at %s %.4g %s; what was not "
                       "measured is listed with the reason",
                       metric->name, most, rule->bound, metric->unit);
    return cb_fail(err, CB_ERR_BELOW, "suite.fail_below: %s is %.4g %s, and must be at %s %.4g", metric->name, value,
                   metric->unit, most, rule->bound);
}

static int judge_one(struct suite *self, const struct threshold *rule, struct cb_err *err)
{
    uint32_t ranks = comm_size(self->comm);
    uint32_t samples = atomic_load_explicit(&self->page->sample_count, memory_order_relaxed);
    double *mine = calloc(samples + 1, sizeof *mine), *scratch = calloc(samples + 1, sizeof *scratch);
    double *all = calloc((size_t)ranks * (samples + 1), sizeof *all);
    int rc = mine && scratch && all ? 0 : alloc_fail(err, "to judge the suite");
    uint32_t count = rc ? 0 : take_values(self->page, rule->metric, mine);
    if (!rc && count)
        rc = comm_all_gather(self->comm, mine, count * sizeof *mine, all, suite_deadline(self), err);
    if (!rc && count) {
        double value = median_over_ranks(all, ranks, count, metric_row(rule->metric)->over == METRIC_OVER_MAX, scratch);
        if (!threshold_is_met(rule, value))
            rc = refuse(rule, value, err);
    }
    free(mine);
    free(scratch);
    free(all);
    return rc;
}

int suite_judge(struct suite *self, struct cb_err *err)
{
    struct thresholds rules;
    int rc = thresholds_parse(experiment_text(self->experiment, OPT_SUITE_FAIL_BELOW), &rules, err);
    for (size_t i = 0; i < rules.count && !rc; i++)
        rc = judge_one(self, &rules.items[i], err);
    return rc;
}
