/* Which run here tells what an experiment will get: of its store, and the most alike. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "cli/plan/forecast.h"

#define MIB 1048576.0

static const struct rate_run like_it = {.engine = (char *)"native",
                                        .model = (char *)"gpt2",
                                        .store = (char *)"/no/such/disk",
                                        .endpoint = (char *)"",
                                        .mount = (char *)"/no",
                                        .ranks = 4,
                                        .bytes_a_rank = 100 * MIB,
                                        .save = 1e9,
                                        .load = 2e9,
                                        .wait = NAN};

static struct rate_run run_named(const char *name, uint64_t started_wall_ns)
{
    struct rate_run run = like_it;
    snprintf(run.run, sizeof run.run, "%s", name);
    run.started_wall_ns = started_wall_ns;
    return run;
}

static void query_for(struct throughput_query *query, const char *const *settings)
{
    struct cb_err err;
    *query = (struct throughput_query){.ranks = 4, .bytes_a_rank = 100 * MIB};
    strcpy(query->hash, "0123456789abcdef");
    assert_int_equal(experiment_new(&query->experiment, &err), 0);
    assert_int_equal(experiment_set(query->experiment, "model", "gpt2", "test", &err), 0);
    assert_int_equal(experiment_set(query->experiment, "store", "/no/such/disk", "test", &err), 0);
    for (; settings && *settings; settings += 2)
        assert_int_equal(experiment_set(query->experiment, settings[0], settings[1], "test", &err), 0);
}

/* The name of the run that is chosen, "-" for none. */
static const char *chosen(struct rate_run *runs, size_t count, const char *const *settings)
{
    static char name[64];
    struct throughput_history book = {.runs = runs, .count = count};
    struct throughput_query query;
    query_for(&query, settings);
    const struct rate_run *run = throughput_history_choose(&book, &query);
    snprintf(name, sizeof name, "%s", run ? run->run : "-");
    throughput_query_release(&query);
    return name;
}

static void another_store_tells_nothing(void **unused)
{
    (void)unused;
    struct rate_run runs[] = {run_named("disk", 1), run_named("memory", 2)};
    runs[1].store = (char *)"/no/such/memory";
    assert_string_equal(chosen(runs, 2, NULL), "disk");
    assert_string_equal(chosen(runs, 2, (const char *const[]){"store", "/no/such/memory", NULL}), "memory");
    assert_string_equal(chosen(runs, 2, (const char *const[]){"store", "/no/such/third", NULL}), "-");
    assert_string_equal(chosen(runs, 0, NULL), "-");
}

static void another_folder_of_the_same_file_system_is_the_same_store(void **unused)
{
    (void)unused;
    struct rate_run runs[] = {run_named("proc", 1), run_named("root", 2)};
    runs[0].store = (char *)"/proc/self";
    runs[0].mount = (char *)"/proc";
    runs[1].store = (char *)"/somewhere";
    runs[1].mount = (char *)"/";
    assert_string_equal(chosen(runs, 2, (const char *const[]){"store", "/proc/not/there/yet", NULL}), "proc");
    assert_string_equal(chosen(runs, 2, (const char *const[]){"store", "/not-there-yet", NULL}), "root");
    assert_string_equal(chosen(runs, 2, (const char *const[]){"store", "/process", NULL}), "root");
}

static void a_plan_with_faults_takes_what_its_store_does_without(void **unused)
{
    (void)unused;
    struct rate_run runs[] = {run_named("plain", 1), run_named("faulty", 2)};
    runs[1].store = (char *)"fault:delay=1s:/no/such/disk";
    assert_string_equal(chosen(runs, 2, NULL), "plain");
    assert_string_equal(chosen(runs, 2, (const char *const[]){"store", "fault:delay=9s:/no/such/disk", NULL}), "plain");
    assert_string_equal(chosen(runs + 1, 1, NULL), "-");
}

static void a_bucket_counts_with_its_endpoint(void **unused)
{
    (void)unused;
    struct rate_run runs[] = {run_named("here", 1), run_named("there", 2), run_named("other", 3)};
    for (int i = 0; i < 3; i++) {
        runs[i].store = (char *)(i < 2 ? "s3://bucket/a" : "s3://other/b");
        runs[i].endpoint = (char *)(i == 1 ? "http://there:1" : "http://here:1");
    }
    const char *const here[] = {"store", "s3://bucket/b", "s3.endpoint", "http://here:1", NULL};
    assert_string_equal(chosen(runs, 3, here), "here");
    assert_string_equal(chosen(runs + 1, 2, here), "-");
}

