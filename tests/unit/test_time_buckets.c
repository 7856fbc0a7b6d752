/* Time buckets: sums stay exact while the width doubles, and memory is fixed. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/time_buckets.h"

#define NS_PER_S UINT64_C(1000000000)

static uint64_t random_state = 88172645463325252u;

static uint64_t random_below(uint64_t limit)
{
    random_state ^= random_state << 13;
    random_state ^= random_state >> 7;
    random_state ^= random_state << 17;
    return random_state % limit;
}

static void assert_same(const struct time_bucket *a, const struct time_bucket *b)
{
    assert_int_equal(a->bytes, b->bytes);
    assert_int_equal(a->requests, b->requests);
    assert_int_equal(a->in_flight_ns, b->in_flight_ns);
}

/* Time in flight of one request in bucket `number`. */
static uint64_t overlap(uint64_t start_ns, uint64_t end_ns, uint64_t number, uint64_t width_ns)
{
    uint64_t from = number * width_ns, to = from + width_ns;
    from = start_ns > from ? start_ns : from;
    to = end_ns < to ? end_ns : to;
    return to > from ? to - from : 0;
}

static void every_bucket_has_what_happened_in_it(void **unused)
{
    (void)unused;
    enum { REQUESTS = 400 };
    static uint64_t start_ns[REQUESTS], end_ns[REQUESTS];
    for (unsigned round = 0; round < 50; round++) {
        struct time_buckets buckets = {0};
        uint64_t span_ns = NS_PER_S / 1000 << random_below(18), base_ns = random_below(100 * NS_PER_S);
        for (unsigned i = 0; i < REQUESTS; i++) {
            start_ns[i] = base_ns + random_below(span_ns);
            end_ns[i] = start_ns[i] + random_below(i % 50 ? span_ns / 100 : span_ns);
            time_buckets_add(&buckets, start_ns[i], end_ns[i], i + 1);
            assert_true(time_buckets_are_valid(&buckets));
        }
        assert_true(buckets.count <= TIME_BUCKETS);
        for (uint64_t k = 0; k < buckets.count; k++) {
            struct time_bucket expected = {0};
            for (unsigned i = 0; i < REQUESTS; i++) {
                bool ended = end_ns[i] / buckets.width_ns == buckets.first + k;
                expected.bytes += ended ? i + 1 : 0;
                expected.requests += ended;
                expected.in_flight_ns += overlap(start_ns[i], end_ns[i], buckets.first + k, buckets.width_ns);
            }
            assert_same(&buckets.buckets[k], &expected);
        }
        struct time_bucket sum = time_buckets_sum(&buckets),
                           whole = {.bytes = (uint64_t)REQUESTS * (REQUESTS + 1) / 2, .requests = REQUESTS};
        for (unsigned i = 0; i < REQUESTS; i++)
            whole.in_flight_ns += end_ns[i] - start_ns[i];
        assert_same(&sum, &whole);
    }
}

static void the_width_doubles_only_when_the_buckets_are_full(void **unused)
{
    (void)unused;
    struct time_buckets buckets = {0};
    uint64_t base_ns = 1001 * TIME_BUCKET_MIN_NS; /* an odd number: the first pair is half a pair */
    for (uint64_t i = 0; i < TIME_BUCKETS; i++)
        time_buckets_add(&buckets, base_ns + i * TIME_BUCKET_MIN_NS, base_ns + i * TIME_BUCKET_MIN_NS, 1);
    assert_int_equal(buckets.width_ns, TIME_BUCKET_MIN_NS);
    assert_int_equal(buckets.count, TIME_BUCKETS);
    assert_int_equal(buckets.first, 1001);
    time_buckets_add(&buckets, base_ns + TIME_BUCKETS * TIME_BUCKET_MIN_NS, base_ns + TIME_BUCKETS * TIME_BUCKET_MIN_NS,
                     1);
    assert_int_equal(buckets.width_ns, 2 * TIME_BUCKET_MIN_NS);
    assert_int_equal(buckets.first, 500);
    assert_int_equal(buckets.count, TIME_BUCKETS / 2 + 1);
    assert_int_equal(buckets.buckets[0].bytes, 1);
    for (uint64_t i = 1; i < buckets.count; i++)
        assert_int_equal(buckets.buckets[i].bytes, 2);
    /* 12.8 s fit into buckets of 0.1 s. */
    time_buckets_add(&buckets, NS_PER_S, NS_PER_S * 128 / 10, 1);
    assert_int_equal(buckets.width_ns, NS_PER_S / 10);
}

