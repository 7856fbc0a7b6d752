/* Compares two sides of runs: samples, blocks and verdicts. The tests themselves are in core/stats. */
#include "cli/compare/comparison.h"

#include <math.h>
#include <string.h>

#include "cli/compare/differences.h"
#include "cli/report/metric_format.h"
#include "core/alloc.h"

#define OUTLIER_DEVIATIONS 3.5
#define SCALED_MAD 1.4826 /* factor from MAD to the standard deviation of a normal distribution */

/* The sample of one metric: a value for each run (or iteration) that has it, and its block. */
struct sample_set {
    double *values;
    size_t *blocks;
    const char **runs;
    size_t count;
};

static int set_init(struct sample_set *self, size_t capacity, struct cb_err *err)
{
    self->values = calloc(capacity + 1, sizeof *self->values);
    self->blocks = calloc(capacity + 1, sizeof *self->blocks);
    self->runs = calloc(capacity + 1, sizeof *self->runs);
    self->count = 0;
    return self->values && self->blocks && self->runs ? 0 : alloc_fail(err, "to compare runs");
}

static void set_release(struct sample_set *self)
{
    free(self->values);
    free(self->blocks);
    free(self->runs);
}

static void fill_from_runs(struct sample_set *self, const struct comparison_side *side, const size_t *blocks,
                           const struct comparison_metric *metric)
{
    self->count = 0;
    for (size_t i = 0; i < side->count; i++) {
        const struct run_metric *found = run_info_metric(side->runs[i], metric->op, metric->metric);
        if (!found || !isfinite(found->summary.median))
            continue;
        self->values[self->count] = found->summary.median;
        self->blocks[self->count] = blocks[i];
        self->runs[self->count++] = side->runs[i]->run;
    }
}

static void fill_from_iterations(struct sample_set *self, const struct run_info *run,
                                 const struct comparison_metric *metric)
{
    const struct run_metric *found = run_info_metric(run, metric->op, metric->metric);
    self->count = 0;
    for (size_t i = 0; found && found->iterations && i < found->summary.n; i++)
        if (isfinite(found->iterations[i]))
            self->values[self->count++] = found->iterations[i];
}

static bool all_positive(const struct sample_set *set)
{
    for (size_t i = 0; i < set->count; i++)
        if (!(set->values[i] > 0))
            return false;
    return set->count > 0;
}

static double median(const double *values, size_t n)
{
    struct summary summary;
    stats_summarize(values, n, &summary);
    return summary.median;
}

/* The block of each run, as a number: equal for runs of one block that agree in all other keys; 0 if it has no block,
 * or a block with one side only. */

struct block_key {
    char *text;
    size_t number;
};

static int compare_keys(const void *a, const void *b)
{
    return strcmp(((const struct block_key *)a)->text, ((const struct block_key *)b)->text);
}

static int number_blocks(const struct comparison_side *const sides[2], const struct comparison_differences *differs,
                         size_t *blocks, size_t *shared, struct cb_err *err)
{
    size_t total = sides[0]->count + sides[1]->count;
    struct block_key *keys = calloc(total + 1, sizeof *keys);
    int rc = keys ? 0 : alloc_fail(err, "to compare runs");
    for (size_t i = 0; keys && i < total && rc == 0; i++) {
        const struct run_info *run = i < sides[0]->count ? sides[0]->runs[i] : sides[1]->runs[i - sides[0]->count];
        rc = differences_block_key(run, differs, &keys[i].text, err);
        keys[i].number = i;
    }
    if (rc == 0 && keys)
        qsort(keys, total, sizeof *keys, compare_keys);
    for (size_t i = 0, end; keys && i < total && rc == 0; i = end) {
        size_t of_base = 0;
        for (end = i; end < total && strcmp(keys[end].text, keys[i].text) == 0; end++)
            of_base += keys[end].number < sides[0]->count;
        if (keys[i].text[0] == '\0' || of_base == 0 || of_base == end - i)
            continue;
        ++*shared;
        for (size_t k = i; k < end; k++)
            blocks[keys[k].number] = *shared;
    }
    for (size_t i = 0; keys && i < total; i++)
        free(keys[i].text);
    free(keys);
    return rc;
}

