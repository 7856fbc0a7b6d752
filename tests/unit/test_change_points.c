/* Change points of made-up nights: how often noise is taken for a change, and how soon a change is found. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/change_points.h"

#define MOST 1500
#define SERIES 400 /* of each kind */
#define NOISE 0.03
#define NEAR 3 /* a change point this far from the step is that of the step */

static uint64_t random_state;

static double uniform(void)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return ((double)(random_state >> 11) + 0.5) * 0x1p-53;
}

static double normal(void)
{
    double length = sqrt(-2 * log(uniform()));
    return length * cos(2 * acos(-1) * uniform());
}

/* Nights of 9 s with 3 % noise, multiplied by `factor` from `since` on. With outliers, 3 % of them are 15 % slower or
 * more. */
static void make_nights(double *values, size_t n, double factor, size_t since, bool outliers)
{
    for (size_t i = 0; i < n; i++) {
        double noise = NOISE * normal();
        if (outliers && uniform() < 0.03)
            noise += 0.15 + fabs(0.3 * normal());
        values[i] = 9 * exp(noise) * (i >= since ? factor : 1);
    }
}

static size_t find(const double *values, size_t n, struct change_point **points)
{
    struct cb_err err;
    size_t count;
    if (change_points_find(values, n, points, &count, &err))
        fail_msg("%s", err.message);
    return count;
}

/* Whether there is a change point at most so many nights from `at`. */
static bool finds_within(const double *values, size_t n, size_t at, size_t nights)
{
    struct change_point *points;
    bool found = false;
    size_t count = find(values, n, &points);
    for (size_t i = 0; i < count; i++)
        found = found || (points[i].at + nights >= at && points[i].at <= at + nights);
    free(points);
    return found;
}

static bool finds_at(const double *values, size_t n, size_t at)
{
    return finds_within(values, n, at, NEAR);
}

/* Change points that were not reported in an earlier night, over all nights after `from`, if every night is judged. */
static size_t count_alarms(const double *values, size_t from, size_t n)
{
    bool seen[MOST] = {false};
    size_t alarms = 0;
    for (size_t end = from; end <= n; end++) {
        struct change_point *points;
        size_t count = find(values, end, &points);
        for (size_t i = 0; i < count; i++) {
            bool known = false;
            size_t at = points[i].at;
            for (size_t k = at > NEAR ? at - NEAR : 0; k <= at + NEAR; k++)
                known = known || seen[k];
            seen[at] = true;
            alarms += !known && end > from;
        }
        free(points);
    }
    return alarms;
}

static double alarms_in_100_nights(size_t from, size_t n, bool outliers)
{
    double values[MOST];
    size_t alarms = 0;
    random_state = 14;
    for (int i = 0; i < SERIES; i++) {
        make_nights(values, n, 1, 0, outliers);
        alarms += count_alarms(values, from, n);
    }
    return 100 * (double)alarms / (SERIES * (double)(n - from));
}

static void noise_of_3_per_cent_has_at_most_one_change_point_in_100_nights(void **unused)
{
    (void)unused;
    assert_true(alarms_in_100_nights(8, 40, false) <= 1);
    assert_true(alarms_in_100_nights(30, 90, false) <= 1);
}

static void outliers_are_no_change_points(void **unused)
{
    (void)unused;
    assert_true(alarms_in_100_nights(8, 40, true) <= 1);
    assert_true(alarms_in_100_nights(30, 90, true) <= 1);
    double values[60];
    int found = 0;
    random_state = 3;
    for (int i = 0; i < SERIES; i++) {
        make_nights(values, 60, 1, 0, false);
        values[30] *= 4; /* two slow nights in a row */
        values[31] *= 4;
        found += finds_at(values, 60, 30);
    }
    assert_true(found <= SERIES / 20);
}

/* The share of steps that are reported within so many nights, at most `near` nights from their place. */
static double share_found(double factor, size_t before, size_t within, bool outliers, size_t near)
{
    double values[MOST];
    int found = 0;
    random_state = 5;
    for (int i = 0; i < SERIES; i++) {
        bool is_found = false;
        make_nights(values, before + within, factor, before, outliers);
        for (size_t nights = 1; nights <= within && !is_found; nights++)
            is_found = finds_within(values, before + nights, before, near);
        found += is_found;
    }
    return (double)found / SERIES;
}

static void a_step_of_10_per_cent_is_found_within_5_nights(void **unused)
{
    (void)unused;
    assert_true(share_found(1.1, 20, 5, false, NEAR) >= 0.97);
    assert_true(share_found(1.1, 60, 5, false, NEAR) >= 0.97);
    assert_true(share_found(1 / 1.1, 60, 5, false, NEAR) >= 0.97);
    assert_true(share_found(1.1, 60, 10, true, NEAR) >= 0.95);
}

/* Its place is less certain: the best place by least squares is within 3 nights of it in 89 % of such series. */
static void a_step_of_5_per_cent_is_found_within_10_nights(void **unused)
{
    (void)unused;
    assert_true(share_found(1.05, 20, 10, false, 10) >= 0.94);
    assert_true(share_found(1.05, 60, 10, false, 10) >= 0.95);
    assert_true(share_found(1.05, 60, 10, true, 10) >= 0.87);
    assert_true(share_found(1.05, 20, 10, false, NEAR) >= 0.86);
    assert_true(share_found(1.05, 60, 10, false, NEAR) >= 0.85);
    assert_true(share_found(1.05, 60, 10, true, NEAR) >= 0.8);
}

