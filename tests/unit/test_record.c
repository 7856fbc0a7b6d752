/* Records: what goes in comes out, and a damaged file is named as such. */
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

#include "core/buf.h"
#include "run/record.h"

#define RANKS 3

struct fixture {
    char folder[64], path[96];
    struct record record;
    struct buf bytes;
};

static void fill_rank(struct status_page *page, uint32_t rank)
{
    for (uint32_t i = 0; i < 2; i++) {
        struct sample *sample = status_page_begin_sample(page);
        sample->op = i ? OP_LOAD : OP_SAVE;
        sample->iteration = 4;
        sample->flags = i ? SAMPLE_SUSPECTED_CACHE : 0;
        sample->values[METRIC_OP_S] = 1.5 + rank;
        sample->values[METRIC_DURABLE_S] = 0.1;
        status_page_publish_sample(page);
    }
    status_page_begin_sample(page)->values[METRIC_OP_S] = 99; /* never published */
    status_page_enter(page, OP_LOAD, STATE_WAIT, 5);
    atomic_store(&page->phase, PHASE_DONE);
    atomic_store(&page->iteration, 4);
    status_page_add_fact(page, "io.engine", "psync");
    if (rank == 1)
        status_page_add_failure(page, CB_ERR_TIMEOUT, "late");
    page->run_values[METRIC_PLAN_ITEMS] = 100 + rank;
    if (rank == 2)
        page->run_values[METRIC_SETUP_S] = 0.25;
    histogram_record(&page->latency[OP_SAVE], 1000 * (rank + 1));
    histogram_record(&page->ttfb[OP_LOAD], 500);
    for (uint64_t i = 0; i < 200 && rank != 1; i++)
        time_buckets_add(&page->over_time[OP_SAVE][REQUEST_WRITE], i * i * 1000000, i * i * 1000000 + i, i << 30);
    time_buckets_add(&page->over_time[OP_LOAD][TIMED_BACKOFF], 5, UINT64_C(1) << 40, 0);
    slow_requests_add(&page->slowest[OP_SAVE], &(struct slow_request){.latency_ns = 1000 * (rank + 1),
                                                                      .kind = REQUEST_FINISH,
                                                                      .iteration = 4,
                                                                      .offset = 77,
                                                                      .bytes = 78,
                                                                      .started_wall_ns = 79,
                                                                      .file = "run/__0_0.distcp"});
}

static int set_up(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    strcpy(fixture->folder, "/tmp/ckptbench-test-XXXXXX");
    if (!mkdtemp(fixture->folder))
        return -1;
    snprintf(fixture->path, sizeof fixture->path, "%s/file", fixture->folder);
    record_init(&fixture->record, "20261121-abcd", 2, RANKS);
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        struct status_page *page;
        if (status_page_create(fixture->path, rank, RANKS, 4, &page, NULL))
            return -1;
        fill_rank(page, rank);
        int rc = record_add_page(&fixture->record, page, NULL);
        status_page_close(page);
        unlink(fixture->path);
        if (rc)
            return -1;
    }
    buf_init(&fixture->bytes, 1 << 20);
    *state = fixture;
    if (record_write(&fixture->record, fixture->path, NULL))
        return -1;
    return buf_read_file(&fixture->bytes, fixture->path, NULL);
}

static int tear_down(void **state)
{
    struct fixture *fixture = *state;
    unlink(fixture->path);
    rmdir(fixture->folder);
    record_release(&fixture->record);
    buf_release(&fixture->bytes);
    free(fixture);
    return 0;
}

static void record_reads_back_as_it_was_written(void **state)
{
    struct fixture *fixture = *state;
    struct record back;
    struct cb_err err;
    assert_int_equal(record_read(fixture->path, &back, &err), 0);
    assert_string_equal(back.run, "20261121-abcd");
    assert_int_equal(back.attempt, 2);
    assert_int_equal(back.world_size, RANKS);
    assert_int_equal(back.rank_count, RANKS);
    for (uint32_t i = 0; i < RANKS; i++) {
        const struct record_rank *rank = &back.ranks[i];
        assert_int_equal(rank->rank, i);
        assert_int_equal(rank->phase, PHASE_DONE);
        assert_int_equal(rank->last_op, OP_LOAD);
        assert_int_equal(rank->last_state, STATE_WAIT);
        assert_int_equal(rank->last_iteration, 4);
        assert_int_equal(-(int)rank->failure_code, i == 1 ? CB_ERR_TIMEOUT : 0);
        assert_string_equal(rank->failures, i == 1 ? "late\n" : "");
        assert_string_equal(rank->facts, "io.engine=psync\n");
        assert_int_equal(rank->sample_count, 2);
        assert_int_equal(rank->samples[1].op, OP_LOAD);
        assert_int_equal(rank->samples[1].iteration, 4);
        assert_int_equal(rank->samples[1].flags, SAMPLE_SUSPECTED_CACHE);
        assert_true(rank->samples[1].values[METRIC_OP_S] == 1.5 + i);
        assert_true(rank->samples[1].values[METRIC_DURABLE_S] == 0.1);
        assert_true(isnan(rank->samples[1].values[METRIC_PLAN_S]));
        assert_int_equal(rank->time_count, i == 1 ? 1 : 2);
        assert_memory_equal(rank->times, fixture->record.ranks[i].times, rank->time_count * sizeof *rank->times);
        assert_int_equal(rank->times[0].op, i == 1 ? OP_LOAD : OP_SAVE);
        assert_int_equal(rank->times[rank->time_count - 1].kind, TIMED_BACKOFF);
    }
    record_release(&back);
}

