/* The suite's section gpu with devices that copy late and talk to each other (fakes), ranks being threads: every row gets
 * its figure, each collective's result is compared, and what is wrong, or cannot be, is told. */
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>

#include <cmocka.h>

#include "comm/agree.h"
#include "comm/comm_measure.h"
#include "suite/overlap.h"
#include "suite/suite.h"
#include "tests/unit/fake_comm.h"
#include "tests/unit/thread_comm.h"

#define RANKS 3
#define GUESTS 1 /* ranks without a device, in the middle of the others */
#define BYTES (UINT64_C(3) * 4096)

/* --- of the suite, without MPI --- */

uint64_t suite_deadline(const struct suite *self)
{
    return clock_monotonic_ns() + self->section_timeout_ns;
}

int suite_join(struct suite *self, int code, struct cb_err *err)
{
    return agree(self->comm, code, suite_deadline(self), err);
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

uint64_t collective_bytes(enum collective kind, uint64_t bytes, uint32_t ranks)
{
    uint64_t unit = kind == COLLECTIVE_ALL_REDUCE || kind == COLLECTIVE_BROADCAST ? 8 : 8 * (uint64_t)ranks;
    return bytes < unit ? unit : bytes / unit * unit;
}

int comm_all_gather(struct comm *comm, const void *mine, uint64_t bytes, void *all, uint64_t deadline_ns,
                    struct cb_err *err)
{
    (void)comm, (void)mine, (void)bytes, (void)all, (void)deadline_ns;
    return cb_fail(err, CB_ERR_INTERNAL, "asked");
}

/* --- a plugin --- */

static int measure(struct device *device, enum device_measure what, uint64_t size, double *value, struct cb_err *err)
{
    (void)size;
    cpu_set_t cores;
    assert(sched_getaffinity(0, sizeof cores, &cores) == 0);
    ((struct fake_device *)device)->bytes_to_host += (uint64_t)CPU_COUNT(&cores); /* over the tests */
    if (what == DEVICE_MEASURE_GEMM_FP8)
        return cb_fail(err, CB_ERR_UNSUPPORTED, "no fp8 on a fake");
    *value = 1000 + what;
    return 0;
}

/* Products that are as late as the fake's copies, which is what they are. */
struct device_gemm {
    struct fake_device *device;
    char *memory;                     /* of the device: what is multiplied, and the products */
    uint32_t products, beside, alone; /* queued; calls behind a collective that is under way, and calls without one */
};

#define GEMM_BYTES 64
static struct device_gemm *gemms[RANKS + GUESTS]; /* by the number of their device; the last that each had */
static uint32_t gemm_refused_by, gemm_wrong_of;

static int open_gemm(struct device *device, enum device_measure type, uint64_t rows, struct device_gemm **gemm,
                     struct cb_err *err)
{
    struct device_gemm *self = calloc(1, sizeof *self);
    assert(self && type == DEVICE_MEASURE_GEMM_BF16 && rows % 16 == 0);
    self->device = (struct fake_device *)device;
    if (self->device->number == gemm_refused_by) {
        free(self);
        return cb_fail(err, CB_ERR_MEMORY, "no room for matrices");
    }
    void *memory = NULL;
    int rc = device->ops->allocate(device, MEMORY_DEVICE, 2 * GEMM_BYTES, &memory, err);
    self->memory = memory;
    if (!rc)
        rc = device->ops->set(device, self->memory, 7, GEMM_BYTES, err);
    *gemm = self;
    return rc;
}

static int queue_gemm(struct device_gemm *self, uint32_t count, struct cb_err *err)
{
    const struct device_copy product = {self->memory + GEMM_BYTES, self->memory, GEMM_BYTES, 1, 0, 0};
    const struct fake_talk *talk = self->device->talk;
    int rc = 0;
    assert(count > 0);
    self->products += count;
    *(talk->count > 0 ? &self->beside : &self->alone) += 1;
    for (uint32_t i = 0; i < count && !rc; i++)
        rc = self->device->base.ops->copy(&self->device->base, DEVICE_TO_DEVICE, &product, 1, err);
    return rc;
}

static int check_gemm(struct device_gemm *self, struct cb_err *err)
{
    fake_catch_up(self->device, self->device->recorded + 1);
    const char *held = fake_where(self->device, self->memory + GEMM_BYTES, GEMM_BYTES);
    bool right = held[GEMM_BYTES / 2] == 7 && self->device->number != gemm_wrong_of;
    return right ? 0 : cb_fail(err, CB_ERR_CORRUPT, "a product is wrong");
}

static void close_gemm(struct device_gemm *self)
{
    self->device->base.ops->release(&self->device->base, MEMORY_DEVICE, self->memory, 2 * GEMM_BYTES);
    free(gemms[self->device->number - 1]);
    gemms[self->device->number - 1] = self;
}

static const struct device_plugin_ops plugin_ops = {.measure = measure,
                                                    .open_gemm = open_gemm,
                                                    .queue_gemm = queue_gemm,
                                                    .check_gemm = check_gemm,
                                                    .close_gemm = close_gemm,
                                                    .comm = &fake_comm_ops};

struct rank {
    struct comm comm;
    struct suite suite;
    struct sample sample;
    struct fake_device *device;
    const char *id;
    bool last;
    cpu_set_t cores; /* afterwards */
    int rc;
    struct cb_err err;
    pthread_t thread;
};

static void *live(void *context)
{
    struct rank *self = context;
    struct suite *suite = &self->suite;
    if (suite->gpu.can_talk && suite->gpu.device)
        self->rc = fake_comm_ops.join(suite->gpu.device, self->id, suite->gpu.rank, suite->gpu.size,
                                      clock_monotonic_ns() + 60 * NS_PER_S, &suite->gpu.comm, &self->err);
    if (!self->rc)
        self->rc = suite_gpu(suite, &self->sample, self->last, &self->err);
    assert(sched_getaffinity(0, sizeof self->cores, &self->cores) == 0);
    if (suite->gpu.comm && self->rc) /* before memory was given back, which else waits for it */
        assert(suite->gpu.comm->aborted);
    if (suite->gpu.comm)
        fake_comm_ops.close(suite->gpu.comm);
    return NULL;
}

static bool keep_one(cpu_set_t *cores)
{
    bool has_one = false;
    for (size_t i = 0; i < CPU_SETSIZE; i++) {
        if (CPU_ISSET(i, cores) && has_one)
            CPU_CLR(i, cores);
        has_one |= CPU_ISSET(i, cores) != 0;
    }
    return has_one;
}

/* Of `size` ranks all but the guests have a device, each on a node of its own where there are `several`. The lowest code; samples, errors and pages stay in `ranks`. */
static int run(struct rank *ranks, uint32_t size, uint32_t guests, bool last, bool several, uint64_t corrupt_at)
{
    static char names[RANKS][NODE_NAME_BYTES] = {"n0", "n1", "n2"};
    static uint32_t first[RANKS] = {0, 1, 2};
    struct meeting meeting;
    char id[DEVICE_COMM_ID_BYTES];
    int lowest = 0;
    meeting_init(&meeting, size);
    assert_int_equal(fake_comm_ops.make_id(id, NULL), 0);
    for (uint32_t i = 0; i < size; i++) {
        struct rank *rank = &ranks[i];
        bool is_guest = i > 0 && i <= guests;
        *rank = (struct rank){.comm = {.meeting = &meeting, .rank = i}, .id = id, .last = last};
        rank->device = fake_device_new(i + 1, 2);
        rank->device->number = i + 1;
        rank->device->corrupt_at = i == size - 1 ? corrupt_at : 0;
        rank->suite = (struct suite){
            .comm = &rank->comm,
            .page = calloc(1, status_page_bytes(1)),
            .gpu = {.is_here = true,
                    .can_talk = size - guests > 1,
                    .plugin = {.ops = &plugin_ops},
                    .device = is_guest ? NULL : &rank->device->base,
                    .rank = i > guests ? i - guests : i,
                    .size = size - guests,
                    .first_of_node = first,
                    .collective_bytes = BYTES},
            .nodes = {.count = several ? RANKS : 1,
                      .mine = several && !is_guest ? i - (i > guests ? guests : 0) : 0,
                      .names = names},
            .section_timeout_ns = 60 * NS_PER_S,
        };
        assert_non_null(rank->suite.page);
        for (int j = 0; j < METRIC_SAMPLE_COUNT; j++)
            rank->sample.values[j] = (double)NAN;
        if (!is_guest && sched_getaffinity(0, sizeof rank->suite.gpu.near, &rank->suite.gpu.near) == 0)
            rank->suite.gpu.has_near = keep_one(&rank->suite.gpu.near);
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
    assert_int_equal(run(ranks, RANKS, 0, true, false, 0), 0);
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

/* Sizes of a curve in the facts of a page, each with seconds, algorithm and bus bandwidth (of the factor above). */
static void check_curve(const char *facts, const char *name, const uint64_t *sizes, size_t count, double factor)
{
    char key[64];
    snprintf(key, sizeof key, "suite.curve.%s=", name);
    const char *at = strstr(facts, key);
    assert_non_null(at);
    at += strlen(key);
    for (size_t i = 0; i < count; i++) {
        unsigned long long bytes;
        double seconds, algorithm, bus;
        int used;
        assert_int_equal(sscanf(at, "%llu:%lf:%lf:%lf%n", &bytes, &seconds, &algorithm, &bus, &used), 4);
        assert_int_equal(bytes, sizes[i]);
        assert_true(seconds > 0 && fabs(algorithm * seconds / (double)bytes - 1) < 1e-2);
        assert_true(fabs(bus / algorithm / factor - 1) < 1e-2);
        at += used;
        assert_true(*at++ == (i + 1 == count ? '\n' : ' '));
    }
}

static void collectives_are_measured_over_sizes_up_to_the_largest(void **unused)
{
    (void)unused;
    static const uint64_t whole[] = {8, 64, 512, 4096, 12288}, shared[] = {24, 192, 1536, 12288};
    struct rank ranks[RANKS];
    assert_int_equal(run(ranks, RANKS, 0, true, false, 0), 0);
    check_curve(ranks[0].suite.page->facts, "gpu_all_reduce", whole, 5, RANKS);
    check_curve(ranks[0].suite.page->facts, "gpu_broadcast", whole, 5, RANKS);
    check_curve(ranks[0].suite.page->facts, "gpu_all_gather", shared, 4, RANKS);
    check_curve(ranks[0].suite.page->facts, "gpu_reduce_scatter", shared, 4, RANKS);
    check_curve(ranks[0].suite.page->facts, "gpu_all_to_all", shared, 4, RANKS);
    assert_null(strstr(ranks[1].suite.page->facts, "suite.curve"));
    end(ranks, RANKS);
}

/* More ranks than devices: those that have none take part in nothing, and nobody waits for them. */
static void ranks_without_a_device_of_their_own_measure_nothing(void **unused)
{
    (void)unused;
    struct rank ranks[RANKS + GUESTS];
    assert_int_equal(run(ranks, RANKS + GUESTS, GUESTS, true, true, 0), 0);
    for (uint32_t i = 0; i < RANKS + GUESTS; i++) {
        const double *values = ranks[i].sample.values;
        bool is_guest = i > 0 && i <= GUESTS;
        assert_int_equal(isnan(values[METRIC_GPU_COPY_BYTES_PER_S]), is_guest);
        for (size_t j = 0; j < sizeof between / sizeof *between; j++)
            assert_int_equal(isnan(values[between[j]]), is_guest);
    }
    end(ranks, RANKS + GUESTS);
}

/* While its device is measured a rank runs near it, and afterwards where it did before. */
static void a_rank_is_near_its_device_while_it_measures(void **unused)
{
    (void)unused;
    struct rank ranks[RANKS];
    cpu_set_t before;
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    assert_int_equal(run(ranks, RANKS, 0, false, false, 0), 0);
    for (uint32_t i = 0; i < RANKS; i++) {
        assert_int_equal(ranks[i].device->bytes_to_host, DEVICE_MEASURE_COUNT); /* one core each time */
        assert_true(CPU_EQUAL(&ranks[i].cores, &before));
    }
    end(ranks, RANKS);
}

/* One bit of what one rank gets by each collective's first round, which is the one that is looked at. */
static void a_result_that_is_wrong_ends_the_suite_and_names_the_collective(void **unused)
{
    (void)unused;
    static const char *const names[] = {"all-reduce", "all-gather", "reduce-scatter", "broadcast", "all-to-all"};
    const size_t count = sizeof names / sizeof *names;
    struct rank ranks[RANKS];
    gemm_refused_by = 1; /* so that the device copies nothing else */
    assert_int_equal(run(ranks, RANKS, 0, false, false, 0), 0);
    uint64_t of_each = ranks[RANKS - 1].device->copied / count;
    end(ranks, RANKS);
    for (size_t i = 0; i < count; i++) {
        char text[96];
        assert_int_equal(run(ranks, RANKS, 0, false, false, i * of_each + 1), CB_ERR_CORRUPT);
        snprintf(text, sizeof text, "NCCL %s of 12288 bytes: 1 values are wrong on rank 2", names[i]);
        assert_non_null(strstr(ranks[2].err.message, text));
        end(ranks, RANKS);
    }
    gemm_refused_by = 0;
}

static const enum metric_id overlaps[] = {
    METRIC_GPU_OVERLAP_PRODUCTS_S,
    METRIC_GPU_OVERLAP_ALL_REDUCE_S,
    METRIC_GPU_OVERLAP_BOTH_S,
    METRIC_GPU_OVERLAP_ALL_REDUCE_FRACTION,
    METRIC_GPU_OVERLAP_ALL_GATHER_FRACTION,
    METRIC_GPU_OVERLAP_REDUCE_SCATTER_FRACTION,
};
#define OVERLAPS (sizeof overlaps / sizeof *overlaps)

/* Each of three collectives: seven times by itself, its products seven times by themselves, both seven times and once more to
 * be looked at. Products are queued while the collective that was queued before them is under way. */
static void collectives_are_measured_beside_products(void **unused)
{
    (void)unused;
    struct rank ranks[RANKS + GUESTS];
    assert_int_equal(run(ranks, RANKS, 0, false, false, 0), 0);
    for (uint32_t i = 0; i < RANKS; i++) {
        const double *values = ranks[i].sample.values;
        double shorter = fmin(values[overlaps[0]], values[overlaps[1]]);
        double share = (values[overlaps[0]] + values[overlaps[1]] - values[overlaps[2]]) / shorter;
        assert_true(fabs(values[overlaps[3]] - fmin(fmax(share, 0), 1)) < 1e-9);
        for (size_t j = 0; j < OVERLAPS; j++)
            assert_true(values[overlaps[j]] >= 0 && values[overlaps[j]] == ranks[0].sample.values[overlaps[j]]);
        for (size_t j = 3; j < OVERLAPS; j++)
            assert_true(values[overlaps[j]] <= 1);
        assert_int_equal(gemms[i]->beside, 3 * (7 + 1));
        assert_int_equal(gemms[i]->alone, 1 + 7 + 3 * 7);
        assert_int_equal(gemms[i]->products, gemms[0]->products); /* all ranks have as many */
    }
    end(ranks, RANKS);
    assert_int_equal(run(ranks, RANKS + GUESTS, GUESTS, false, true, 0), 0);
    for (uint32_t i = 0; i < RANKS + GUESTS; i++)
        assert_int_equal(isnan(ranks[i].sample.values[overlaps[3]]), i > 0 && i <= GUESTS);
    end(ranks, RANKS + GUESTS);
}

static void the_share_that_is_hidden_is_that_of_the_shorter(void **unused)
{
    (void)unused;
    assert_true(suite_overlap(2, 3, 3) == 1 && suite_overlap(3, 2, 3) == 1);
    assert_true(suite_overlap(2, 3, 5) == 0 && suite_overlap(2, 3, 4) == 0.5 && suite_overlap(4, 1, 4.75) == 0.25);
    assert_true(suite_overlap(2, 3, 6) == 0 && suite_overlap(2, 3, 2.5) == 1); /* slower than in turn; noise */
}

/* If one device has no room for the matrices, no rank measures the overlap. The reason is told, and all else is measured. */
static void products_that_one_device_cannot_have_leave_the_overlap_out(void **unused)
{
    (void)unused;
    for (gemm_refused_by = 1; gemm_refused_by <= RANKS; gemm_refused_by++) {
        struct rank ranks[RANKS];
        assert_int_equal(run(ranks, RANKS, 0, true, true, 0), 0);
        for (uint32_t i = 0; i < RANKS; i++) {
            for (size_t j = 0; j < OVERLAPS; j++)
                assert_true(isnan(ranks[i].sample.values[overlaps[j]]));
            assert_true(ranks[i].sample.values[between[0]] > 0);
            assert_true(ranks[i].sample.values[METRIC_GPU_NET_LATENCY_S] > 0);
        }
        char why[64] = "gpu.overlap=no room for matrices\n";
        if (gemm_refused_by > 1) /* the first rank tells it of another one */
            snprintf(why, sizeof why, "gpu.overlap=rank %u cannot\n", gemm_refused_by - 1);
        assert_non_null(strstr(ranks[0].suite.page->facts, why));
        end(ranks, RANKS);
        assert_int_equal(run(ranks, RANKS, 0, false, true, 0), 0); /* told once, after the last iteration */
        assert_null(strstr(ranks[0].suite.page->facts, "gpu.overlap"));
        end(ranks, RANKS);
    }
    gemm_refused_by = 0;
}

static void a_product_that_is_wrong_beside_a_collective_ends_the_suite(void **unused)
{
    (void)unused;
    struct rank ranks[RANKS];
    gemm_wrong_of = 2;
    assert_int_equal(run(ranks, RANKS, 0, false, false, 0), CB_ERR_CORRUPT);
    assert_non_null(strstr(ranks[1].err.message, "a product is wrong"));
    gemm_wrong_of = 0;
    end(ranks, RANKS);
}

static void first_devices_of_nodes_meet_in_pairs_and_see_what_is_wrong(void **unused)
{
    (void)unused;
    static const char *const pairs[] = {"suite.gpu_pair.n0.n1=", "suite.gpu_pair.n0.n2=", "suite.gpu_pair.n1.n2="};
    struct rank ranks[RANKS];
    gemm_refused_by = 1; /* how often products are copied depends on time */
    assert_int_equal(run(ranks, RANKS, 0, true, true, 0), 0);
    for (uint32_t i = 0; i < RANKS; i++) {
        assert_true(ranks[i].sample.values[METRIC_GPU_NET_LATENCY_S] > 0);
        assert_true(ranks[i].sample.values[METRIC_GPU_NET_BANDWIDTH_BYTES_PER_S] > 0);
    }
    for (size_t pair = 0; pair < RANKS; pair++) {
        unsigned noted = 0;
        for (uint32_t i = 0; i < RANKS; i++)
            noted += strstr(ranks[i].suite.page->facts, pairs[pair]) != NULL;
        assert_int_equal(noted, 1);
    }
    uint64_t all = ranks[RANKS - 1].device->copied;
    end(ranks, RANKS);
    assert_int_equal(run(ranks, RANKS, 0, true, true, all), CB_ERR_CORRUPT); /* the last that arrives */
    assert_non_null(strstr(ranks[2].err.message, "NCCL between nodes: 1 values are wrong on rank 2"));
    end(ranks, RANKS);
    gemm_refused_by = 0;
}

static void one_device_has_nobody_to_talk_to(void **unused)
{
    (void)unused;
    struct rank ranks[1];
    assert_int_equal(run(ranks, 1, 0, true, false, 0), 0);
    assert_true(isnan(ranks[0].sample.values[METRIC_GPU_ALL_REDUCE_BUS_BYTES_PER_S]));
    assert_true(ranks[0].sample.values[METRIC_GPU_COPY_BYTES_PER_S] > 0);
    end(ranks, 1);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(every_row_gets_its_figure_and_what_is_not_there_is_said),
        cmocka_unit_test(collectives_are_measured_over_sizes_up_to_the_largest),
        cmocka_unit_test(ranks_without_a_device_of_their_own_measure_nothing),
        cmocka_unit_test(a_rank_is_near_its_device_while_it_measures),
        cmocka_unit_test(a_result_that_is_wrong_ends_the_suite_and_names_the_collective),
        cmocka_unit_test(collectives_are_measured_beside_products),
        cmocka_unit_test(the_share_that_is_hidden_is_that_of_the_shorter),
        cmocka_unit_test(products_that_one_device_cannot_have_leave_the_overlap_out),
        cmocka_unit_test(a_product_that_is_wrong_beside_a_collective_ends_the_suite),
        cmocka_unit_test(first_devices_of_nodes_meet_in_pairs_and_see_what_is_wrong),
        cmocka_unit_test(one_device_has_nobody_to_talk_to),
    };
    return cmocka_run_group_tests(tests, NULL, NULL);
}
