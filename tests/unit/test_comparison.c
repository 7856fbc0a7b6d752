/* Verdicts over runs: same, better, worse, confounded, in blocks, within a run. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/compare/comparison.h"

#define MOST_RUNS (8 + STATS_MOST_MORE_RUNS)

struct made_side {
    struct run_info runs[MOST_RUNS];
    const struct run_info *pointers[MOST_RUNS];
    struct comparison_side side;
};

static void add_metric(struct run_info *run, enum operation op, enum metric_id metric, const double *iterations,
                       size_t n)
{
    struct run_metric *made = &run->metrics[run->metric_count++];
    made->op = op;
    made->metric = metric;
    made->iterations = malloc(n * sizeof(double));
    memcpy(made->iterations, iterations, n * sizeof(double));
    stats_summarize(iterations, n, &made->summary);
}

/* `values` are the medians of save_s; load_s is 2.0 everywhere, give or take nothing. */
static void make_side(struct made_side *made, const char *name, const double *values, size_t count)
{
    struct cb_err err;
    memset(made, 0, sizeof *made);
    for (size_t i = 0; i < count; i++) {
        struct run_info *run = &made->runs[i];
        snprintf(run->run, sizeof run->run, "%s-%zu", name, i);
        assert_int_equal(experiment_new(&run->experiment, &err), 0);
        run->metrics = calloc(8, sizeof *run->metrics);
        add_metric(run, OP_SAVE, METRIC_SAVE_S, (double[]){values[i] * 0.99, values[i], values[i] * 1.01}, 3);
        add_metric(run, OP_DELETE, METRIC_DELETE_S, (double[]){0.1}, 1);
        add_metric(run, OP_LOAD, METRIC_LOAD_S, (double[]){2.0 + (double)i * 1e-4}, 1);
        add_metric(run, OP_SAVE, METRIC_SAVE_BYTES_PER_S, (double[]){1e9 / values[i]}, 1);
        add_metric(run, OP_SAVE, METRIC_IO_S, (double[]){values[i] / 2}, 1);
        add_metric(run, OP_SAVE, METRIC_RETRIES, (double[]){0}, 1);
        made->pointers[i] = run;
    }
    made->side = (struct comparison_side){.name = name, .runs = made->pointers, .count = count};
}

static void free_side(struct made_side *made)
{
    for (size_t i = 0; i < made->side.count; i++) {
        struct run_info *run = &made->runs[i];
        for (size_t k = 0; k < run->metric_count; k++)
            free(run->metrics[k].iterations);
        free(run->metrics);
        experiment_free(run->experiment);
    }
}

static void set_key(struct made_side *made, const char *key, const char *value)
{
    struct cb_err err;
    for (size_t i = 0; i < made->side.count; i++)
        assert_int_equal(experiment_set(made->runs[i].experiment, key, value, "test", &err), 0);
}

static void set_fingerprint(struct made_side *made, char **keys, char **values, size_t count)
{
    for (size_t i = 0; i < made->side.count; i++) {
        made->runs[i].fingerprint_keys = keys;
        made->runs[i].fingerprint_values = values;
        made->runs[i].fingerprint_count = count;
    }
}

static void put_in_sweep(struct made_side *made, const char *sweep)
{
    for (size_t i = 0; i < made->side.count; i++) {
        snprintf(made->runs[i].sweep, sizeof made->runs[i].sweep, "%s", sweep);
        made->runs[i].block = i + 1;
    }
}

static void compare(const struct made_side *base, const struct made_side *other, bool across, struct comparison *out)
{
    struct cb_err err;
    struct comparison_options options = {.threshold = COMPARISON_DEFAULT_THRESHOLD, .across = across};
    assert_int_equal(comparison_compute(&base->side, &other->side, &options, out, &err), 0);
}

static const struct comparison_metric *metric_named(const struct comparison *comparison, const char *name)
{
    for (size_t i = 0; i < comparison->metric_count; i++)
        if (strcmp(comparison->metrics[i].name, name) == 0)
            return &comparison->metrics[i];
    return NULL;
}

