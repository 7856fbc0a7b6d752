/* Statistics against published values and brute force. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/stats.h"

#define COUNT(array) (sizeof(array) / sizeof *(array))

static void assert_near(double got, double wanted, double tolerance)
{
    if (!(fabs(got - wanted) <= tolerance))
        fail_msg("got %.10g, wanted %.10g within %g", got, wanted, tolerance);
}

/* Permeability of the membrane at term and at 12 to 26 weeks: Hollander & Wolfe (1973), p. 69. */
static const double at_term[] = {0.80, 0.83, 1.89, 1.04, 1.45, 1.38, 1.91, 1.64, 0.73, 1.46};
static const double early[] = {1.15, 0.88, 0.90, 0.74, 1.21};

static void quantiles_are_those_of_type_7(void **unused)
{
    (void)unused;
    const double values[] = {1, 2, 4, 8};
    assert_near(stats_quantile_sorted(values, 4, 0), 1, 0);
    assert_near(stats_quantile_sorted(values, 4, 0.25), 1.75, 1e-12);
    assert_near(stats_quantile_sorted(values, 4, 0.5), 3, 1e-12);
    assert_near(stats_quantile_sorted(values, 4, 0.95), 7.4, 1e-12);
    assert_near(stats_quantile_sorted(values, 4, 1), 8, 0);
    assert_near(stats_quantile_sorted(values, 1, 0.95), 1, 0);
    assert_true(isnan(stats_quantile_sorted(values, 0, 0.5)));
}

static void summary_of_unsorted_values(void **unused)
{
    (void)unused;
    const double values[] = {9, 1, 3, 5, 2};
    struct summary summary;
    stats_summarize(values, 5, &summary);
    assert_int_equal(summary.n, 5);
    assert_near(summary.median, 3, 0);
    assert_near(summary.mean, 4, 1e-12);
    assert_near(summary.min, 1, 0);
    assert_near(summary.max, 9, 0);
    assert_near(summary.p95, 8.2, 1e-12);
    assert_near(summary.mad, 2, 0);
    assert_near(values[0], 9, 0); /* untouched */
    stats_summarize(values, 0, &summary);
    assert_true(summary.n == 0 && isnan(summary.median) && isnan(summary.mad) && isnan(summary.max));
}

static void separated_groups_have_the_smallest_exact_p(void **unused)
{
    (void)unused;
    const double a[] = {1, 2, 3, 4, 5, 6}, b[] = {7, 8, 9, 10, 11, 12};
    assert_near(stats_mann_whitney(a, 3, b, 3), 0.1, 1e-12);
    assert_near(stats_mann_whitney(a, 4, b, 4), 2.0 / 70, 1e-12);
    assert_near(stats_mann_whitney(a, 5, b, 5), 0.0079, 5e-5);
    assert_near(stats_mann_whitney(a, 5, b, 5), 2.0 / 252, 1e-12);
    assert_near(stats_mann_whitney(a, 6, b, 6), 0.0022, 5e-5);
    assert_near(stats_mann_whitney(b, 6, a, 6), 2.0 / 924, 1e-12);
}

static void mann_whitney_of_the_textbook_example(void **unused)
{
    (void)unused;
    assert_near(stats_mann_whitney(at_term, COUNT(at_term), early, COUNT(early)), 0.2544122, 1e-6);
    assert_near(stats_mann_whitney(early, COUNT(early), at_term, COUNT(at_term)), 0.2544122, 1e-6);
}

/* Twice the distance of U from its mean if the values with a bit are side a. */
static long distance_of(const double *all, size_t n, unsigned chosen)
{
    long twice = 0, pairs = 0;
    for (size_t i = 0; i < n; i++)
        for (size_t k = 0; k < n; k++)
            if ((chosen >> i & 1) && !(chosen >> k & 1)) {
                twice += all[i] > all[k] ? 2 : all[i] == all[k];
                pairs++;
            }
    return labs(twice - pairs);
}

/* As scipy.stats.mannwhitneyu with a PermutationMethod: each way to divide the values is as likely as the one seen. */
static double counted_p(const double *a, size_t na, const double *b, size_t nb)
{
    double all[16];
    size_t n = na + nb, ways = 0, far = 0;
    memcpy(all, a, na * sizeof *a);
    memcpy(all + na, b, nb * sizeof *b);
    long seen = distance_of(all, n, (1u << na) - 1);
    for (unsigned chosen = 0; chosen < 1u << n; chosen++) {
        if ((size_t)__builtin_popcount(chosen) != na)
            continue;
        ways++;
        far += distance_of(all, n, chosen) >= seen;
    }
    return (double)far / (double)ways;
}

