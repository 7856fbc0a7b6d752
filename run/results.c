/* Computes figures from records: values of ranks become one per iteration, and those one per run. */
#include "run/results.h"

#include "core/alloc.h"

#include <assert.h>
#include <math.h>
#include <stdbool.h>
#include <string.h>

#define MIB_BYTES 1048576.0
/* A smaller slowness is not explained: little would be gained, and it may be chance. */
#define DISTINCT_EXCESS 0.02
#define REASON_SHARE 0.5 /* of a rank's slowness; a state with less of it is not the reason */

/* One sample with its rank; sorted by operation, iteration, rank. */
struct entry {
    const struct sample *sample;
    uint32_t rank;
};

/* What all ranks did in one iteration of one operation. `entries` has one per rank, ascending. */
struct group {
    enum operation op;
    uint32_t iteration;
    uint32_t flags;    /* any rank's flags */
    bool complete;     /* all ranks of the world have a sample, and none failed */
    size_t first, end; /* entries */
};

struct work {
    const struct record *record;
    struct results *results;
    struct entry *entries;
    size_t entry_count;
    struct group *groups;
    size_t group_count;
    double *values; /* scratch: one per group */
};

static int compare_entries(const void *a, const void *b)
{
    const struct entry *x = a, *y = b;
    if (x->sample->op != y->sample->op)
        return x->sample->op < y->sample->op ? -1 : 1;
    if (x->sample->iteration != y->sample->iteration)
        return x->sample->iteration < y->sample->iteration ? -1 : 1;
    if (x->rank != y->rank)
        return x->rank < y->rank ? -1 : 1;
    return x->sample < y->sample ? -1 : x->sample > y->sample; /* in order of creation */
}

static int gather_entries(struct work *work, struct cb_err *err)
{
    const struct record *record = work->record;
    size_t count = 0;
    for (uint32_t i = 0; i < record->rank_count; i++)
        count += record->ranks[i].sample_count;
    work->entries = calloc(count + 1, sizeof *work->entries);
    work->groups = calloc(count + 1, sizeof *work->groups);
    work->values = calloc(count + 1, sizeof *work->values);
    if (!work->entries || !work->groups || !work->values)
        return alloc_fail(err, "for the results of %zu samples", count);
    for (uint32_t i = 0; i < record->rank_count; i++) {
        const struct record_rank *rank = &record->ranks[i];
        for (uint32_t k = 0; k < rank->sample_count; k++)
            work->entries[work->entry_count++] = (struct entry){&rank->samples[k], rank->rank};
    }
    qsort(work->entries, work->entry_count, sizeof *work->entries, compare_entries);
    return 0;
}

static void make_groups(struct work *work)
{
    size_t end;
    for (size_t first = 0; first < work->entry_count; first = end) {
        const struct sample *sample = work->entries[first].sample;
        struct group group = {.op = (enum operation)sample->op, .iteration = sample->iteration, .first = first};
        uint32_t ranks = 0;
        for (end = first; end < work->entry_count; end++) {
            const struct entry *entry = &work->entries[end];
            if (entry->sample->op != sample->op || entry->sample->iteration != sample->iteration)
                break;
            group.flags |= entry->sample->flags;
            ranks += end == first || entry->rank != work->entries[end - 1].rank ? 1 : 0;
        }
        group.end = end;
        group.complete = ranks == work->record->world_size && !(group.flags & SAMPLE_FAILED);
        work->groups[work->group_count++] = group;
    }
}

static bool is_measured(const struct group *group, enum operation op)
{
    return group->op == op && group->complete && !(group->flags & SAMPLE_WARMUP);
}