static const double steady[] = {9.02, 9.00, 9.05, 8.98, 9.03, 9.01, 8.99, 9.04, 9.02, 9.00};
static const double faster[] = {7.61, 7.58, 7.66, 7.60, 7.63, 7.59};

static void a_against_a_is_the_same(void **unused)
{
    (void)unused;
    static const double again[] = {9.01, 9.03, 8.99, 9.04, 9.00, 9.02, 8.98, 9.05, 9.01, 9.03};
    struct made_side base, other;
    struct comparison comparison;
    make_side(&base, "a", steady, 10);
    make_side(&other, "b", again, 10);
    compare(&base, &other, false, &comparison);
    const struct comparison_metric *save = metric_named(&comparison, "save_s");
    assert_int_equal(save->verdict, VERDICT_SAME);
    assert_true(save->shift.low < 0 && save->shift.high > 0);
    assert_int_equal(metric_named(&comparison, "load_s")->verdict, VERDICT_SAME);
    assert_int_equal(comparison_exit_code(&comparison), CB_EXIT_PASS);
    comparison_release(&comparison);
    free_side(&base);
    free_side(&other);
}

static void fifteen_per_cent_less_is_better_and_more_is_a_regression(void **unused)
{
    (void)unused;
    struct made_side base, other;
    struct comparison comparison;
    make_side(&base, "a", steady, 6);
    make_side(&other, "b", faster, 6);
    compare(&base, &other, false, &comparison);
    const struct comparison_metric *save = metric_named(&comparison, "save_s");
    assert_int_equal(save->verdict, VERDICT_BETTER);
    assert_true(fabs(save->shift.estimate + 0.156) < 0.005);
    assert_true(fabs(save->p - 2 * 2.0 / 924) < 1e-9); /* exact at 6 against 6, the smaller of two under Holm */
    assert_int_equal(comparison_exit_code(&comparison), CB_EXIT_PASS);
    comparison_release(&comparison);
    compare(&other, &base, false, &comparison);
    assert_int_equal(metric_named(&comparison, "save_s")->verdict, VERDICT_WORSE);
    assert_int_equal(comparison_exit_code(&comparison), CB_EXIT_REGRESSION);
    comparison_release(&comparison);
    free_side(&base);
    free_side(&other);
}

static void metrics_that_are_not_primary_get_no_verdict(void **unused)
{
    (void)unused;
    struct made_side base, other;
    struct comparison comparison;
    make_side(&base, "a", steady, 6);
    make_side(&other, "b", faster, 6);
    compare(&base, &other, false, &comparison);
    const struct comparison_metric *rate = metric_named(&comparison, "save_bytes_per_s");
    assert_false(rate->primary);
    assert_int_equal(rate->verdict, VERDICT_INCONCLUSIVE);
    assert_true(rate->shift.estimate > 0.15);
    assert_non_null(metric_named(&comparison, "save.io_s"));
    const struct comparison_metric *retries = metric_named(&comparison, "save.retries");
    assert_true(retries->shift.estimate == 0 && retries->p == 1);
    comparison_release(&comparison);
    free_side(&base);
    free_side(&other);
}

static void another_kernel_confounds_unless_asked_for(void **unused)
{
    (void)unused;
    char *keys[] = {"cpu.model", "kernel.release", "machine.hostname"};
    char *old[] = {"Xeon", "6.1.0", "n1"}, *new[] = {"Xeon", "6.12.3", "n2"};
    struct made_side base, other;
    struct comparison comparison;
    make_side(&base, "a", steady, 6);
    make_side(&other, "b", faster, 6);
    set_fingerprint(&base, keys, old, 3);
    set_fingerprint(&other, keys, new, 3);
    compare(&base, &other, false, &comparison);
    assert_int_equal(comparison.confounded.count, 1);
    assert_string_equal(comparison.confounded.items[0].key, "kernel.release");
    assert_string_equal(comparison.confounded.items[0].other, "6.12.3");
    assert_int_equal(comparison.same_count, 1);
    assert_string_equal(comparison.same[0], "cpu");
    assert_int_equal(metric_named(&comparison, "save_s")->verdict, VERDICT_INCONCLUSIVE);
    assert_int_equal(comparison_exit_code(&comparison), CB_EXIT_INCONCLUSIVE);
    comparison_release(&comparison);
    compare(&base, &other, true, &comparison);
    assert_int_equal(metric_named(&comparison, "save_s")->verdict, VERDICT_BETTER);
    comparison_release(&comparison);
    free_side(&base);
    free_side(&other);
}