/* Median of the logarithms of one side's values in a block; NAN if it has none. */
static double log_median_in(const struct sample_set *set, size_t block, double *scratch)
{
    size_t count = 0;
    for (size_t i = 0; i < set->count; i++)
        if (set->blocks[i] == block)
            scratch[count++] = log(set->values[i]);
    return median(scratch, count);
}

/* Signed ranks */

/* The number of smallest Walsh averages that lie outside the interval on each side; 0 if no interval is possible. */
static size_t signed_rank_tail(size_t n, double alpha)
{
    size_t total = n * (n + 1) / 2;
    if (n > 60) { /* normal approximation */
        double mean = (double)total / 2;
        double deviation = sqrt((double)total * (2 * (double)n + 1) / 12);
        double tail = mean - 1.959963984540054 * deviation;
        return tail < 1 ? 0 : (size_t)tail;
    }
    double *ways = calloc(total + 1, sizeof *ways);
    if (!ways)
        return 0;
    ways[0] = 1;
    for (size_t rank = 1; rank <= n; rank++)
        for (size_t sum = total; sum >= rank; sum--)
            ways[sum] += ways[sum - rank];
    double cumulative = 0, all = ldexp(1, (int)n);
    size_t tail = 0;
    for (; tail <= total; tail++) {
        cumulative += ways[tail];
        if (2 * cumulative / all > alpha)
            break;
    }
    free(ways);
    return tail;
}

void signed_rank_shift(const double *differences, size_t n, double confidence, struct shift *shift)
{
    *shift = (struct shift){NAN, -1, INFINITY};
    size_t total = n * (n + 1) / 2, used = 0;
    double *walsh = total ? malloc(total * sizeof *walsh) : NULL;
    if (!walsh)
        return;
    for (size_t i = 0; i < n; i++)
        for (size_t k = i; k < n; k++)
            walsh[used++] = (differences[i] + differences[k]) / 2;
    stats_sort(walsh, total);
    shift->estimate = expm1(stats_quantile_sorted(walsh, total, 0.5));
    size_t tail = signed_rank_tail(n, 1 - confidence);
    if (tail > 0 && tail <= total / 2) {
        shift->low = expm1(walsh[tail - 1]);
        shift->high = expm1(walsh[total - tail]);
    }
    free(walsh);
}

/* One metric */

/* `row` receives the difference of logarithms in each block, NAN if a side has no value there. */
static int compare_blocked(struct comparison_metric *metric, const struct sample_set *base,
                           const struct sample_set *other, double *row, size_t blocks, struct cb_err *err)
{
    double *differences = calloc(blocks + base->count + other->count, sizeof *differences);
    if (!differences)
        return alloc_fail(err, "to compare runs");
    size_t count = 0;
    for (size_t i = 0; i < blocks; i++) {
        double *scratch = differences + blocks;
        row[i] = log_median_in(other, i + 1, scratch) - log_median_in(base, i + 1, scratch);
        if (!isnan(row[i]))
            differences[count++] = row[i];
    }
    signed_rank_shift(differences, count, COMPARISON_CONFIDENCE, &metric->shift);
    if (!metric->primary)
        stats_flip_blocks(row, 1, blocks, 0, &metric->p);
    metric->base_n = metric->other_n = count;
    for (size_t i = 0; i < count; i++)
        differences[i] = exp(differences[i]);
    metric->run_variance = stats_log_variance(differences, count, NULL, 0) / 2;
    free(differences);
    return 0;
}

static bool all_equal(const struct sample_set *base, const struct sample_set *other)
{
    for (size_t i = 0; i < base->count; i++)
        if (base->values[i] != base->values[0])
            return false;
    for (size_t i = 0; i < other->count; i++)
        if (other->values[i] != base->values[0])
            return false;
    return true;
}

/* Compares within blocks if there are any: see compare_blocked. One run is judged by the interval in which the others
 * predict it, since no rank test could reach significance. */
