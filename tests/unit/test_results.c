/* Results: what the ranks' samples become, and what is left out. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>

#include <cmocka.h>

#include "run/results.h"

#define RANKS 2

struct fixture {
    struct record record;
    struct results results;
    struct cb_err err;
};

static void add(struct fixture *fixture, uint32_t rank, enum operation op, uint32_t iteration, uint32_t flags,
                double op_s)
{
    struct record_rank *place = &fixture->record.ranks[rank];
    place->samples = realloc(place->samples, (place->sample_count + 1) * sizeof *place->samples);
    struct sample *sample = &place->samples[place->sample_count++];
    *sample = (struct sample){.op = op, .iteration = iteration, .flags = flags};
    for (unsigned i = 0; i < METRIC_SAMPLE_COUNT; i++)
        sample->values[i] = NAN;
    sample->values[METRIC_OP_S] = op_s;
    sample->values[METRIC_OWN_S] = op_s / 2;
    sample->values[METRIC_IO_S] = op_s * 3 / 4;
    sample->values[METRIC_FSYNC_S] = op_s / 4;
    sample->values[METRIC_BYTES_MOVED] = 1000 + rank;
    sample->values[METRIC_BYTES_NEEDED] = 500;
    sample->values[METRIC_REQUESTS] = 10;
    sample->values[METRIC_RSS_BYTES] = 100 * (rank + 1);
}

static int set_up(void **state)
{
    struct fixture *fixture = calloc(1, sizeof *fixture);
    record_init(&fixture->record, "run", 1, RANKS);
    fixture->record.ranks = calloc(RANKS, sizeof *fixture->record.ranks);
    fixture->record.rank_count = RANKS;
    for (uint32_t rank = 0; rank < RANKS; rank++)
        fixture->record.ranks[rank].rank = rank;
    *state = fixture;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *fixture = *state;
    results_release(&fixture->results);
    record_release(&fixture->record);
    free(fixture);
    return 0;
}

static const struct summary *find(const struct fixture *fixture, enum operation op, enum metric_id metric)
{
    const struct result_row *row = results_find(&fixture->results, op, metric);
    assert_non_null(row);
    return &row->summary;
}

static void near(double got, double wanted)
{
    if (!(fabs(got - wanted) <= 1e-9 * fabs(wanted) + 1e-12))
        fail_msg("got %.12g, wanted %.12g", got, wanted);
}

static void slowest_rank_makes_the_time_and_amounts_add_up(void **state)
{
    struct fixture *fixture = *state;
    for (uint32_t iteration = 1; iteration <= 3; iteration++) {
        add(fixture, 0, OP_SAVE, iteration, 0, 2);
        add(fixture, 1, OP_SAVE, iteration, 0, 1 + iteration); /* 2, 3, 4 */
    }
    fixture->record.run_values[METRIC_CHECKPOINT_BYTES] = 4 * 1048576;
    fixture->record.run_values[METRIC_CHECKPOINT_STORED_BYTES] = 1100;
    assert_int_equal(results_compute(&fixture->record, &fixture->results, &fixture->err), 0);
    const struct summary *save = find(fixture, OP_SAVE, METRIC_SAVE_S);
    assert_int_equal(save->n, 3);
    near(save->median, 3);
    near(save->min, 2);
    near(save->max, 4);
    near(find(fixture, OP_SAVE, METRIC_SAVE_BYTES_PER_S)->median, 1000.0 / 3); /* without headers */
    near(find(fixture, OP_SAVE, METRIC_BYTES_MOVED)->median, 2001);
    near(find(fixture, OP_SAVE, METRIC_RSS_BYTES)->median, 200);
    near(find(fixture, OP_SAVE, METRIC_IO_S)->median, 0.75 * 2.5);
    near(find(fixture, OP_SAVE, METRIC_SAVE_IMBALANCE)->max, 4 / 3.0);
    near(find(fixture, OP_SAVE, METRIC_THROUGHPUT_MIBS)->median, 2);
    near(find(fixture, OP_SAVE, METRIC_RANK0_SAVE_BYTES_PER_S)->median, 4 * 1048576);
    near(find(fixture, OP_NONE, METRIC_SAVE_OVERHEAD)->median, 0.1);
    near(find(fixture, OP_NONE, METRIC_REQUEST_RATE)->median, 60.0 / 9);
    assert_null(results_find(&fixture->results, OP_SAVE, METRIC_PLAN_S));
    assert_null(results_find(&fixture->results, OP_LOAD, METRIC_LOAD_S));
    const double *values = results_find(&fixture->results, OP_SAVE, METRIC_SAVE_S)->iterations;
    near(values[0], 2);
    near(values[2], 4);
}