static void keys_that_differ_are_shown_and_explain_what_follows_from_them(void **unused)
{
    (void)unused;
    char *keys[] = {"filesystem.type"};
    char *ext4[] = {"ext4"}, *xfs[] = {"xfs"};
    struct made_side base, other;
    struct comparison comparison;
    make_side(&base, "a", steady, 6);
    make_side(&other, "b", faster, 6);
    set_key(&other, "io.engine", "psync");
    set_key(&other, "store", "/mnt/xfs");
    set_key(&other, "label.kind", "nightly");
    set_fingerprint(&base, keys, ext4, 1);
    set_fingerprint(&other, keys, xfs, 1);
    compare(&base, &other, false, &comparison);
    assert_int_equal(comparison.confounded.count, 0);
    assert_int_equal(comparison.differs.count, 4);
    assert_string_equal(comparison.differs.items[0].key, "io.engine");
    assert_string_equal(comparison.differs.items[0].base, "io_uring");
    assert_string_equal(comparison.differs.items[0].other, "psync");
    assert_string_equal(comparison.differs.items[1].key, "store");
    assert_string_equal(comparison.differs.items[2].key, "label.kind");
    assert_string_equal(comparison.differs.items[3].key, "filesystem.type");
    assert_int_equal(metric_named(&comparison, "save_s")->verdict, VERDICT_BETTER);
    comparison_release(&comparison);
    free_side(&base);
    free_side(&other);
}

/* Every block is 20 % slower than the one before; inside each, the other side is 6 to 8 % faster. */
static void blocks_take_the_evening_out(void **unused)
{
    (void)unused;
    double a[8], b[8];
    for (size_t i = 0; i < 8; i++) {
        a[i] = 5 * pow(1.2, (double)i);
        b[i] = a[i] * (0.92 + 0.0025 * (double)i);
    }
    struct made_side base, other;
    struct comparison comparison;
    make_side(&base, "a", a, 8);
    make_side(&other, "b", b, 8);
    set_key(&other, "io.engine", "psync");
    compare(&base, &other, false, &comparison);
    assert_int_equal(comparison.method, COMPARED_RUNS);
    assert_int_equal(metric_named(&comparison, "save_s")->verdict, VERDICT_INCONCLUSIVE);
    assert_true(metric_named(&comparison, "save_s")->more_runs > 8);
    comparison_release(&comparison);
    put_in_sweep(&base, "s1");
    put_in_sweep(&other, "s1");
    compare(&base, &other, false, &comparison);
    assert_int_equal(comparison.method, COMPARED_BLOCKS);
    assert_int_equal(comparison.blocks, 8);
    const struct comparison_metric *save = metric_named(&comparison, "save_s");
    assert_int_equal(save->verdict, VERDICT_BETTER);
    assert_true(save->shift.low > -0.085 && save->shift.high < -0.055);
    comparison_release(&comparison);
    free_side(&base);
    free_side(&other);
}

static void blocks_of_another_sweep_are_not_shared(void **unused)
{
    (void)unused;
    struct made_side base, other;
    struct comparison comparison;
    make_side(&base, "a", steady, 6);
    make_side(&other, "b", faster, 6);
    put_in_sweep(&base, "s1");
    put_in_sweep(&other, "s2");
    compare(&base, &other, false, &comparison);
    assert_int_equal(comparison.method, COMPARED_RUNS);
    assert_int_equal(comparison.blocks, 0);
    comparison_release(&comparison);
    free_side(&base);
    free_side(&other);
}

