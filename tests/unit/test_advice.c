/* What a watched run's figures advise: our package only where they carry it. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "cli/report/advice.h"

struct watched_run {
    struct run_info info;
    struct run_metric metrics[11];
    char calls[80], *facts[1];
};

/* A synchronous save of 10 s at a fifth of the limit, 40 % of it planning and serializing. */
static void make_run(struct watched_run *made)
{
    struct cb_err err;
    *made = (struct watched_run){.calls = "watch.save_calls=save"};
    struct run_info *info = &made->info;
    strcpy(info->run, "20261121-abcd");
    assert_int_equal(experiment_new(&info->experiment, &err), 0);
    assert_int_equal(experiment_set(info->experiment, "workload", "watch", "test", &err), 0);
    const struct run_metric metrics[] = {
        {.op = OP_SAVE, .metric = METRIC_SAVE_S, .summary = {.n = 5, .median = 10}},
        {.metric = METRIC_SAVE_LIMIT_FRACTION, .summary = {.n = 1, .median = 0.2}},
        {.op = OP_SAVE, .metric = METRIC_PERSIST_S, .summary = {.median = NAN}},
        {.op = OP_LOAD, .metric = METRIC_LOAD_S, .summary = {.n = 1, .median = NAN}},
        {.metric = METRIC_LOAD_LIMIT_FRACTION, .summary = {.median = NAN}},
        {.op = OP_SAVE, .metric = METRIC_BYTES_MOVED, .summary = {.n = 5}},
        {.op = OP_LOAD, .metric = METRIC_BYTES_MOVED, .summary = {.n = 1}},
        {.op = OP_SAVE, .metric = METRIC_STALL_S, .summary = {.n = 5, .median = NAN}},
        {.op = OP_STEP, .metric = METRIC_STEP_ALONE_S, .summary = {.n = 1, .median = 1}},
        {.op = OP_STEP, .metric = METRIC_STEP_BEHIND_S, .summary = {.n = 1, .median = 2}}};
    memcpy(made->metrics, metrics, sizeof metrics);
    info->metrics = made->metrics;
    info->metric_count = sizeof metrics / sizeof *metrics;
    info->slowest_rank[OP_SAVE] = info->slowest_rank[OP_LOAD] = -1;
    info->state_share[OP_SAVE][STATE_PLAN] = 0.16;
    info->state_share[OP_SAVE][STATE_SERIALIZE] = 0.24;
    info->state_share[OP_SAVE][STATE_IO] = 0.6;
    made->facts[0] = made->calls;
    info->facts = made->facts;
    info->fact_count = 1;
}

static const char *advice_of(struct watched_run *made)
{
    static char text[8192];
    struct buf out;
    struct cb_err err;
    buf_init(&out, sizeof text);
    assert_int_equal(advice_write(&made->info, &out, &err), 0);
    snprintf(text, sizeof text, "%s", out.data);
    buf_release(&out);
    return text;
}

static bool is_proposed(struct watched_run *made)
{
    const char *text = advice_of(made);
    unsigned sentences = 0;
    for (const char *at = text; (at = strstr(at, "\nadvice ")); at++)
        sentences++;
    assert_true(sentences < ADVICE_MOST);
    return strstr(text, "ckptbench.checkpoint") != NULL;
}

static void end(struct watched_run *made)
{
    experiment_free(made->info.experiment);
}

static void the_package_is_proposed_with_the_figures_and_the_command(void **unused)
{
    (void)unused;
    struct watched_run made;
    make_run(&made);
    const char *text = advice_of(&made);
    assert_non_null(strstr(text,
                           "40 % of a save (4.00 s) is planning, sending plans and turning tensors into bytes, and "
                           "the whole save has 0.20 of what this place can do: checkpoint.save(path, state) of "
                           "ckptbench.checkpoint"));
    assert_non_null(strstr(text, "ckptbench watch -- … && ckptbench compare 20261121-abcd LATEST"));
    made.info.state_share[OP_SAVE][STATE_PLAN] = 0.01;
    assert_non_null(strstr(advice_of(&made),
                           "24 % of a save (2.40 s) is turning tensors into bytes, and the whole save "
                           "has 0.20 of what this place can do: storage_writer=checkpoint.Writer(path)"));
    end(&made);
}

static void an_asynchronous_save_and_a_load_get_the_calls_of_their_kind(void **unused)
{
    (void)unused;
    struct watched_run made;
    make_run(&made);
    strcpy(made.calls, "watch.save_calls=save, async_save");
    made.metrics[2].summary.median = 8;
    assert_non_null(strstr(advice_of(&made), "checkpoint.save(path, state, async_checkpoint=True)"));
    strcpy(made.calls, "watch.load_calls=load");
    assert_false(is_proposed(&made));
    made.metrics[3].summary.median = 30;
    made.metrics[4].summary.median = 0.4;
    made.info.state_share[OP_LOAD][STATE_SERIALIZE] = 0.5;
    assert_non_null(strstr(advice_of(&made),
                           "50 % of a load (15.0 s) is turning bytes into tensors, and the whole load has "
                           "0.40 of what this place can do: storage_reader=checkpoint.Reader(path)"));
    end(&made);
}

