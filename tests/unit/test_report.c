/* How one run looks: the table's words and the JSON's shape, from a run made by hand. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/report/metric_format.h"
#include "cli/report/report.h"

struct made_run {
    struct run_info info;
    struct run_metric metrics[5];
    char *facts[1];
};

static void make_run(struct made_run *made)
{
    struct cb_err err;
    *made = (struct made_run){0};
    struct run_info *info = &made->info;
    strcpy(info->run, "20261121-abcd");
    strcpy(info->state, "done");
    strcpy(info->outcome, "pass");
    info->folder = (char *)"/runs/20261121-abcd";
    assert_int_equal(experiment_new(&info->experiment, &err), 0);
    assert_int_equal(experiment_set(info->experiment, "label.kind", "x", "test", &err), 0);
    const struct run_metric metrics[] = {
        {OP_SAVE, METRIC_SAVE_S, {5, 0.80, 0.83, 0.79, 0.84, 0.81, 0.01}},
        {OP_SAVE, METRIC_SAVE_BYTES_PER_S, {5, 2.03 * 1073741824, 3e9, 2e9, 3e9, 2.1e9, 1e7}},
        {OP_SAVE, METRIC_IO_S, {5, 0.7, 0.7, 0.7, 0.7, 0.7, 0}},
        {OP_NONE, METRIC_SAVE_LIMIT_FRACTION, {1, 0.97, 0.97, 0.97, 0.97, 0.97, 0}},
        {OP_SAVE, METRIC_STALL_S, {5, 0.8, NAN, 0.8, 0.8, 0.8, 0}},
    };
    memcpy(made->metrics, metrics, sizeof metrics);
    info->metrics = made->metrics;
    info->metric_count = 5;
    info->state_share[OP_SAVE][STATE_IO] = 0.91;
    info->state_share[OP_SAVE][STATE_FSYNC] = 0.06;
    info->state_share[OP_SAVE][STATE_WAIT] = 0.026;
    info->state_share[OP_SAVE][STATE_COMMIT] = 0.004;
    for (int op = 0; op < OP_COUNT; op++) {
        info->slowest_rank[op] = -1;
        info->slowest_rank_state[op] = STATE_COUNT;
    }
    info->slowest_rank[OP_SAVE] = 2;
    info->slowest_rank_excess[OP_SAVE] = 0.012;
    info->slowest_rank_share[OP_SAVE] = 0.8;
    info->slowest_rank_state[OP_SAVE] = STATE_IO;
    info->iterations_verified = info->iterations_to_verify = 5;
    made->facts[0] = (char *)"io.used=io_uring O_DIRECT";
    info->facts = made->facts;
    info->fact_count = 1;
}

static void expect_in(const char *text, const char *wanted)
{
    if (!strstr(text, wanted))
        fail_msg("'%s' is not in\n%s", wanted, text);
}

static void the_table_says_how_fast_who_was_slowest_and_where_the_time_went(void **unused)
{
    (void)unused;
    struct made_run made;
    struct buf out;
    struct cb_err err = {0};
    make_run(&made);
    buf_init(&out, 65536);
    assert_int_equal(report_write_results(&made.info, false, &out, &err), 0);
    expect_in(out.data, "save");
    expect_in(out.data, "0.80 s");
    expect_in(out.data, "0.79 s … 0.84 s");
    expect_in(out.data, "2.03");
    expect_in(out.data, "0.97");
    expect_in(out.data, "rank 2, +1.2 %: write ");
    expect_in(out.data, "write 91 %, fsync 6 %, wait 3 %\n");
    expect_in(out.data, "used          io_uring O_DIRECT\n");
    expect_in(out.data, "verified      every byte of every tensor, 5 of 5 iterations\n");
    expect_in(out.data, "next: ckptbench compare 20261121-abcd OTHER");
    assert_null(strstr(out.data, "load"));
    buf_release(&out);
    experiment_free(made.info.experiment);
}

static void one_value_has_no_range(void **unused)
{
    (void)unused;
    struct made_run made;
    struct buf out;
    struct cb_err err = {0};
    make_run(&made);
    made.metrics[0].summary.n = 1;
    buf_init(&out, 65536);
    assert_int_equal(report_write_results(&made.info, false, &out, &err), 0);
    expect_in(out.data, "save  0.80 s          -   2.03");
    buf_release(&out);
    experiment_free(made.info.experiment);
}

static void a_run_without_figures_proposes_no_comparison(void **unused)
{
    (void)unused;
    struct made_run made;
    struct buf out;
    struct cb_err err = {0};
    make_run(&made);
    buf_init(&out, 65536);
    assert_int_equal(experiment_set(made.info.experiment, "workload", "wait", "test", &err), 0);
    assert_int_equal(report_write_results(&made.info, false, &out, &err), 0);
    expect_in(out.data, "stored        run 20261121-abcd in ");
    assert_null(strstr(out.data, "compare"));
    buf_release(&out);
    experiment_free(made.info.experiment);
}

static void a_metric_of_several_operations_is_named_with_its_operation(void **unused)
{
    (void)unused;
    char name[64];
    assert_string_equal(metric_full_name(OP_SAVE, METRIC_THROUGHPUT_MIBS, name), "save.throughput_mibs");
    assert_string_equal(metric_full_name(OP_LOAD, METRIC_THROUGHPUT_MIBS, name), "load.throughput_mibs");
    assert_string_equal(metric_full_name(OP_SAVE, METRIC_SAVE_S, name), "save_s");
}

static void the_baseline_reads_in_the_state_read(void **unused)
{
    (void)unused;
    assert_string_equal(metric_state_name(STATE_IO, OP_BASELINE_READ), "read");
    assert_string_equal(metric_state_name(STATE_IO, OP_BASELINE_WRITE), "write");
}

/* A metric of two saves, by its mean. */
static struct run_metric of_saves(enum metric_id metric, double mean)
{
    return (struct run_metric){OP_SAVE, metric, {2, mean, mean, mean, mean, mean, 0}, NULL};
}

