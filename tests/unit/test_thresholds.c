/* Rules that a run must meet. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <string.h>

#include <cmocka.h>

#include "run/thresholds.h"

static void values_take_the_units_of_their_metric(void **state)
{
    (void)state;
    struct thresholds rules;
    struct cb_err err;
    assert_int_equal(
        thresholds_parse("storage_write_bytes_per_s:2GiB/s+net_latency_s:5us+cpu_gemm_flops:1e9", &rules, &err), 0);
    assert_int_equal(rules.count, 3);
    assert_int_equal(rules.items[0].metric, METRIC_STORAGE_WRITE_BYTES_PER_S);
    assert_float_equal(rules.items[0].bound, 2147483648.0, 0);
    assert_float_equal(rules.items[1].bound, 5e-6, 1e-12);
    assert_float_equal(rules.items[2].bound, 1e9, 0);
}

static void no_words_are_no_rules(void **state)
{
    (void)state;
    struct thresholds rules;
    struct cb_err err;
    assert_int_equal(thresholds_parse("", &rules, &err), 0);
    assert_int_equal(rules.count, 0);
}

static void what_is_no_rule_is_named(void **state)
{
    static const char *const wrong[] = {"storage_write_bytes_per_s", "nothing_such:3", "net_latency_s:fast", ":3",
                                        "cpu_gemm_flops:"};
    struct thresholds rules = {.count = 7};
    struct cb_err err;
    (void)state;
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++) {
        assert_int_equal(thresholds_parse(wrong[i], &rules, &err), CB_ERR_USAGE);
        assert_non_null(strstr(err.message, wrong[i]));
        assert_int_equal(rules.count, 7);
    }
}

static void a_bound_is_least_or_most_as_the_metric_has_it(void **state)
{
    (void)state;
    const struct threshold rate = {METRIC_STORAGE_WRITE_BYTES_PER_S, 100}, time = {METRIC_NET_LATENCY_S, 2};
    assert_true(threshold_is_met(&rate, 100));
    assert_false(threshold_is_met(&rate, 99));
    assert_true(threshold_is_met(&time, 2));
    assert_false(threshold_is_met(&time, 2.1));
}

static void what_was_not_measured_meets_no_rule(void **state)
{
    (void)state;
    assert_false(threshold_is_met(&(struct threshold){METRIC_NET_LATENCY_S, 1}, NAN));
    assert_false(threshold_is_met(&(struct threshold){METRIC_STORAGE_WRITE_BYTES_PER_S, 1}, NAN));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(values_take_the_units_of_their_metric),
        cmocka_unit_test(no_words_are_no_rules),
        cmocka_unit_test(what_is_no_rule_is_named),
        cmocka_unit_test(a_bound_is_least_or_most_as_the_metric_has_it),
        cmocka_unit_test(what_was_not_measured_meets_no_rule),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
