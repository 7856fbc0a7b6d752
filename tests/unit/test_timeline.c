/* Exclusive time: the parts sum to the whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/clock.h"
#include "engine/timeline.h"

/* The store of these tests, instead of store/store.c: it has waited in its backoff for as long as a test says. */
static uint64_t waited_ns;

uint64_t store_waited_in_backoff_ns(struct store *self)
{
    (void)self;
    return waited_ns;
}

static struct status_page *new_page(void)
{
    return calloc(1, sizeof(struct status_page));
}

static void parts_sum_exactly_to_the_whole(void **unused)
{
    (void)unused;
    struct status_page *page = new_page();
    struct timeline timeline;
    timeline_start(&timeline, page, OP_SAVE, STATE_PLAN);
    for (int i = 0; i < 10000; i++)
        timeline_enter(&timeline, (enum rank_state)(i * 7 % STATE_COUNT));
    uint64_t whole_ns = timeline_stop(&timeline), sum_ns = 0;
    for (int state = 0; state < STATE_COUNT; state++)
        sum_ns += timeline.spent_ns[state];
    assert_int_equal(sum_ns, whole_ns);
    free(page);
}

static void time_goes_to_the_state_it_was_spent_in(void **unused)
{
    (void)unused;
    struct status_page *page = new_page();
    struct timeline timeline;
    timeline_start(&timeline, page, OP_LOAD, STATE_PLAN);
    timeline_enter(&timeline, STATE_IO);
    clock_sleep_ns(3 * NS_PER_MS);
    timeline_enter(&timeline, STATE_IO);
    timeline_own_done(&timeline);
    timeline_enter(&timeline, STATE_WAIT);
    clock_sleep_ns(2 * NS_PER_MS);
    timeline_stop(&timeline);
    struct sample sample = {.op = OP_LOAD};
    timeline_fill(&timeline, &sample);
    assert_true(sample.values[METRIC_IO_S] >= 0.003);
    assert_true(sample.values[METRIC_WAIT_S] >= 0.002);
    assert_true(sample.values[METRIC_OWN_S] >= 0.003);
    assert_true(sample.values[METRIC_OP_S] >= sample.values[METRIC_OWN_S] + 0.002);
    assert_true(sample.values[METRIC_FSYNC_S] == 0);
    free(page);
}

static void the_stores_backoff_is_taken_out_of_the_state_in_which_it_happened(void **unused)
{
    (void)unused;
    struct status_page *page = new_page();
    struct timeline timeline;
    waited_ns = 5 * NS_PER_S; /* before this operation */
    timeline_start(&timeline, page, OP_SAVE, STATE_PLAN);
    timeline_watch_backoff(&timeline, (struct store *)page);
    timeline_enter(&timeline, STATE_IO);
    clock_sleep_ns(3 * NS_PER_MS);
    waited_ns += 2 * NS_PER_MS;
    timeline_enter(&timeline, STATE_COMMIT);
    waited_ns += 5 * NS_PER_S; /* of an earlier save, whose end this one waited for: more than there was */
    uint64_t whole_ns = timeline_stop(&timeline), sum_ns = 0;
    for (int state = 0; state < STATE_COUNT; state++)
        sum_ns += timeline.spent_ns[state];
    assert_int_equal(sum_ns, whole_ns);
    assert_true(timeline.spent_ns[STATE_BACKOFF] >= 2 * NS_PER_MS && timeline.spent_ns[STATE_BACKOFF] < whole_ns);
    assert_true(timeline.spent_ns[STATE_IO] >= NS_PER_MS);
    assert_int_equal(timeline.spent_ns[STATE_COMMIT], 0);
    free(page);
}

static void backoff_in_time_that_is_left_out_is_left_out(void **unused)
{
    (void)unused;
    struct status_page *page = new_page();
    struct timeline timeline;
    waited_ns = 0;
    timeline_start(&timeline, page, OP_SAVE, STATE_OTHER);
    timeline_watch_backoff(&timeline, (struct store *)page);
    uint64_t since_ns = timeline_enter(&timeline, STATE_OTHER);
    clock_sleep_ns(2 * NS_PER_MS);
    waited_ns = 2 * NS_PER_MS;
    timeline_leave_out(&timeline, since_ns);
    timeline_stop(&timeline);
    assert_int_equal(timeline.spent_ns[STATE_BACKOFF], 0);
    free(page);
}

static void the_page_shows_the_state(void **unused)
{
    (void)unused;
    struct status_page *page = new_page();
    struct timeline timeline;
    timeline_start(&timeline, page, OP_SAVE, STATE_PLAN);
    assert_int_equal(page->op, OP_SAVE);
    assert_int_equal(page->state, STATE_PLAN);
    timeline_enter(&timeline, STATE_FSYNC);
    assert_int_equal(page->state, STATE_FSYNC);
    timeline_stop(&timeline);
    assert_int_equal(page->op, OP_NONE);
    free(page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(parts_sum_exactly_to_the_whole),
        cmocka_unit_test(time_goes_to_the_state_it_was_spent_in),
        cmocka_unit_test(the_stores_backoff_is_taken_out_of_the_state_in_which_it_happened),
        cmocka_unit_test(backoff_in_time_that_is_left_out_is_left_out),
        cmocka_unit_test(the_page_shows_the_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
