/* Runs of the history by name, by filter and by baseline. */
#include "tests/unit/history_world.h"

static void select_well(struct history *history, const char *words, struct run_selection *selection)
{
    struct cb_err err;
    char copy[256];
    const char *list[8];
    size_t count = 0;
    snprintf(copy, sizeof copy, "%s", words);
    for (char *word = strtok(copy, " "); word; word = strtok(NULL, " "))
        list[count++] = word;
    if (history_select(history, list, count, selection, &err))
        fail_msg("%s: %s", words, err.message);
}

static void assert_selects(struct history *history, const char *words, size_t count, const char *newest)
{
    struct run_selection selection;
    select_well(history, words, &selection);
    assert_int_equal(selection.count, count);
    if (newest)
        assert_string_equal(selection.runs[0], newest);
    run_selection_release(&selection);
}

static void words_add_up_and_filters_narrow(void **state)
{
    struct fixture *self = *state;
    struct history *history = open_history(self);
    make_three(self, history);
    assert_selects(history, "", 3, NULL);
    assert_selects(history, "model=gpt2", 1, "20261120-bbbb");
    assert_selects(history, "model=gpt2*", 2, NULL);
    assert_selects(history, "model=gpt2,gpt2-xl", 2, NULL);
    assert_selects(history, "label.kind=nightly", 1, "20261120-bbbb");
    assert_selects(history, "label.kind=*", 2, NULL);
    assert_selects(history, "io.block=1024k", 1, "s1.01");
    assert_selects(history, "s1", 1, "s1.01");
    assert_selects(history, "s1 20261120", 2, NULL);
    assert_selects(history, "s1 20261120 model=gpt2", 1, "20261120-bbbb");
    assert_selects(history, "since=1d", 0, NULL);
    assert_selects(history, "until=1d", 3, NULL);
    assert_selects(history, "outcome=pass state=done", 3, NULL);
    assert_selects(history, "state=failed", 0, NULL);
    history_close(history);
}

static void names_that_fail_say_the_nearest(void **state)
{
    struct fixture *self = *state;
    struct cb_err err;
    char run[64];
    struct run_selection selection;
    struct history *history = open_history(self);
    assert_int_equal(history_find_run(history, "LATEST", run, &err), CB_ERR_NOT_FOUND);
    make_three(self, history);
    assert_int_equal(history_find_run(history, "20261121", run, &err), 0);
    assert_string_equal(run, "20261121-aaaa");
    assert_int_equal(history_find_run(history, "2026112", run, &err), CB_ERR_USAGE);
    assert_int_equal(history_find_run(history, "20261121-aaab", run, &err), CB_ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, "20261121-aaaa"));
    const char *wrong[] = {"modle=gpt2"};
    assert_int_equal(history_select(history, wrong, 1, &selection, &err), CB_ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, "model"));
    const char *bad[] = {"since=yesterday"};
    assert_true(history_select(history, bad, 1, &selection, &err) < 0);
    history_close(history);
}

static void a_window_baseline_slides_and_leaves_out_what_is_compared_with_it(void **state)
{
    struct fixture *self = *state;
    struct cb_err err;
    struct history *history = open_history(self);
    make_three(self, history);
    char *filters[] = {"model=gpt2*"};
    struct baseline baseline = {.name = "nightly", .window = 1, .words = filters, .word_count = 1};
    assert_int_equal(history_set_baseline(history, &baseline, &err), 0);
    struct run_selection all, rest;
    select_well(history, "nightly", &all);
    assert_int_equal(all.count, 1);
    const char *words[] = {"nightly"};
    assert_int_equal(history_select_excluding(history, words, 1, &all, &rest, &err), 0);
    assert_int_equal(rest.count, 1);
    assert_string_not_equal(rest.runs[0], all.runs[0]);
    run_selection_release(&all);
    run_selection_release(&rest);
    assert_int_equal(history_remove_baseline(history, "nightly", &err), 0);
    assert_int_equal(history_remove_baseline(history, "nightly", &err), CB_ERR_NOT_FOUND);
    char *missing[] = {"nosuchrun"};
    struct baseline wrong = {.name = "x", .words = missing, .word_count = 1};
    assert_true(history_set_baseline(history, &wrong, &err) < 0);
    struct baseline escaping = {.name = "../x", .words = missing, .word_count = 1};
    assert_int_equal(history_set_baseline(history, &escaping, &err), CB_ERR_USAGE);
    history_close(history);
}

static int count_step(void *count)
{
    ++*(int *)count;
    return 0;
}

static int forget_point(void *context, const struct metric_point *point, struct cb_err *err)
{
    (void)context, (void)point, (void)err;
    return 0;
}

/* Steps of SQLite's machine that a question for a metric takes. */
static int steps_of_metric(struct history *history, enum metric_id metric)
{
    struct cb_err err;
    int steps = 0;
    sqlite3_progress_handler(history->db, 1, count_step, &steps);
    assert_int_equal(history_each_point(history, NULL, OP_COUNT, metric, forget_point, NULL, &err), 0);
    sqlite3_progress_handler(history->db, 0, NULL, NULL);
    return steps;
}

static void a_metric_that_no_run_has_costs_the_same_whatever_the_number_of_runs(void **state)
{
    struct fixture *self = *state;
    struct history *history = open_history(self);
    int steps = steps_of_metric(history, METRIC_GOODPUT);
    make_three(self, history);
    assert_int_equal(steps_of_metric(history, METRIC_GOODPUT), steps);
    assert_true(steps_of_metric(history, METRIC_OP_S) > steps);
    history_close(history);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        TEST(words_add_up_and_filters_narrow),
        TEST(names_that_fail_say_the_nearest),
        TEST(a_window_baseline_slides_and_leaves_out_what_is_compared_with_it),
        TEST(a_metric_that_no_run_has_costs_the_same_whatever_the_number_of_runs),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