static void the_package_is_not_proposed_if_the_figures_do_not_carry_it(void **unused)
{
    (void)unused;
    struct watched_run made;
    make_run(&made);
    assert_true(is_proposed(&made));
    made.metrics[1].summary.median = 0.85; /* near the limit: another engine is no faster */
    assert_false(is_proposed(&made));
    made.metrics[1].summary.median = NAN; /* not measured */
    assert_false(is_proposed(&made));
    made.metrics[1].summary.median = 0.2;
    made.info.state_share[OP_SAVE][STATE_PLAN] = 0.05; /* its time is in the storage */
    made.info.state_share[OP_SAVE][STATE_SERIALIZE] = 0.14;
    assert_false(is_proposed(&made));
    end(&made);
}

static void calls_that_the_package_cannot_replace_are_left_alone(void **unused)
{
    (void)unused;
    static const char *const calls[] = {"watch.save_calls=ckptbench.checkpoint.save",
                                        "watch.save_calls=save, ckptbench.checkpoint.save",
                                        "watch.save_calls=torch.save",
                                        "watch.save_calls=libckptbench",
                                        "watch.save_calls=sav",
                                        "watch.save_calls=",
                                        "other=1"};
    struct watched_run made;
    make_run(&made);
    for (size_t i = 0; i < sizeof calls / sizeof *calls; i++) {
        snprintf(made.calls, sizeof made.calls, "%s", calls[i]);
        assert_false(is_proposed(&made));
    }
    end(&made);
}

static bool says(struct watched_run *made, const char *words)
{
    return strstr(advice_of(made), words) != NULL;
}

static void a_save_that_the_training_waits_for_is_told_the_option_of_its_own_function(void **unused)
{
    (void)unused;
    static const struct {
        const char *calls, *told;
    } cases[] = {{"watch.save_calls=save", "dcp.async_save keeps"},
                 {"watch.save_calls=ckptbench.checkpoint.save", "async_checkpoint=True keeps"},
                 {"watch.save_calls=libckptbench", "a save behind it (as by dcp.async_save) keeps"},
                 {"other=1", "a save behind it (as by dcp.async_save) keeps"}};
    struct watched_run made;
    make_run(&made);
    made.metrics[7].summary.median = 10;
    for (size_t i = 0; i < sizeof cases / sizeof *cases; i++) {
        char told[128];
        snprintf(made.calls, sizeof made.calls, "%s", cases[i].calls);
        snprintf(told, sizeof told, "all of a save (10.0 s): %s it only for a copy", cases[i].told);
        assert_true(says(&made, told));
    }
    end(&made);
}

/* Only a program that calls torch.distributed.checkpoint is advised to set options of its functions or of its file system. */
static void options_are_proposed_only_to_the_functions_that_have_them(void **unused)
{
    (void)unused;
    static const char *const options[] = {"DefaultSavePlanner", "thread_count=N", "AsyncCheckpointerType.PROCESS"};
    struct watched_run made;
    make_run(&made);
    made.metrics[1].summary.median = NAN; /* the limit is not known: the package is not proposed instead */
    made.metrics[2].summary.median = 8;
    made.info.state_share[OP_SAVE][STATE_IO] = 0;
    for (size_t i = 0; i < 3; i++)
        assert_true(says(&made, options[i]));
    strcpy(made.calls, "watch.save_calls=save, async_save in a process");
    assert_true(says(&made, options[0]) && says(&made, options[1]) && !says(&made, options[2])); /* it has that one */
    strcpy(made.calls, "watch.save_calls=save");
    made.metrics[5].summary.n = 0; /* the bytes are not seen: another storage */
    assert_true(says(&made, options[0]) && !says(&made, options[1]) && !says(&made, options[2]));
    made.metrics[1].summary.median = 0.2;
    made.info.state_share[OP_SAVE][STATE_PLAN] = 0.01;
    assert_false(is_proposed(&made)); /* not the Writer, either */
    made.info.state_share[OP_SAVE][STATE_PLAN] = 0.16;
    made.metrics[1].summary.median = NAN;
    made.metrics[5].summary.n = 5;
    strcpy(made.calls, "watch.save_calls=ckptbench.checkpoint.save");
    for (size_t i = 0; i < 3; i++)
        assert_false(says(&made, options[i]));
    end(&made);
}

static void nobody_is_told_to_measure_the_storage_again(void **unused)
{
    (void)unused;
    struct watched_run made;
    make_run(&made);
    struct run_metric *rate = &made.info.metrics[made.info.metric_count++];
    *rate = (struct run_metric){.op = OP_SAVE, .metric = METRIC_SAVE_BYTES_PER_S, .summary = {.n = 5, .median = 1e9}};
    assert_false(says(&made, "find out what the storage can do"));
    made.metrics[1].summary.median = NAN;
    assert_true(
        says(&made, "60 % of a save (6.00 s) is writing and fsync, and the whole save has 954 MiB/s: find out"));
    end(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_package_is_proposed_with_the_figures_and_the_command),
        cmocka_unit_test(an_asynchronous_save_and_a_load_get_the_calls_of_their_kind),
        cmocka_unit_test(the_package_is_not_proposed_if_the_figures_do_not_carry_it),
        cmocka_unit_test(calls_that_the_package_cannot_replace_are_left_alone),
        cmocka_unit_test(a_save_that_the_training_waits_for_is_told_the_option_of_its_own_function),
        cmocka_unit_test(options_are_proposed_only_to_the_functions_that_have_them),
        cmocka_unit_test(nobody_is_told_to_measure_the_storage_again),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