static void few_values_with_ties_have_the_p_of_counting_every_division(void **unused)
{
    (void)unused;
    const double a[] = {1, 2, 2, 3, 4}, b[] = {2, 3, 4, 5, 5, 6}, same[] = {7, 7, 7}, more[] = {8, 8, 8};
    assert_near(stats_mann_whitney(a, COUNT(a), b, COUNT(b)), counted_p(a, COUNT(a), b, COUNT(b)), 1e-12);
    assert_near(stats_mann_whitney(same, 3, same, 3), 1, 0);
    assert_near(stats_mann_whitney(same, 3, more, 3), 0.1, 1e-12);  /* 2 of 20; the normal approximation says 0.047 */
    assert_near(stats_mann_whitney(same, 1, more, 3), 0.25, 1e-12); /* 1 of 4: the other end has no fourth 7 */
    uint64_t seed = 7;
    for (int round = 0; round < 200; round++) {
        double x[6], y[6];
        size_t nx = 1 + (size_t)round % 6, ny = 1 + (size_t)(round / 6) % 6;
        for (size_t i = 0; i < 6; i++) {
            seed = seed * 6364136223846793005u + 1442695040888963407u;
            x[i] = (double)(seed >> 33 & 3);
            y[i] = (double)(seed >> 43 & 3);
        }
        assert_near(stats_mann_whitney(x, nx, y, ny), counted_p(x, nx, y, ny), 1e-12);
    }
}

static void many_values_with_ties_take_the_normal_approximation_with_correction(void **unused)
{
    (void)unused;
    double a[21], b[21], exact, normal;
    for (int i = 0; i < 21; i++) {
        a[i] = i / 2;
        b[i] = i / 2 + 3;
    }
    exact = stats_mann_whitney(a, 20, b, 20);
    normal = stats_mann_whitney(a, 21, b, 21);
    assert_true(exact > 0.005 && exact < 0.02);
    assert_near(normal, exact, 0.005);
}

static void nothing_to_compare_is_no_difference(void **unused)
{
    (void)unused;
    const double a[] = {1, 2};
    assert_near(stats_mann_whitney(a, 2, a, 0), 1, 0);
    double p = 0;
    stats_flip_blocks((const double[]){NAN, 0}, 1, 2, 0, &p);
    assert_near(p, 1, 0);
    stats_flip_blocks(NULL, 1, 0, 0, &p);
    assert_near(p, 1, 0);
}

static void exact_and_normal_agree_where_both_can_be_used(void **unused)
{
    (void)unused;
    double a[50], b[51]; /* 50 x 50 is counted out, 50 x 51 is not */
    for (int i = 0; i < 51; i++) {
        if (i < 50)
            a[i] = 2 * i;
        b[i] = 2 * i + 17.5;
    }
    double exact = stats_mann_whitney(a, 50, b, 50), normal = stats_mann_whitney(a, 50, b, 51);
    assert_near(exact, 0.007021899371388, 1e-12); /* counted with whole numbers of any length */
    assert_near(normal, 0.004653701002563, 4e-4);
    assert_near(stats_mann_whitney(a, 50, a + 25, 25), stats_mann_whitney(a + 25, 25, a, 50), 1e-12);
}

static void blocks_that_all_go_one_way_have_the_smallest_exact_p(void **unused)
{
    (void)unused;
    const double differences[] = {0.01, 0.03, 0.02, 0.05, 0.04, 0.06};
    double p;
    stats_flip_blocks(differences, 1, 6, 0, &p);
    assert_near(p, 2.0 / 64, 1e-12);
    stats_flip_blocks(differences, 1, 5, 0, &p);
    assert_near(p, 2.0 / 32, 1e-12);
}

/* Darwin's 15 pairs of plants of maize, in eighths of an inch: Fisher (1935), The Design of Experiments, section 21:
 * 1,726 of 32,768 ways are at least as far from 0. */
