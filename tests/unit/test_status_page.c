/* Status pages and the metric catalogue they hold. */
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

#include "run/metrics.h"
#include "run/status_page.h"

struct fixture {
    char folder[64], path[96];
    struct status_page *page;
};

static int set_up(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    strcpy(fixture->folder, "/tmp/ckptbench-test-XXXXXX");
    if (!mkdtemp(fixture->folder))
        return -1;
    snprintf(fixture->path, sizeof fixture->path, "%s/rank-00003", fixture->folder);
    *state = fixture;
    return status_page_create(fixture->path, 3, 4, 2, &fixture->page, NULL);
}

static int tear_down(void **state)
{
    struct fixture *fixture = *state;
    status_page_close(fixture->page);
    unlink(fixture->path);
    rmdir(fixture->folder);
    free(fixture);
    return 0;
}

static void what_the_rank_writes_the_agent_sees(void **state)
{
    struct fixture *fixture = *state;
    struct status_page *rank;
    struct cb_err err;
    assert_int_equal(status_page_open(fixture->path, &rank, &err), 0);
    assert_int_equal(rank->rank, 3);
    assert_int_equal(rank->world_size, 4);
    status_page_enter(rank, OP_SAVE, STATE_FSYNC, 77);
    assert_int_equal(atomic_load(&fixture->page->op), OP_SAVE);
    assert_int_equal(atomic_load(&fixture->page->state), STATE_FSYNC);
    assert_int_equal(atomic_load(&fixture->page->progress_ns), 77);
    status_page_close(rank);
}

static void new_page_knows_nothing(void **state)
{
    struct fixture *fixture = *state;
    for (unsigned i = 0; i < METRIC_COUNT; i++)
        assert_true(isnan(fixture->page->run_values[i]));
    assert_true(fixture->page->latency[OP_LOAD].min_ns == UINT64_MAX);
    assert_int_equal(atomic_load(&fixture->page->phase), PHASE_STARTING);
}

static void sample_counts_only_once_published_and_a_full_page_says_so(void **state)
{
    struct fixture *fixture = *state;
    for (unsigned i = 0; i < 2; i++) {
        struct sample *sample = status_page_begin_sample(fixture->page);
        assert_non_null(sample);
        assert_true(isnan(sample->values[METRIC_OP_S]));
        sample->iteration = i;
        assert_int_equal(atomic_load(&fixture->page->sample_count), i);
        status_page_publish_sample(fixture->page);
    }
    assert_null(status_page_begin_sample(fixture->page));
    assert_int_equal(fixture->page->samples[1].iteration, 1);
}

static void page_that_is_there_is_not_taken_over(void **state)
{
    struct fixture *fixture = *state;
    struct status_page *page;
    struct cb_err err;
    assert_int_equal(status_page_create(fixture->path, 0, 1, 1, &page, &err), CB_ERR_EXISTS);
}

static void other_layouts_are_refused_by_name(void **state)
{
    struct fixture *fixture = *state;
    struct status_page *page;
    struct cb_err err;
    char named[32];
    snprintf(named, sizeof named, "version %d", STATUS_PAGE_VERSION + 1);
    fixture->page->version++;
    assert_int_equal(status_page_open(fixture->path, &page, &err), CB_ERR_FORMAT);
    assert_non_null(strstr(err.message, named));
    fixture->page->version--;
    fixture->page->sample_capacity++;
    assert_int_equal(status_page_open(fixture->path, &page, &err), CB_ERR_FORMAT);
    assert_non_null(strstr(err.message, "layout"));
    fixture->page->sample_capacity--;
    fixture->page->magic++;
    assert_int_equal(status_page_open(fixture->path, &page, &err), CB_ERR_FORMAT);
    fixture->page->magic--;
    assert_int_equal(truncate(fixture->path, 100), 0);
    assert_int_equal(status_page_open(fixture->path, &page, &err), CB_ERR_FORMAT);
    assert_non_null(strstr(err.message, "100 bytes"));
    assert_int_equal(truncate(fixture->path, (off_t)status_page_bytes(2)), 0);
    fixture->page->size_bytes = status_page_bytes(2); /* zeroed by the first truncate; needed to unmap */
}

static void first_failure_gives_the_code_and_every_failure_a_line(void **state)
{
    struct fixture *fixture = *state;
    status_page_add_failure(fixture->page, CB_ERR_NO_SPACE, "the store\nis full");
    status_page_add_failure(fixture->page, CB_ERR_TIMEOUT, "late");
    assert_int_equal(-(int)atomic_load(&fixture->page->failure_code), CB_ERR_NO_SPACE);
    const char text[] = "the store is full\nlate\n";
    assert_int_equal(atomic_load(&fixture->page->failure_length), strlen(text));
    assert_memory_equal(fixture->page->failures, text, strlen(text));
}

static void an_iteration_passed_over_leaves_one_line_and_no_failure(void **state)
{
    struct fixture *fixture = *state;
    for (int i = 0; i < 2; i++) {
        status_page_add_failure(fixture->page, CB_ERR_SYSTEM, "an item");
        status_page_add_failure(fixture->page, CB_ERR_SYSTEM, "another item");
        status_page_pass_over(fixture->page, i == 0 ? "iteration 1: two items" : NULL);
    }
    const char text[] = "iteration 1: two items\n";
    assert_int_equal(atomic_load(&fixture->page->failure_code), 0);
    assert_int_equal(atomic_load(&fixture->page->failure_length), strlen(text));
    assert_int_equal(atomic_load(&fixture->page->passed_length), strlen(text));
    assert_memory_equal(fixture->page->failures, text, strlen(text));
}

