/* What the worker decides without ranks, files or clocks: cores, memory, samples, commands. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "core/memory.h"
#include "engine/affinity.h"
#include "engine/external/engine_command.h"
#include "setup/folder/folder.h"
#include "worker/drop_cache.h"
#include "worker/verify_state.h"

static void cores_are_shared_out_without_overlap_and_none_is_left(void **unused)
{
    (void)unused;
    uint32_t next = 0;
    for (uint32_t rank = 0; rank < 3; rank++) {
        uint32_t first, count;
        affinity_share(8, rank, 3, &first, &count);
        assert_int_equal(first, next);
        assert_in_range(count, 2, 3);
        next = first + count;
    }
    assert_int_equal(next, 8);
}

static void more_ranks_than_cores_take_turns(void **unused)
{
    (void)unused;
    uint32_t first, count;
    affinity_share(2, 3, 5, &first, &count);
    assert_int_equal(first, 1);
    assert_int_equal(count, 1);
}

static void meminfo_lines_are_found_by_their_whole_name(void **unused)
{
    (void)unused;
    const char *text = "MemTotal:       24684020 kB\nMemAvailableX: 1 kB\nMemAvailable:   19159040 kB\n";
    uint64_t bytes = 0;
    struct cb_err err;
    assert_int_equal(memory_parse_meminfo(text, "MemAvailable", &bytes, &err), 0);
    assert_int_equal(bytes, UINT64_C(19159040) * 1024);
    assert_int_equal(memory_parse_meminfo(text, "MemFree", &bytes, &err), CB_ERR_FORMAT);
    assert_int_equal(memory_parse_meminfo("MemFree: lots\n", "MemFree", &bytes, &err), CB_ERR_FORMAT);
}

static void this_machine_has_some_memory_left(void **unused)
{
    (void)unused;
    uint64_t bytes = 0;
    assert_int_equal(memory_available(&bytes, NULL), 0);
    assert_true(bytes > 0);
}

/* Sixteen phases together look at every row once. */
static void sampled_parts_of_all_phases_cover_a_region_once(void **unused)
{
    (void)unused;
    struct region region = {.dims = 2, .offset = {100, 7}, .size = {5000, 1000}};
    uint64_t rows = 0, skipped;
    struct region part;
    for (uint64_t phase = 0; phase < VERIFY_SAMPLE_STRIDE; phase++) {
        for (uint64_t index = 0; verify_sample_region(&region, 4, phase, index, &part, &skipped); index++) {
            assert_int_equal(skipped, (part.offset[0] - 100) * 4000);
            assert_int_equal(part.offset[1], 7);
            assert_int_equal(part.size[1], 1000);
            assert_true(region_contains(&region, &part));
            rows += part.size[0];
        }
    }
    assert_int_equal(rows, 5000);
}

static void a_small_region_and_a_scalar_are_sampled_whole(void **unused)
{
    (void)unused;
    struct region region = {.dims = 1, .size = {12}}, scalar = {.dims = 0}, empty = {.dims = 2, .size = {0, 5}}, part;
    uint64_t skipped;
    assert_true(verify_sample_region(&region, 4, 5, 0, &part, &skipped));
    assert_int_equal(part.size[0], 12);
    assert_false(verify_sample_region(&region, 4, 5, 1, &part, &skipped));
    assert_true(verify_sample_region(&scalar, 4, 5, 0, &part, &skipped));
    assert_false(verify_sample_region(&scalar, 4, 5, 1, &part, &skipped));
    assert_false(verify_sample_region(&empty, 4, 5, 0, &part, &skipped));
}

static void expands_to(const char *template, const char *wanted)
{
    const struct command_value values[] = {{"path", "/a b/it's"}, {"rank", "3"}};
    struct buf out;
    buf_init(&out, 4096);
    assert_int_equal(command_expand(template, values, 2, &out, NULL), 0);
    assert_string_equal(out.data, wanted);
    buf_release(&out);
}

static void values_of_a_command_are_one_word_for_the_shell(void **unused)
{
    (void)unused;
    expands_to("save {path} {rank}", "save '/a b/it'\"'\"'s' '3'");
    expands_to("echo ${HOME} {a,b} {unknown} {rank", "echo ${HOME} {a,b} {unknown} {rank");
    expands_to("{rank}{rank}", "'3''3'");
    expands_to("", "");
}