/* NAN if any rank lacks a value, except in the suite, whose tests do not run on every rank. */
static double over_ranks(const struct work *work, const struct group *group, enum metric_id metric,
                         enum metric_over how)
{
    double sum = 0, max = -INFINITY;
    size_t count = 0;
    for (size_t i = group->first; i < group->end; i++) {
        double value = work->entries[i].sample->values[metric];
        if (isnan(value) && metric_is_of_suite(metric))
            continue;
        sum += value; /* NAN makes the result NAN */
        max = value > max ? value : max;
        count++;
    }
    if (isnan(sum) || count == 0)
        return NAN;
    if (how == METRIC_OVER_MAX)
        return max;
    return how == METRIC_OVER_SUM ? sum : sum / (double)count;
}

static double of_rank_0(const struct work *work, const struct group *group, enum metric_id metric)
{
    const struct entry *entry = &work->entries[group->first];
    return entry->rank == 0 ? entry->sample->values[metric] : NAN;
}

static double iteration_value(const struct work *work, const struct group *group, enum metric_id metric)
{
    double op_s = over_ranks(work, group, METRIC_OP_S, METRIC_OVER_MAX);
    double needed = over_ranks(work, group, METRIC_BYTES_NEEDED, METRIC_OVER_SUM);
    double checkpoint_bytes = work->record->run_values[METRIC_CHECKPOINT_BYTES];
    switch (metric) {
    case METRIC_SAVE_S:
    case METRIC_LOAD_S:
    case METRIC_STEP_S:
    case METRIC_CORRECTED_SAVE_DURATIONS_S:
    case METRIC_CORRECTED_LOAD_DURATIONS_S:
        return op_s;
    case METRIC_TOKENS_PER_S:
        return over_ranks(work, group, METRIC_TOKENS, METRIC_OVER_SUM) / op_s;
    case METRIC_SAVE_BYTES_PER_S:
    case METRIC_LOAD_BYTES_PER_S:
    case METRIC_VERIFY_BYTES_PER_S:
        return needed > 0 ? needed / op_s : NAN; /* no bytes: none were seen, or there was nothing to move */
    case METRIC_SAVE_IMBALANCE:
    case METRIC_LOAD_IMBALANCE:
    case METRIC_VERIFY_IMBALANCE:
        return over_ranks(work, group, METRIC_OWN_S, METRIC_OVER_MAX) /
               over_ranks(work, group, METRIC_OWN_S, METRIC_OVER_MEAN);
    case METRIC_READ_AMPLIFICATION:
        return over_ranks(work, group, METRIC_BYTES_MOVED, METRIC_OVER_SUM) / needed;
    case METRIC_THROUGHPUT_MIBS:
        return checkpoint_bytes / MIB_BYTES / of_rank_0(work, group, METRIC_OP_S);
    case METRIC_RANK0_SAVE_BYTES_PER_S:
    case METRIC_RANK0_LOAD_BYTES_PER_S:
        return checkpoint_bytes / of_rank_0(work, group, METRIC_OWN_S);
    default:
        return over_ranks(work, group, metric, metric_row(metric)->over);
    }
}

static int add_row(struct work *work, enum operation op, enum metric_id metric, const double *values, size_t n,
                   struct cb_err *err)
{
    struct results *results = work->results;
    if (alloc_grow(&results->rows, results->count, sizeof *results->rows, err))
        return CB_ERR_MEMORY;
    double *copy = malloc(n * sizeof *copy);
    if (!copy)
        return alloc_fail(err, "for %zu values of %s", n, metric_row(metric)->name);
    memcpy(copy, values, n * sizeof *copy);
    struct result_row *row = &results->rows[results->count++];
    *row = (struct result_row){.op = op, .metric = metric, .iterations = copy};
    stats_summarize(copy, n, &row->summary);
    return 0;
}

/* Quantiles of first-byte latency over all requests of all ranks and iterations, since quantiles of samples cannot be
 * added. */
static double ttfb_quantile(const struct work *work, enum operation op, enum metric_id metric)
{
    const struct histogram *ttfb = &work->record->ttfb[op];
    if (ttfb->count == 0 || (metric != METRIC_TTFB_P50_S && metric != METRIC_TTFB_P99_S))
        return NAN;
    return (double)histogram_quantile(ttfb, metric == METRIC_TTFB_P50_S ? 0.5 : 0.99) / 1e9;
}