static void a_change_that_was_undone_keeps_both_its_ends(void **unused)
{
    double values[60];
    int found = 0;
    (void)unused;
    random_state = 9;
    for (int i = 0; i < SERIES; i++) {
        make_nights(values, 60, 1.1, 30, false);
        for (size_t k = 40; k < 60; k++)
            values[k] /= 1.1;
        found += finds_at(values, 60, 30) && finds_at(values, 60, 40);
    }
    assert_true(found >= 0.92 * SERIES);
}

/* The null distribution of ranks does not depend on that of the values. */
static void segments_without_a_change_are_split_as_seldom_as_the_table_says(void **unused)
{
    static const struct {
        size_t length;
        double least, most; /* few ranks have few scores */
    } shares[] = {{10, 0.005, 0.02}, {17, 0.01, 0.05}, {40, 0.045, 0.07}, {120, 0.045, 0.075}};
    double values[120];
    (void)unused;
    random_state = 8;
    for (size_t k = 0; k < sizeof shares / sizeof *shares; k++) {
        int split = 0, series = shares[k].length > 100 ? 500 : 2000;
        for (int i = 0; i < series; i++) {
            struct change_point *points;
            for (size_t at = 0; at < shares[k].length; at++)
                values[at] = exp(20 * uniform()); /* so wide that no shift is too small to matter */
            split += find(values, shares[k].length, &points) > 0;
            free(points);
        }
        double share = (double)split / series, error = sqrt(0.05 * 0.95 / series);
        assert_true(share < shares[k].most + 4 * error && share > shares[k].least - 4 * error);
    }
}

static void a_change_point_has_its_size_with_an_interval_and_both_levels(void **unused)
{
    (void)unused;
    double values[90];
    random_state = 2;
    make_nights(values, 90, 1.2, 30, false);
    for (size_t i = 60; i < 90; i++)
        values[i] /= 1.32; /* 10 % faster than at first */
    struct change_point *points;
    assert_int_equal(find(values, 90, &points), 2);
    assert_in_range(points[0].at, 29, 31);
    assert_in_range(points[1].at, 59, 61);
    assert_true(points[0].start == 0 && points[0].end == points[1].at);
    assert_true(points[1].start == points[0].at && points[1].end == 90);
    assert_true(points[0].shift.low < 0.2 && 0.2 < points[0].shift.high && points[0].shift.low > 0.15);
    assert_true(points[1].shift.low < 1 / 1.32 - 1 && 1 / 1.32 - 1 < points[1].shift.high);
    free(points);
}

static void levels_closer_than_2_per_cent_are_one(void **unused)
{
    (void)unused;
    double values[80];
    for (size_t i = 0; i < 80; i++)
        values[i] = (i < 40 ? 9 : 9.1) + 0.001 * (double)(i * 7 % 11);
    struct change_point *points;
    assert_int_equal(find(values, 80, &points), 0);
    for (size_t i = 40; i < 80; i++)
        values[i] += 0.2;
    assert_int_equal(find(values, 80, &points), 1);
    assert_int_equal(points[0].at, 40);
    free(points);
}

static void a_long_series_is_judged_in_windows_whose_change_points_stay(void **unused)
{
    (void)unused;
    double values[MOST];
    random_state = 21;
    make_nights(values, MOST, 1, 0, false);
    for (size_t i = 0; i < MOST; i++)
        values[i] *= i / 250 % 2 ? 1.15 : 1; /* a step every 250 nights */
    struct change_point *points, *earlier;
    size_t count = find(values, MOST, &points), before = find(values, 1100, &earlier);
    for (size_t at = 250; at < MOST; at += 250)
        assert_true(finds_at(values, MOST, at));
    for (size_t i = 0; i < before && earlier[i].at < 900; i++)
        assert_true(i < count && points[i].at == earlier[i].at);
    assert_in_range(count, 5, 8);
    free(points);
    free(earlier);
}

static void values_without_a_ratio_or_without_spread_have_none(void **unused)
{
    (void)unused;
    double values[20] = {0};
    struct change_point *points;
    assert_int_equal(find(values, 20, &points), 0);
    for (size_t i = 0; i < 20; i++)
        values[i] = 7;
    assert_int_equal(find(values, 20, &points), 0);
    assert_int_equal(find(values, 0, &points), 0);
    for (size_t i = 0; i < 8; i++)
        values[i] = i < 4 ? 1 + 0.01 * (double)i : 2 + 0.01 * (double)i;
    assert_int_equal(find(values, 7, &points), 0);
    assert_int_equal(find(values, 8, &points), 1); /* four against four is the fewest */
    assert_true(points[0].at == 4 && points[0].shift.low > 0.9 && isfinite(points[0].shift.high));
    free(points);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(noise_of_3_per_cent_has_at_most_one_change_point_in_100_nights),
        cmocka_unit_test(outliers_are_no_change_points),
        cmocka_unit_test(a_step_of_10_per_cent_is_found_within_5_nights),
        cmocka_unit_test(a_step_of_5_per_cent_is_found_within_10_nights),
        cmocka_unit_test(a_change_that_was_undone_keeps_both_its_ends),
        cmocka_unit_test(segments_without_a_change_are_split_as_seldom_as_the_table_says),
        cmocka_unit_test(a_change_point_has_its_size_with_an_interval_and_both_levels),
        cmocka_unit_test(levels_closer_than_2_per_cent_are_one),
        cmocka_unit_test(a_long_series_is_judged_in_windows_whose_change_points_stay),
        cmocka_unit_test(values_without_a_ratio_or_without_spread_have_none),
    };
    return cmocka_run_group_tests_name("change_points", tests, NULL, NULL);
}
