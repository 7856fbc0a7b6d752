/* NCCL between the devices: each collective at the largest size and over all sizes, beside matrix products, and pairs of
 * nodes. All ranks take the same steps; those without a device contribute nothing and wait. */
#include <inttypes.h>
#include <stdio.h>

#include "comm/agree.h"
#include "core/clock.h"
#include "core/stats.h"
#include "suite/overlap.h"
#include "suite/suite.h"

#define ROUNDS 7
#define BATCH_BYTES (UINT64_C(8) << 20) /* of a batch of small operations, at most; also limited by BATCH_MOST */
#define BATCH_MOST 20
#define PRODUCT_ROWS 8192
#define PRODUCTS_MOST 64 /* beside a collective */
#define PAIR_BYTES 8
#define PAIR_WARMUP 5
#define PAIR_ROUNDS 100
#define PAIR_LARGE_ROUNDS 5

struct collective_test {
    enum device_collective kind;
    enum collective like; /* for sizes and the bus bandwidth factor */
    enum metric_id metric;
    const char *name, *curve;
};

static const struct collective_test tests[] = {
    {DEVICE_ALL_REDUCE, COLLECTIVE_ALL_REDUCE, METRIC_GPU_ALL_REDUCE_BUS_BYTES_PER_S, "all-reduce", "gpu_all_reduce"},
    {DEVICE_ALL_GATHER, COLLECTIVE_ALL_GATHER, METRIC_GPU_ALL_GATHER_BUS_BYTES_PER_S, "all-gather", "gpu_all_gather"},
    {DEVICE_REDUCE_SCATTER, COLLECTIVE_REDUCE_SCATTER, METRIC_GPU_REDUCE_SCATTER_BUS_BYTES_PER_S, "reduce-scatter",
     "gpu_reduce_scatter"},
    {DEVICE_BROADCAST, COLLECTIVE_BROADCAST, METRIC_GPU_BROADCAST_BUS_BYTES_PER_S, "broadcast", "gpu_broadcast"},
    {DEVICE_ALL_TO_ALL, COLLECTIVE_ALL_TO_ALL, METRIC_GPU_ALL_TO_ALL_BUS_BYTES_PER_S, "all-to-all", "gpu_all_to_all"},
};

/* Shares of the first tests, the collectives of data-parallel training, that products hide. */
static const enum metric_id overlap_metrics[] = {METRIC_GPU_OVERLAP_ALL_REDUCE_FRACTION,
                                                 METRIC_GPU_OVERLAP_ALL_GATHER_FRACTION,
                                                 METRIC_GPU_OVERLAP_REDUCE_SCATTER_FRACTION};

/* One test on this rank; the memory is on its device. */
struct collective_run {
    const struct collective_test *test;
    void *from, *to;
    struct device_gemm *gemm; /* products beside it, if any */
};

/* What is queued at once. */
struct batch {
    uint32_t collectives, products;
};

int suite_gpu_everybody(struct suite *suite, int code, const struct cb_err *why, const char *what, bool *all,
                        struct cb_err *err)
{
    struct agreement agreement;
    char text[64];
    int rc = comm_agree(suite->comm, code, 0, suite_deadline(suite), &agreement, err);
    *all = !rc && !agreement.code;
    if (rc || *all || !what)
        return rc;
    snprintf(text, sizeof text, "rank %" PRIu32 " cannot", agreement.failed_rank);
    suite_skip(suite, what, code ? why->message : text);
    return 0;
}

/* Bytes of one rank's share; `bytes` is the whole, as in nccl-tests. */
static uint64_t share_of(const struct suite *suite, enum device_collective kind, uint64_t bytes)
{
    bool is_share = kind == DEVICE_ALL_GATHER || kind == DEVICE_REDUCE_SCATTER || kind == DEVICE_ALL_TO_ALL;
    return is_share ? bytes / suite->gpu.size : bytes;
}