static void flipped_blocks_of_darwins_maize_have_fishers_p(void **unused)
{
    (void)unused;
    const double differences[] = {49, -67, 8, 16, 6, 23, 28, 41, 14, 29, 56, 24, 75, 60, -48};
    double p;
    stats_flip_blocks(differences, 1, COUNT(differences), 0, &p);
    assert_near(p, 1726.0 / 32768, 1e-12);
}

#define FLIP_METRICS 3
#define FLIP_BLOCKS 9

/* The score of a metric if bit i of `flips` exchanges the sides of block i. */
static double score_of(const double *differences, unsigned flips, double threshold)
{
    double sum = 0, squares = 0, count = 0;
    for (size_t i = 0; i < FLIP_BLOCKS; i++) {
        if (isnan(differences[i]))
            continue;
        sum += flips >> i & 1 ? -differences[i] : differences[i];
        squares += differences[i] * differences[i];
        count++;
    }
    return fabs(sum) / count >= log1p(threshold) - 1e-12 ? fabs(sum) / sqrt(squares) : 0;
}

static void p_of_several_metrics_is_that_of_counting_every_flip(void **unused)
{
    (void)unused;
    static const double differences[FLIP_METRICS][FLIP_BLOCKS] = {
        {0.06, 0.04, 0.08, NAN, 0.03, 0.05, -0.01, 0.05, 0.07},
        {0.3, -0.1, 0.2, 0.2, -0.15, 0.1, 0.1, -0.2, 0.1},
        {0.01, 0.01, 0.02, 0.01, 0.02, 0.01, 0.01, 0.02, 0.01}, /* always one way, and too little to matter */
    };
    const size_t order[FLIP_METRICS] = {0, 1, 2}; /* by observed score */
    double p[FLIP_METRICS], least = 0;
    stats_flip_blocks(&differences[0][0], FLIP_METRICS, FLIP_BLOCKS, 0.03, p);
    for (size_t k = 0; k < FLIP_METRICS; k++) {
        unsigned reached = 0;
        for (unsigned flips = 0; flips < 1U << FLIP_BLOCKS; flips++) {
            double largest = 0;
            for (size_t m = k; m < FLIP_METRICS; m++)
                largest = fmax(largest, score_of(differences[order[m]], flips, 0.03));
            reached += largest >= score_of(differences[order[k]], 0, 0.03) - 1e-12;
        }
        least = fmax(least, reached / (double)(1U << FLIP_BLOCKS));
        assert_near(p[order[k]], least, 1e-12);
    }
    assert_true(p[0] < 0.02 && p[1] > 0.05 && p[2] == 1);
}

static void many_blocks_are_sampled_and_agree_with_counting(void **unused)
{
    (void)unused;
    double differences[17], counted, sampled;
    for (int i = 0; i < 17; i++)
        differences[i] = i % 3 ? 0.01 * (i + 1) : -0.011 * (i + 1);
    differences[16] = 1e-9; /* as good as no block */
    stats_flip_blocks(differences, 1, 16, 0, &counted);
    stats_flip_blocks(differences, 1, 17, 0, &sampled);
    assert_true(counted > 0.01 && counted < 0.9);
    assert_near(sampled, counted, 0.02);
    for (int i = 0; i < 17; i++)
        differences[i] = 1 + i;
    stats_flip_blocks(differences, 1, 17, 0, &sampled);
    assert_near(sampled, 1e-4, 1e-4);
}

static void shift_and_interval_of_the_textbook_example(void **unused)
{
    (void)unused;
    double a[COUNT(at_term)], b[COUNT(early)];
    for (size_t i = 0; i < COUNT(a); i++)
        a[i] = exp(at_term[i]);
    for (size_t i = 0; i < COUNT(b); i++)
        b[i] = exp(early[i]);
    struct shift shift;
    stats_shift_ratio(a, COUNT(a), b, COUNT(b), 0.95, &shift);
    assert_near(log1p(shift.estimate), -0.305, 1e-9);
    assert_near(log1p(shift.low), -0.76, 1e-9);
    assert_near(log1p(shift.high), 0.15, 1e-9);
}

static void ratio_of_two_against_one_is_plus_100_percent(void **unused)
{
    (void)unused;
    const double a[] = {1, 1.01, 1.02, 1.03, 1.04, 1.05}, b[] = {2, 2.02, 2.04, 2.06, 2.08, 2.10};
    struct shift shift;
    stats_shift_ratio(a, 6, b, 6, 0.95, &shift);
    assert_near(shift.estimate, 1, 0.001);
    assert_true(shift.low > 0.9 && shift.low < 1 && shift.high > 1 && shift.high < 1.1);
}

