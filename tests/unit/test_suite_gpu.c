/* The suite's section gpu with devices that copy late and talk to each other (fakes), ranks being threads: every row gets
 * its figure, each collective's result is compared, and what is wrong, or cannot be, is told. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "tests/unit/fake_comm.h"
#include "tests/unit/thread_comm.h"
#include "worker/comm_measure.h"
#include "worker/suite/suite.h"
#include "worker/together.h"

#define RANKS 3
#define BYTES (UINT64_C(3) * 4096)

/* --- of the suite, without MPI --- */

uint64_t suite_deadline(const struct suite *self)
{
    return clock_monotonic_ns() + self->section_timeout_ns;
}

int suite_join(struct suite *self, int code, struct cb_err *err)
{
    return together(self->comm, code, suite_deadline(self), err);
}

void suite_skip(struct suite *self, const char *what, const char *why)
{
    if (comm_rank(self->comm) == 0)
        status_page_add_fact(self->page, what, why);
}

double collective_bus_factor(enum collective kind, uint32_t ranks)
{
    (void)kind;
    return ranks;
}

/* --- a plugin --- */

static int measure(struct device *device, enum device_measure what, uint64_t size, double *value, struct cb_err *err)
{
    (void)device, (void)size;
    if (what == DEVICE_MEASURE_GEMM_FP8)
        return cb_fail(err, CB_ERR_UNSUPPORTED, "no fp8 on a fake");
    *value = 1000 + what;
    return 0;
}

static const struct device_plugin_ops plugin_ops = {.measure = measure, .comm = &fake_comm_ops};

struct rank {
    struct comm comm;
    struct suite suite;
    struct sample sample;
    struct fake_device *device;
    const char *id;
    uint32_t size;
    int rc;
    struct cb_err err;
    pthread_t thread;
};

static void *live(void *context)
{
    struct rank *self = context;
    struct suite *suite = &self->suite;
    struct device *device = &self->device->base;
    self->rc = fake_comm_ops.join(device, self->id, self->comm.rank, self->size, clock_monotonic_ns() + 60 * NS_PER_S,
                                  &suite->gpu.comm, &self->err);
    if (!self->rc)
        self->rc = suite_gpu(suite, &self->sample, true, &self->err);
    if (suite->gpu.comm)
        fake_comm_ops.close(suite->gpu.comm);
    return NULL;
}

/* The lowest code; samples, errors and pages stay in `ranks`. */
static int run(struct rank *ranks, uint32_t size, uint64_t corrupt_at)
{
    struct meeting meeting;
    char id[DEVICE_COMM_ID_BYTES];
    int lowest = 0;
    meeting_init(&meeting, size);
    assert_int_equal(fake_comm_ops.make_id(id, NULL), 0);
    for (uint32_t i = 0; i < size; i++) {
        struct rank *rank = &ranks[i];
        *rank = (struct rank){.comm = {.meeting = &meeting, .rank = i}, .id = id, .size = size};
        rank->device = fake_device_new(i + 1, 2);
        rank->device->corrupt_at = i == size - 1 ? corrupt_at : 0;
        rank->suite = (struct suite){
            .comm = &rank->comm,
            .page = calloc(1, status_page_bytes(1)),
            .gpu = {.plugin = {.ops = &plugin_ops}, .device = &rank->device->base, .collective_bytes = BYTES},
            .section_timeout_ns = 60 * NS_PER_S,
        };
        assert_non_null(rank->suite.page);
        for (int j = 0; j < METRIC_SAMPLE_COUNT; j++)
            rank->sample.values[j] = (double)NAN;
        assert_int_equal(pthread_create(&rank->thread, NULL, live, rank), 0);
    }
    for (uint32_t i = 0; i < size; i++) {
        pthread_join(ranks[i].thread, NULL);
        lowest = ranks[i].rc < lowest ? ranks[i].rc : lowest;
    }
    return lowest;
}

static void end(struct rank *ranks, uint32_t size)
{
    for (uint32_t i = 0; i < size; i++) {
        assert_int_equal(ranks[i].device->allocations, 0);
        device_close(&ranks[i].device->base);
        free(ranks[i].suite.page);
    }
    assert_int_equal(fake_rooms.open, 0);
}

static const enum metric_id between[] = {METRIC_GPU_ALL_REDUCE_BUS_BYTES_PER_S, METRIC_GPU_ALL_GATHER_BUS_BYTES_PER_S,
                                         METRIC_GPU_REDUCE_SCATTER_BUS_BYTES_PER_S,
                                         METRIC_GPU_BROADCAST_BUS_BYTES_PER_S, METRIC_GPU_ALL_TO_ALL_BUS_BYTES_PER_S};

static void every_row_gets_its_figure_and_what_is_not_there_is_said(void **unused)
{
    (void)unused;
    struct rank ranks[RANKS];
    assert_int_equal(run(ranks, RANKS, 0), 0);
    for (uint32_t i = 0; i < RANKS; i++) {
        const double *values = ranks[i].sample.values;
        assert_true(values[METRIC_GPU_COPY_BYTES_PER_S] == 1000 + DEVICE_MEASURE_COPY);
        assert_true(values[METRIC_GPU_TO_HOST_BYTES_PER_S] == 1000 + DEVICE_MEASURE_TO_HOST);
        assert_true(values[METRIC_GPU_LAUNCH_S] == 1000 + DEVICE_MEASURE_LAUNCH);
        assert_true(isnan(values[METRIC_GPU_GEMM_FP8_FLOPS]));
        for (size_t j = 0; j < sizeof between / sizeof *between; j++)
            assert_true(values[between[j]] > 0);
    }
    assert_non_null(strstr(ranks[0].suite.page->facts, "gpu.gemm_fp8=no fp8 on a fake\n"));
    end(ranks, RANKS);
}

/* One bit of what one rank gets by each collective's first round, which is the one that is looked at: eight rounds each. */
static void a_result_that_is_wrong_ends_the_suite_and_names_the_collective(void **unused)
{
    (void)unused;
    static const char *const names[] = {"all-reduce", "all-gather", "reduce-scatter", "broadcast", "all-to-all"};
    for (size_t i = 0; i < sizeof names / sizeof *names; i++) {
        struct rank ranks[RANKS];
        char text[64];
        assert_int_equal(run(ranks, RANKS, i * 8 + 1), CB_ERR_CORRUPT);
        snprintf(text, sizeof text, "NCCL %s: 1 values are wrong on rank 2", names[i]);
        assert_non_null(strstr(ranks[2].err.message, text));
        end(ranks, RANKS);
    }
}

static void one_rank_has_nobody_to_talk_to(void **unused)
{
    (void)unused;
    struct rank ranks[1];
    assert_int_equal(run(ranks, 1, 0), 0);
    assert_true(isnan(ranks[0].sample.values[METRIC_GPU_ALL_REDUCE_BUS_BYTES_PER_S]));
    assert_non_null(strstr(ranks[0].suite.page->facts, "gpu.nccl=one rank has nobody to talk to\n"));
    end(ranks, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_gets_its_figure_and_what_is_not_there_is_said),
        cmocka_unit_test(a_result_that_is_wrong_ends_the_suite_and_names_the_collective),
        cmocka_unit_test(one_rank_has_nobody_to_talk_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