static void a_much_smaller_run_counts_only_where_there_is_no_other(void **unused)
{
    (void)unused;
    struct rate_run runs[] = {run_named("small", 9), run_named("other-model", 1)};
    runs[0].bytes_a_rank = 6 * MIB;
    runs[1].model = (char *)"gpt2-xl";
    runs[1].ranks = 8;
    assert_string_equal(chosen(runs, 2, NULL), "other-model");
    assert_string_equal(chosen(runs, 1, NULL), "small");
}

static void the_same_experiment_then_the_same_model_then_the_nearest_then_the_newest(void **unused)
{
    (void)unused;
    struct rate_run runs[] = {run_named("same", 1), run_named("old", 2), run_named("new", 3), run_named("near", 4),
                              run_named("far", 5)};
    strcpy(runs[0].hash, "0123456789abcdef");
    runs[3].model = runs[4].model = (char *)"gpt2-medium";
    runs[3].bytes_a_rank = 150 * MIB;
    runs[4].bytes_a_rank = 300 * MIB;
    assert_string_equal(chosen(runs, 5, NULL), "same");
    assert_string_equal(chosen(runs + 1, 4, NULL), "new");
    assert_string_equal(chosen(runs + 3, 2, NULL), "near");
}

static void saves_behind_training_need_a_run_that_saved_so(void **unused)
{
    (void)unused;
    struct rate_run runs[] = {run_named("behind", 1), run_named("waits", 2)};
    runs[0].is_async = true;
    assert_string_equal(chosen(runs, 2, NULL), "waits");
    assert_string_equal(chosen(runs, 2, (const char *const[]){"save.async", "true", NULL}), "behind");
    assert_string_equal(chosen(runs + 1, 1, (const char *const[]){"save.async", "true", NULL}), "-");
    runs[1].engine = (char *)"dcp";
    assert_string_equal(chosen(runs, 2, NULL), "behind");
}

static void a_margin_is_wider_where_less_is_known_and_the_line_says_why(void **unused)
{
    (void)unused;
    struct cb_err err;
    struct experiment *experiment;
    struct workload workload;
    struct rates rates;
    struct rate_run runs[] = {run_named("20261121-abcd", UINT64_C(1795222800000000000))};
    const struct throughput_history book = {.runs = runs, .count = 1}, empty = {0};
    assert_int_equal(experiment_new(&experiment, &err), 0);
    assert_int_equal(experiment_set(experiment, "model", "gpt2", "test", &err), 0);
    assert_int_equal(experiment_set(experiment, "ranks", "4", "test", &err), 0);
    assert_int_equal(experiment_set(experiment, "store", "/no/such/disk", "test", &err), 0);
    assert_int_equal(workload_init(&workload, experiment, &err), 0);
    forecast_choose_rates(experiment, &workload, &book, &rates);
    assert_string_equal(rates.from, "run 20261121-abcd (gpt2 on 4 ranks, 100 MiB a rank, /no/such/disk, 2026-11-21)");
    assert_true(rates.save == 1e9 && rates.load == 2e9 && !rates.assumed);
    int known = forecast_margin(&rates);
    runs[0].bytes_a_rank = MIB;
    forecast_choose_rates(experiment, &workload, &book, &rates);
    assert_non_null(strstr(rates.from, "much smaller"));
    int small = forecast_margin(&rates);
    forecast_choose_rates(experiment, &workload, &empty, &rates);
    assert_string_equal(rates.from, "assumed: no run on this store yet");
    assert_true(known < small && small < forecast_margin(&rates));
    workload_release(&workload);
    experiment_free(experiment);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(another_store_tells_nothing),
        cmocka_unit_test(another_folder_of_the_same_file_system_is_the_same_store),
        cmocka_unit_test(a_plan_with_faults_takes_what_its_store_does_without),
        cmocka_unit_test(a_bucket_counts_with_its_endpoint),
        cmocka_unit_test(a_much_smaller_run_counts_only_where_there_is_no_other),
        cmocka_unit_test(the_same_experiment_then_the_same_model_then_the_nearest_then_the_newest),
        cmocka_unit_test(saves_behind_training_need_a_run_that_saved_so),
        cmocka_unit_test(a_margin_is_wider_where_less_is_known_and_the_line_says_why),
    };
    return cmocka_run_group_tests_name("rates", tests, NULL, NULL);
}