static void interval_is_unbounded_where_sizes_cannot_give_it(void **unused)
{
    (void)unused;
    const double a[] = {1, 2, 3, 4}, b[] = {5, 6, 7, 8};
    struct shift shift;
    stats_shift_ratio(a, 3, b, 3, 0.95, &shift);
    assert_near(shift.low, -1, 0);
    assert_true(isinf(shift.high));
    assert_true(shift.estimate > 0);
    stats_shift_ratio(a, 4, b, 4, 0.95, &shift); /* 4 against 4 is the first that can: both extremes */
    assert_near(shift.low, 5.0 / 4 - 1, 1e-12);
    assert_near(shift.high, 8.0 / 1 - 1, 1e-12);
    stats_shift_ratio(a, 0, b, 4, 0.95, &shift);
    assert_true(isnan(shift.estimate));
}

static void interval_of_many_runs_is_close_to_that_of_counting(void **unused)
{
    (void)unused;
    double a[51], b[51];
    for (int i = 0; i < 51; i++) {
        a[i] = exp(0.001 * i);
        b[i] = exp(0.001 * ((i * 7) % 51) + 0.01);
    }
    struct shift counted, normal;
    stats_shift_ratio(a, 50, b, 50, 0.95, &counted);
    stats_shift_ratio(a, 51, b, 51, 0.95, &normal);
    assert_near(normal.low, counted.low, 0.002);
    assert_near(normal.high, counted.high, 0.002);
    assert_near(normal.estimate, expm1(0.01), 1e-9);
    assert_true(normal.low < normal.estimate && normal.estimate < normal.high);
}

static void interval_covers_the_truth_as_often_as_it_says(void **unused)
{
    (void)unused;
    uint64_t state = 1;
    unsigned covered = 0, trials = 2000;
    for (unsigned trial = 0; trial < trials; trial++) {
        double values[14];
        for (int i = 0; i < 14; i++) {
            state = state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
            values[i] = exp((double)(state >> 11) / (double)(UINT64_C(1) << 53));
        }
        struct shift shift;
        stats_shift_ratio(values, 7, values + 7, 7, 0.95, &shift);
        covered += shift.low <= 0 && shift.high >= 0 ? 1 : 0;
    }
    assert_in_range(covered, 1900, 1960); /* exact: 1 - 2 P(U <= 8) = 0.9621 at 7 against 7, 1924 expected */
}

static void holm_of_the_usual_example(void **unused)
{
    (void)unused;
    double p[] = {0.01, 0.04, 0.03, 0.005};
    stats_holm(p, 4);
    assert_near(p[0], 0.03, 1e-12);
    assert_near(p[1], 0.06, 1e-12);
    assert_near(p[2], 0.06, 1e-12);
    assert_near(p[3], 0.02, 1e-12);
    double equal[] = {0.4, 0.4, 0.9};
    stats_holm(equal, 3);
    assert_near(equal[0], 1, 0);
    assert_near(equal[2], 1, 0);
}

static void verdicts_follow_interval_size_and_p(void **unused)
{
    (void)unused;
    const struct shift down = {-0.156, -0.170, -0.141}, up = {0.2, 0.1, 0.3}, small = {0.004, -0.009, 0.016};
    const struct shift wide = {0.06, -0.05, 0.19}, slight = {0.02, 0.01, 0.04};
    assert_int_equal(stats_verdict(&down, 0.004, STATS_LEVEL, 0.03, true), VERDICT_BETTER);
    assert_int_equal(stats_verdict(&down, 0.004, STATS_LEVEL, 0.03, false), VERDICT_WORSE);
    assert_int_equal(stats_verdict(&up, 0.004, STATS_LEVEL, 0.03, true), VERDICT_WORSE);
    assert_int_equal(stats_verdict(&up, 0.004, STATS_LEVEL, 0.03, false), VERDICT_BETTER);
    assert_int_equal(stats_verdict(&up, 0.2, STATS_LEVEL, 0.03, true), VERDICT_INCONCLUSIVE);
    assert_int_equal(stats_verdict(&small, 0.5, STATS_LEVEL, 0.03, true), VERDICT_SAME);
    assert_int_equal(stats_verdict(&wide, 0.3, STATS_LEVEL, 0.03, true), VERDICT_INCONCLUSIVE);
    assert_int_equal(stats_verdict(&slight, 0.01, STATS_LEVEL, 0.03, true), VERDICT_INCONCLUSIVE);
    assert_int_equal(stats_verdict(&up, 0.02, 0.01, 0.03, true), VERDICT_INCONCLUSIVE);
    assert_string_equal(verdict_name(VERDICT_INCONCLUSIVE), "inconclusive");
}

