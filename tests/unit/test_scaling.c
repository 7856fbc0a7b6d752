/* The scaling model: known truth is found, its intervals cover it, and points that do not carry it are refused. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/scaling.h"

#define GIB 1073741824.0
#define REPEATS 4
#define SIZES 7 /* 1, 2, … 64 */
#define POINTS (SIZES * REPEATS)
#define WORLDS 120

static uint64_t seed = 1;

static double uniform(void)
{
    seed = seed * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return ((double)(seed >> 11) + 0.5) / 9007199254740992.0;
}

static double normal(void)
{
    return sqrt(-2 * log(uniform())) * cos(2 * acos(-1) * uniform());
}

/* Truth: seconds, bytes/s, bytes/s, seconds per ln n. `weak`: so many bytes a unit; else so many in all. */
static void make_points(const double truth[SCALING_TERMS], double bytes, int weak, double noise,
                        struct scaling_point points[POINTS])
{
    for (int i = 0; i < POINTS; i++) {
        double n = (double)(1 << i / REPEATS), all = weak ? bytes * n : bytes;
        double seconds = truth[SCALING_FIXED] + fmax(all / n / truth[SCALING_UNIT], all / truth[SCALING_SHARED]) +
                         truth[SCALING_LOG] * log(n);
        points[i] = (struct scaling_point){n, all, seconds * exp(noise * normal())};
    }
}

static const double truth[SCALING_TERMS] = {0.5, 2 * GIB, 16 * GIB, 0.2};

static void exact_points_give_the_truth(void **unused)
{
    (void)unused;
    struct scaling_point points[POINTS];
    struct scaling_fit fit;
    struct cb_err err;
    make_points(truth, 64 * GIB, 0, 0, points);
    assert_int_equal(scaling_fit(points, POINTS, &fit, &err), 0);
    for (int term = 0; term < SCALING_TERMS; term++) {
        assert_true(fabs(fit.terms[term].value / truth[term] - 1) < 1e-6);
        assert_true(fit.terms[term].low < truth[term] && truth[term] < fit.terms[term].high);
    }
}

/* Of so many simulated sweeps, the 95 % intervals contain the truth in about 95 %: 90 % of 120 would be less than that
 * by 2.5 standard errors. */
static void expect_coverage(double bytes, int weak, const double of[SCALING_TERMS])
{
    int covered[SCALING_TERMS] = {0}, fitted = 0;
    for (int world = 0; world < WORLDS; world++) {
        struct scaling_point points[POINTS];
        struct scaling_fit fit;
        struct cb_err err;
        make_points(of, bytes, weak, 0.03, points);
        if (scaling_fit(points, POINTS, &fit, &err))
            continue;
        fitted++;
        for (int term = 0; term < SCALING_TERMS; term++)
            covered[term] += fit.terms[term].low <= of[term] * 1.000001 && of[term] <= fit.terms[term].high * 1.000001;
    }
    assert_in_range(fitted, WORLDS * 97 / 100, WORLDS); /* at most 1 % are to be refused */
    for (int term = 0; term < SCALING_TERMS; term++)
        if (covered[term] < fitted * 90 / 100)
            fail_msg("term %d is covered in %d of %d", term, covered[term], fitted);
}

static void intervals_cover_the_truth_when_the_bytes_stay(void **unused)
{
    (void)unused;
    expect_coverage(64 * GIB, 0, truth);
}

static void intervals_cover_the_truth_when_the_bytes_grow(void **unused)
{
    (void)unused;
    expect_coverage(4 * GIB, 1, truth);
}

/* Terms that are not there have intervals that begin with nothing. */
static void what_is_not_there_is_bounded(void **unused)
{
    (void)unused;
    const double plain[SCALING_TERMS] = {0.5, 2 * GIB, 1e6 * GIB, 0};
    struct scaling_point points[POINTS];
    struct scaling_fit fit;
    struct cb_err err;
    make_points(plain, 64 * GIB, 0, 0.02, points);
    assert_int_equal(scaling_fit(points, POINTS, &fit, &err), 0);
    assert_true(isinf(fit.terms[SCALING_SHARED].high) && fit.terms[SCALING_SHARED].low > 16 * GIB);
    assert_true(fit.terms[SCALING_LOG].low == 0 && fit.terms[SCALING_LOG].high < 0.2);
    /* with so many bytes a unit, a fixed cost cannot be told from a slow unit */
    make_points(plain, 4 * GIB, 1, 0.02, points);
    assert_int_equal(scaling_fit(points, POINTS, &fit, &err), 0);
    assert_true(fit.terms[SCALING_FIXED].low == 0 && isinf(fit.terms[SCALING_UNIT].high));
}

static void expect_refused(const struct scaling_point *points, size_t count, const char *wanted)
{
    struct scaling_fit fit;
    struct cb_err err;
    assert_int_equal(scaling_fit(points, count, &fit, &err), CB_ERR_UNSUPPORTED);
    if (!strstr(err.message, wanted))
        fail_msg("\"%s\" does not say \"%s\"", err.message, wanted);
}

static void points_that_do_not_carry_the_model_are_refused(void **unused)
{
    (void)unused;
    struct scaling_point points[POINTS];
    make_points(truth, 64 * GIB, 0, 0.02, points);
    expect_refused(points, 3 * REPEATS, "needs 4 sizes and 7 runs, and there are 3 and 12");
    struct scaling_point few[] = {points[0], points[REPEATS], points[2 * REPEATS], points[3 * REPEATS]};
    expect_refused(few, 4, "there are 4 and 4");
    expect_refused(points, 0, "there are 0 and 0");
    for (int i = 0; i < REPEATS; i++)
        points[3 * REPEATS + i].seconds *= 2; /* one size in trouble */
    expect_refused(points, POINTS, "do not follow the model: at n = 8 the time is +");
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(exact_points_give_the_truth),
        cmocka_unit_test(intervals_cover_the_truth_when_the_bytes_stay),
        cmocka_unit_test(intervals_cover_the_truth_when_the_bytes_grow),
        cmocka_unit_test(what_is_not_there_is_bounded),
        cmocka_unit_test(points_that_do_not_carry_the_model_are_refused),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
