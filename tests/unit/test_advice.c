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
    struct run_metric metrics[5];
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
    const struct run_metric metrics[] = {{.op = OP_SAVE, .metric = METRIC_SAVE_S, .summary = {.n = 5, .median = 10}},
                                         {.metric = METRIC_SAVE_LIMIT_FRACTION, .summary = {.n = 1, .median = 0.2}},
                                         {.op = OP_SAVE, .metric = METRIC_PERSIST_S, .summary = {.median = NAN}},
                                         {.op = OP_LOAD, .metric = METRIC_LOAD_S, .summary = {.median = NAN}},
                                         {.metric = METRIC_LOAD_LIMIT_FRACTION, .summary = {.median = NAN}}};
    memcpy(made->metrics, metrics, sizeof metrics);
    info->metrics = made->metrics;
    info->metric_count = 5;
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
        strcpy(made.calls, calls[i]);
        assert_false(is_proposed(&made));
    }
    end(&made);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_package_is_proposed_with_the_figures_and_the_command),
        cmocka_unit_test(an_asynchronous_save_and_a_load_get_the_calls_of_their_kind),
        cmocka_unit_test(the_package_is_not_proposed_if_the_figures_do_not_carry_it),
        cmocka_unit_test(calls_that_the_package_cannot_replace_are_left_alone),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
