/* Chrome traces, as a reader of them sees them. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "core/clock.h"
#include "core/json.h"
#include "tests/unit/fake_device.h"
#include "train/trace.h"

#define START (5 * NS_PER_S)

static struct json_value *written(const struct trace *trace, uint32_t rank, uint32_t ranks)
{
    char folder[] = "/tmp/test-trace-XXXXXX", inside[64], path[128];
    struct json_value *root = NULL;
    struct cb_err err;
    assert_non_null(mkdtemp(folder));
    snprintf(inside, sizeof inside, "%s/a/b", folder);
    assert_int_equal(trace_write(trace, inside, rank, ranks, &err), 0);
    snprintf(path, sizeof path, "%s/rank-%u.pt.trace.json", inside, rank);
    assert_int_equal(json_parse_file(path, 1 << 20, &root, &err), 0);
    unlink(path);
    rmdir(inside);
    snprintf(inside, sizeof inside, "%s/a", folder);
    rmdir(inside);
    rmdir(folder);
    return root;
}

static const char *text_of(const struct json_value *event, const char *key)
{
    const char *text = "";
    return json_as_text(json_get(event, key), &text) ? text : "";
}

static double number_of(const struct json_value *event, const char *key)
{
    double number = -1;
    return json_as_double(json_get(event, key), &number) ? number : -1;
}

static const struct json_value *find(const struct json_value *root, const char *ph, const char *name, size_t skip)
{
    const struct json_value *events = json_get(root, "traceEvents");
    for (size_t i = 0; i < json_count(events); i++) {
        const struct json_value *event = json_at(events, i);
        if (strcmp(text_of(event, "ph"), ph) == 0 && strcmp(text_of(event, "name"), name) == 0 && skip-- == 0)
            return event;
    }
    return NULL;
}

static void events_have_what_readers_ask_for(void **state)
{
    (void)state;
    struct trace trace;
    struct cb_err err;
    assert_int_equal(trace_init(&trace, 16, &err), 0);
    trace_start(&trace, START);
    trace_begin_step(&trace, 7);
    trace_add(&trace, TRACE_COMPUTE, "optimizer", START + 1500, START + 4000, 0);
    trace_add_numbered(&trace, TRACE_COMM, "all-gather", 3, START + 2000, START + 9000, 4096);
    trace_add_memory(&trace, START + 5000, 123456);
    trace_stop(&trace, START + 10000);
    struct json_value *root = written(&trace, 2, 4);

    const struct json_value *event = find(root, "X", "optimizer", 0);
    assert_non_null(event);
    assert_float_equal(number_of(event, "ts"), 1.5, 1e-9); /* microseconds */
    assert_float_equal(number_of(event, "dur"), 2.5, 1e-9);
    assert_float_equal(number_of(event, "pid"), 2, 0);
    assert_float_equal(number_of(event, "tid"), 1 + TRACE_COMPUTE, 0);
    assert_float_equal(number_of(json_get(event, "args"), "step"), 7, 0);
    assert_float_equal(number_of(json_get(event, "args"), "device"), 2, 0);
    event = find(root, "X", "all-gather 3", 0);
    assert_non_null(event);
    assert_float_equal(number_of(event, "tid"), 1 + TRACE_COMM, 0);
    assert_float_equal(number_of(json_get(event, "args"), "bytes"), 4096, 0);
    event = find(root, "C", "memory", 0);
    assert_non_null(event);
    assert_float_equal(number_of(json_get(event, "args"), "resident bytes"), 123456, 0);
    assert_float_equal(number_of(json_get(root, "distributedInfo"), "rank"), 2, 0);
    assert_float_equal(number_of(json_get(root, "distributedInfo"), "world_size"), 4, 0);
    json_value_free(root);
    trace_release(&trace);
}

static void every_track_has_its_name(void **state)
{
    static const char *const names[TRACE_TRACKS] = {"compute", "comm", "io", "h2d"};
    (void)state;
    struct trace trace;
    struct cb_err err;
    assert_int_equal(trace_init(&trace, 1, &err), 0);
    trace_start(&trace, START);
    trace_stop(&trace, START);
    struct json_value *root = written(&trace, 0, 1);
    const struct json_value *process = find(root, "M", "process_name", 0);
    assert_non_null(process);
    assert_string_equal(text_of(json_get(process, "args"), "name"), "rank 0");
    for (size_t i = 0; i < TRACE_TRACKS; i++) {
        const struct json_value *thread = find(root, "M", "thread_name", i);
        assert_non_null(thread);
        assert_string_equal(text_of(json_get(thread, "args"), "name"), names[i]);
    }
    json_value_free(root);
    trace_release(&trace);
}