static int compare_sets(const struct comparison *self, struct comparison_metric *metric, const struct sample_set *base,
                        const struct sample_set *other, double *row, struct cb_err *err)
{
    metric->base = median(base->values, base->count);
    metric->other = median(other->values, other->count);
    metric->base_n = base->count;
    metric->other_n = other->count;
    metric->shift = (struct shift){NAN, -1, INFINITY};
    metric->p = 1;
    metric->run_variance = NAN;
    if (self->method == COMPARED_PREDICTION && base->count >= COMPARISON_MIN_EARLIER && all_positive(base) &&
        all_positive(other)) {
        metric->p =
            stats_predict_ratio(base->values, base->count, other->values[0], COMPARISON_CONFIDENCE, &metric->shift);
        metric->run_variance =
            fmax(stats_log_variance(base->values, base->count, NULL, 0), STATS_LEAST_DEVIATION * STATS_LEAST_DEVIATION);
        return 0;
    }
    if (all_equal(base, other)) {
        metric->shift.estimate = 0;
        if (base->count > 1 && other->count > 1)
            metric->shift.low = metric->shift.high = 0;
        return 0;
    }
    if (!all_positive(base) || !all_positive(other)) {
        metric->p = stats_mann_whitney(base->values, base->count, other->values, other->count);
        return 0;
    }
    if (self->method == COMPARED_BLOCKS)
        return compare_blocked(metric, base, other, row, self->blocks, err);
    stats_shift_ratio(base->values, base->count, other->values, other->count, COMPARISON_CONFIDENCE, &metric->shift);
    metric->p = stats_mann_whitney(base->values, base->count, other->values, other->count);
    metric->run_variance = stats_log_variance(base->values, base->count, other->values, other->count);
    return 0;
}

static bool same_in_side(const struct comparison_side *side, const struct comparison_metric *a,
                         const struct comparison_metric *b)
{
    for (size_t i = 0; i < side->count; i++) {
        const struct run_metric *x = run_info_metric(side->runs[i], a->op, a->metric);
        const struct run_metric *y = run_info_metric(side->runs[i], b->op, b->metric);
        if (!x != !y || (x && x->summary.median != y->summary.median))
            return false;
    }
    return true;
}

/* If training waits for the save, stall_s, durable_s and op_s equal save_s. */
static const struct comparison_metric *repeated_primary(const struct comparison *self, size_t index,
                                                        const struct comparison_side *base,
                                                        const struct comparison_side *other)
{
    const struct comparison_metric *metric = &self->metrics[index];
    for (size_t i = 0; i < index && self->metrics[i].primary; i++) {
        const struct comparison_metric *before = &self->metrics[i];
        if (before->op == metric->op && metric->base > 0 &&
            strcmp(metric_row(before->metric)->unit, metric_row(metric->metric)->unit) == 0 &&
            same_in_side(base, before, metric) && same_in_side(other, before, metric))
            return before;
    }
    return NULL;
}

static int add_outliers(struct comparison *self, const struct comparison_metric *metric, const struct sample_set *set,
                        bool of_base, struct cb_err *err)
{
    struct summary summary;
    if (set->count < 5)
        return 0;
    stats_summarize(set->values, set->count, &summary);
    for (size_t i = 0; i < set->count; i++) {
        double distance = fabs(set->values[i] - summary.median);
        if (!(distance > OUTLIER_DEVIATIONS * SCALED_MAD * summary.mad) ||
            distance <= COMPARISON_DEFAULT_THRESHOLD * fabs(summary.median))
            continue;
        if (alloc_grow(&self->outliers, self->outlier_count, sizeof *self->outliers, err))
            return CB_ERR_MEMORY;
        self->outliers[self->outlier_count++] =
            (struct comparison_outlier){metric_row(metric->metric)->name, set->runs[i], of_base, set->values[i]};
    }
    return 0;
}

/* The comparison */

static bool side_has(const struct comparison_side *side, enum operation op, enum metric_id metric)
{
    for (size_t i = 0; i < side->count; i++) {
        const struct run_metric *found = run_info_metric(side->runs[i], op, metric);
        if (found && isfinite(found->summary.median))
            return true;
    }
    return false;
}

/* Times of whole operations first, then the sample metrics among the primary ones. */
static void sort_primaries(struct comparison *self)
{
    size_t primaries = 0;
    while (primaries < self->metric_count && self->metrics[primaries].primary)
        primaries++;
    for (size_t i = 0, left = primaries; left > 0; left--) {
        struct comparison_metric metric = self->metrics[i];
        if (metric_row(metric.metric)->scope != METRIC_OF_SAMPLE) {
            i++;
            continue;
        }
        memmove(&self->metrics[i], &self->metrics[i + 1], (primaries - i - 1) * sizeof metric);
        self->metrics[primaries - 1] = metric;
    }
}

