/* GPUs: memory bandwidth, transfers to and from this machine, matrix products by type, kernel launches. All devices are
 * measured simultaneously, as they will be used, each by one rank that is bound to cores near it. Without a device the
 * metrics are absent and a fact has the reason. */
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/alloc.h"
#include "engine/gpu_place.h"
#include "suite/suite.h"

#define COPY_BYTES (UINT64_C(1) << 30)       /* size of an array on the device */
#define CROSSING_BYTES (UINT64_C(256) << 20) /* to or from the device */
#define GEMM_ROWS 8192
#define COLLECTIVE_BYTES (UINT64_C(256) << 20) /* of a collective, at least */

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

/* --- opening and closing --- */

/* The cores near the device that this rank may use, unless core binding is off. */
static void find_near(struct suite_gpu *self, const struct suite *suite, const struct gpu_place *place, const char *pci)
{
    struct cb_err unknown;
    char text[sizeof place->cores + 64];
    if (!experiment_is(suite->experiment, OPT_AFFINITY, "auto") || !place->cores[0] ||
        gpu_place_parse_cores(place->cores, &self->near, &unknown))
        return;
    CPU_AND(&self->near, &self->near, &suite->allowed);
    self->has_near = CPU_COUNT(&self->near) > 0;
    snprintf(text, sizeof text, "%s%s (near %s)", self->has_near ? "" : "not possible: ", place->cores, pci);
    status_page_add_fact(suite->page, "affinity.gpu", text);
}

static int open_device(struct suite_gpu *self, const struct suite *suite, struct cb_err *why)
{
    struct device_info info;
    char text[512];
    int rc = device_plugin_open_device(&self->plugin, comm_local_rank(suite->comm), &self->device, &info, why);
    if (rc)
        return rc;
    device_info_note(&info, suite->page);
    char key[32];
    snprintf(key, sizeof key, "suite.gpu.%" PRIu32,
             comm_rank(suite->comm)); /* the node and index of this rank's device */
    snprintf(text, sizeof text, "%s %s", suite->nodes.names[suite->nodes.mine], info.pci);
    status_page_add_fact(suite->page, key, text);
    struct gpu_place place;
    struct cb_err unknown;
    bool is_known = gpu_place_read("/sys", info.pci, &place, &unknown) == 0;
    if (is_known)
        gpu_place_describe(&place, text, sizeof text);
    status_page_add_fact(suite->page, "device.place", is_known ? text : unknown.message);
    if (is_known)
        find_near(self, suite, &place, info.pci);
    return 0;
}

/* The device of a rank, and its node. */
struct device_place {
    unsigned char id[DEVICE_ID_BYTES];
    uint32_t node;
};

/* Of all ranks that share a device, the lowest measures it. */
static int share_devices(struct suite *suite, const unsigned char id[DEVICE_ID_BYTES], bool *is_mine,
                         struct cb_err *err)
{
    struct suite_gpu *self = &suite->gpu;
    struct device_place mine = {.node = suite->nodes.mine};
    uint32_t ranks = comm_size(suite->comm), rank = comm_rank(suite->comm);
    struct device_place *all = calloc(ranks, sizeof *all);
    self->first_of_node = calloc(suite->nodes.count, sizeof *self->first_of_node);
    int rc = all && self->first_of_node ? 0 : alloc_fail(err, "for the GPUs of %" PRIu32 " ranks", ranks);
    memcpy(mine.id, id, sizeof mine.id);
    rc = suite_join(suite, rc, err);
    if (!rc)
        rc = comm_all_gather(suite->comm, &mine, sizeof mine, all, suite_deadline(suite), err);
    for (uint32_t node = 0; node < suite->nodes.count && self->first_of_node; node++)
        self->first_of_node[node] = SUITE_NO_GPU;
    for (uint32_t i = 0; all && self->first_of_node && i < ranks && !rc; i++) {
        bool is_first = true;
        for (uint32_t j = 0; j < i && is_first; j++)
            is_first = memcmp(all[i].id, all[j].id, sizeof all[i].id) != 0;
        *is_mine = i == rank ? is_first : *is_mine;
        if (is_first && self->first_of_node[all[i].node] == SUITE_NO_GPU)
            self->first_of_node[all[i].node] = self->size;
        self->rank += is_first && i < rank ? 1 : 0;
        self->size += is_first ? 1 : 0;
    }
    free(all);
    return rc;
}