static int take(const char *output, struct sample *sample, struct cb_err *err)
{
    for (int i = 0; i < METRIC_SAMPLE_COUNT; i++)
        sample->values[i] = NAN;
    sample->values[METRIC_OTHER_S] = 2;
    sample->values[METRIC_IO_S] = 0;
    return command_take_report(output, strlen(output), sample, err);
}

static void the_last_line_of_a_command_may_report_metrics(void **unused)
{
    (void)unused;
    struct sample sample;
    struct cb_err err;
    assert_int_equal(take("hello\n{\"metrics\": {\"retries\": 2, \"io_s\": 0.5, \"errors\": null}}\n", &sample, &err),
                     0);
    assert_true(sample.values[METRIC_RETRIES] == 2);
    assert_true(isnan(sample.values[METRIC_ERRORS]));
    assert_true(sample.values[METRIC_IO_S] == 0.5 && sample.values[METRIC_OTHER_S] == 1.5);
}

static void output_without_a_report_is_left_alone(void **unused)
{
    (void)unused;
    struct sample sample;
    struct cb_err err;
    assert_int_equal(take("", &sample, &err), 0);
    assert_int_equal(take("{\"metrics\": 3}\nbye\n", &sample, &err), 0);
    assert_int_equal(take("{\"other\": 3}\n", &sample, &err), 0);
}

static void a_report_with_mistakes_is_refused_by_name(void **unused)
{
    (void)unused;
    struct sample sample;
    struct cb_err err;
    assert_int_equal(take("{\"metrics\": {\"speed\": 1}}", &sample, &err), CB_ERR_USAGE);
    assert_non_null(strstr(err.message, "'speed'"));
    assert_int_equal(take("{\"metrics\": {\"save_s\": 1}}", &sample, &err), CB_ERR_USAGE);
    assert_int_equal(take("{\"metrics\": {\"retries\": \"two\"}}", &sample, &err), CB_ERR_USAGE);
    assert_int_equal(take("{\"metrics\": [1]}", &sample, &err), CB_ERR_FORMAT);
    assert_true(take("{\"metrics\": ", &sample, &err) != 0);
}

static void loads_much_faster_than_the_limit_are_marked_others_not(void **unused)
{
    (void)unused;
    struct status_page *page = calloc(1, status_page_bytes(3));
    assert_non_null(page);
    page->sample_capacity = 3;
    const uint32_t ops[] = {OP_LOAD, OP_LOAD, OP_SAVE};
    const double seconds[] = {0.1, 1.0, 0.1};
    for (int i = 0; i < 3; i++) {
        struct sample *sample = status_page_begin_sample(page);
        sample->op = ops[i];
        sample->values[METRIC_OP_S] = seconds[i];
        status_page_publish_sample(page);
    }
    drop_cache_mark_suspects(page, 1000, 1000); /* 10,000, 1,000 and 10,000 bytes a second */
    assert_int_equal(page->samples[0].flags, SAMPLE_SUSPECTED_CACHE);
    assert_int_equal(page->samples[1].flags, 0);
    assert_int_equal(page->samples[2].flags, 0);
    free(page);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cores_are_shared_out_without_overlap_and_none_is_left),
        cmocka_unit_test(more_ranks_than_cores_take_turns),
        cmocka_unit_test(meminfo_lines_are_found_by_their_whole_name),
        cmocka_unit_test(this_machine_has_some_memory_left),
        cmocka_unit_test(sampled_parts_of_all_phases_cover_a_region_once),
        cmocka_unit_test(a_small_region_and_a_scalar_are_sampled_whole),
        cmocka_unit_test(values_of_a_command_are_one_word_for_the_shell),
        cmocka_unit_test(the_last_line_of_a_command_may_report_metrics),
        cmocka_unit_test(output_without_a_report_is_left_alone),
        cmocka_unit_test(a_report_with_mistakes_is_refused_by_name),
        cmocka_unit_test(loads_much_faster_than_the_limit_are_marked_others_not),
    };
    return cmocka_run_group_tests_name("worker", tests, NULL, NULL);
}
