/* job.json: written, read back, and refused where it is not one. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "run/job_record.h"

static void test_a_record_reads_back_as_it_was_written(void **state)
{
    char folder[] = "/tmp/ckptbench-record-XXXXXX", path[64];
    struct job_record record, back;
    (void)state;
    assert_non_null(mkdtemp(folder));
    job_record_init(&record);
    assert_int_equal(job_record_read(folder, &back, NULL), CB_ERR_NOT_FOUND);
    strcpy(record.name, "20261121-k3f9.01");
    strcpy(record.job, "4711_3");
    strcpy(record.nodes, "n[1-4]");
    record.in_array = true;
    record.array_task = 3;
    strcpy(record.before, "20261121-k3f9.00");
    record.intent_wall_ns = 5;
    record.queue_s = 12;
    assert_int_equal(job_record_enter(&record, JOB_PLANNED, 1, NULL, NULL), 0);
    assert_int_equal(job_record_enter(&record, JOB_PENDING, 2, "PENDING: \"Resources\"\n", NULL), 0);
    assert_int_equal(job_record_enter(&record, JOB_PENDING, 3, "again", NULL), 0); /* no change */
    assert_int_equal(job_record_write(folder, &record, NULL), 0);
    assert_int_equal(job_record_read(folder, &back, NULL), 0);
    assert_string_equal(back.job, "4711_3");
    assert_true(back.in_array && back.array_task == 3 && back.intent_wall_ns == 5);
    assert_string_equal(back.before, "20261121-k3f9.00");
    assert_true(back.queue_s == 12 && isnan(back.boot_s));
    assert_int_equal(back.state, JOB_PENDING);
    assert_int_equal(back.transition_count, 2);
    assert_string_equal(back.transitions[1].note, "PENDING: \"Resources\"\n");
    job_record_release(&record);
    job_record_release(&back);
    snprintf(path, sizeof path, "%s/job.json", folder);
    unlink(path);
    rmdir(folder);
}

static void test_a_job_requeued_for_ever_keeps_its_beginning(void **state)
{
    struct job_record record;
    (void)state;
    job_record_init(&record);
    for (uint64_t i = 0; i < JOB_MAX_TRANSITIONS + 10; i++)
        assert_int_equal(job_record_enter(&record, i % 2 ? JOB_RUNNING : JOB_PENDING, i + 1, NULL, NULL), 0);
    assert_int_equal(record.transition_count, JOB_MAX_TRANSITIONS);
    assert_int_equal(record.transitions[0].at_wall_ns, 1);
    assert_int_equal(record.transitions[JOB_MAX_TRANSITIONS - 1].at_wall_ns, JOB_MAX_TRANSITIONS + 10);
    job_record_release(&record);
}

static void test_what_is_no_record_is_refused_by_name(void **state)
{
    static const char *const texts[] = {"", "{}", "[]", "{\"version\": 2}", "{\"version\": 1, \"name\": 7}"};
    (void)state;
    for (size_t i = 0; i < sizeof texts / sizeof *texts; i++) {
        struct job_record record;
        struct cb_err err;
        assert_int_equal(job_record_parse("job.json", texts[i], strlen(texts[i]), &record, &err), CB_ERR_FORMAT);
        assert_non_null(strstr(err.message, "job.json"));
    }
}

static void test_states_have_names_and_an_end(void **state)
{
    (void)state;
    for (unsigned i = 0; i < JOB_STATE_COUNT; i++) {
        enum job_state found;
        assert_true(job_state_find(job_state_name((enum job_state)i), &found));
        assert_int_equal(found, i);
    }
    assert_false(job_state_is_final(JOB_SEALING));
    assert_true(job_state_is_final(JOB_DONE) && job_state_is_final(JOB_LOST));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(test_a_record_reads_back_as_it_was_written),
        cmocka_unit_test(test_a_job_requeued_for_ever_keeps_its_beginning),
        cmocka_unit_test(test_what_is_no_record_is_refused_by_name),
        cmocka_unit_test(test_states_have_names_and_an_end),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
