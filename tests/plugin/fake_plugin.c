/* For tests of whole runs: a plugin like cuda/, whose one device is tests/unit/fake_math.h. CKPTBENCH_CUDA_PLUGIN names
 * it. FAKE_DEVICE_BYTES is what its memory has free (1 TiB), FAKE_DEVICE_FAILS_AT the operation that fails,
 * FAKE_DEVICE_SLOW_RANK the rank whose device does half of what the others do, FAKE_DEVICES how many a machine has (one for
 * each rank). */
#include <stdio.h>

#include "engine/device_plugin.h"
#include "tests/unit/fake_math.h"

static uint64_t number_of(const char *variable, uint64_t otherwise)
{
    const char *text = getenv(variable);
    return text ? strtoull(text, NULL, 10) : otherwise;
}

static int count_them(uint32_t *count, struct cb_err *err)
{
    (void)err;
    *count = (uint32_t)number_of("FAKE_DEVICES", 1);
    return 0;
}

/* Every rank sees one of its own, unless FAKE_DEVICES says how many the machine has. */
static int identify(uint32_t index, unsigned char id[DEVICE_ID_BYTES], struct cb_err *err)
{
    (void)err;
    uint64_t number = getenv("FAKE_DEVICES") ? index : number_of("OMPI_COMM_WORLD_RANK", 0);
    memset(id, 0, DEVICE_ID_BYTES);
    memcpy(id, &number, sizeof number);
    return 0;
}

static int locate(uint32_t index, char pci[DEVICE_PCI_BYTES], struct cb_err *err)
{
    (void)index, (void)err;
    snprintf(pci, DEVICE_PCI_BYTES, "fake:%d", (int)number_of("OMPI_COMM_WORLD_RANK", 0));
    return 0;
}

static int open_one(uint32_t index, struct device **device, struct cb_err *err)
{
    struct fake_device *opened = fake_device_new(index + 1, 3);
    if (!opened)
        return cb_fail(err, CB_ERR_MEMORY, "no memory for a fake device");
    *device = &opened->base;
    return 0;
}

static int describe(struct device *device, struct device_info *info, struct cb_err *err)
{
    (void)err;
    uint64_t bytes = number_of("FAKE_DEVICE_BYTES", UINT64_C(1) << 40);
    *info = (struct device_info){.name = "a fake device", .versions = "none", .free_bytes = bytes};
    (void)!locate(0, info->pci, err);
    info->memory_bytes = bytes;
    for (size_t i = 0; i < FAKE_MAX_MEMORIES; i++)
        info->free_bytes -= ((struct fake_device *)device)->memories[i].bytes;
    return 0;
}

static int measure(struct device *device, enum device_measure what, uint64_t size, double *value, struct cb_err *err)
{
    (void)device, (void)size, (void)err;
    bool slow = number_of("FAKE_DEVICE_SLOW_RANK", UINT64_MAX) == number_of("OMPI_COMM_WORLD_RANK", 0);
    *value = what == DEVICE_MEASURE_LAUNCH ? slow ? 2e-5 : 1e-5 : slow ? 5e11 : 1e12;
    return 0;
}

/* Only asked for beside what devices tell each other, which is nothing here. */
static int no_gemm(struct device *device, enum device_measure type, uint64_t rows, struct device_gemm **gemm,
                   struct cb_err *err)
{
    (void)device, (void)type, (void)rows, (void)gemm;
    return cb_fail(err, CB_ERR_UNSUPPORTED, "the fake device has no products to measure");
}

static int no_products(struct device_gemm *self, uint32_t count, struct cb_err *err)
{
    (void)self, (void)count;
    return no_gemm(NULL, DEVICE_MEASURE_GEMM_BF16, 0, NULL, err);
}

static int no_check(struct device_gemm *self, struct cb_err *err)
{
    return no_products(self, 0, err);
}

static void no_close(struct device_gemm *self)
{
    (void)self;
}

static int no_activity(struct device *device, struct cb_err *err)
{
    (void)device;
    return cb_fail(err, CB_ERR_UNSUPPORTED, "the fake device shows nobody what it does");
}

static int no_activities(struct device *device, device_activity_function *take, void *context, uint64_t *lost,
                         struct cb_err *err)
{
    (void)take, (void)context, (void)lost;
    return no_activity(device, err);
}

static int open_math(struct device *device, struct device_math **math, struct cb_err *err)
{
    int rc = fake_math_open(device, math, err);
    if (!rc)
        ((struct fake_math *)*math)->fail_at = number_of("FAKE_DEVICE_FAILS_AT", 0);
    return rc;
}

/* --- one device talks to nobody --- */

static int no_id(char id[DEVICE_COMM_ID_BYTES], struct cb_err *err)
{
    (void)id;
    return cb_fail(err, CB_ERR_UNSUPPORTED, "the fake device talks to nobody");
}

static int no_join(struct device *device, const char id[DEVICE_COMM_ID_BYTES], uint32_t rank, uint32_t size,
                   uint64_t deadline_ns, struct device_comm **comm, struct cb_err *err)
{
    (void)device, (void)id, (void)rank, (void)size, (void)deadline_ns, (void)comm;
    return no_id(NULL, err);
}

static int no_queue(struct device_comm *self, enum device_collective kind, const void *from, void *to, uint64_t bytes,
                    uint32_t peer, uint64_t deadline_ns, struct cb_err *err)
{
    (void)self, (void)kind, (void)from, (void)to, (void)bytes, (void)peer, (void)deadline_ns;
    return no_id(NULL, err);
}

static int no_copy(struct device_comm *self, enum device_direction direction, const struct device_copy *copies,
                   size_t count, struct cb_err *err)
{
    (void)self, (void)direction, (void)copies, (void)count;
    return no_id(NULL, err);
}

static int no_record(struct device_comm *self, uint64_t *event, struct cb_err *err)
{
    (void)self, (void)event;
    return no_id(NULL, err);
}

static int no_poll(struct device_comm *self, uint64_t event, bool *done, struct cb_err *err)
{
    (void)self, (void)event, (void)done;
    return no_id(NULL, err);
}

static int no_wait(struct device_comm *self, uint64_t deadline_ns, struct cb_err *err)
{
    (void)self, (void)deadline_ns;
    return no_id(NULL, err);
}

static int no_hold(struct device_comm *self, uint64_t event, struct cb_err *err)
{
    (void)self, (void)event;
    return no_id(NULL, err);
}

static void no_end(struct device_comm *self)
{
    (void)self;
}

static const struct device_comm_ops silence = {
    .make_id = no_id,
    .join = no_join,
    .queue = no_queue,
    .copy = no_copy,
    .record = no_record,
    .mark = no_record,
    .hold_device = no_hold,
    .poll = no_poll,
    .wait = no_wait,
    .abort = no_end,
    .close = no_end,
};

const struct device_plugin_ops ckptbench_device_plugin __attribute__((visibility("default"))) = {
    .version = DEVICE_PLUGIN_VERSION,
    .device_version = DEVICE_VERSION,
    .built = "for tests",
    .count = count_them,
    .identify = identify,
    .locate = locate,
    .open = open_one,
    .describe = describe,
    .measure = measure,
    .open_gemm = no_gemm,
    .queue_gemm = no_products,
    .check_gemm = no_check,
    .close_gemm = no_close,
    .start_activity = no_activity,
    .stop_activity = no_activities,
    .comm = &silence,
    .open_math = open_math,
};