static void what_does_not_fit_is_counted(void **state)
{
    (void)state;
    struct trace trace;
    struct cb_err err;
    assert_int_equal(trace_init(&trace, 2, &err), 0);
    trace_start(&trace, START);
    for (int i = 0; i < 5; i++)
        trace_add(&trace, TRACE_IO, "write", START, START + 1, 0);
    trace_add(&trace, TRACE_COMM, "other track", START, START + 1, 0);
    trace_stop(&trace, START + 2);
    struct json_value *root = written(&trace, 0, 1);
    assert_float_equal(number_of(root, "droppedEvents"), 3, 0);
    assert_non_null(find(root, "X", "write", 1));
    assert_null(find(root, "X", "write", 2));
    assert_non_null(find(root, "X", "other track", 0));
    json_value_free(root);
    trace_release(&trace);
}

static void nothing_is_kept_outside_of_the_traced_time(void **state)
{
    (void)state;
    struct trace trace;
    struct cb_err err;
    assert_int_equal(trace_init(&trace, 4, &err), 0);
    trace_add(&trace, TRACE_COMPUTE, "before", START - 5, START - 1, 0);
    trace_start(&trace, START);
    trace_add(&trace, TRACE_COMPUTE, "across", START - 5, START + 1, 0);
    trace_add(&trace, TRACE_COMPUTE, "within", START + 1, START + 2, 0);
    trace_stop(&trace, START + 3);
    trace_add(&trace, TRACE_COMPUTE, "after", START + 4, START + 5, 0);
    assert_int_equal(trace.counts[TRACE_COMPUTE], 1);
    assert_string_equal(trace.events[TRACE_COMPUTE][0].name, "within");
    trace_release(&trace);
}

/* Of a device: between those of the host, in order, with its times; what it has not come to is left out and counted. */
static void events_of_a_device_get_its_times(void **state)
{
    (void)state;
    struct trace trace;
    struct cb_err err;
    struct fake_device *fake = fake_device_new(1, 1);
    assert_non_null(fake);
    assert_int_equal(trace_init(&trace, 4, &err), 0);
    trace_start(&trace, START);
    trace_begin_step(&trace, 3);
    uint64_t mark[4];
    for (size_t i = 0; i < 4; i++) {
        mark[i] = fake_new_mark(fake);
        fake->marks[mark[i]] = i < 3 ? START + 1000 * (i + 1) : 0; /* the last is not over */
    }
    trace_add(&trace, TRACE_COMM, "host", START, START + 10, 0);
    trace_add_marked(&trace, TRACE_COMM, "all-gather", 5, mark[0], mark[1], 77);
    trace_add_marked(&trace, TRACE_COMM, "lost", 6, mark[2], mark[3], 0);
    trace_add_marked(&trace, TRACE_COMM, "all-gather", 7, mark[1], mark[2], 0);
    trace_take_times(&trace, &fake->base);
    fake->base.ops->begin_marks(&fake->base, &err); /* of another step */
    trace_take_times(&trace, &fake->base);
    trace_stop(&trace, START + 9000);
    struct json_value *root = written(&trace, 0, 1);
    assert_float_equal(number_of(root, "droppedEvents"), 1, 0);
    const struct json_value *event = find(root, "X", "all-gather 5", 0);
    assert_non_null(event);
    assert_float_equal(number_of(event, "ts"), 1, 1e-9);
    assert_float_equal(number_of(event, "dur"), 1, 1e-9);
    assert_float_equal(number_of(json_get(event, "args"), "bytes"), 77, 0);
    assert_float_equal(number_of(json_get(event, "args"), "step"), 3, 0);
    event = find(root, "X", "all-gather 7", 0);
    assert_non_null(event);
    assert_float_equal(number_of(event, "ts"), 2, 1e-9);
    assert_null(find(root, "X", "lost 6", 0));
    assert_non_null(find(root, "X", "host", 0));
    json_value_free(root);
    trace_release(&trace);
    device_close(&fake->base);
}