/* A collective waits for what was queued on the device before it, so it is queued before the products. */
static int queue_batch(struct suite *suite, const struct collective_run *run, uint64_t bytes, struct batch batch,
                       struct cb_err *err)
{
    const struct suite_gpu *gpu = &suite->gpu;
    const struct device_comm_ops *ops = gpu->plugin.ops->comm;
    uint64_t share = share_of(suite, run->test->kind, bytes);
    int rc = 0;
    for (uint32_t i = 0; i < batch.collectives && !rc; i++)
        rc = ops->queue(gpu->comm, run->test->kind, run->from, run->to, share, 0, suite_deadline(suite), err);
    return rc || batch.products == 0 ? rc : gpu->plugin.ops->queue_gemm(run->gemm, batch.products, err);
}

static int wait_for_batch(struct suite *suite, struct batch batch, struct cb_err *err)
{
    const struct suite_gpu *gpu = &suite->gpu;
    uint64_t event = 0;
    int rc = batch.collectives > 0 ? gpu->plugin.ops->comm->wait(gpu->comm, suite_deadline(suite), err) : 0;
    if (rc || batch.products == 0)
        return rc;
    rc = gpu->device->ops->record(gpu->device, &event, err);
    return rc ? rc : gpu->device->ops->wait(gpu->device, event, suite_deadline(suite), err);
}

/* Seconds of a batch on the slowest rank. Includes calls and launches. */
static int run_batch(struct suite *suite, const struct collective_run *run, uint64_t bytes, struct batch batch,
                     double *seconds, struct cb_err *err)
{
    struct agreement slowest;
    int rc = suite_join(suite, 0, err);
    if (rc)
        return rc;
    uint64_t start_ns = clock_monotonic_ns();
    if (suite->gpu.comm)
        rc = queue_batch(suite, run, bytes, batch, err);
    if (!rc && suite->gpu.comm)
        rc = wait_for_batch(suite, batch, err);
    uint64_t took_ns = suite->gpu.comm ? clock_monotonic_ns() - start_ns : 0;
    rc = agree_number(suite->comm, rc, took_ns, suite_deadline(suite), &slowest, err);
    if (!rc)
        *seconds = (double)slowest.max / 1e9;
    return rc;
}

/* The median of some rounds. */
static int time_batch(struct suite *suite, const struct collective_run *run, uint64_t bytes, struct batch batch,
                      double *seconds, struct cb_err *err)
{
    double rounds[ROUNDS];
    struct summary summary;
    int rc = 0;
    for (size_t round = 0; round < ROUNDS && !rc; round++)
        rc = run_batch(suite, run, bytes, batch, &rounds[round], err);
    if (rc)
        return rc;
    stats_summarize(rounds, ROUNDS, &summary);
    *seconds = summary.median;
    return 0;
}

/* A rank's input for sums: its floats on the first rank and zeros on all others, so that the sum is the first rank's,
 * bit for bit. */
static struct device_values values_of(const struct suite *suite, uint32_t rank, uint64_t first, uint64_t count)
{
    struct device_values values = {.source = {.kind = PAYLOAD_WEIGHTS, .dtype = DTYPE_F32, .key = 17 + rank}};
    values.shape[0] = suite->gpu.collective_bytes / sizeof(float);
    values.region = (struct region){.dims = 1, .offset = {first / sizeof(float)}, .size = {count / sizeof(float)}};
    return values;
}

/* The input of a rank: its own values or, for sums, only those of the first rank. */
static int give(struct suite *suite, const struct collective_run *run, uint64_t bytes, struct cb_err *err)
{
    struct device *device = suite->gpu.device;
    if (!device)
        return 0;
    struct device_values own = values_of(suite, suite->gpu.rank, 0, bytes);
    int rc = device->ops->set(device, run->to, 0xEE, bytes, err);
    if (rc)
        return rc;
    bool adds = run->test->kind == DEVICE_ALL_REDUCE || run->test->kind == DEVICE_REDUCE_SCATTER;
    return adds && suite->gpu.rank > 0 ? device->ops->set(device, run->from, 0, bytes, err)
                                       : device->ops->fill(device, &own, run->from, err);
}