static void full_failure_text_counts_the_rest(void **state)
{
    struct fixture *fixture = *state;
    char line[128], wanted[64];
    unsigned lines = 0;
    for (unsigned i = 0; i < 1000; i++) {
        snprintf(line, sizeof line, "model.layers.%04u.weight is not what was saved, at byte 4096 of rank 2's file", i);
        status_page_add_failure(fixture->page, CB_ERR_CORRUPT, line);
    }
    uint32_t length = atomic_load(&fixture->page->failure_length);
    assert_in_range(length, STATUS_PAGE_TEXT_BYTES - 256, STATUS_PAGE_TEXT_BYTES);
    for (uint32_t i = 0; i < length; i++)
        lines += fixture->page->failures[i] == '\n';
    snprintf(wanted, sizeof wanted, "\n… and %u more\n", 1000 - (lines - 1));
    assert_memory_equal(fixture->page->failures + length - strlen(wanted), wanted, strlen(wanted));
    status_page_add_failure(fixture->page, CB_ERR_CORRUPT, "x"); /* short enough to fit, but order matters */
    assert_int_equal(atomic_load(&fixture->page->failure_length), length);
}

static void facts_are_lines_of_key_and_value(void **state)
{
    struct fixture *fixture = *state;
    status_page_add_fact(fixture->page, "io.engine", "io_uring, registered");
    status_page_add_fact(fixture->page, "mpi", "Open MPI");
    const char text[] = "io.engine=io_uring, registered\nmpi=Open MPI\n";
    assert_int_equal(atomic_load(&fixture->page->facts_length), strlen(text));
    assert_memory_equal(fixture->page->facts, text, strlen(text));
}

static void every_metric_operation_and_state_is_found_by_its_name(void **unused)
{
    (void)unused;
    for (unsigned i = 0; i < METRIC_COUNT; i++) {
        enum metric_id id;
        assert_true(metric_find(metric_row((enum metric_id)i)->name, &id));
        assert_int_equal(id, i); /* so names are unique */
        assert_true(*metric_row(id)->meaning && *metric_row(id)->unit);
        assert_int_equal(metric_row(id)->scope == METRIC_OF_SAMPLE, i < METRIC_SAMPLE_COUNT);
    }
    for (unsigned i = 0; i < OP_COUNT; i++) {
        enum operation op;
        assert_true(operation_find(operation_name((enum operation)i), &op));
        assert_int_equal(op, i);
    }
    for (unsigned i = 0; i < STATE_COUNT; i++) {
        enum rank_state found;
        assert_true(rank_state_find(rank_state_name((enum rank_state)i), &found));
        assert_int_equal(found, i);
    }
    enum metric_id id;
    assert_false(metric_find("no_such_metric", &id));
}

static void path_names_the_rank_and_a_folder_too_long_is_refused(void **unused)
{
    (void)unused;
    char path[32];
    struct cb_err err;
    assert_int_equal(status_page_path("/dev/shm/run", 12, path, sizeof path, &err), 0);
    assert_string_equal(path, "/dev/shm/run/rank-12.page");
    assert_int_equal(status_page_path("/dev/shm/a-folder-with-a-long-name", 12, path, sizeof path, &err), CB_ERR_USAGE);
}

static void page_has_room_for_every_sample_of_a_run(void **unused)
{
    (void)unused;
    assert_true(status_page_samples(5, 1, false) >= 6 * 4 + 2);
    assert_true(status_page_samples(5, 1, true) > status_page_samples(5, 1, false));
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(what_the_rank_writes_the_agent_sees, set_up, tear_down),
        cmocka_unit_test_setup_teardown(new_page_knows_nothing, set_up, tear_down),
        cmocka_unit_test_setup_teardown(sample_counts_only_once_published_and_a_full_page_says_so, set_up, tear_down),
        cmocka_unit_test_setup_teardown(page_that_is_there_is_not_taken_over, set_up, tear_down),
        cmocka_unit_test_setup_teardown(other_layouts_are_refused_by_name, set_up, tear_down),
        cmocka_unit_test_setup_teardown(first_failure_gives_the_code_and_every_failure_a_line, set_up, tear_down),
        cmocka_unit_test_setup_teardown(an_iteration_passed_over_leaves_one_line_and_no_failure, set_up, tear_down),
        cmocka_unit_test_setup_teardown(full_failure_text_counts_the_rest, set_up, tear_down),
        cmocka_unit_test_setup_teardown(facts_are_lines_of_key_and_value, set_up, tear_down),
        cmocka_unit_test(every_metric_operation_and_state_is_found_by_its_name),
        cmocka_unit_test(path_names_the_rank_and_a_folder_too_long_is_refused),
        cmocka_unit_test(page_has_room_for_every_sample_of_a_run),
    };
    return cmocka_run_group_tests_name("status_page", tests, NULL, NULL);
}