static void figures_of_the_suite_are_means_over_the_ranks_that_have_them(void **state)
{
    struct fixture *fixture = *state;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        add(fixture, rank, OP_SUITE, 1, 0, 1);
        struct sample *sample = &fixture->record.ranks[rank].samples[0];
        for (int metric = 0; metric < METRIC_SAMPLE_COUNT; metric++)
            if (metric_is_of_suite((enum metric_id)metric))
                sample->values[metric] = 10 * (rank + 1);
        if (rank == 1)
            sample->values[METRIC_STORAGE_WRITE_BYTES_PER_S] = NAN; /* the first rank of a node alone writes */
    }
    assert_int_equal(results_compute(&fixture->record, &fixture->results, &fixture->err), 0);
    for (int metric = 0; metric < METRIC_SAMPLE_COUNT; metric++)
        if (metric_is_of_suite((enum metric_id)metric))
            near(find(fixture, OP_SUITE, (enum metric_id)metric)->median, metric == METRIC_NET_LATENCY_P99_S ? 20
                                                                          : metric == METRIC_STORAGE_WRITE_BYTES_PER_S
                                                                              ? 10
                                                                              : 15);
}

static void warm_up_failed_and_incomplete_iterations_are_left_out(void **state)
{
    struct fixture *fixture = *state;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        add(fixture, rank, OP_LOAD, 0, SAMPLE_WARMUP, 100);
        add(fixture, rank, OP_LOAD, 1, 0, 5);
        add(fixture, rank, OP_LOAD, 2, rank ? SAMPLE_FAILED : 0, 7);
    }
    add(fixture, 0, OP_LOAD, 3, 0, 9); /* rank 1 was killed */
    assert_int_equal(results_compute(&fixture->record, &fixture->results, &fixture->err), 0);
    assert_int_equal(find(fixture, OP_LOAD, METRIC_LOAD_S)->n, 1);
    near(find(fixture, OP_LOAD, METRIC_LOAD_S)->median, 5);
    near(find(fixture, OP_LOAD, METRIC_LOAD_BYTES_PER_S)->median, 200);
}

static void nothing_is_measured_when_a_rank_left_no_page(void **state)
{
    struct fixture *fixture = *state;
    add(fixture, 0, OP_SAVE, 1, 0, 2);
    add(fixture, 1, OP_SAVE, 1, 0, 2);
    fixture->record.world_size = 3;
    assert_int_equal(results_compute(&fixture->record, &fixture->results, &fixture->err), 0);
    assert_null(results_find(&fixture->results, OP_SAVE, METRIC_SAVE_S));
}

static void shares_of_states_sum_to_1(void **state)
{
    struct fixture *fixture = *state;
    for (uint32_t rank = 0; rank < RANKS; rank++)
        add(fixture, rank, OP_SAVE, 1, 0, 2 + rank);
    assert_int_equal(results_compute(&fixture->record, &fixture->results, &fixture->err), 0);
    near(fixture->results.state_share[OP_SAVE][STATE_IO], 0.75);
    near(fixture->results.state_share[OP_SAVE][STATE_FSYNC], 0.25);
    near(fixture->results.state_share[OP_SAVE][STATE_WAIT], 0);
    near(fixture->results.state_share[OP_LOAD][STATE_IO], 0);
}