static void repeated_requests_are_a_line_with_causes_and_times(void **unused)
{
    (void)unused;
    struct run_metric metrics[] = {of_saves(METRIC_OP_S, 0.25),        of_saves(METRIC_IN_BACKOFF_S, 0.19),
                                   of_saves(METRIC_THROTTLED_S, 0.2),  of_saves(METRIC_REQUESTS, 1030),
                                   of_saves(METRIC_RETRIES, 206),      of_saves(METRIC_RETRIES_THROTTLED, 200),
                                   of_saves(METRIC_RETRIES_SERVER, 6), of_saves(METRIC_TTFB_P50_S, 0.0031),
                                   of_saves(METRIC_TTFB_P99_S, 0.048), of_saves(METRIC_RETRIES_CONNECTION, 0)};
    struct made_run made;
    struct buf out;
    struct cb_err err = {0};
    make_run(&made);
    made.info.metrics = metrics;
    made.info.metric_count = sizeof metrics / sizeof *metrics;
    buf_init(&out, 65536);
    assert_int_equal(report_write_results(&made.info, false, &out, &err), 0);
    expect_in(out.data, "repeated      412 of 2,060 requests in 2 saves (20 %): 400 throttled, 12 server; 0.38 s of "
                        "0.50 s waiting to try again, throttled for 0.40 s; first byte p50 3.10 ms, p99 48 ms\n");
    metrics[4] = of_saves(METRIC_RETRIES, 0);
    buf_clear(&out);
    assert_int_equal(report_write_results(&made.info, false, &out, &err), 0);
    assert_null(strstr(out.data, "repeated"));
    buf_release(&out);
    experiment_free(made.info.experiment);
}

static void a_failure_says_why_and_where_the_logs_are(void **unused)
{
    (void)unused;
    struct made_run made;
    struct buf out;
    struct cb_err err = {0};
    make_run(&made);
    strcpy(made.info.outcome, "benchmark_failed");
    made.info.message = (char *)"rank 1: no space";
    made.info.metric_count = 0;
    buf_init(&out, 65536);
    assert_int_equal(report_write_results(&made.info, false, &out, &err), 0);
    expect_in(out.data, "benchmark_failed rank 1: no space\n");
    expect_in(out.data,
              "logs: /runs/20261121-abcd/attempts     every reason: ckptbench show 20261121-abcd --failures\n");
    buf_clear(&out);
    assert_int_equal(experiment_set(made.info.experiment, "workload", "watch", "test", &err), 0);
    assert_int_equal(report_write_results(&made.info, false, &out, &err), 0);
    expect_in(out.data, "logs: /runs/20261121-abcd/attempts\n"); /* the ranks of a command report none to us */
    buf_release(&out);
    experiment_free(made.info.experiment);
}