static void one_run_against_one_is_within_the_run_and_gives_no_verdict(void **unused)
{
    (void)unused;
    struct made_side base, other;
    struct comparison comparison;
    make_side(&base, "a", steady, 1);
    make_side(&other, "b", faster, 1);
    compare(&base, &other, false, &comparison);
    assert_int_equal(comparison.method, COMPARED_ITERATIONS);
    const struct comparison_metric *save = metric_named(&comparison, "save_s");
    assert_int_equal(save->base_n, 3);
    assert_true(fabs(save->shift.estimate + 0.156) < 0.01);
    assert_int_equal(save->verdict, VERDICT_INCONCLUSIVE);
    assert_int_equal(comparison_exit_code(&comparison), CB_EXIT_INCONCLUSIVE);
    comparison_release(&comparison);
    free_side(&base);
    free_side(&other);
}

static void an_outlier_is_named_and_not_dropped(void **unused)
{
    (void)unused;
    double values[10];
    memcpy(values, steady, sizeof values);
    values[4] = 14.5;
    struct made_side base, other;
    struct comparison comparison;
    make_side(&base, "a", steady, 10);
    make_side(&other, "b", values, 10);
    compare(&base, &other, false, &comparison);
    assert_int_equal(comparison.outlier_count, 1);
    assert_string_equal(comparison.outliers[0].run, "b-4");
    assert_false(comparison.outliers[0].of_base);
    assert_int_equal(metric_named(&comparison, "save_s")->other_n, 10);
    comparison_release(&comparison);
    free_side(&base);
    free_side(&other);
}

static void a_side_without_runs_is_a_usage_error(void **unused)
{
    (void)unused;
    struct made_side base, other;
    struct comparison comparison;
    struct cb_err err;
    make_side(&base, "a", steady, 2);
    make_side(&other, "nothing", steady, 0);
    assert_int_equal(
        comparison_compute(&base.side, &other.side, &(struct comparison_options){0.03, false}, &comparison, &err),
        CB_ERR_USAGE);
    assert_non_null(strstr(err.message, "nothing"));
    free_side(&base);
}

/* Wilcoxon's interval for n = 6 is the range of the differences at 96.9 %; none exists for n = 5 at 95 %. */
static void signed_rank_interval_is_exact(void **unused)
{
    (void)unused;
    static const double d[] = {0.01, 0.02, 0.03, 0.04, 0.05, 0.06};
    struct shift shift;
    signed_rank_shift(d, 6, 0.95, &shift);
    assert_true(fabs(shift.low - expm1(0.01)) < 1e-12);
    assert_true(fabs(shift.high - expm1(0.06)) < 1e-12);
    assert_true(fabs(shift.estimate - expm1(0.035)) < 1e-12);
    signed_rank_shift(d, 5, 0.95, &shift);
    assert_true(shift.low == -1 && isinf(shift.high));
}

static void whole_operations_come_before_stalls(void **unused)
{
    (void)unused;
    struct made_side base, other;
    struct comparison comparison;
    make_side(&base, "a", steady, 6);
    make_side(&other, "b", faster, 6);
    for (size_t i = 0; i < 6; i++) {
        add_metric(&base.runs[i], OP_SAVE, METRIC_STALL_S, (double[]){1 + 0.01 * (double)i}, 1);
        add_metric(&other.runs[i], OP_SAVE, METRIC_STALL_S, (double[]){2 + 0.01 * (double)i}, 1);
    }
    compare(&base, &other, false, &comparison);
    assert_string_equal(comparison.metrics[0].name, "save_s");
    assert_string_equal(comparison.metrics[1].name, "load_s");
    assert_string_equal(comparison.metrics[2].name, "stall_s");
    assert_true(comparison.metrics[2].primary && !comparison.metrics[3].primary);
    assert_int_equal(comparison.metrics[2].verdict, VERDICT_WORSE);
    comparison_release(&comparison);
    free_side(&base);
    free_side(&other);
}

