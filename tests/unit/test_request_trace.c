/* Traces of requests: what goes in comes out, a torn end is left out, and what a full disk refuses is counted. */
#include <setjmp.h>
#include <signal.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/buf.h"
#include "core/slow_requests.h"
#include "run/request_trace.h"

#define REQUESTS 10000 /* more than the writer's buffer */

struct fixture {
    char folder[64], path[128];
};

static int set_up(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    strcpy(fixture->folder, "/tmp/ckptbench-test-XXXXXX");
    if (!mkdtemp(fixture->folder))
        return -1;
    snprintf(fixture->path, sizeof fixture->path, "%s/traces/rank-3.requests", fixture->folder);
    *state = fixture;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *fixture = *state;
    char folder[96];
    snprintf(folder, sizeof folder, "%s/traces", fixture->folder);
    unlink(fixture->path);
    rmdir(folder);
    rmdir(fixture->folder);
    free(fixture);
    return 0;
}

static struct traced_request request_of(uint64_t i)
{
    struct traced_request request = {.start_ns = i * 1000,
                                     .latency_ns = i + 7,
                                     .offset = i << 20,
                                     .bytes = 1 << 20,
                                     .iteration = (uint32_t)i % 5,
                                     .op = i % 2 ? OP_SAVE : OP_LOAD,
                                     .kind = i % 2 ? REQUEST_WRITE : REQUEST_READ,
                                     .failed = i % 100 == 0};
    memset(request.file, 'x', sizeof request.file); /* no NUL */
    return request;
}

static struct request_trace *write_some(const struct fixture *fixture, uint64_t count)
{
    struct request_trace *trace;
    assert_int_equal(request_trace_open(fixture->path, 3, &trace, NULL), 0);
    for (uint64_t i = 0; i < count; i++) {
        struct traced_request request = request_of(i);
        request_trace_add(trace, &request);
    }
    return trace;
}

static void close_with(struct request_trace *trace, uint64_t written, uint64_t lost)
{
    uint64_t written_now, lost_now;
    request_trace_close(trace, &written_now, &lost_now);
    assert_int_equal(written_now, written);
    assert_int_equal(lost_now, lost);
}

static void assert_holds(const struct fixture *fixture, size_t count)
{
    struct request_trace_file file;
    assert_int_equal(request_trace_read(fixture->path, &file, NULL), 0);
    assert_int_equal(file.rank, 3);
    assert_int_equal(file.count, count);
    for (size_t i = 0; i < count; i++) {
        struct traced_request request = request_of(i);
        assert_memory_equal(&file.requests[i], &request, sizeof request);
    }
    request_trace_release(&file);
}

static void every_request_reads_back(void **state)
{
    close_with(write_some(*state, REQUESTS), REQUESTS, 0);
    assert_holds(*state, REQUESTS);
    struct request_trace *again;
    struct cb_err err;
    const struct fixture *fixture = *state;
    assert_int_not_equal(request_trace_open(fixture->path, 3, &again, &err), 0); /* never overwritten */
}

static void a_flush_makes_requests_readable_while_the_rank_lives(void **state)
{
    struct request_trace *trace = write_some(*state, 5);
    assert_holds(*state, 0);
    request_trace_flush(trace);
    assert_holds(*state, 5);
    close_with(trace, 5, 0);
}

static void a_torn_end_is_left_out(void **state)
{
    const struct fixture *fixture = *state;
    close_with(write_some(fixture, 10), 10, 0);
    assert_int_equal(truncate(fixture->path, 256 + 10 * 80 - 1), 0);
    assert_holds(fixture, 9);
}

static void what_does_not_fit_on_the_disk_is_counted(void **state)
{
    struct rlimit before, small = {.rlim_cur = 256 + 5000 * 80};
    struct request_trace *trace = write_some(*state, 100);
    signal(SIGXFSZ, SIG_IGN);
    assert_int_equal(getrlimit(RLIMIT_FSIZE, &before), 0);
    small.rlim_max = before.rlim_max;
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &small), 0);
    for (uint64_t i = 100; i < REQUESTS; i++) {
        struct traced_request request = request_of(i);
        request_trace_add(trace, &request);
    }
    close_with(trace, 4096, REQUESTS - 4096);
    assert_int_equal(setrlimit(RLIMIT_FSIZE, &before), 0);
    struct request_trace_file file;
    const struct fixture *fixture = *state;
    assert_int_equal(request_trace_read(fixture->path, &file, NULL), 0);
    assert_true(file.count >= 4096); /* whole requests of the write that failed may be there */
    request_trace_release(&file);
}

static void rejects(const struct fixture *fixture, size_t offset, const void *bytes, size_t len)
{
    struct request_trace_file file;
    struct cb_err err;
    struct buf whole;
    buf_init(&whole, 1 << 20);
    assert_int_equal(buf_read_file(&whole, fixture->path, NULL), 0);
    FILE *out = fopen(fixture->path, "r+");
    assert_non_null(out);
    assert_int_equal(fseek(out, (long)offset, SEEK_SET), 0);
    assert_int_equal(fwrite(bytes, len, 1, out), 1);
    fclose(out);
    assert_int_equal(request_trace_read(fixture->path, &file, &err), CB_ERR_FORMAT);
    assert_non_null(strstr(err.message, fixture->path));
    assert_int_equal(buf_write_file(&whole, fixture->path, 0666, NULL), 0);
    buf_release(&whole);
}

static void what_is_no_trace_is_rejected_by_name(void **state)
{
    close_with(write_some(*state, 3), 3, 0);
    rejects(*state, 0, "X", 1);
    rejects(*state, 8, "\x09", 1);                 /* version */
    rejects(*state, 24, "some,", 5);               /* operations */
    rejects(*state, 256 + 80 + 36, "\xff\xff", 2); /* operation of a request */
    rejects(*state, 256 + 2 * 80 + 38, "\x7f", 1); /* kind of a request */
    assert_holds(*state, 3);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(every_request_reads_back, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_flush_makes_requests_readable_while_the_rank_lives, set_up, tear_down),
        cmocka_unit_test_setup_teardown(a_torn_end_is_left_out, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_does_not_fit_on_the_disk_is_counted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(what_is_no_trace_is_rejected_by_name, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("traces of requests", tests, NULL, NULL);
}