static void a_share_above_the_limit_and_a_busy_machine_are_doubts_also_of_saves(void **unused)
{
    (void)unused;
    struct made_run made;
    struct buf out;
    struct cb_err err = {0};
    make_run(&made);
    buf_init(&out, 65536);
    assert_int_equal(report_write_results(&made.info, false, &out, &err), 0);
    assert_null(strstr(out.data, "doubt"));
    made.metrics[3].summary.median = 1.23;
    made.metrics[4] =
        (struct run_metric){OP_NONE, METRIC_HOST_OTHERS_CPU_FRACTION, {1, 0.4, 0.4, 0.4, 0.4, 0.4, 0}, NULL};
    buf_clear(&out);
    assert_int_equal(report_write_results(&made.info, false, &out, &err), 0);
    expect_in(out.data, "doubt         saves took 1.23 of the device's limit: it was measured too low");
    expect_in(out.data, "doubt         this machine was busy: others than this run took 40 % of its CPU time");
    struct json_writer writer;
    buf_clear(&out);
    json_writer_init(&writer, &out, 0);
    report_write_json(&made.info, &writer);
    expect_in(out.data, "\"doubts\": [\"saves took 1.23 of the device's limit: it was measured too low");
    expect_in(out.data, "\"this machine was busy: others than this run took 40 % of its CPU time");
    buf_release(&out);
    experiment_free(made.info.experiment);
}

static void the_document_has_the_promised_members_and_null_for_what_is_absent(void **unused)
{
    (void)unused;
    struct made_run made;
    struct buf out;
    struct json_writer writer;
    struct json_value *root;
    struct cb_err err = {0};
    double number;
    make_run(&made);
    buf_init(&out, 1 << 20);
    json_writer_init(&writer, &out, 2);
    report_write_json(&made.info, &writer);
    if (json_parse(out.data, out.len, &root, &err))
        fail_msg("%s\n%s", err.message, out.data);
    static const char *const members[] = {"run",    "state",  "outcome",      "experiment", "metrics",
                                          "limits", "states", "slowest_rank", "verified",   "labels"};
    for (size_t i = 0; i < sizeof members / sizeof *members; i++)
        assert_non_null(json_get(root, members[i]));
    const struct json_value *metrics = json_get(root, "metrics");
    assert_true(json_as_double(json_get(json_get(metrics, "save_s"), "median"), &number) && number == 0.80);
    assert_non_null(json_get(metrics, "save.io_s"));
    assert_true(json_is_null(json_get(json_get(metrics, "stall_s"), "p95")));
    assert_true(json_as_double(json_get(json_get(json_get(root, "states"), "save"), "write"), &number));
    assert_true(number == 0.91);
    assert_null(json_get(json_get(root, "states"), "load"));
    assert_true(json_is_null(json_get(json_get(root, "limits"), "load_limit_fraction")));
    assert_true(json_is_null(json_get(root, "message")));
    json_value_free(root);
    buf_release(&out);
    experiment_free(made.info.experiment);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_table_says_how_fast_who_was_slowest_and_where_the_time_went),
        cmocka_unit_test(one_value_has_no_range),
        cmocka_unit_test(a_run_without_figures_proposes_no_comparison),
        cmocka_unit_test(a_metric_of_several_operations_is_named_with_its_operation),
        cmocka_unit_test(the_baseline_reads_in_the_state_read),
        cmocka_unit_test(a_share_above_the_limit_and_a_busy_machine_are_doubts_also_of_saves),
        cmocka_unit_test(repeated_requests_are_a_line_with_causes_and_times),
        cmocka_unit_test(a_failure_says_why_and_where_the_logs_are),
        cmocka_unit_test(the_document_has_the_promised_members_and_null_for_what_is_absent),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