/* Three runs a side and no interval: the shift of all pairs is another figure than the medians shown beside it. */
static void too_few_runs_give_the_change_of_the_medians_they_are_shown_with(void **unused)
{
    (void)unused;
    struct made_side base, other;
    struct comparison comparison;
    make_side(&base, "a", (const double[]){1, 2, 9}, 3);
    make_side(&other, "b", (const double[]){3, 7, 8}, 3);
    compare(&base, &other, false, &comparison);
    const struct comparison_metric *save = metric_named(&comparison, "save_s");
    assert_true(isinf(save->shift.high));
    assert_true(fabs(save->shift.estimate - (save->other / save->base - 1)) < 1e-12);
    assert_int_equal(save->verdict, VERDICT_INCONCLUSIVE);
    comparison_release(&comparison);
    free_side(&base);
    free_side(&other);
}

static void what_equals_a_primary_metric_in_every_run_repeats_it_and_has_no_outliers_of_its_own(void **unused)
{
    (void)unused;
    static const double with_an_outlier[] = {9.01, 9.02, 9.00, 9.03, 9.02, 15};
    struct made_side base, other;
    struct comparison comparison;
    make_side(&base, "a", steady, 6);
    make_side(&other, "b", with_an_outlier, 6);
    for (size_t i = 0; i < 6; i++) {
        add_metric(&base.runs[i], OP_SAVE, METRIC_STALL_S, &steady[i], 1);
        add_metric(&other.runs[i], OP_SAVE, METRIC_STALL_S, &with_an_outlier[i], 1);
    }
    compare(&base, &other, false, &comparison);
    assert_non_null(metric_named(&comparison, "stall_s")->repeats);
    assert_null(metric_named(&comparison, "save_s")->repeats);
    assert_null(metric_named(&comparison, "load_s")->repeats);
    assert_int_equal(comparison.outlier_count, 1);
    assert_string_equal(comparison.outliers[0].metric, "save_s");
    comparison_release(&comparison);
    base.runs[3].metrics[base.runs[3].metric_count - 1].summary.median = 1; /* training did not wait for this one */
    compare(&base, &other, false, &comparison);
    assert_null(metric_named(&comparison, "stall_s")->repeats);
    comparison_release(&comparison);
    free_side(&base);
    free_side(&other);
}

static void what_repeats_a_primary_metric_has_its_verdict_and_does_not_count_under_holm(void **unused)
{
    (void)unused;
    struct made_side base, other;
    struct comparison comparison;
    make_side(&base, "a", steady, 6);
    make_side(&other, "b", faster, 6);
    for (size_t i = 0; i < 6; i++) {
        add_metric(&base.runs[i], OP_SAVE, METRIC_STALL_S, &steady[i], 1);
        add_metric(&other.runs[i], OP_SAVE, METRIC_STALL_S, &faster[i], 1);
    }
    compare(&base, &other, false, &comparison);
    const struct comparison_metric *save = metric_named(&comparison, "save_s");
    const struct comparison_metric *stall = metric_named(&comparison, "stall_s");
    assert_ptr_equal(stall->repeats, save);
    assert_true(fabs(save->p - 2 * 2.0 / 924) <
                1e-9); /* twice the exact p: save_s and load_s count, stall_s does not */
    assert_true(stall->p == save->p);
    assert_int_equal(stall->verdict, VERDICT_BETTER);
    comparison_release(&comparison);
    free_side(&base);
    free_side(&other);
}

/* A simulation of many comparisons of 10 runs a side, or of a night with several before. */

struct simulated {
    bool blocked;      /* each pair of runs shares an evening, and evenings differ by 5 % */
    double effect;     /* of the other side on save_s, as a ratio - 1 */
    double load_noise; /* that of save_s is 3 % */
    bool stall_noise;  /* stall_s has noise of its own, 3 %, instead of being save_s again */
    size_t runs[2];    /* of each side; {0, 0}: 10 and 10 */
};

/* A normal deviate (Box & Muller 1958). */
static double deviate(uint64_t *state)
{
    double uniform[2];
    for (int i = 0; i < 2; i++) {
        *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
        uniform[i] = ((double)(*state >> 11) + 0.5) / (double)(UINT64_C(1) << 53);
    }
    return sqrt(-2 * log(uniform[0])) * cos(2 * acos(-1) * uniform[1]);
}