/* Whether `count` bytes at `memory` are those of `rank` from byte `first` on. */
static int expect(struct suite *suite, const char *memory, uint32_t rank, uint64_t first, uint64_t count,
                  uint64_t *wrong, struct cb_err *err)
{
    struct device *device = suite->gpu.device;
    struct device_values values = values_of(suite, rank, first, count);
    struct device_difference difference = {0};
    int rc = device->ops->check(device, &values, memory, &difference, err);
    *wrong += difference.wrong;
    return rc;
}

static int count_wrong(struct suite *suite, const struct collective_run *run, uint64_t bytes, uint64_t *wrong,
                       struct cb_err *err)
{
    enum device_collective kind = run->test->kind;
    uint32_t rank = suite->gpu.rank, size = suite->gpu.size;
    uint64_t share = share_of(suite, kind, bytes);
    const char *to = run->to;
    int rc = 0;
    *wrong = 0;
    if (!suite->gpu.device)
        return 0;
    if (kind == DEVICE_ALL_REDUCE || kind == DEVICE_BROADCAST)
        return expect(suite, to, 0, 0, share, wrong, err);
    if (kind == DEVICE_REDUCE_SCATTER)
        return expect(suite, to, 0, rank * share, share, wrong, err);
    for (uint32_t peer = 0; peer < size && !rc; peer++)
        rc = expect(suite, to + peer * share, peer, kind == DEVICE_ALL_TO_ALL ? rank * share : 0, share, wrong, err);
    return rc;
}

/* An untimed collective beside `products`: sets values before it and verifies them after it. */
static int check_once(struct suite *suite, const struct collective_run *run, uint64_t bytes, uint32_t products,
                      struct cb_err *err)
{
    double unused;
    uint64_t wrong = 0;
    int rc = suite_join(suite, give(suite, run, bytes, err), err);
    if (!rc)
        rc = run_batch(suite, run, bytes, (struct batch){1, products}, &unused, err);
    if (rc)
        return rc;
    rc = count_wrong(suite, run, bytes, &wrong, err);
    if (!rc && wrong)
        rc = cb_fail(err, CB_ERR_CORRUPT, "NCCL %s of %" PRIu64 " bytes: %" PRIu64 " values are wrong on rank %" PRIu32,
                     run->test->name, bytes, wrong, comm_rank(suite->comm));
    return suite_join(suite, rc, err);
}

static int measure_size(struct suite *suite, void *context, uint64_t bytes, double *seconds, struct cb_err *err)
{
    const struct collective_run *run = context;
    uint64_t count = BATCH_BYTES / bytes;
    struct batch batch = {.collectives = (uint32_t)(count < 1 ? 1 : count > BATCH_MOST ? BATCH_MOST : count)};
    int rc = check_once(suite, run, bytes, 0, err);
    if (!rc)
        rc = time_batch(suite, run, bytes, batch, seconds, err);
    if (!rc)
        *seconds /= batch.collectives;
    return rc;
}

static int measure_all(struct suite *suite, struct collective_run *run, struct sample *sample, bool last,
                       struct cb_err *err)
{
    uint32_t size = suite->gpu.size;
    int rc = 0;
    for (size_t i = 0; i < sizeof tests / sizeof *tests && !rc; i++) {
        const struct collective_test *test = run->test = &tests[i];
        uint64_t bytes = collective_bytes(test->like, suite->gpu.collective_bytes, size);
        struct suite_curve curve = {test->curve, test->like, size, bytes, measure_size, run};
        double seconds = 0;
        rc = measure_size(suite, run, bytes, &seconds, err);
        if (!rc && suite->gpu.comm)
            sample->values[test->metric] = (double)bytes / seconds * collective_bus_factor(test->like, size);
        if (!rc && last)
            rc = suite_curve_write(suite, &curve, err);
    }
    return rc;
}