static int list_metrics(struct comparison *self, const struct comparison_side *base,
                        const struct comparison_side *other, struct cb_err *err)
{
    self->metrics = calloc((size_t)METRIC_COUNT * OP_COUNT, sizeof *self->metrics);
    if (!self->metrics)
        return alloc_fail(err, "to compare runs");
    for (int primary = 1; primary >= 0; primary--) {
        for (int id = 0; id < METRIC_COUNT; id++) {
            for (int op = 0; op < OP_COUNT; op++) {
                struct comparison_metric metric = {.op = (enum operation)op, .metric = (enum metric_id)id};
                metric.primary = metric_row(metric.metric)->primary;
                if (metric.primary != (primary == 1) || !side_has(base, metric.op, metric.metric) ||
                    !side_has(other, metric.op, metric.metric))
                    continue;
                metric_full_name(metric.op, metric.metric, metric.name);
                self->metrics[self->metric_count++] = metric;
            }
        }
    }
    sort_primaries(self);
    return 0;
}

/* A metric that repeats an earlier one is the same test under another name. */
static bool is_tested(const struct comparison_metric *metric)
{
    return metric->primary && !metric->repeats;
}

/* Corrects p of the primary metrics for their number. `rows` has the differences of each metric in each block and is
 * overwritten. */
static void correct(struct comparison *self, double *rows, double threshold)
{
    double p[METRIC_COUNT * OP_COUNT];
    size_t tests = 0, corrected = 0;
    for (size_t i = 0; i < self->metric_count; i++) {
        if (!is_tested(&self->metrics[i]))
            continue;
        memmove(rows + tests * self->blocks, rows + i * self->blocks, self->blocks * sizeof *rows);
        p[tests++] = self->metrics[i].p;
    }
    if (self->method == COMPARED_BLOCKS)
        stats_flip_blocks(rows, tests, self->blocks, threshold, p);
    else
        stats_holm(p, tests);
    for (size_t i = 0; i < self->metric_count; i++)
        if (is_tested(&self->metrics[i]))
            self->metrics[i].p = p[corrected++];
}

static void judge(struct comparison *self, const struct comparison_options *options)
{
    size_t tests = 0;
    bool one_run = self->method == COMPARED_PREDICTION;
    for (size_t i = 0; i < self->metric_count; i++)
        tests += is_tested(&self->metrics[i]);
    for (size_t i = 0; i < self->metric_count; i++) {
        struct comparison_metric *metric = &self->metrics[i];
        bool lower = metric_row(metric->metric)->direction != METRIC_HIGHER_IS_BETTER;
        if (metric->primary && metric->repeats)
            metric->p = metric->repeats->p;
        metric->verdict = VERDICT_INCONCLUSIVE;
        if (!metric->primary || self->method == COMPARED_ITERATIONS || self->refused ||
            !isfinite(metric->shift.estimate))
            continue;
        metric->verdict = stats_verdict(&metric->shift, metric->p, one_run ? COMPARISON_ONE_RUN_LEVEL : STATS_LEVEL,
                                        options->threshold, lower);
        if (one_run && metric->base_n < COMPARISON_MIN_EARLIER)
            metric->more_runs = COMPARISON_MIN_EARLIER - metric->base_n;
        else if (metric->verdict == VERDICT_INCONCLUSIVE)
            metric->more_runs = stats_more_runs(&metric->shift, metric->run_variance, metric->base_n, metric->other_n,
                                                options->threshold, tests);
    }
}