static void kernels_and_copies_have_a_track_for_each_stream(void **state)
{
    (void)state;
    struct trace trace;
    struct cb_err err;
    char longer[200];
    assert_int_equal(trace_init(&trace, 4, &err), 0);
    trace_start(&trace, START);
    trace_add(&trace, TRACE_COMPUTE, "forward 0", START + 1, START + 2, 0);
    trace_stop(&trace, START + 9000);
    memset(longer, 'x', sizeof longer - 1);
    longer[sizeof longer - 1] = '\0';
    const struct device_activity kernels[] = {
        {.name = "before", .stream = 13, .start_ns = START - 1, .end_ns = START + 1},
        {.name = "gelu<float>(float*)", .stream = 13, .start_ns = START + 1000, .end_ns = START + 2000},
        {.kind = DEVICE_COPY, .name = "Memcpy HtoD", .stream = 7, .start_ns = START, .end_ns = START + 500, .bytes = 9},
        {.name = longer, .stream = 13, .start_ns = START + 3000, .end_ns = START + 4000}};
    for (size_t i = 0; i < sizeof kernels / sizeof *kernels; i++)
        trace_add_activity(&trace, &kernels[i]);
    struct json_value *root = written(&trace, 3, 4);
    assert_null(find(root, "X", "before", 0));
    const struct json_value *event = find(root, "X", "gelu<float>(float*)", 0);
    assert_non_null(event);
    assert_string_equal(text_of(event, "cat"), "kernel");
    assert_float_equal(number_of(event, "ts"), 1, 1e-9);
    assert_float_equal(number_of(event, "dur"), 1, 1e-9);
    assert_float_equal(number_of(event, "tid"), 1 + TRACE_TRACKS, 0);
    assert_float_equal(number_of(json_get(event, "args"), "stream"), 13, 0);
    event = find(root, "X", "Memcpy HtoD", 0);
    assert_non_null(event);
    assert_string_equal(text_of(event, "cat"), "gpu_memcpy");
    assert_float_equal(number_of(event, "tid"), 1 + TRACE_TRACKS + 1, 0);
    assert_float_equal(number_of(json_get(event, "args"), "bytes"), 9, 0);
    assert_string_equal(text_of(json_get(find(root, "M", "thread_name", TRACE_TRACKS), "args"), "name"), "stream 13");
    assert_string_equal(text_of(json_get(find(root, "M", "thread_name", TRACE_TRACKS + 1), "args"), "name"),
                        "stream 7");
    longer[sizeof trace.activities->name - 1] = '\0'; /* cut */
    assert_non_null(find(root, "X", longer, 0));
    /* A reader that adds up kernels must not count a stage beside its kernels. */
    assert_string_equal(text_of(find(root, "X", "forward 0", 0), "cat"), "gpu_user_annotation");
    json_value_free(root);
    trace_release(&trace);
}

static void a_trace_that_is_not_wanted_costs_nothing(void **state)
{
    (void)state;
    struct trace trace;
    struct cb_err err;
    assert_int_equal(trace_init(&trace, 0, &err), 0);
    trace_start(&trace, START);
    assert_false(trace_is_active(&trace));
    trace_add(&trace, TRACE_COMPUTE, "nothing", START, START + 1, 0);
    trace_add_memory(&trace, START, 1);
    assert_int_equal(trace.counts[TRACE_COMPUTE], 0);
    trace_release(&trace);
}

static void a_folder_that_cannot_be_made_is_named(void **state)
{
    (void)state;
    struct trace trace;
    struct cb_err err;
    assert_int_equal(trace_init(&trace, 1, &err), 0);
    assert_int_not_equal(trace_write(&trace, "/proc/nothing/here", 0, 1, &err), 0);
    assert_non_null(strstr(err.message, "/proc/nothing"));
    trace_release(&trace);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(events_have_what_readers_ask_for),
        cmocka_unit_test(every_track_has_its_name),
        cmocka_unit_test(what_does_not_fit_is_counted),
        cmocka_unit_test(nothing_is_kept_outside_of_the_traced_time),
        cmocka_unit_test(events_of_a_device_get_its_times),
        cmocka_unit_test(kernels_and_copies_have_a_track_for_each_stream),
        cmocka_unit_test(a_trace_that_is_not_wanted_costs_nothing),
        cmocka_unit_test(a_folder_that_cannot_be_made_is_named),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