/* --- collectives beside matrix products --- */

struct overlap {
    double collective_s, products_s, both_s;
};

/* One collective, products that take at least as long, and both at once. `product_s`: of one. */
static int measure_overlap(struct suite *suite, const struct collective_run *run, double product_s,
                           struct overlap *overlap, struct cb_err *err)
{
    uint64_t bytes = collective_bytes(run->test->like, suite->gpu.collective_bytes, suite->gpu.size);
    int rc = time_batch(suite, run, bytes, (struct batch){1, 0}, &overlap->collective_s, err);
    if (rc)
        return rc;
    double ratio = overlap->collective_s / product_s;
    uint32_t products = ratio < PRODUCTS_MOST ? (uint32_t)ratio + 1 : PRODUCTS_MOST;
    rc = time_batch(suite, run, bytes, (struct batch){0, products}, &overlap->products_s, err);
    if (!rc)
        rc = time_batch(suite, run, bytes, (struct batch){1, products}, &overlap->both_s, err);
    if (!rc)
        rc = check_once(suite, run, bytes, products, err);
    return rc;
}

static int measure_overlaps(struct suite *suite, struct collective_run *run, struct sample *sample, struct cb_err *err)
{
    double product_s = 0;
    run->test = &tests[0];
    int rc = run_batch(suite, run, 0, (struct batch){0, 2}, &product_s, err); /* so that the clocks rise */
    if (!rc)
        rc = time_batch(suite, run, 0, (struct batch){0, 1}, &product_s, err);
    for (size_t i = 0; i < sizeof overlap_metrics / sizeof *overlap_metrics && !rc; i++) {
        struct overlap overlap = {0};
        run->test = &tests[i];
        rc = measure_overlap(suite, run, product_s, &overlap, err);
        if (rc || !suite->gpu.comm)
            continue;
        sample->values[overlap_metrics[i]] = suite_overlap(overlap.collective_s, overlap.products_s, overlap.both_s);
        if (run->test->kind != DEVICE_ALL_REDUCE)
            continue;
        sample->values[METRIC_GPU_OVERLAP_PRODUCTS_S] = overlap.products_s;
        sample->values[METRIC_GPU_OVERLAP_ALL_REDUCE_S] = overlap.collective_s;
        sample->values[METRIC_GPU_OVERLAP_BOTH_S] = overlap.both_s;
    }
    return rc;
}

/* Skipped, with the reason after the last iteration, if a device lacks such products or the memory for them. */
static int measure_beside_products(struct suite *suite, struct collective_run *run, struct sample *sample, bool last,
                                   struct cb_err *err)
{
    const struct device_plugin_ops *ops = suite->gpu.plugin.ops;
    struct device *device = suite->gpu.device;
    struct cb_err why = {0};
    bool all;
    int opened = device ? ops->open_gemm(device, DEVICE_MEASURE_GEMM_BF16, PRODUCT_ROWS, &run->gemm, &why) : 0;
    int rc = suite_gpu_everybody(suite, opened, &why, last ? "gpu.overlap" : NULL, &all, err);
    if (rc || !all)
        return rc;
    rc = measure_overlaps(suite, run, sample, err);
    return rc ? rc : suite_join(suite, run->gemm ? ops->check_gemm(run->gemm, err) : 0, err);
}

/* --- pairs of nodes --- */

/* Seconds until both ranks of a pair have received the other's data, the median. Collective over both. */
static int time_pair(struct suite *suite, const struct collective_run *run, uint32_t peer, uint64_t bytes,
                     uint32_t rounds, double *median_s, struct cb_err *err)
{
    const struct device_comm_ops *ops = suite->gpu.plugin.ops->comm;
    double seconds[PAIR_ROUNDS];
    struct summary summary;
    int rc = 0;
    for (uint32_t i = 0; i < PAIR_WARMUP + rounds && !rc; i++) {
        uint64_t start_ns = clock_monotonic_ns();
        rc = ops->queue(suite->gpu.comm, DEVICE_EXCHANGE, run->from, run->to, bytes, peer, suite_deadline(suite), err);
        if (!rc)
            rc = ops->wait(suite->gpu.comm, suite_deadline(suite), err);
        if (i >= PAIR_WARMUP)
            seconds[i - PAIR_WARMUP] = (double)(clock_monotonic_ns() - start_ns) / 1e9;
    }
    if (rc)
        return rc;
    stats_summarize(seconds, rounds, &summary);
    *median_s = summary.median;
    return 0;
}