static void there_is_no_rate_of_bytes_that_are_not_known(void **state)
{
    struct fixture *fixture = *state;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        add(fixture, rank, OP_LOAD, 1, 0, 2);
        fixture->record.ranks[rank].samples[0].values[METRIC_BYTES_NEEDED] = 0;
    }
    assert_int_equal(results_compute(&fixture->record, &fixture->results, &fixture->err), 0);
    assert_null(results_find(&fixture->results, OP_LOAD, METRIC_LOAD_BYTES_PER_S));
    assert_int_equal(find(fixture, OP_LOAD, METRIC_LOAD_S)->n, 1);
}

static void slowest_rank_is_the_one_that_is_most_often(void **state)
{
    struct fixture *fixture = *state;
    for (uint32_t iteration = 1; iteration <= 4; iteration++) {
        add(fixture, 0, OP_SAVE, iteration, 0, iteration == 4 ? 40 : 2);
        add(fixture, 1, OP_SAVE, iteration, 0, 4);
    }
    assert_int_equal(results_compute(&fixture->record, &fixture->results, &fixture->err), 0);
    assert_int_equal(fixture->results.slowest_rank[OP_SAVE], 1);
    near(fixture->results.slowest_rank_share[OP_SAVE], 0.75);
    near(fixture->results.slowest_rank_excess[OP_SAVE],
         4 / 3.0 - 1); /* the iteration it was faster in does not count */
    assert_int_equal(fixture->results.slowest_rank[OP_LOAD], -1);
}

static void the_slowest_rank_is_slow_in_the_state_that_sets_it_apart(void **state)
{
    struct fixture *fixture = *state;
    for (uint32_t iteration = 1; iteration <= 3; iteration++) {
        add(fixture, 0, OP_SAVE, iteration, 0, 4);
        add(fixture, 1, OP_SAVE, iteration, 0, 6);
        add(fixture, 0, OP_LOAD, iteration, 0, 4);
        add(fixture, 1, OP_LOAD, iteration, 0, 4);
    }
    for (uint32_t i = 0; i < fixture->record.ranks[1].sample_count; i++) { /* as much I/O as rank 0, and a long fsync */
        struct sample *sample = &fixture->record.ranks[1].samples[i];
        sample->values[METRIC_IO_S] = 3;
        sample->values[METRIC_FSYNC_S] = sample->op == OP_SAVE ? 3 : 1;
        fixture->record.ranks[0].samples[i].values[METRIC_WAIT_S] = 2;
    }
    assert_int_equal(results_compute(&fixture->record, &fixture->results, &fixture->err), 0);
    assert_int_equal(fixture->results.slowest_rank[OP_SAVE], 1);
    assert_int_equal(fixture->results.slowest_rank_state[OP_SAVE], STATE_FSYNC);
    assert_int_equal(fixture->results.slowest_rank_state[OP_LOAD], STATE_COUNT); /* equally fast: nothing to explain */
    assert_int_equal(fixture->results.slowest_rank_state[OP_STEP], STATE_COUNT);
}

/* Saves of two ranks, the second of which worked `own_s` longer, `io_s` and `fsync_s` of that in these states. */
static enum rank_state reason(struct fixture *fixture, double own_s, double io_s, double fsync_s)
{
    results_release(&fixture->results);
    fixture->record.ranks[0].sample_count = fixture->record.ranks[1].sample_count = 0;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        add(fixture, rank, OP_SAVE, 1, 0, 4);
        struct sample *sample = &fixture->record.ranks[rank].samples[0];
        sample->values[METRIC_OWN_S] = 4 + rank * own_s;
        sample->values[METRIC_IO_S] = 3 + rank * io_s;
        sample->values[METRIC_FSYNC_S] = 1 + rank * fsync_s;
    }
    assert_int_equal(results_compute(&fixture->record, &fixture->results, &fixture->err), 0);
    assert_int_equal(fixture->results.slowest_rank[OP_SAVE], 1);
    return fixture->results.slowest_rank_state[OP_SAVE];
}