/* One metric of one operation over the measured iterations; no row if it has no value. */
static int add_iterations(struct work *work, enum operation op, enum metric_id metric, struct cb_err *err)
{
    size_t n = 0;
    double merged = ttfb_quantile(work, op, metric);
    if (isfinite(merged))
        return add_row(work, op, metric, &merged, 1, err);
    for (size_t i = 0; i < work->group_count; i++) {
        if (!is_measured(&work->groups[i], op))
            continue;
        double value = iteration_value(work, &work->groups[i], metric);
        if (isfinite(value))
            work->values[n++] = value;
    }
    return n ? add_row(work, op, metric, work->values, n, err) : 0;
}

static double median(const double *values, size_t n)
{
    struct summary summary;
    stats_summarize(values, n, &summary);
    return summary.median;
}

static double median_of(const struct work *work, enum operation op, enum metric_id metric)
{
    const struct result_row *row = results_find(work->results, op, metric);
    return row ? row->summary.median : NAN;
}

/* A raw limit from its own samples: bytes of all ranks divided by the slowest rank's time; the median of the
 * samples. */
static double baseline_rate(struct work *work, enum operation op)
{
    size_t n = 0;
    for (size_t i = 0; i < work->group_count; i++) {
        if (!is_measured(&work->groups[i], op))
            continue;
        double rate = over_ranks(work, &work->groups[i], METRIC_BYTES_MOVED, METRIC_OVER_SUM) /
                      over_ranks(work, &work->groups[i], METRIC_OP_S, METRIC_OVER_MAX);
        if (isfinite(rate))
            work->values[n++] = rate;
    }
    return median(work->values, n);
}

/* Requests of all ranks in measured saves and loads, and the time of these operations. */
static double request_rate(const struct work *work)
{
    double requests = 0, seconds = 0;
    for (size_t i = 0; i < work->group_count; i++) {
        const struct group *group = &work->groups[i];
        if (!is_measured(group, OP_SAVE) && !is_measured(group, OP_LOAD))
            continue;
        requests += over_ranks(work, group, METRIC_REQUESTS, METRIC_OVER_SUM);
        seconds += over_ranks(work, group, METRIC_OP_S, METRIC_OVER_MAX);
    }
    return requests > 0 ? requests / seconds : NAN;
}

/* Share of requests that succeeded, over all saves and loads except warm-up, including failed ones. */
static double success_ratio(const struct work *work)
{
    double requests = 0, errors = 0;
    for (size_t i = 0; i < work->entry_count; i++) {
        const struct sample *sample = work->entries[i].sample;
        double sent = sample->values[METRIC_REQUESTS], failed = sample->values[METRIC_ERRORS];
        if ((sample->op != OP_SAVE && sample->op != OP_LOAD) || sample->flags & SAMPLE_WARMUP || isnan(sent))
            continue;
        requests += sent;
        errors += isnan(failed) ? 0 : failed;
    }
    return requests > 0 ? 1 - errors / requests : NAN;
}

static void fill_if_absent(double *value, double computed)
{
    if (isnan(*value))
        *value = computed;
}

static int add_run_values(struct work *work, struct cb_err *err)
{
    double values[METRIC_COUNT];
    memcpy(values, work->record->run_values, sizeof values);
    fill_if_absent(&values[METRIC_BASELINE_WRITE_BYTES_PER_S], baseline_rate(work, OP_BASELINE_WRITE));
    fill_if_absent(&values[METRIC_BASELINE_READ_BYTES_PER_S], baseline_rate(work, OP_BASELINE_READ));
    values[METRIC_SAVE_LIMIT_FRACTION] =
        median_of(work, OP_SAVE, METRIC_SAVE_BYTES_PER_S) / values[METRIC_BASELINE_WRITE_BYTES_PER_S];
    values[METRIC_SAVE_OVERHEAD] =
        values[METRIC_CHECKPOINT_STORED_BYTES] / median_of(work, OP_SAVE, METRIC_BYTES_NEEDED) - 1;
    values[METRIC_LOAD_LIMIT_FRACTION] =
        median_of(work, OP_LOAD, METRIC_LOAD_BYTES_PER_S) / values[METRIC_BASELINE_READ_BYTES_PER_S];
    fill_if_absent(&values[METRIC_REQUEST_RATE], request_rate(work));
    fill_if_absent(&values[METRIC_SUCCESS_RATIO], success_ratio(work));
    int rc = 0;
    for (unsigned i = 0; i < METRIC_COUNT && !rc; i++) {
        if (metric_row((enum metric_id)i)->scope == METRIC_OF_RUN && isfinite(values[i]))
            rc = add_row(work, OP_NONE, (enum metric_id)i, &values[i], 1, err);
    }
    return rc;
}