/* `context` is struct collective_run. */
static int measure_pair(struct suite *suite, void *context, uint32_t peer, struct suite_link *link, struct cb_err *err)
{
    const struct collective_run *run = context;
    struct device *device = suite->gpu.device;
    uint64_t bytes = suite->gpu.collective_bytes / sizeof(float) * sizeof(float), wrong = 0;
    struct device_values own = values_of(suite, suite->gpu.rank, 0, bytes);
    double seconds = 0;
    int rc = device->ops->set(device, run->to, 0xEE, bytes, err);
    if (!rc)
        rc = device->ops->fill(device, &own, run->from, err);
    if (!rc)
        rc = time_pair(suite, run, peer, PAIR_BYTES, PAIR_ROUNDS, &link->latency_s, err);
    if (!rc)
        rc = time_pair(suite, run, peer, bytes, PAIR_LARGE_ROUNDS, &seconds, err);
    if (!rc)
        rc = expect(suite, run->to, peer, 0, bytes, &wrong, err);
    if (!rc && wrong)
        rc = cb_fail(err, CB_ERR_CORRUPT, "NCCL between nodes: %" PRIu64 " values are wrong on rank %" PRIu32, wrong,
                     comm_rank(suite->comm));
    link->bytes_per_s = (double)bytes / seconds;
    return rc;
}

/* The first GPUs of all nodes. */
static int measure_pairs(struct suite *suite, struct collective_run *run, struct sample *sample, bool last,
                         struct cb_err *err)
{
    const uint32_t *first = suite->gpu.first_of_node;
    bool plays = suite->gpu.comm && first[suite->nodes.mine] == suite->gpu.rank;
    struct suite_pairs pairs = {"gpu_pair", first, plays, measure_pair, run};
    struct suite_link mean;
    uint32_t met;
    int rc = suite_pairs_measure(suite, &pairs, last, &mean, &met, err);
    if (!rc && met) {
        sample->values[METRIC_GPU_NET_LATENCY_S] = mean.latency_s;
        sample->values[METRIC_GPU_NET_BANDWIDTH_BYTES_PER_S] = mean.bytes_per_s;
    }
    return rc;
}

int suite_gpu_collectives(struct suite *suite, struct sample *sample, bool last, struct cb_err *err)
{
    struct device *device = suite->gpu.device;
    uint64_t bytes = suite->gpu.collective_bytes;
    struct collective_run run = {0};
    int rc = device ? device->ops->allocate(device, MEMORY_DEVICE, bytes, &run.from, err) : 0;
    if (!rc && device)
        rc = device->ops->allocate(device, MEMORY_DEVICE, bytes, &run.to, err);
    rc = suite_join(suite, rc, err);
    if (!rc)
        rc = measure_all(suite, &run, sample, last, err);
    if (!rc)
        rc = measure_beside_products(suite, &run, sample, last, err);
    if (!rc)
        rc = measure_pairs(suite, &run, sample, last, err);
    /* Memory can only be freed when no operation is in flight: one that waits for a missing rank never ends. */
    if (rc && suite->gpu.comm)
        suite->gpu.plugin.ops->comm->abort(suite->gpu.comm);
    if (run.gemm)
        suite->gpu.plugin.ops->close_gemm(run.gemm);
    if (device) {
        device->ops->release(device, MEMORY_DEVICE, run.from, bytes);
        device->ops->release(device, MEMORY_DEVICE, run.to, bytes);
    }
    return rc;
}