/* Interval and p of values at t x the error, t from the published table (two-sided 0.05 and 0.01). */
static void a_prediction_interval_is_that_of_students_table(void **unused)
{
    (void)unused;
    static const struct {
        size_t n;
        double t95, t99;
    } table[] = {{2, 12.7062, 63.6567}, {3, 4.30265, 9.92484},  {5, 2.77645, 4.60409},
                 {6, 2.57058, 4.03214}, {10, 2.26216, 3.24984}, {31, 2.04227, 2.75000}};
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        double earlier[31], n = (double)table[i].n;
        for (size_t k = 0; k < table[i].n; k++)
            earlier[k] = exp(0.1 * (double)(k % 3));
        double mean = 0, error = sqrt(stats_log_variance(earlier, table[i].n, NULL, 0) * (1 + 1 / n));
        for (size_t k = 0; k < table[i].n; k++)
            mean += 0.1 * (double)(k % 3) / n;
        struct shift shift;
        double p = stats_predict_ratio(earlier, table[i].n, exp(mean - table[i].t99 * error), 0.95, &shift);
        assert_near(p, 0.01, 1e-5);
        assert_near(log1p(shift.estimate), -table[i].t99 * error, 1e-9);
        assert_near(log1p(shift.high), (table[i].t95 - table[i].t99) * error, 1e-5);
        assert_near(log1p(shift.low), -(table[i].t95 + table[i].t99) * error, 1e-5);
    }
}

/* t(2) = 4.30265 and t(4) = 2.77645 from the published table. */
static void an_interval_of_the_median_is_students_on_logarithms(void **unused)
{
    (void)unused;
    const double three[] = {1, exp(1), exp(2)}, five[] = {exp(-2), exp(-1), 1, exp(1), exp(2)}, zero[] = {1, 2, 0};
    double interval[2] = {-1, -1};
    assert_true(stats_median_interval(three, 3, 0.95, interval));
    assert_near(log(interval[0]), 1 - 4.30265 / sqrt(3), 1e-5);
    assert_near(log(interval[1]), 1 + 4.30265 / sqrt(3), 1e-5);
    assert_true(stats_median_interval(five, 5, 0.95, interval));
    assert_near(log(interval[1]), 2.77645 * sqrt(2.5 / 5), 1e-5);
    interval[0] = interval[1] = -1;
    assert_false(stats_median_interval(three, 2, 0.95, interval));
    assert_false(stats_median_interval(zero, 3, 0.95, interval));
    assert_true(interval[0] == -1 && interval[1] == -1);
}

/* The published table of the sign test's intervals: k is 1 up to n = 8, 2 up to 11, 3 from 12 on, 6 at 20, 40 at 100. */
static void an_interval_of_the_median_of_any_distribution_goes_from_kth_to_kth_value(void **unused)
{
    (void)unused;
    static const struct {
        size_t n, k;
    } table[] = {{6, 1}, {8, 1}, {9, 2}, {11, 2}, {12, 3}, {20, 6}, {100, 40}, {10000, 4902}};
    double values[10000], interval[2] = {-1, -1};
    for (size_t i = 0; i < 10000; i++)
        values[i] = (double)(i + 1);
    for (size_t i = 0; i < sizeof table / sizeof *table; i++) {
        assert_true(stats_median_interval_sorted(values, table[i].n, 0.95, interval));
        assert_true(interval[0] == (double)table[i].k && interval[1] == (double)(table[i].n + 1 - table[i].k));
    }
    interval[0] = interval[1] = -1;
    for (size_t n = 0; n < 6; n++)
        assert_false(stats_median_interval_sorted(values, n, 0.95, interval));
    assert_true(interval[0] == -1 && interval[1] == -1);
}