static double state_seconds(const double *values, unsigned state)
{
    double seconds = values[metric_of_state((enum rank_state)state)];
    return isnan(seconds) ? 0 : seconds;
}

static void share_states(struct work *work, enum operation op)
{
    double shares[STATE_COUNT] = {0};
    size_t n = 0;
    for (size_t i = 0; i < work->group_count; i++) {
        if (!is_measured(&work->groups[i], op))
            continue;
        for (size_t k = work->groups[i].first; k < work->groups[i].end; k++) {
            const double *values = work->entries[k].sample->values;
            double total = 0;
            for (unsigned state = 0; state < STATE_COUNT; state++)
                total += state_seconds(values, state);
            if (!(total > 0))
                continue;
            for (unsigned state = 0; state < STATE_COUNT; state++)
                shares[state] += state_seconds(values, state) / total;
            n++;
        }
    }
    for (unsigned state = 0; state < STATE_COUNT && n > 0; state++)
        work->results->state_share[op][state] = shares[state] / (double)n;
}

/* The rank that finished its own work last; -1 if unknown. */
static int slowest_in(const struct work *work, const struct group *group)
{
    int slowest = -1;
    double longest = -INFINITY;
    for (size_t i = group->first; i < group->end; i++) {
        double own_s = work->entries[i].sample->values[METRIC_OWN_S];
        if (own_s > longest) {
            longest = own_s;
            slowest = (int)work->entries[i].rank;
        }
    }
    return slowest;
}

/* Median, over the iterations in which `rank` was the slowest, of its own_s divided by the ranks' mean, minus 1.
 * Never negative, since the slowest rank of an iteration is never below the mean. */
static double excess_of(struct work *work, enum operation op, int rank)
{
    size_t n = 0;
    for (size_t i = 0; i < work->group_count; i++) {
        const struct group *group = &work->groups[i];
        if (is_measured(group, op) && slowest_in(work, group) == rank)
            work->values[n++] = over_ranks(work, group, METRIC_OWN_S, METRIC_OVER_MAX) /
                                    over_ranks(work, group, METRIC_OWN_S, METRIC_OVER_MEAN) -
                                1;
    }
    double excess = median(work->values, n);
    return isfinite(excess) ? excess : 0;
}

/* How many seconds longer than the average rank `rank` was in a state, over the iterations in which it was the slowest;
 * returns the state with the largest excess, if that is enough of the rank's. Waiting for others is not considered: a
 * slow rank waits least. */
static enum rank_state state_behind(const struct work *work, enum operation op, int rank)
{
    double excess[STATE_COUNT] = {0}, own_excess = 0;
    enum rank_state most = STATE_COUNT;
    for (size_t i = 0; i < work->group_count; i++) {
        const struct group *group = &work->groups[i];
        if (!is_measured(group, op) || slowest_in(work, group) != rank)
            continue;
        for (size_t k = group->first; k < group->end; k++) {
            double share = (work->entries[k].rank == (uint32_t)rank ? 1 : 0) - 1 / (double)(group->end - group->first);
            const double *values = work->entries[k].sample->values;
            own_excess += share * values[METRIC_OWN_S];
            for (int state = 0; state < STATE_COUNT; state++)
                excess[state] += share * state_seconds(values, (unsigned)state);
        }
    }
    for (int state = 0; state < STATE_COUNT; state++)
        if (state != STATE_WAIT && excess[state] > 0 && excess[state] >= REASON_SHARE * own_excess &&
            (most == STATE_COUNT || excess[state] > excess[most]))
            most = (enum rank_state)state;
    return most;
}

