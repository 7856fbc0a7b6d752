/* GPUs: memory, the way to and from this machine, matrix products by type, launches, and NCCL between them. Each
 * rank measures its own device while the others measure theirs, since that is how they will be used. Absent, with
 * the reason, where there is no device. Knows the plugin's table; nothing of CUDA. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"
#include "core/stats.h"
#include "worker/comm_measure.h"
#include "worker/gpu_place.h"
#include "worker/suite/suite.h"

#define COPY_BYTES (UINT64_C(1) << 30)       /* an array inside the device */
#define CROSSING_BYTES (UINT64_C(256) << 20) /* to and from it */
#define GEMM_ROWS 8192
#define COLLECTIVE_BYTES (UINT64_C(256) << 20) /* of the whole */
#define COLLECTIVE_ROUNDS 7

struct test {
    enum device_measure what;
    enum metric_id metric;
    const char *name; /* in suite.skipped.gpu.NAME */
    uint64_t size;
};

static const struct test tests[] = {
    {DEVICE_MEASURE_COPY, METRIC_GPU_COPY_BYTES_PER_S, "copy", COPY_BYTES},
    {DEVICE_MEASURE_TRIAD, METRIC_GPU_TRIAD_BYTES_PER_S, "triad", COPY_BYTES},
    {DEVICE_MEASURE_TO_DEVICE, METRIC_GPU_TO_DEVICE_BYTES_PER_S, "to_device", CROSSING_BYTES},
    {DEVICE_MEASURE_TO_HOST, METRIC_GPU_TO_HOST_BYTES_PER_S, "to_host", CROSSING_BYTES},
    {DEVICE_MEASURE_TO_DEVICE_PAGEABLE, METRIC_GPU_TO_DEVICE_PAGEABLE_BYTES_PER_S, "to_device_pageable",
     CROSSING_BYTES},
    {DEVICE_MEASURE_TO_HOST_PAGEABLE, METRIC_GPU_TO_HOST_PAGEABLE_BYTES_PER_S, "to_host_pageable", CROSSING_BYTES},
    {DEVICE_MEASURE_GEMM_FP32, METRIC_GPU_GEMM_FP32_FLOPS, "gemm_fp32", GEMM_ROWS},
    {DEVICE_MEASURE_GEMM_TF32, METRIC_GPU_GEMM_TF32_FLOPS, "gemm_tf32", GEMM_ROWS},
    {DEVICE_MEASURE_GEMM_BF16, METRIC_GPU_GEMM_BF16_FLOPS, "gemm_bf16", GEMM_ROWS},
    {DEVICE_MEASURE_GEMM_FP8, METRIC_GPU_GEMM_FP8_FLOPS, "gemm_fp8", GEMM_ROWS},
    {DEVICE_MEASURE_LAUNCH, METRIC_GPU_LAUNCH_S, "launch", 0},
};

/* --- beginning and end --- */

/* The plugin and this rank's device. What is missing is no failure of the suite. */
static int open_device(struct suite_gpu *self, const struct suite *suite, struct cb_err *why)
{
    struct device_info info;
    char text[512];
    int rc = device_plugin_open(&self->plugin, why);
    if (!rc)
        rc = device_plugin_open_device(&self->plugin, comm_local_rank(suite->comm), &self->device, &info, why);
    if (rc)
        return rc;
    snprintf(text, sizeof text, "%s, %s (number %" PRIu32 "); %s", info.name, info.pci, info.index, info.versions);
    status_page_add_fact(suite->page, "device", text);
    struct gpu_place place;
    struct cb_err unknown;
    bool is_known = gpu_place_read("/sys", info.pci, &place, &unknown) == 0;
    if (is_known)
        gpu_place_describe(&place, text, sizeof text);
    status_page_add_fact(suite->page, "device.place", is_known ? text : unknown.message);
    return 0;
}

/* All ranks join, or none. Two ranks on one device cannot: then there is no NCCL here, and that is said. */
static int join(struct suite *suite, struct cb_err *err)
{
    struct suite_gpu *self = &suite->gpu;
    const struct device_comm_ops *ops = self->plugin.ops->comm;
    char id[DEVICE_COMM_ID_BYTES] = "";
    struct cb_err why = {0};
    struct agreement agreement;
    int made = comm_rank(suite->comm) == 0 ? ops->make_id(id, &why) : 0;
    int rc = comm_agree(suite->comm, made, 0, suite_deadline(suite), &agreement, err);
    if (!rc && !agreement.code)
        rc = comm_broadcast(suite->comm, id, sizeof id, suite_deadline(suite), err);
    if (rc)
        return rc;
    int joined = agreement.code ? agreement.code
                                : ops->join(self->device, id, comm_rank(suite->comm), comm_size(suite->comm),
                                            suite_deadline(suite), &self->comm, &why);
    rc = comm_agree(suite->comm, joined, 0, suite_deadline(suite), &agreement, err);
    if (!rc && agreement.code) {
        suite_skip(suite, "gpu.nccl", why.message[0] ? why.message : "a rank could not join the communicator");
        if (self->comm) {
            ops->abort(self->comm);
            ops->close(self->comm);
        }
        self->comm = NULL;
    }
    return rc;
}