/* Joins all devices by NCCL, or none. */
static int join(struct suite *suite, struct cb_err *err)
{
    struct suite_gpu *self = &suite->gpu;
    const struct device_comm_ops *ops = self->plugin.ops->comm;
    char id[DEVICE_COMM_ID_BYTES] = "";
    struct cb_err why = {0};
    bool all;
    if (self->size < 2) {
        suite_skip(suite, "gpu.nccl", "one GPU has nobody to talk to");
        return 0;
    }
    int made = comm_rank(suite->comm) == 0 ? ops->make_id(id, &why) : 0;
    int rc = suite_gpu_everybody(suite, made, &why, "gpu.nccl", &all, err);
    if (rc || !all)
        return rc;
    rc = comm_broadcast(suite->comm, id, sizeof id, suite_deadline(suite), err);
    if (rc)
        return rc;
    int joined = self->device
                     ? ops->join(self->device, id, self->rank, self->size, suite_deadline(suite), &self->comm, &why)
                     : 0;
    rc = suite_gpu_everybody(suite, joined, &why, "gpu.nccl", &self->can_talk, err);
    if ((rc || !self->can_talk) && self->comm) {
        ops->abort(self->comm);
        ops->close(self->comm);
        self->comm = NULL;
    }
    return rc;
}

int suite_gpu_open(struct suite *suite, struct cb_err *err)
{
    struct suite_gpu *self = &suite->gpu;
    struct cb_err why = {0};
    unsigned char id[DEVICE_ID_BYTES] = {0};
    bool is_mine = false;
    uint64_t asked = experiment_u64(suite->experiment, OPT_SUITE_MESSAGE_BYTES);
    self->collective_bytes = asked > COLLECTIVE_BYTES ? asked : COLLECTIVE_BYTES;
    int found = device_plugin_open(&self->plugin, &why);
    if (!found)
        found = device_plugin_identify(&self->plugin, comm_local_rank(suite->comm), id, &why);
    int rc = suite_gpu_everybody(suite, found, &why, "gpu", &self->is_here, err);
    if (!rc && self->is_here)
        rc = share_devices(suite, id, &is_mine, err);
    if (!rc && self->is_here) {
        found = is_mine ? open_device(self, suite, &why) : 0;
        rc = suite_gpu_everybody(suite, found, &why, "gpu", &self->is_here, err);
    }
    return rc || !self->is_here ? rc : join(suite, err);
}

void suite_gpu_close(struct suite *suite)
{
    struct suite_gpu *self = &suite->gpu;
    if (self->comm)
        self->plugin.ops->comm->close(self->comm);
    free(self->first_of_node);
    device_close(self->device);
    device_plugin_close(&self->plugin);
    *self = (struct suite_gpu){0};
}

/* --- one device --- */

/* Skips tests that this rank's device does not support, and reports them; real errors are failures. */
static int run_test(struct suite *suite, const struct test *test, struct sample *sample, bool last, struct cb_err *err)
{
    struct suite_gpu *self = &suite->gpu;
    double value = 0;
    char key[64];
    struct cb_err why = {0};
    int rc = suite_join(suite, 0, err);
    if (rc)
        return rc;
    int measured = self->device ? self->plugin.ops->measure(self->device, test->what, test->size, &value, &why) : 0;
    if (!measured && self->device)
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

int suite_gpu(struct suite *suite, struct sample *sample, bool last, struct cb_err *err)
{
    struct suite_gpu *self = &suite->gpu;
    cpu_set_t before;
    int rc = 0;
    if (!self->is_here)
        return 0;
    bool moves = self->has_near && sched_getaffinity(0, sizeof before, &before) == 0 &&
                 sched_setaffinity(0, sizeof self->near, &self->near) == 0;
    for (size_t i = 0; i < sizeof tests / sizeof *tests && !rc; i++)
        rc = run_test(suite, &tests[i], sample, last, err);
    if (!rc && self->can_talk)
        rc = suite_gpu_collectives(suite, sample, last, err);
    if (moves)
        (void)sched_setaffinity(0, sizeof before, &before); /* restores the previous affinity */
    return rc;
}
