/* Runs find their jobs in what Slurm lists. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>

#include <cmocka.h>

#include "jobs/slurm/job_index.h"

#define JOBS 1000

static struct slurm_job all[JOBS];

static struct slurm_jobs make_jobs(size_t count)
{
    memset(all, 0, sizeof all);
    for (size_t i = 0; i < count; i++) {
        size_t mixed = i * 617 % count; /* in no order */
        all[i].node_count = mixed;
        all[i].in_array = mixed % 2;
        all[i].array_task = mixed;
        if (all[i].in_array)
            snprintf(all[i].id, sizeof all[i].id, "77_%zu", mixed);
        else
            snprintf(all[i].id, sizeof all[i].id, "%zu", mixed);
        snprintf(all[i].name, sizeof all[i].name, all[i].in_array ? "sweep" : "run.%zu", mixed);
    }
    return (struct slurm_jobs){.items = all, .count = count};
}

static struct job_record record_of(const char *job, const char *name, bool in_array, uint64_t task)
{
    struct job_record record;
    job_record_init(&record);
    snprintf(record.job, sizeof record.job, "%s", job);
    snprintf(record.name, sizeof record.name, "%s", name);
    record.in_array = in_array;
    record.array_task = task;
    return record;
}

static void every_job_is_found_by_its_number_and_by_its_name(void **state)
{
    struct slurm_jobs jobs = make_jobs(JOBS);
    struct job_index index;
    (void)state;
    assert_int_equal(job_index_make(&index, &jobs, NULL), 0);
    for (size_t i = 0; i < JOBS; i++) {
        char id[32], name[32];
        bool in_array = i % 2;
        snprintf(id, sizeof id, in_array ? "77_%zu" : "%zu", i);
        snprintf(name, sizeof name, in_array ? "sweep" : "run.%zu", i);
        struct job_record known = record_of(id, name, false, 0), lost = record_of("", name, in_array, i);
        assert_int_equal(job_index_find(&index, &known)->node_count, i);
        assert_int_equal(job_index_find(&index, &lost)->node_count, i);
    }
    struct job_record gone = record_of("4711", "run.2", false, 0), never = record_of("", "run.1", false, 0);
    struct job_record alone = record_of("", "sweep", false, 1), beyond = record_of("", "sweep", true, JOBS);
    assert_null(job_index_find(&index, &gone)); /* its number is known: another job of its name is not its own */
    assert_null(job_index_find(&index, &never));
    assert_null(job_index_find(&index, &alone));
    assert_null(job_index_find(&index, &beyond));
    assert_null(job_index_find_id(&index, ""));
    job_index_release(&index);
}

static void of_equal_ones_the_last_in_the_answer_counts(void **state)
{
    struct slurm_jobs jobs = make_jobs(3);
    struct job_index index;
    (void)state;
    for (size_t i = 0; i < 3; i++) {
        snprintf(all[i].id, sizeof all[i].id, "5");
        snprintf(all[i].name, sizeof all[i].name, "same");
        all[i].in_array = false;
        all[i].node_count = i;
    }
    assert_int_equal(job_index_make(&index, &jobs, NULL), 0);
    struct job_record by_name = record_of("", "same", false, 0);
    assert_int_equal(job_index_find_id(&index, "5")->node_count, 2);
    assert_int_equal(job_index_find(&index, &by_name)->node_count, 2);
    job_index_release(&index);
    job_index_release(&index);
}

static void a_number_that_was_given_again_is_somebody_elses(void **state)
{
    struct slurm_jobs jobs = make_jobs(3);
    struct job_index index;
    (void)state;
    assert_int_equal(job_index_make(&index, &jobs, NULL), 0);
    struct job_record other = record_of("2", "ours", false, 0), old = record_of("2", "", false, 0), held = other;
    assert_null(job_index_find(&index, &other));
    assert_non_null(job_index_find(&index, &old));
    snprintf(held.pool, sizeof held.pool, "p"); /* the job is the pool's, and has its name */
    assert_non_null(job_index_find(&index, &held));
    for (size_t i = 0; i < 3; i++)
        snprintf(all[i].comment, sizeof all[i].comment, "ckptbench/ours"); /* renamed by hand */
    assert_non_null(job_index_find(&index, &other));
    job_index_release(&index);
}

static void nothing_is_found_where_there_is_nothing(void **state)
{
    struct slurm_jobs none = {0};
    struct job_index index = {0};
    struct job_record record = record_of("", "a", false, 0);
    (void)state;
    assert_null(job_index_find(&index, &record));
    assert_int_equal(job_index_make(&index, &none, NULL), 0);
    assert_null(job_index_find(&index, &record));
    assert_null(job_index_find_id(&index, "1"));
    job_index_release(&index);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_job_is_found_by_its_number_and_by_its_name),
        cmocka_unit_test(of_equal_ones_the_last_in_the_answer_counts),
        cmocka_unit_test(a_number_that_was_given_again_is_somebody_elses),
        cmocka_unit_test(nothing_is_found_where_there_is_nothing),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