int suite_gpu_open(struct suite *suite, struct cb_err *err)
{
    struct suite_gpu *self = &suite->gpu;
    struct cb_err why = {0};
    struct agreement agreement;
    self->collective_bytes = COLLECTIVE_BYTES;
    int opened = open_device(self, suite, &why);
    int rc = comm_agree(suite->comm, opened, 0, suite_deadline(suite), &agreement, err);
    if (rc)
        return rc;
    if (agreement.code) {
        suite_skip(suite, "gpu", opened ? why.message : "a rank has no GPU");
        suite_gpu_close(suite);
        return 0;
    }
    return join(suite, err);
}

void suite_gpu_close(struct suite *suite)
{
    struct suite_gpu *self = &suite->gpu;
    if (self->comm)
        self->plugin.ops->comm->close(self->comm);
    device_close(self->device);
    device_plugin_close(&self->plugin);
    *self = (struct suite_gpu){0};
}

/* --- a device alone --- */

/* What this rank's device cannot do is said; what is wrong is a failure. */
static int run_test(struct suite *suite, const struct test *test, struct sample *sample, bool last, struct cb_err *err)
{
    struct suite_gpu *self = &suite->gpu;
    double value = 0;
    char key[64];
    struct cb_err why = {0};
    int rc = suite_join(suite, 0, err);
    if (rc)
        return rc;
    int measured = self->plugin.ops->measure(self->device, test->what, test->size, &value, &why);
    if (!measured)
        sample->values[test->metric] = value;
    bool skipped = measured == CB_ERR_UNSUPPORTED || measured == CB_ERR_MEMORY;
    if (skipped && last) {
        snprintf(key, sizeof key, "gpu.%s", test->name);
        suite_skip(suite, key, why.message);
    }
    if (measured && !skipped)
        *err = why;
    return suite_join(suite, skipped ? 0 : measured, err);
}

/* --- all of them --- */

struct collective_test {
    enum device_collective kind;
    enum collective like; /* for the factor of the bus bandwidth */
    enum metric_id metric;
    const char *name;
};

static const struct collective_test collectives[] = {
    {DEVICE_ALL_REDUCE, COLLECTIVE_ALL_REDUCE, METRIC_GPU_ALL_REDUCE_BUS_BYTES_PER_S, "all-reduce"},
    {DEVICE_ALL_GATHER, COLLECTIVE_ALL_GATHER, METRIC_GPU_ALL_GATHER_BUS_BYTES_PER_S, "all-gather"},
    {DEVICE_REDUCE_SCATTER, COLLECTIVE_REDUCE_SCATTER, METRIC_GPU_REDUCE_SCATTER_BUS_BYTES_PER_S, "reduce-scatter"},
    {DEVICE_BROADCAST, COLLECTIVE_BROADCAST, METRIC_GPU_BROADCAST_BUS_BYTES_PER_S, "broadcast"},
    {DEVICE_ALL_TO_ALL, COLLECTIVE_ALL_TO_ALL, METRIC_GPU_ALL_TO_ALL_BUS_BYTES_PER_S, "all-to-all"},
};

/* Of one share of the whole (all-gather: what a rank gives; reduce-scatter: what it gets), else of the whole. */
static uint64_t bytes_of(const struct suite *suite, enum device_collective kind)
{
    bool is_share = kind == DEVICE_ALL_GATHER || kind == DEVICE_REDUCE_SCATTER || kind == DEVICE_ALL_TO_ALL;
    uint64_t bytes = suite->gpu.collective_bytes / (is_share ? comm_size(suite->comm) : 1);
    return bytes / 256 * 256;
}

static int run_once(struct suite *suite, const struct collective_test *test, void *from, void *to, double *seconds,
                    struct cb_err *err)
{
    const struct device_comm_ops *ops = suite->gpu.plugin.ops->comm;
    struct agreement slowest;
    int rc = suite_join(suite, 0, err);
    if (rc)
        return rc;
    uint64_t start_ns = clock_monotonic_ns();
    rc = ops->queue(suite->gpu.comm, test->kind, from, to, bytes_of(suite, test->kind), 0, suite_deadline(suite), err);
    if (!rc)
        rc = ops->wait(suite->gpu.comm, suite_deadline(suite), err);
    uint64_t took_ns = clock_monotonic_ns() - start_ns;
    rc = suite_join(suite, rc, err);
    if (!rc)
        rc = comm_agree(suite->comm, 0, took_ns, suite_deadline(suite), &slowest, err);
    if (!rc)
        *seconds = (double)slowest.max / 1e9;
    return rc;
}

/* Floats of a rank's own; those of rank 0, and zeros of all others, add up to rank 0's, bit for bit. */
static struct device_values values_of(const struct suite *suite, uint32_t rank, uint64_t first, uint64_t count)
{
    struct device_values values = {.source = {.kind = PAYLOAD_WEIGHTS, .dtype = DTYPE_F32, .key = 17 + rank}};
    values.shape[0] = suite->gpu.collective_bytes / sizeof(float);
    values.box = (struct box){.dims = 1, .offset = {first / sizeof(float)}, .size = {count / sizeof(float)}};
    return values;
}