static void a_request_that_began_earlier_widens_the_time_before(void **unused)
{
    (void)unused;
    struct time_buckets buckets = {0};
    time_buckets_add(&buckets, 50 * TIME_BUCKET_MIN_NS, 51 * TIME_BUCKET_MIN_NS, 7);
    time_buckets_add(&buckets, 10 * TIME_BUCKET_MIN_NS, 11 * TIME_BUCKET_MIN_NS, 9);
    assert_int_equal(buckets.width_ns, TIME_BUCKET_MIN_NS);
    assert_int_equal(buckets.first, 10);
    assert_int_equal(buckets.count, 42);
    assert_int_equal(buckets.buckets[1].bytes, 9);
    assert_int_equal(buckets.buckets[41].bytes, 7);
    assert_int_equal(buckets.buckets[40].in_flight_ns, TIME_BUCKET_MIN_NS);
}

/* Merging gives the same as adding everything to one. */
static void merged_buckets_of_other_widths_stay_exact(void **unused)
{
    (void)unused;
    for (unsigned round = 0; round < 200; round++) {
        struct time_buckets whole = {0}, parts[2] = {0};
        uint64_t base_ns = random_below(NS_PER_S);
        for (unsigned i = 0; i < 100; i++) {
            unsigned part = (unsigned)random_below(2);
            uint64_t start_ns = base_ns + random_below(part ? NS_PER_S : 30 * NS_PER_S),
                     end_ns = start_ns + random_below(NS_PER_S);
            time_buckets_add(&parts[part], start_ns, end_ns, i);
            time_buckets_add(&whole, start_ns, end_ns, i);
        }
        unsigned to = round % 2;
        time_buckets_merge(&parts[to], &parts[1 - to]);
        time_buckets_widen(&whole, parts[to].width_ns);
        time_buckets_widen(&parts[to], whole.width_ns);
        assert_int_equal(parts[to].first, whole.first);
        assert_int_equal(parts[to].count, whole.count);
        for (uint64_t i = 0; i < whole.count; i++)
            assert_same(&parts[to].buckets[i], &whole.buckets[i]);
    }
    struct time_buckets empty = {0}, none = {0};
    time_buckets_merge(&none, &empty);
    assert_int_equal(none.count, 0);
}

static void damaged_memory_is_found(void **unused)
{
    (void)unused;
    struct time_buckets buckets = {0};
    assert_true(time_buckets_are_valid(&buckets));
    time_buckets_add(&buckets, 1, 2, 3);
    assert_true(time_buckets_are_valid(&buckets));
    struct time_buckets damaged = buckets;
    damaged.count = TIME_BUCKETS + 1;
    assert_false(time_buckets_are_valid(&damaged));
    damaged = buckets;
    damaged.width_ns = 3 * TIME_BUCKET_MIN_NS;
    assert_false(time_buckets_are_valid(&damaged));
    damaged.width_ns = 0;
    assert_false(time_buckets_are_valid(&damaged));
    damaged = buckets;
    damaged.first = UINT64_MAX - 5;
    assert_false(time_buckets_are_valid(&damaged));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_bucket_has_what_happened_in_it),
        cmocka_unit_test(the_width_doubles_only_when_the_buckets_are_full),
        cmocka_unit_test(a_request_that_began_earlier_widens_the_time_before),
        cmocka_unit_test(merged_buckets_of_other_widths_stay_exact),
        cmocka_unit_test(damaged_memory_is_found),
    };
    return cmocka_run_group_tests_name("time buckets", tests, NULL, NULL);
}