static void set_value(struct made_side *made, size_t run, enum operation op, enum metric_id id, double value)
{
    for (size_t i = 0; i < made->runs[run].metric_count; i++) {
        struct run_metric *metric = &made->runs[run].metrics[i];
        if (metric->op == op && metric->metric == id) {
            metric->summary.median = value;
            return;
        }
    }
    add_metric(&made->runs[run], op, id, &value, 1);
}

static void draw(struct made_side *side, const struct simulated *what, double effect, const double *evenings,
                 uint64_t *state)
{
    for (size_t i = 0; i < side->side.count; i++) {
        double save = exp(evenings[i] + log1p(effect) + 0.03 * deviate(state));
        set_value(side, i, OP_SAVE, METRIC_SAVE_S, save);
        set_value(side, i, OP_SAVE, METRIC_STALL_S,
                  what->stall_noise ? exp(evenings[i] + 0.03 * deviate(state)) : save);
        set_value(side, i, OP_LOAD, METRIC_LOAD_S, exp(evenings[i] + what->load_noise * deviate(state)));
    }
}

struct counted {
    double significant; /* share of comparisons in which a primary metric has p < 0.05 */
    double judged;      /* in which one is better or worse */
    double worse;       /* in which save_s is worse */
};

static struct counted simulate(const struct simulated *what, unsigned comparisons)
{
    struct made_side base, other;
    struct counted counted = {0};
    uint64_t state = 1;
    double values[MOST_RUNS], evenings[MOST_RUNS] = {0};
    for (size_t i = 0; i < MOST_RUNS; i++)
        values[i] = steady[i % 10];
    make_side(&base, "a", values, what->runs[0] ? what->runs[0] : 10);
    make_side(&other, "b", values, what->runs[1] ? what->runs[1] : 10);
    put_in_sweep(&base, what->blocked ? "s1" : "");
    put_in_sweep(&other, what->blocked ? "s1" : "");
    for (unsigned i = 0; i < comparisons; i++) {
        struct comparison comparison;
        bool significant = false, judged = false;
        for (size_t k = 0; k < 10; k++)
            evenings[k] = what->blocked ? 0.05 * deviate(&state) : 0;
        draw(&base, what, 0, evenings, &state);
        draw(&other, what, what->effect, evenings, &state);
        compare(&base, &other, false, &comparison);
        assert_int_equal(comparison.method, what->blocked        ? COMPARED_BLOCKS
                                            : what->runs[1] == 1 ? COMPARED_PREDICTION
                                                                 : COMPARED_RUNS);
        for (size_t k = 0; k < comparison.metric_count && comparison.metrics[k].primary; k++) {
            enum verdict verdict = comparison.metrics[k].verdict;
            significant |= comparison.metrics[k].p < 0.05;
            judged |= verdict == VERDICT_BETTER || verdict == VERDICT_WORSE;
        }
        counted.significant += significant / (double)comparisons;
        counted.judged += judged / (double)comparisons;
        counted.worse += (metric_named(&comparison, "save_s")->verdict == VERDICT_WORSE) / (double)comparisons;
        comparison_release(&comparison);
    }
    free_side(&base);
    free_side(&other);
    return counted;
}

static void a_against_a_is_judged_different_in_at_most_one_comparison_of_20(void **unused)
{
    (void)unused;
    static const struct simulated cases[] = {
        {.blocked = true, .load_noise = 0.03},
        {.blocked = true, .load_noise = 0.10},
        {.blocked = true, .load_noise = 0.03, .stall_noise = true},
        {.blocked = false, .load_noise = 0.03},
        {.runs = {20, 2}, .load_noise = 0.03},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct counted counted = simulate(&cases[i], 2000);
        print_message("A/A %zu: p < 0.05 in %.3f, judged %.3f\n", i, counted.significant, counted.judged);
        assert_true(counted.significant <= 0.05 + 2 * sqrt(0.05 * 0.95 / 2000)); /* two standard errors */
        assert_true(counted.judged <= 0.05);
    }
}