static bool adds(enum device_collective kind)
{
    return kind == DEVICE_ALL_REDUCE || kind == DEVICE_REDUCE_SCATTER;
}

/* What a rank gives: its own values, or those of rank 0 alone where they are added. */
static int give(struct suite *suite, enum device_collective kind, void *from, void *to, struct cb_err *err)
{
    struct device *device = suite->gpu.device;
    uint32_t rank = comm_rank(suite->comm);
    struct device_values own = values_of(suite, rank, 0, suite->gpu.collective_bytes);
    int rc = device->ops->set(device, to, 0xEE, suite->gpu.collective_bytes, err);
    if (rc)
        return rc;
    return adds(kind) && rank > 0 ? device->ops->set(device, from, 0, suite->gpu.collective_bytes, err)
                                  : device->ops->fill(device, &own, from, err);
}

/* `count` bytes at `memory` are those of `rank` from byte `first` on. */
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

static int count_wrong(struct suite *suite, enum device_collective kind, const char *to, uint64_t *wrong,
                       struct cb_err *err)
{
    uint32_t rank = comm_rank(suite->comm), size = comm_size(suite->comm);
    uint64_t bytes = bytes_of(suite, kind);
    int rc = 0;
    *wrong = 0;
    if (kind == DEVICE_ALL_REDUCE || kind == DEVICE_BROADCAST)
        return expect(suite, to, 0, 0, bytes, wrong, err);
    if (kind == DEVICE_REDUCE_SCATTER)
        return expect(suite, to, 0, rank * bytes, bytes, wrong, err);
    for (uint32_t peer = 0; peer < size && !rc; peer++)
        rc = expect(suite, to + peer * bytes, peer, kind == DEVICE_ALL_TO_ALL ? rank * bytes : 0, bytes, wrong, err);
    return rc;
}

/* One that is not counted: values are known before and after it. */
static int check_collective(struct suite *suite, const struct collective_test *test, void *from, void *to,
                            struct cb_err *err)
{
    double unused;
    uint64_t wrong = 0;
    int rc = suite_join(suite, give(suite, test->kind, from, to, err), err);
    if (!rc)
        rc = run_once(suite, test, from, to, &unused, err);
    if (rc)
        return rc;
    rc = count_wrong(suite, test->kind, to, &wrong, err);
    if (!rc && wrong)
        rc = cb_fail(err, CB_ERR_CORRUPT, "NCCL %s: %" PRIu64 " values are wrong on rank %" PRIu32, test->name, wrong,
                     comm_rank(suite->comm));
    return suite_join(suite, rc, err);
}

static int measure_collectives(struct suite *suite, void *from, void *to, struct sample *sample, struct cb_err *err)
{
    int rc = 0;
    for (size_t i = 0; i < sizeof collectives / sizeof *collectives && !rc; i++) {
        const struct collective_test *test = &collectives[i];
        double rounds[COLLECTIVE_ROUNDS];
        struct summary summary;
        rc = check_collective(suite, test, from, to, err);
        for (size_t round = 0; round < COLLECTIVE_ROUNDS && !rc; round++)
            rc = run_once(suite, test, from, to, &rounds[round], err);
        if (rc)
            return rc;
        stats_summarize(rounds, COLLECTIVE_ROUNDS, &summary);
        sample->values[test->metric] = (double)suite->gpu.collective_bytes / summary.median *
                                       collective_bus_factor(test->like, comm_size(suite->comm));
    }
    return rc;
}

static int run_collectives(struct suite *suite, struct sample *sample, struct cb_err *err)
{
    struct device *device = suite->gpu.device;
    uint64_t bytes = suite->gpu.collective_bytes;
    void *from = NULL, *to = NULL;
    int rc = device->ops->allocate(device, MEMORY_DEVICE, bytes, &from, err);
    if (!rc)
        rc = device->ops->allocate(device, MEMORY_DEVICE, bytes, &to, err);
    rc = suite_join(suite, rc, err);
    if (!rc)
        rc = measure_collectives(suite, from, to, sample, err);
    device->ops->release(device, MEMORY_DEVICE, from, bytes);
    device->ops->release(device, MEMORY_DEVICE, to, bytes);
    return rc;
}

int suite_gpu(struct suite *suite, struct sample *sample, bool last, struct cb_err *err)
{
    int rc = 0;
    if (!suite->gpu.device)
        return 0;
    for (size_t i = 0; i < sizeof tests / sizeof *tests && !rc; i++)
        rc = run_test(suite, &tests[i], sample, last, err);
    if (!rc && suite->gpu.comm && comm_size(suite->comm) > 1)
        rc = run_collectives(suite, sample, err);
    else if (!rc && suite->gpu.comm && last)
        suite_skip(suite, "gpu.nccl", "one rank has nobody to talk to");
    return rc;
}