static void a_state_is_the_reason_only_if_it_makes_at_least_half_of_a_difference_worth_a_word(void **state)
{
    struct fixture *fixture = *state;
    assert_int_equal(reason(fixture, 1, 0.6, 0.4), STATE_IO);
    assert_int_equal(reason(fixture, 1, 0.2, 0.55), STATE_FSYNC);
    assert_int_equal(reason(fixture, 1, 0.4, 0.45), STATE_COUNT);
    assert_int_equal(reason(fixture, 1, 1e-6, -1), STATE_COUNT);
    assert_int_equal(reason(fixture, 0.05, 0.05, 0), STATE_COUNT); /* slower by 0.6 % */
    assert_int_equal(reason(fixture, 0.2, 0.2, 0), STATE_IO);      /* by 2.4 % */
}

static void limit_is_the_raw_rate_of_the_same_run(void **state)
{
    struct fixture *fixture = *state;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        add(fixture, rank, OP_SAVE, 1, 0, 4);
        add(fixture, rank, OP_BASELINE_WRITE, 0, 0, 3);
    }
    assert_int_equal(results_compute(&fixture->record, &fixture->results, &fixture->err), 0);
    near(find(fixture, OP_NONE, METRIC_BASELINE_WRITE_BYTES_PER_S)->median, 2001.0 / 3);
    near(find(fixture, OP_NONE, METRIC_SAVE_LIMIT_FRACTION)->median, 250 / 667.0);
    assert_null(results_find(&fixture->results, OP_NONE, METRIC_LOAD_LIMIT_FRACTION));
}

static void verified_iterations_and_marks_of_loads_are_counted(void **state)
{
    struct fixture *fixture = *state;
    for (uint32_t rank = 0; rank < RANKS; rank++) {
        for (uint32_t iteration = 0; iteration < 4; iteration++) {
            uint32_t warmup = iteration == 0 ? SAMPLE_WARMUP : 0;
            add(fixture, rank, OP_LOAD, iteration, warmup | (iteration < 3 && rank ? SAMPLE_SUSPECTED_CACHE : 0), 1);
            add(fixture, rank, OP_VERIFY, iteration, warmup | (iteration == 2 && rank ? SAMPLE_FAILED : 0), 1);
        }
    }
    add(fixture, 0, OP_VERIFY, 3, 0, 1); /* what is left in the store, verified again */
    assert_int_equal(results_compute(&fixture->record, &fixture->results, &fixture->err), 0);
    assert_int_equal(fixture->results.iterations_to_verify, 3);
    assert_int_equal(fixture->results.iterations_verified, 2);
    assert_int_equal(fixture->results.suspected_cache, 2);
    assert_int_equal(fixture->results.coldness_unknown, 0);
}

static void empty_record_has_no_results(void **state)
{
    struct fixture *fixture = *state;
    assert_int_equal(results_compute(&fixture->record, &fixture->results, &fixture->err), 0);
    assert_int_equal(fixture->results.count, 0);
    assert_int_equal(fixture->results.slowest_rank[OP_SAVE], -1);
}