static void values_of_the_run_are_those_of_the_lowest_rank_that_has_them(void **state)
{
    struct fixture *fixture = *state;
    struct record back;
    struct cb_err err;
    assert_int_equal(record_read(fixture->path, &back, &err), 0);
    assert_true(back.run_values[METRIC_PLAN_ITEMS] == 100);
    assert_true(back.run_values[METRIC_SETUP_S] == 0.25);
    assert_true(isnan(back.run_values[METRIC_GOODPUT]));
    assert_memory_equal(back.latency, fixture->record.latency, sizeof back.latency);
    assert_int_equal(back.latency[OP_SAVE].count, RANKS);
    assert_memory_equal(back.ttfb, fixture->record.ttfb, sizeof back.ttfb);
    assert_int_equal(back.ttfb[OP_LOAD].count, RANKS);
    assert_int_equal(back.ttfb[OP_SAVE].count, 0);
    assert_int_equal(back.slowest[OP_SAVE].count, RANKS);
    assert_int_equal(back.slowest[OP_SAVE].items[0].rank, RANKS - 1);
    assert_memory_equal(back.slowest, fixture->record.slowest, sizeof back.slowest);
    record_release(&back);
}

static void every_truncation_is_refused(void **state)
{
    struct fixture *fixture = *state;
    for (size_t len = 0; len < fixture->bytes.len; len++) {
        struct record record;
        struct cb_err err;
        int rc = record_parse("records", fixture->bytes.data, len, &record, &err);
        assert_int_equal(rc, len < 8 ? CB_ERR_FORMAT : CB_ERR_CORRUPT);
        assert_int_equal(strncmp(err.message, "records: ", 9), 0);
        if (len >= 8)
            assert_non_null(strstr(err.message, "truncated"));
    }
}

static void every_flipped_bit_is_found(void **state)
{
    struct fixture *fixture = *state;
    for (size_t i = 0; i < fixture->bytes.len; i++) {
        struct record record;
        struct cb_err err;
        fixture->bytes.data[i] = (char)(fixture->bytes.data[i] ^ 1 << i % 7);
        assert_int_not_equal(record_parse("records", fixture->bytes.data, fixture->bytes.len, &record, &err), 0);
        fixture->bytes.data[i] = (char)(fixture->bytes.data[i] ^ 1 << i % 7);
    }
}

static void bytes_after_the_end_and_other_versions_are_refused(void **state)
{
    struct fixture *fixture = *state;
    struct record record;
    struct cb_err err;
    char named[32];
    snprintf(named, sizeof named, "version %d", RECORD_VERSION + 1);
    fixture->bytes.data[8] = RECORD_VERSION + 1;
    assert_int_equal(record_parse("r", fixture->bytes.data, fixture->bytes.len, &record, &err), CB_ERR_FORMAT);
    assert_non_null(strstr(err.message, named));
    fixture->bytes.data[8] = RECORD_VERSION;
    buf_append_char(&fixture->bytes, 'x');
    assert_int_equal(record_parse("r", fixture->bytes.data, fixture->bytes.len, &record, &err), CB_ERR_CORRUPT);
}

static void page_that_a_rank_overwrote_is_refused(void **state)
{
    struct fixture *fixture = *state;
    struct status_page *page;
    struct record record;
    struct cb_err err;
    record_init(&record, "run", 1, RANKS);
    unlink(fixture->path);
    assert_int_equal(status_page_create(fixture->path, 0, RANKS, 4, &page, &err), 0);
    atomic_store(&page->sample_count, 5);
    assert_int_equal(record_add_page(&record, page, &err), CB_ERR_CORRUPT);
    atomic_store(&page->sample_count, 1); /* published, but with operation 0 */
    assert_int_equal(record_add_page(&record, page, &err), CB_ERR_CORRUPT);
    atomic_store(&page->sample_count, 0);
    assert_int_equal(record_add_page(&record, page, &err), 0);
    assert_int_equal(record_add_page(&record, page, &err), CB_ERR_FORMAT); /* the same rank again */
    assert_int_equal(record.rank_count, 1);
    status_page_close(page);
    record_release(&record);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(record_reads_back_as_it_was_written, set_up, tear_down),
        cmocka_unit_test_setup_teardown(values_of_the_run_are_those_of_the_lowest_rank_that_has_them, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(every_truncation_is_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(every_flipped_bit_is_found, set_up, tear_down),
        cmocka_unit_test_setup_teardown(bytes_after_the_end_and_other_versions_are_refused, set_up, tear_down),
        cmocka_unit_test_setup_teardown(page_that_a_rank_overwrote_is_refused, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("record", tests, NULL, NULL);
}