static void earlier_values_that_are_equal_do_not_make_a_change_of_3_per_cent_significant(void **unused)
{
    (void)unused;
    static const double equal[] = {9, 9, 9, 9, 9};
    struct shift shift;
    assert_true(stats_predict_ratio(equal, 5, 9 * 1.031, 0.95, &shift) > 0.01);
    assert_true(stats_predict_ratio(equal, 5, 9 * 1.2, 0.95, &shift) < 0.001);
    assert_true(stats_predict_ratio(equal, 5, 9e9, 0.95, &shift) > 0);
}

static void the_fewest_values_a_side_are_those_of_which_an_order_can_be_significant(void **unused)
{
    (void)unused;
    assert_int_equal(stats_fewest_a_side(0), 4);
    for (size_t tests = 1; tests <= 3; tests++) {
        double low[8], high[8], p[3];
        size_t n = stats_fewest_a_side(tests);
        for (size_t i = 0; i < n; i++) {
            low[i] = (double)(1 + i);
            high[i] = (double)(100 + i);
        }
        p[0] = p[1] = p[2] = stats_mann_whitney(low, n, high, n);
        stats_holm(p, tests);
        assert_true(p[0] < STATS_LEVEL);
        p[0] = p[1] = p[2] = stats_mann_whitney(low, n - 1, high, n - 1);
        stats_holm(p, tests);
        assert_true(p[0] >= STATS_LEVEL);
        struct shift shift;
        stats_shift_ratio(low, n - 1, high, n - 1, 0.95, &shift);
        assert_true(isfinite(shift.high) == (tests > 1 && n > 4));
    }
}

static void more_runs_are_asked_for_where_spread_hides_the_change(void **unused)
{
    (void)unused;
    const double a[] = {1.00, 1.05, 0.95, 1.02}, b[] = {1.04, 1.10, 0.99, 1.08}, same[] = {1, 1, 1, 1};
    const struct shift change = {0.045, -0.03, 0.12}, large = {0.10, -0.01, 0.22};
    double variance = stats_log_variance(a, 4, b, 4);
    size_t more = stats_more_runs(&large, variance, 4, 4, 0.03, 1);
    assert_in_range(more, 2, 30);
    assert_true(stats_more_runs(&large, variance, 4, 4, 0.03, 12) > more);
    assert_true(stats_more_runs(&change, variance, 4, 4, 0.03, 1) > more);
    assert_int_equal(stats_more_runs(&large, stats_log_variance(same, 4, same, 4), 4, 4, 0.03, 1), 0);
    assert_true(isnan(stats_log_variance(a, 1, b, 1)));
    assert_int_equal(stats_more_runs(&large, NAN, 1, 1, 0.03, 1), 0);
}

/* 4 against 4 is the first that can give a verdict, 5 against 5 if two metrics are tested together. */
static void fewer_runs_than_can_give_a_verdict_are_not_proposed(void **unused)
{
    (void)unused;
    const struct shift doubled = {1, -1, INFINITY};
    assert_int_equal(stats_more_runs(&doubled, 1e-6, 2, 2, 0.03, 1), 2);
    assert_int_equal(stats_more_runs(&doubled, 1e-6, 2, 2, 0.03, 2), 3);
}

static void a_change_on_the_threshold_asks_for_more_runs_than_anybody_makes(void **unused)
{
    (void)unused;
    const struct shift on_the_threshold = {0.03, -0.06, 0.13};
    assert_int_equal(stats_more_runs(&on_the_threshold, 0.01, 10, 10, 0.03, 1), STATS_MOST_MORE_RUNS + 1);
}

static void best_interval_and_goodput_of_the_published_cases(void **unused)
{
    (void)unused;
    const double day = 86400;
    assert_near(stats_daly_interval(30, day), 2257, 0.5);
    assert_near(stats_goodput(stats_daly_interval(30, day), 30, 300, day), 0.970, 0.0006);
    assert_near(stats_daly_interval(2, day), 586.5, 0.1);
    assert_near(stats_goodput(stats_daly_interval(2, day), 2, 300, day), 0.990, 0.0006);
    assert_near(stats_daly_interval(100, 40), 40, 0);
}

