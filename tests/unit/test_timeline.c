/* Exclusive time: the parts sum to the whole. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>

#include <cmocka.h>

#include "core/clock.h"
#include "engine/timeline.h"

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
        cmocka_unit_test(the_page_shows_the_state),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