/* Rank 0 has 99 fast first bytes, rank 1 a slow one: neither's own quantiles say what half of all saw, or the worst. */
static void first_bytes_are_those_of_all_ranks_and_iterations(void **state)
{
    struct fixture *fixture = *state;
    for (uint32_t iteration = 0; iteration < 3; iteration++) {
        add(fixture, 0, OP_LOAD, iteration, 0, 1);
        add(fixture, 1, OP_LOAD, iteration, 0, 1);
        for (uint32_t rank = 0; rank < RANKS; rank++) {
            struct record_rank *place = &fixture->record.ranks[rank];
            place->samples[place->sample_count - 1].values[METRIC_TTFB_P50_S] = rank == 0 ? 0.001 : 1.0;
        }
    }
    for (int i = 0; i < 99; i++)
        histogram_record(&fixture->record.ttfb[OP_LOAD], 1000000);
    for (int i = 0; i < 3; i++)
        histogram_record(&fixture->record.ttfb[OP_LOAD], 1000000000);
    assert_int_equal(results_compute(&fixture->record, &fixture->results, &fixture->err), 0);
    const struct result_row *half = results_find(&fixture->results, OP_LOAD, METRIC_TTFB_P50_S);
    const struct result_row *worst = results_find(&fixture->results, OP_LOAD, METRIC_TTFB_P99_S);
    assert_int_equal(half->summary.n, 1);
    assert_true(fabs(half->summary.median / 0.001 - 1) < HISTOGRAM_MAX_ERROR);
    assert_true(fabs(worst->summary.median / 1.0 - 1) < HISTOGRAM_MAX_ERROR);
    assert_null(results_find(&fixture->results, OP_SAVE, METRIC_TTFB_P50_S));
}

static void requests_of_failed_saves_count_in_the_success_ratio_alone(void **state)
{
    struct fixture *fixture = *state;
    for (uint32_t rank = 0; rank < RANKS; rank++) { /* 10 requests each */
        add(fixture, rank, OP_SAVE, 0, SAMPLE_WARMUP, 1);
        add(fixture, rank, OP_SAVE, 1, 0, 1);
        add(fixture, rank, OP_SAVE, 2, rank == 1 ? SAMPLE_FAILED : 0, 1);
    }
    fixture->record.ranks[1].samples[0].values[METRIC_ERRORS] = 10;
    fixture->record.ranks[1].samples[2].values[METRIC_ERRORS] = 4;
    assert_int_equal(results_compute(&fixture->record, &fixture->results, &fixture->err), 0);
    near(find(fixture, OP_NONE, METRIC_SUCCESS_RATIO)->median, 0.9);
    near(find(fixture, OP_NONE, METRIC_REQUEST_RATE)->median, 20);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_setup_teardown(slowest_rank_makes_the_time_and_amounts_add_up, set_up, tear_down),
        cmocka_unit_test_setup_teardown(figures_of_the_suite_are_means_over_the_ranks_that_have_them, set_up,
                                        tear_down),
        cmocka_unit_test_setup_teardown(warm_up_failed_and_incomplete_iterations_are_left_out, set_up, tear_down),
        cmocka_unit_test_setup_teardown(nothing_is_measured_when_a_rank_left_no_page, set_up, tear_down),
        cmocka_unit_test_setup_teardown(shares_of_states_sum_to_1, set_up, tear_down),
        cmocka_unit_test_setup_teardown(slowest_rank_is_the_one_that_is_most_often, set_up, tear_down),
        cmocka_unit_test_setup_teardown(there_is_no_rate_of_bytes_that_are_not_known, set_up, tear_down),
        cmocka_unit_test_setup_teardown(
            a_state_is_the_reason_only_if_it_makes_at_least_half_of_a_difference_worth_a_word, set_up, tear_down),
        cmocka_unit_test_setup_teardown(the_slowest_rank_is_slow_in_the_state_that_sets_it_apart, set_up, tear_down),
        cmocka_unit_test_setup_teardown(limit_is_the_raw_rate_of_the_same_run, set_up, tear_down),
        cmocka_unit_test_setup_teardown(verified_iterations_and_marks_of_loads_are_counted, set_up, tear_down),
        cmocka_unit_test_setup_teardown(first_bytes_are_those_of_all_ranks_and_iterations, set_up, tear_down),
        cmocka_unit_test_setup_teardown(requests_of_failed_saves_count_in_the_success_ratio_alone, set_up, tear_down),
        cmocka_unit_test_setup_teardown(empty_record_has_no_results, set_up, tear_down),
    };
    return cmocka_run_group_tests_name("results", tests, NULL, NULL);
}