static int compare_metrics(struct comparison *self, const struct comparison_side *base,
                           const struct comparison_side *other, const size_t *blocks,
                           const struct comparison_options *options, struct cb_err *err)
{
    struct sample_set a = {0}, b = {0};
    size_t most = base->count + other->count;
    for (size_t i = 0; i < self->metric_count && self->method == COMPARED_ITERATIONS; i++) {
        const struct run_metric *x = run_info_metric(base->runs[0], self->metrics[i].op, self->metrics[i].metric);
        const struct run_metric *y = run_info_metric(other->runs[0], self->metrics[i].op, self->metrics[i].metric);
        most = x->summary.n > most ? x->summary.n : most;
        most = y->summary.n > most ? y->summary.n : most;
    }
    size_t places = self->metric_count * self->blocks;
    double *rows = malloc((places + 1) * sizeof *rows);
    for (size_t i = 0; rows && i < places; i++)
        rows[i] = NAN;
    int rc = rows ? set_init(&a, most, err) : alloc_fail(err, "to compare runs");
    if (rc == 0)
        rc = set_init(&b, most, err);
    for (size_t i = 0; i < self->metric_count && rc == 0; i++) {
        struct comparison_metric *metric = &self->metrics[i];
        if (self->method == COMPARED_ITERATIONS) {
            fill_from_iterations(&a, base->runs[0], metric);
            fill_from_iterations(&b, other->runs[0], metric);
        }
        if (self->method != COMPARED_ITERATIONS || a.count == 0 || b.count == 0) {
            fill_from_runs(&a, base, blocks, metric);
            fill_from_runs(&b, other, blocks + base->count, metric);
        }
        rc = compare_sets(self, metric, &a, &b, rows + i * self->blocks, err);
        /* Too few values for an interval: the estimate would be no better than the ratio of the printed medians, and
         * might contradict it. */
        if (!isfinite(metric->shift.high) && isfinite(metric->shift.estimate) && metric->base > 0)
            metric->shift.estimate = metric->other / metric->base - 1;
        metric->repeats = repeated_primary(self, i, base, other);
        bool looked_at = metric->primary && !metric->repeats && self->method != COMPARED_ITERATIONS;
        if (rc == 0 && looked_at)
            rc = add_outliers(self, metric, &a, true, err);
        if (rc == 0 && looked_at)
            rc = add_outliers(self, metric, &b, false, err);
    }
    if (rc == 0 && self->method != COMPARED_ITERATIONS)
        correct(self, rows, options->threshold);
    free(rows);
    set_release(&a);
    set_release(&b);
    return rc;
}

int comparison_compute(const struct comparison_side *base, const struct comparison_side *other,
                       const struct comparison_options *options, struct comparison *out, struct cb_err *err)
{
    const struct comparison_side *const sides[2] = {base, other};
    struct comparison self = {.method = COMPARED_RUNS};
    for (int i = 0; i < 2; i++)
        if (sides[i]->count == 0)
            return cb_fail(err, CB_ERR_USAGE, "nothing to compare: %s has no run that passed%s%s", sides[i]->name,
                           i == 0 ? " but those it is compared with" : "",
                           sides[i]->left_out ? " (see `ckptbench list`)" : "");
    size_t *blocks = calloc(base->count + other->count + 1, sizeof *blocks);
    if (!blocks)
        return alloc_fail(err, "to compare runs");
    int rc = differences_find(sides, &self, err);
    if (rc == 0)
        rc = number_blocks(sides, &self.differs, blocks, &self.blocks, err);
    if (rc == 0)
        rc = list_metrics(&self, base, other, err);
    if (rc == 0) {
        self.refused = self.confounded.count > 0 && !options->across;
        if (base->count == 1 && other->count == 1)
            self.method = COMPARED_ITERATIONS;
        else if (other->count == 1)
            self.method = COMPARED_PREDICTION;
        else if (self.blocks >= COMPARISON_MIN_BLOCKS)
            self.method = COMPARED_BLOCKS;
        rc = compare_metrics(&self, base, other, blocks, options, err);
    }
    if (rc == 0) {
        judge(&self, options);
        for (size_t i = 0; i < base->count; i++)
            self.suspected_cache_base += base->runs[i]->suspected_cache;
        for (size_t i = 0; i < other->count; i++)
            self.suspected_cache_other += other->runs[i]->suspected_cache;
        *out = self;
    } else {
        comparison_release(&self);
    }
    free(blocks);
    return rc;
}

void comparison_release(struct comparison *self)
{
    free(self->metrics);
    free(self->outliers);
    differences_release(&self->differs);
    differences_release(&self->confounded);
    alloc_free_texts(self->same, self->same_count);
    *self = (struct comparison){0};
}

int comparison_exit_code(const struct comparison *self)
{
    bool primary = false, inconclusive = false;
    for (size_t i = 0; i < self->metric_count && self->metrics[i].primary; i++) {
        primary = true;
        if (self->metrics[i].verdict == VERDICT_WORSE)
            return CB_EXIT_REGRESSION;
        inconclusive |= self->metrics[i].verdict == VERDICT_INCONCLUSIVE;
    }
    return primary && !inconclusive ? CB_EXIT_PASS : CB_EXIT_INCONCLUSIVE;
}