static void five_per_cent_at_10_runs_a_side_and_3_per_cent_noise_is_found_in_4_comparisons_of_5(void **unused)
{
    (void)unused;
    for (int blocked = 0; blocked < 2; blocked++) {
        struct simulated what = {.blocked = blocked, .effect = 0.05, .load_noise = 0.03};
        struct counted counted = simulate(&what, 2000);
        print_message("power, %s: %.3f\n", blocked ? "blocks" : "runs", counted.worse);
        assert_true(counted.worse >= 0.8);
    }
}

static void a_night_without_a_step_is_judged_different_in_at_most_one_of_100(void **unused)
{
    (void)unused;
    static const struct simulated cases[] = {
        {.runs = {5, 1}, .load_noise = 0.03},
        {.runs = {10, 1}, .load_noise = 0.03},
        {.runs = {10, 1}, .load_noise = 0.10},
        {.runs = {10, 1}, .load_noise = 0.03, .stall_noise = true},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct counted counted = simulate(&cases[i], 4000);
        print_message("night %zu: judged %.4f\n", i, counted.judged);
        assert_true(counted.judged <= 0.01 + 2 * sqrt(0.01 * 0.99 / 4000)); /* two standard errors */
    }
}

/* The least power at 3 % noise and 10 earlier nights, of one run a night and of two. */
static void a_night_with_a_step_is_worse_as_often_as_the_documentation_says(void **unused)
{
    (void)unused;
    static const struct {
        size_t runs[2];
        double effect, least;
    } cases[] = {
        {{10, 1}, 0.10, 0.30}, {{10, 1}, 0.15, 0.70}, {{10, 1}, 0.20, 0.90},
        {{20, 2}, 0.05, 0.28}, {{20, 2}, 0.10, 0.85},
    };
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        struct simulated what = {
            .runs = {cases[i].runs[0], cases[i].runs[1]}, .effect = cases[i].effect, .load_noise = 0.03};
        struct counted counted = simulate(&what, 2000);
        print_message("runs a night: %zu, %+.0f %%: worse %.3f\n", what.runs[1], 100 * what.effect, counted.worse);
        assert_true(counted.worse >= cases[i].least);
    }
}

static void one_run_13_times_slower_than_five_is_a_regression(void **unused)
{
    (void)unused;
    struct made_side base, other;
    struct comparison comparison;
    make_side(&base, "a", steady, 5);
    make_side(&other, "b", (const double[]){9.02 * 13}, 1);
    compare(&base, &other, false, &comparison);
    const struct comparison_metric *save = metric_named(&comparison, "save_s");
    assert_int_equal(save->verdict, VERDICT_WORSE);
    assert_true(fabs(save->shift.estimate - 12) < 0.1);
    assert_int_equal(comparison_exit_code(&comparison), CB_EXIT_REGRESSION);
    comparison_release(&comparison);
    free_side(&base);
    free_side(&other);
}

static void one_run_against_fewer_than_five_says_how_many_are_missing(void **unused)
{
    (void)unused;
    struct made_side base, other;
    struct comparison comparison;
    make_side(&base, "a", steady, 3);
    make_side(&other, "b", (const double[]){9.02 * 13}, 1);
    compare(&base, &other, false, &comparison);
    const struct comparison_metric *save = metric_named(&comparison, "save_s");
    assert_int_equal(save->verdict, VERDICT_INCONCLUSIVE);
    assert_int_equal(save->more_runs, 2);
    comparison_release(&comparison);
    free_side(&base);
    free_side(&other);
}

/* Compares the first `runs` of each side by their save_s. */
static struct comparison_metric save_of_first(struct made_side *base, struct made_side *other, size_t runs)
{
    struct comparison comparison;
    base->side.count = other->side.count = runs;
    compare(base, other, false, &comparison);
    struct comparison_metric save = *metric_named(&comparison, "save_s");
    comparison_release(&comparison);
    base->side.count = other->side.count = MOST_RUNS;
    return save;
}