static int find_slowest(struct work *work, enum operation op, struct cb_err *err)
{
    struct results *results = work->results;
    uint32_t *times = calloc((size_t)work->record->world_size + 1, sizeof *times);
    if (!times)
        return alloc_fail(err, "for %u ranks", work->record->world_size);
    uint32_t known = 0, most = 0;
    for (size_t i = 0; i < work->group_count; i++) {
        int rank = is_measured(&work->groups[i], op) ? slowest_in(work, &work->groups[i]) : -1;
        if (rank < 0)
            continue;
        known++;
        times[rank]++;
        if (times[rank] > most || (times[rank] == most && rank < results->slowest_rank[op])) {
            most = times[rank];
            results->slowest_rank[op] = rank;
        }
    }
    free(times);
    if (known > 0) {
        results->slowest_rank_share[op] = (double)most / known;
        results->slowest_rank_excess[op] = excess_of(work, op, results->slowest_rank[op]);
        if (results->slowest_rank_excess[op] >= DISTINCT_EXCESS)
            results->slowest_rank_state[op] = state_behind(work, op, results->slowest_rank[op]);
    }
    return 0;
}

static void count_marks(struct work *work)
{
    struct results *results = work->results;
    bool right = !(work->record->run_values[METRIC_PROBLEMS] > 0);
    for (size_t i = 0; i < work->group_count; i++) {
        const struct group *group = &work->groups[i];
        if (group->op == OP_VERIFY && !(group->flags & SAMPLE_WARMUP)) {
            results->iterations_to_verify++;
            results->iterations_verified += group->complete && right ? 1 : 0;
        }
        if (is_measured(group, OP_LOAD)) {
            results->suspected_cache += group->flags & SAMPLE_SUSPECTED_CACHE ? 1 : 0;
            results->coldness_unknown += group->flags & SAMPLE_COLDNESS_UNKNOWN ? 1 : 0;
        }
    }
}

static int compute(struct work *work, struct cb_err *err)
{
    int rc = gather_entries(work, err);
    if (rc)
        return rc;
    make_groups(work);
    count_marks(work);
    for (enum operation op = OP_NONE + 1; op < OP_COUNT && !rc; op++)
        for (enum metric_id metric = 0; metric < METRIC_COUNT && !rc; metric++)
            if (metric_has_operation(metric, op))
                rc = add_iterations(work, op, metric, err);
    if (!rc)
        rc = add_run_values(work, err);
    for (enum operation op = OP_NONE + 1; op < OP_COUNT && !rc; op++) {
        share_states(work, op);
        rc = find_slowest(work, op, err);
    }
    return rc;
}

int results_compute(const struct record *record, struct results *results, struct cb_err *err)
{
    struct results computed = {0};
    struct work work = {.record = record, .results = &computed};
    for (unsigned op = 0; op < OP_COUNT; op++) {
        computed.slowest_rank[op] = -1;
        computed.slowest_rank_state[op] = STATE_COUNT;
    }
    int rc = compute(&work, err);
    free(work.entries);
    free(work.groups);
    free(work.values);
    if (rc)
        results_release(&computed);
    else
        *results = computed;
    return rc;
}

void results_release(struct results *self)
{
    for (size_t i = 0; i < self->count; i++)
        free(self->rows[i].iterations);
    free(self->rows);
    self->rows = NULL;
    self->count = 0;
}

const struct result_row *results_find(const struct results *self, enum operation op, enum metric_id metric)
{
    for (size_t i = 0; i < self->count; i++) {
        if (self->rows[i].op == op && self->rows[i].metric == metric)
            return &self->rows[i];
    }
    return NULL;
}
