/* The slowest requests: order, room and names. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <string.h>

#include <cmocka.h>

#include "core/slow_requests.h"

static void the_slowest_stay_in_order(void **unused)
{
    (void)unused;
    struct slow_requests slowest = {0};
    for (uint64_t i = 0; i < 100; i++)
        slow_requests_add(&slowest, &(struct slow_request){.latency_ns = i * 37 % 100, .offset = i});
    assert_int_equal(slowest.count, SLOW_REQUESTS);
    for (uint64_t i = 0; i < SLOW_REQUESTS; i++) {
        assert_int_equal(slowest.items[i].latency_ns, 99 - i);
        assert_int_equal(slowest.items[i].offset * 37 % 100, 99 - i);
    }
    assert_false(slow_requests_wants(&slowest, 90));
    assert_true(slow_requests_wants(&slowest, 91));
}

static void a_long_name_keeps_its_end(void **unused)
{
    (void)unused;
    struct slow_request request;
    char name[300];
    memset(name, 'x', sizeof name);
    strcpy(name + sizeof name - 15, "/__0_0.distcp!");
    slow_request_set_file(&request, name);
    assert_int_equal(strlen(request.file), SLOW_REQUEST_FILE_BYTES - 1);
    assert_string_equal(request.file + strlen(request.file) - 14, "/__0_0.distcp!");
    slow_request_set_file(&request, "short");
    assert_string_equal(request.file, "short");
}

static void damaged_memory_is_found(void **unused)
{
    (void)unused;
    struct slow_requests slowest = {0};
    assert_true(slow_requests_are_valid(&slowest));
    slow_requests_add(&slowest, &(struct slow_request){.latency_ns = 1, .kind = REQUEST_READ});
    assert_true(slow_requests_are_valid(&slowest));
    slowest.items[0].kind = REQUEST_KINDS;
    assert_false(slow_requests_are_valid(&slowest));
    slowest.items[0].kind = REQUEST_READ;
    memset(slowest.items[0].file, 'x', sizeof slowest.items[0].file);
    assert_false(slow_requests_are_valid(&slowest));
    slowest.count = SLOW_REQUESTS + 1;
    assert_false(slow_requests_are_valid(&slowest));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(the_slowest_stay_in_order),
        cmocka_unit_test(a_long_name_keeps_its_end),
        cmocka_unit_test(damaged_memory_is_found),
    };
    return cmocka_run_group_tests_name("slow requests", tests, NULL, NULL);
}