/* Comparisons of 8 runs a side with true changes from -10 to 10 %; if one is inconclusive, as many runs are added as it
 * proposes. Returns the share of these that have a verdict then. */
static double follow_proposals(bool blocked, unsigned comparisons)
{
    struct made_side base, other;
    struct simulated what = {.blocked = blocked, .load_noise = 0.03};
    double values[MOST_RUNS], evenings[MOST_RUNS];
    unsigned followed = 0, settled = 0;
    uint64_t state = 1;
    for (size_t i = 0; i < MOST_RUNS; i++)
        values[i] = 1;
    make_side(&base, "a", values, MOST_RUNS);
    make_side(&other, "b", values, MOST_RUNS);
    put_in_sweep(&base, blocked ? "s1" : "");
    put_in_sweep(&other, blocked ? "s1" : "");
    for (unsigned i = 0; i < comparisons; i++) {
        for (size_t k = 0; k < MOST_RUNS; k++)
            evenings[k] = blocked ? 0.05 * deviate(&state) : 0;
        what.effect = -0.10 + 0.20 * i / comparisons;
        draw(&base, &what, 0, evenings, &state);
        draw(&other, &what, what.effect, evenings, &state);
        struct comparison_metric first = save_of_first(&base, &other, 8);
        if (first.verdict != VERDICT_INCONCLUSIVE || first.more_runs == 0 || first.more_runs > STATS_MOST_MORE_RUNS)
            continue;
        followed++;
        settled += save_of_first(&base, &other, 8 + first.more_runs).verdict != VERDICT_INCONCLUSIVE;
    }
    free_side(&base);
    free_side(&other);
    print_message("proposals that settle, %s: %u of %u\n", blocked ? "blocks" : "runs", settled, followed);
    return settled / (double)followed;
}

static void as_many_more_runs_as_are_proposed_settle_4_comparisons_of_5(void **unused)
{
    (void)unused;
    for (int blocked = 0; blocked < 2; blocked++) {
        double settled = follow_proposals(blocked, 600);
        assert_true(settled > 0.7 && settled < 0.9);
    }
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_night_without_a_step_is_judged_different_in_at_most_one_of_100),
        cmocka_unit_test(a_night_with_a_step_is_worse_as_often_as_the_documentation_says),
        cmocka_unit_test(one_run_13_times_slower_than_five_is_a_regression),
        cmocka_unit_test(one_run_against_fewer_than_five_says_how_many_are_missing),
        cmocka_unit_test(a_against_a_is_judged_different_in_at_most_one_comparison_of_20),
        cmocka_unit_test(as_many_more_runs_as_are_proposed_settle_4_comparisons_of_5),
        cmocka_unit_test(five_per_cent_at_10_runs_a_side_and_3_per_cent_noise_is_found_in_4_comparisons_of_5),
        cmocka_unit_test(what_repeats_a_primary_metric_has_its_verdict_and_does_not_count_under_holm),
        cmocka_unit_test(too_few_runs_give_the_change_of_the_medians_they_are_shown_with),
        cmocka_unit_test(what_equals_a_primary_metric_in_every_run_repeats_it_and_has_no_outliers_of_its_own),
        cmocka_unit_test(a_against_a_is_the_same),
        cmocka_unit_test(fifteen_per_cent_less_is_better_and_more_is_a_regression),
        cmocka_unit_test(metrics_that_are_not_primary_get_no_verdict),
        cmocka_unit_test(another_kernel_confounds_unless_asked_for),
        cmocka_unit_test(keys_that_differ_are_shown_and_explain_what_follows_from_them),
        cmocka_unit_test(blocks_take_the_evening_out),
        cmocka_unit_test(blocks_of_another_sweep_are_not_shared),
        cmocka_unit_test(one_run_against_one_is_within_the_run_and_gives_no_verdict),
        cmocka_unit_test(an_outlier_is_named_and_not_dropped),
        cmocka_unit_test(a_side_without_runs_is_a_usage_error),
        cmocka_unit_test(signed_rank_interval_is_exact),
        cmocka_unit_test(whole_operations_come_before_stalls),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
