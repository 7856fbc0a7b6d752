/* Only time in which a caller waits and every request is in its backoff counts. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>

#include <cmocka.h>

#include "core/clock.h"
#include "store/s3/s3_blocked.h"

/* What a moment adds. */
static uint64_t counted_in_a_moment(struct s3_blocked *blocked)
{
    uint64_t before_ns = s3_blocked_ns(blocked);
    clock_sleep_ns(NS_PER_MS);
    s3_blocked_change(blocked, 0, 0);
    return s3_blocked_ns(blocked) - before_ns;
}

static void it_counts_while_the_caller_waits_and_every_request_is_paused(void **unused)
{
    (void)unused;
    struct s3_blocked blocked;
    s3_blocked_init(&blocked);
    s3_blocked_wait(&blocked, true);
    assert_int_equal(counted_in_a_moment(&blocked), 0); /* no request */
    s3_blocked_change(&blocked, 2, 0);
    assert_int_equal(counted_in_a_moment(&blocked), 0);
    s3_blocked_change(&blocked, -1, 1);
    assert_int_equal(counted_in_a_moment(&blocked), 0); /* the other one is active */
    s3_blocked_change(&blocked, -1, 1);
    assert_true(counted_in_a_moment(&blocked) >= NS_PER_MS);
    s3_blocked_wait(&blocked, false);
    assert_int_equal(counted_in_a_moment(&blocked), 0);
    s3_blocked_wait(&blocked, true);
    s3_blocked_change(&blocked, 1, -1);
    assert_int_equal(counted_in_a_moment(&blocked), 0);
    s3_blocked_change(&blocked, -1, 0);
    assert_true(counted_in_a_moment(&blocked) >= NS_PER_MS);
    s3_blocked_release(&blocked);
}

int main(void)
{
    const struct CMUnitTest tests[] = {cmocka_unit_test(it_counts_while_the_caller_waits_and_every_request_is_paused)};
    return cmocka_run_group_tests(tests, NULL, NULL);
}
