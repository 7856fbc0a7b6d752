/* The histogram's promises: the stated error bound, and that merging is union. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/histogram.h"

#define VALUES 5000

static uint64_t next_random(uint64_t *state)
{
    *state = *state * UINT64_C(6364136223846793005) + UINT64_C(1442695040888963407);
    return *state >> 11;
}

/* Spread over all magnitudes: a mantissa at a random power of two below 2^40. */
static uint64_t next_latency(uint64_t *state)
{
    unsigned bits = (unsigned)(next_random(state) % 40) + 1;
    return next_random(state) & ((UINT64_C(1) << bits) - 1);
}

static int compare(const void *a, const void *b)
{
    uint64_t x = *(const uint64_t *)a, y = *(const uint64_t *)b;
    return (x > y) - (x < y);
}

static void quantiles_are_within_the_stated_error(void **unused)
{
    (void)unused;
    struct histogram *histogram = malloc(sizeof *histogram);
    uint64_t *values = calloc(VALUES, sizeof *values), state = 42;
    for (int round = 0; round < 20; round++) {
        histogram_init(histogram);
        for (size_t i = 0; i < VALUES; i++)
            histogram_record(histogram, values[i] = next_latency(&state));
        qsort(values, VALUES, sizeof *values, compare);
        for (double q = 0; q <= 1; q += 0.001) {
            size_t rank = (size_t)ceil(q * VALUES);
            double truth = (double)values[rank ? rank - 1 : 0];
            double got = (double)histogram_quantile(histogram, q);
            assert_true(fabs(got - truth) <= HISTOGRAM_MAX_ERROR * truth);
        }
    }
    free(values);
    free(histogram);
}

static void small_values_are_exact(void **unused)
{
    (void)unused;
    struct histogram histogram;
    histogram_init(&histogram);
    for (uint64_t value = 0; value < 64; value++)
        histogram_record(&histogram, value);
    for (uint64_t value = 0; value < 64; value++)
        assert_int_equal(histogram_quantile(&histogram, ((double)value + 1) / 64), value);
}

static void every_bucket_border_stays_in_its_bounds(void **unused)
{
    (void)unused;
    for (unsigned bit = 6; bit < 40; bit++) {
        for (uint64_t sub = 0; sub < 32; sub++) {
            struct histogram histogram;
            uint64_t low = (UINT64_C(1) << bit) + (sub << (bit - 5));
            uint64_t high = low + (UINT64_C(1) << (bit - 5)) - 1;
            histogram_init(&histogram);
            histogram_record(&histogram, low);
            histogram_record(&histogram, low);
            histogram_record(&histogram, high);
            double middle = (double)histogram_quantile(&histogram, 0.5);
            assert_true(fabs(middle - (double)low) <= HISTOGRAM_MAX_ERROR * (double)low);
            assert_true(fabs(middle - (double)high) <= HISTOGRAM_MAX_ERROR * (double)high);
            unsigned used = 0;
            for (unsigned bucket = 0; bucket < HISTOGRAM_BUCKETS; bucket++)
                used += histogram.buckets[bucket] > 0;
            assert_int_equal(used, 1);
        }
    }
}

static void merging_two_equals_recording_all_in_one(void **unused)
{
    (void)unused;
    struct histogram *all = malloc(3 * sizeof *all), *a = all + 1, *b = all + 2;
    for (int i = 0; i < 3; i++)
        histogram_init(&all[i]);
    uint64_t state = 7;
    for (size_t i = 0; i < VALUES; i++) {
        uint64_t value = next_latency(&state);
        histogram_record(all, value);
        histogram_record(i % 3 ? a : b, value);
    }
    histogram_merge(a, b);
    assert_memory_equal(a, all, sizeof *all);
    histogram_init(b);
    histogram_merge(a, b); /* an empty one changes nothing */
    assert_memory_equal(a, all, sizeof *all);
    free(all);
}

static void values_past_the_range_count_as_the_largest(void **unused)
{
    (void)unused;
    struct histogram histogram;
    histogram_init(&histogram);
    histogram_record(&histogram, UINT64_MAX);
    assert_int_equal(histogram.max_ns, (UINT64_C(1) << 40) - 1);
    assert_int_equal(histogram_quantile(&histogram, 1), (UINT64_C(1) << 40) - 1);
}

static void empty_one_has_no_quantiles_and_the_sum_is_exact(void **unused)
{
    (void)unused;
    struct histogram histogram;
    histogram_init(&histogram);
    assert_int_equal(histogram_quantile(&histogram, 0.5), 0);
    assert_int_equal(histogram.sum_ns, 0);
    histogram_record(&histogram, 1000001);
    histogram_record(&histogram, 2000000);
    assert_int_equal(histogram.sum_ns, 3000001);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(quantiles_are_within_the_stated_error),
        cmocka_unit_test(small_values_are_exact),
        cmocka_unit_test(every_bucket_border_stays_in_its_bounds),
        cmocka_unit_test(merging_two_equals_recording_all_in_one),
        cmocka_unit_test(values_past_the_range_count_as_the_largest),
        cmocka_unit_test(empty_one_has_no_quantiles_and_the_sum_is_exact),
    };
    return cmocka_run_group_tests_name("histogram", tests, NULL, NULL);
}