static void daly_interval_is_where_goodput_is_best(void **unused)
{
    (void)unused;
    const double day = 86400;
    double interval_s, behind = stats_best_goodput(2, 60, 300, day, &interval_s);
    assert_near(interval_s, 586.5, 0.1);
    assert_near(behind, stats_goodput(interval_s, 2, 360, day), 1e-12);
    assert_true(stats_best_goodput(2, 5000, 300, day, &interval_s) < behind);
    assert_near(interval_s, 5000, 0); /* no save begins before the one before it has ended */
    double best = stats_daly_interval(30, 3600);
    double top = stats_goodput(best, 30, 60, 3600);
    assert_true(top > stats_goodput(best * 0.9, 30, 60, 3600));
    assert_true(top > stats_goodput(best * 1.1, 30, 60, 3600));
}

static void robust_z_is_that_of_iglewicz_and_hoaglin_with_a_least_spread(void **unused)
{
    (void)unused;
    struct summary summary;
    stats_summarize((const double[]){2.1, 2.6, 2.4, 2.5, 2.3, 2.1, 2.3, 2.6, 8.2, 8.3}, 10, &summary);
    assert_near(stats_robust_z(&summary, 8.3), 0.6745 * (8.3 - 2.45) / 0.15, 1e-9);
    stats_summarize((const double[]){100, 100, 100, 100}, 4, &summary);
    assert_near(stats_robust_z(&summary, 90), -6.745, 1e-9);
    assert_near(stats_robust_z(&summary, 102), 1.349, 1e-9);
    assert_true(isnan(stats_robust_z(&summary, NAN)));
    stats_summarize((const double[]){1, 2, 3}, 3, &summary);
    assert_true(isnan(stats_robust_z(&summary, 9)));
    stats_summarize((const double[]){0, 0, 0, 0}, 4, &summary);
    assert_true(isnan(stats_robust_z(&summary, 9)));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantiles_are_those_of_type_7),
        cmocka_unit_test(summary_of_unsorted_values),
        cmocka_unit_test(separated_groups_have_the_smallest_exact_p),
        cmocka_unit_test(mann_whitney_of_the_textbook_example),
        cmocka_unit_test(few_values_with_ties_have_the_p_of_counting_every_division),
        cmocka_unit_test(many_values_with_ties_take_the_normal_approximation_with_correction),
        cmocka_unit_test(nothing_to_compare_is_no_difference),
        cmocka_unit_test(exact_and_normal_agree_where_both_can_be_used),
        cmocka_unit_test(blocks_that_all_go_one_way_have_the_smallest_exact_p),
        cmocka_unit_test(flipped_blocks_of_darwins_maize_have_fishers_p),
        cmocka_unit_test(p_of_several_metrics_is_that_of_counting_every_flip),
        cmocka_unit_test(many_blocks_are_sampled_and_agree_with_counting),
        cmocka_unit_test(shift_and_interval_of_the_textbook_example),
        cmocka_unit_test(ratio_of_two_against_one_is_plus_100_percent),
        cmocka_unit_test(interval_is_unbounded_where_sizes_cannot_give_it),
        cmocka_unit_test(interval_of_many_runs_is_close_to_that_of_counting),
        cmocka_unit_test(interval_covers_the_truth_as_often_as_it_says),
        cmocka_unit_test(holm_of_the_usual_example),
        cmocka_unit_test(verdicts_follow_interval_size_and_p),
        cmocka_unit_test(a_prediction_interval_is_that_of_students_table),
        cmocka_unit_test(an_interval_of_the_median_is_students_on_logarithms),
        cmocka_unit_test(an_interval_of_the_median_of_any_distribution_goes_from_kth_to_kth_value),
        cmocka_unit_test(earlier_values_that_are_equal_do_not_make_a_change_of_3_per_cent_significant),
        cmocka_unit_test(the_fewest_values_a_side_are_those_of_which_an_order_can_be_significant),
        cmocka_unit_test(more_runs_are_asked_for_where_spread_hides_the_change),
        cmocka_unit_test(fewer_runs_than_can_give_a_verdict_are_not_proposed),
        cmocka_unit_test(a_change_on_the_threshold_asks_for_more_runs_than_anybody_makes),
        cmocka_unit_test(best_interval_and_goodput_of_the_published_cases),
        cmocka_unit_test(daly_interval_is_where_goodput_is_best),
        cmocka_unit_test(robust_z_is_that_of_iglewicz_and_hoaglin_with_a_least_spread),
    };
    return cmocka_run_group_tests_name("stats", tests, NULL, NULL);
}
