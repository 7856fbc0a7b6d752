/* On a machine with a GPU: the plugin's device keeps the contract of engine/device.h, makes and compares the
 * payload's values, and carries saves and loads of the native engine; NCCL works with one rank. Without a device every
 * test fails and says why: whoever runs this wants to know that it has not run. */
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/device_plugin.h"
#include "tests/unit/native_world.h"

#define BYTES ((uint64_t)64 << 20)

static char folder[64];
static struct device_plugin plugin;

static struct device *open_device(uint32_t rank)
{
    struct device *device = NULL;
    struct device_info info;
    struct cb_err err = {0};
    if (!plugin.ops && device_plugin_open(&plugin, &err))
        fail_msg("%s", err.message);
    if (device_plugin_open_device(&plugin, rank, &device, &info, &err))
        fail_msg("%s", err.message);
    return device;
}

/* Where ranks outnumber GPUs they find out that two have one, and go through this machine's memory. */
static const struct device_comm_ops *comm_ops(void)
{
    struct cb_err err = {0};
    if (!plugin.ops && device_plugin_open(&plugin, &err))
        fail_msg("%s", err.message);
    return plugin.ops->comm;
}

static void finish(struct device *device)
{
    uint64_t event;
    struct cb_err err;
    assert_int_equal(device->ops->record(device, &event, &err), 0);
    if (device->ops->wait(device, event, clock_monotonic_ns() + 10 * NS_PER_S, &err) != 0)
        fail_msg("%s", err.message);
}

static void *allocate(struct device *device, enum memory_kind kind, uint64_t bytes)
{
    void *memory = NULL;
    struct cb_err err;
    if (device->ops->allocate(device, kind, bytes, &memory, &err) != 0)
        fail_msg("%s", err.message);
    return memory;
}

static void copy(struct device *device, enum device_direction direction, struct device_copy what)
{
    struct cb_err err;
    if (device->ops->copy(device, direction, &what, 1, &err) != 0)
        fail_msg("%s", err.message);
}

static void what_goes_to_the_device_comes_back(void **unused)
{
    (void)unused;
    struct device *device = open_device(0);
    unsigned char *host = allocate(device, MEMORY_PINNED, BYTES), *back = allocate(device, MEMORY_PINNED, BYTES);
    char *own = allocate(device, MEMORY_DEVICE, BYTES);
    for (uint64_t i = 0; i < BYTES; i++)
        host[i] = (unsigned char)((i * 131 + i / 255) % 251);
    copy(device, HOST_TO_DEVICE, (struct device_copy){own + 3, host + 5, BYTES - 9, 1, 0, 0});
    copy(device, DEVICE_TO_HOST, (struct device_copy){back + 5, own + 3, BYTES - 9, 1, 0, 0});
    finish(device);
    assert_memory_equal(back + 5, host + 5, BYTES - 9);
    /* Rows of 1000 bytes, 3000 apart here and 1000 there, and back to every 2000. */
    memset(back, 0, BYTES);
    copy(device, HOST_TO_DEVICE, (struct device_copy){own, host, 1000, 5000, 1000, 3000});
    copy(device, DEVICE_TO_HOST, (struct device_copy){back, own, 1000, 5000, 2000, 1000});
    finish(device);
    for (uint64_t row = 0; row < 5000; row++)
        assert_memory_equal(back + row * 2000, host + row * 3000, 1000);
    /* Every other row of the device to where the first half of it ends, and that back. */
    memset(back, 0, BYTES);
    copy(device, HOST_TO_DEVICE, (struct device_copy){own, host, BYTES / 2, 1, 0, 0});
    copy(device, DEVICE_TO_DEVICE, (struct device_copy){own + BYTES / 2, own, 1000, 5000, 1000, 2000});
    copy(device, DEVICE_TO_HOST, (struct device_copy){back, own + BYTES / 2, 5000 * 1000, 1, 0, 0});
    finish(device);
    for (uint64_t row = 0; row < 5000; row++)
        assert_memory_equal(back + row * 1000, host + row * 2000, 1000);
    device->ops->release(device, MEMORY_PINNED, host, BYTES);
    device->ops->release(device, MEMORY_PINNED, back, BYTES);
    device->ops->release(device, MEMORY_DEVICE, own, BYTES);
    device_close(device);
}

static void values_on_the_device_are_the_payloads(void **unused)
{
    (void)unused;
    struct device *device = open_device(0);
    char *host = allocate(device, MEMORY_PINNED, BYTES), *own = allocate(device, MEMORY_DEVICE, BYTES);
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        for (int kind = PAYLOAD_WEIGHTS; kind <= PAYLOAD_ZERO; kind++) {
            struct device_values values = {
                .source = {.kind = (enum payload_kind)kind, .dtype = (enum dtype)dtype, .key = 99},
                .shape = {300, 500, 17},
                .region = {.dims = 3, .offset = {100, 7, 2}, .size = {150, 433, 13}},
            };
            struct device_difference difference = {0};
            uint64_t bytes = region_elements(&values.region) * dtype_bytes((enum dtype)dtype), wrong;
            assert_int_equal(device->ops->fill(device, &values, own, NULL), 0);
            assert_int_equal(device->ops->check(device, &values, own, &difference, NULL), 0);
            assert_int_equal(difference.wrong, 0);
            copy(device, DEVICE_TO_HOST, (struct device_copy){host, own, bytes, 1, 0, 0});
            finish(device);
            if (!payload_check_region(&values.source, values.shape, &values.region, host, &wrong))
                fail_msg("%s, kind %d: element %llu", dtype_name((enum dtype)dtype), kind, (unsigned long long)wrong);
            host[bytes / 2] ^= 1;
            copy(device, HOST_TO_DEVICE, (struct device_copy){own, host, bytes, 1, 0, 0});
            finish(device);
            assert_int_equal(device->ops->check(device, &values, own, &difference, NULL), 0);
            assert_int_equal(difference.wrong, 1);
            uint64_t element = bytes / 2 / dtype_bytes((enum dtype)dtype);
            uint64_t z = element % 13, y = element / 13 % 433, x = element / 13 / 433;
            assert_int_equal(difference.first, ((x + 100) * 500 + y + 7) * 17 + z + 2);
        }
    }
    device->ops->release(device, MEMORY_PINNED, host, BYTES);
    device->ops->release(device, MEMORY_DEVICE, own, BYTES);
    device_close(device);
}

static void the_last_shard_of_the_largest_model_has_its_values(void **unused)
{
    (void)unused;
    /* The end of llama3-405b's embedding, cut in 8: 8.4e9 bytes into the tensor. */
    struct device_values values = {
        .source = {.kind = PAYLOAD_WEIGHTS, .dtype = DTYPE_F32, .key = 99},
        .shape = {128256, 16384},
        .region = {.dims = 2, .offset = {128253, 14336}, .size = {3, 2048}},
    };
    struct device *device = open_device(0);
    char *host = allocate(device, MEMORY_PINNED, BYTES), *own = allocate(device, MEMORY_DEVICE, BYTES);
    struct device_difference difference = {0};
    uint64_t bytes = region_elements(&values.region) * sizeof(float), wrong;
    assert_int_equal(device->ops->fill(device, &values, own, NULL), 0);
    copy(device, DEVICE_TO_HOST, (struct device_copy){host, own, bytes, 1, 0, 0});
    finish(device);
    if (!payload_check_region(&values.source, values.shape, &values.region, host, &wrong))
        fail_msg("element %llu", (unsigned long long)wrong);
    host[bytes - 1] ^= 1;
    copy(device, HOST_TO_DEVICE, (struct device_copy){own, host, bytes, 1, 0, 0});
    finish(device);
    assert_int_equal(device->ops->check(device, &values, own, &difference, NULL), 0);
    assert_int_equal(difference.wrong, 1);
    assert_int_equal(difference.first, UINT64_C(128256) * 16384 - 1);
    device->ops->release(device, MEMORY_PINNED, host, BYTES);
    device->ops->release(device, MEMORY_DEVICE, own, BYTES);
    device_close(device);
}

static void more_events_than_there_are_places_keep_their_order(void **unused)
{
    (void)unused;
    struct device *device = open_device(0);
    uint64_t first = 0, event = 0;
    bool done = false;
    struct cb_err err;
    for (int i = 0; i < 5000; i++) {
        assert_int_equal(device->ops->record(device, &event, &err), 0);
        first = i == 0 ? event : first;
    }
    assert_int_equal(device->ops->wait(device, event, clock_monotonic_ns() + 10 * NS_PER_S, &err), 0);
    assert_int_equal(device->ops->poll(device, first, &done, &err), 0);
    assert_true(done);
    device_close(device);
}

static int remove_entry(const char *path, const struct stat *status, int kind, struct FTW *walk)
{
    (void)status, (void)kind, (void)walk;
    return remove(path);
}

static void the_engine_saves_and_loads_what_the_device_holds(void **unused)
{
    (void)unused;
    static const char *const ways[] = {
        "model=gpt2-tiny",
        "model=gpt2-tiny dp=2 tp=2 io.block=64KiB save.staging_bytes=128KiB io.depth=2",
        "model=gpt2-tiny dp=3 zero=1 io.files=2",
        "model=gpt2-tiny dp=2 tp=2 load.exchange=split io.block=64KiB",
        "model=gpt2-tiny dp=4 load.exchange=broadcast",
        "model=gpt2-tiny dp=2 save.async=true save.inflight=2",
        "model=gpt2-tiny tp=2 save.async=true io.block=64KiB save.staging_bytes=256KiB",
    };
    for (size_t i = 0; i < sizeof ways / sizeof *ways; i++) {
        struct world world;
        nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
        assert_int_equal(mkdir(folder, 0700), 0);
        print_message("%s\n", ways[i]);
        world_open_talking(&world, ways[i], folder, 1, open_device, true, comm_ops());
        world_pass(&world, OP_SAVE, "a");
        if (world.async)
            assert_int_equal(world_wait(&world), 0);
        world_pass(&world, OP_LOAD, "a");
        world_check_loaded(&world);
        world_close(&world);
    }
}

/* NCCL refuses two ranks on one GPU, so it is shown with one. */
static void one_rank_talks_to_itself(void **unused)
{
    (void)unused;
    struct device *device = open_device(0);
    const struct device_comm_ops *ops = plugin.ops->comm;
    struct device_comm *comm = NULL;
    char id[DEVICE_COMM_ID_BYTES];
    struct cb_err err = {0};
    struct device_values values = {.source = {.kind = PAYLOAD_WEIGHTS, .dtype = DTYPE_F32, .key = 5},
                                   .shape = {1 << 20},
                                   .region = {.dims = 1, .size = {1 << 20}}};
    uint64_t bytes = UINT64_C(4) << 20, deadline_ns = clock_monotonic_ns() + 60 * NS_PER_S;
    char *from = allocate(device, MEMORY_DEVICE, bytes), *to = allocate(device, MEMORY_DEVICE, bytes);
    assert_int_equal(device->ops->fill(device, &values, from, &err), 0);
    if (ops->make_id(id, &err) || ops->join(device, id, 0, 1, deadline_ns, &comm, &err))
        fail_msg("%s", err.message);
    for (int kind = DEVICE_ALL_REDUCE; kind <= DEVICE_EXCHANGE; kind++) {
        struct device_difference difference = {0};
        assert_int_equal(device->ops->set(device, to, 0, bytes, &err), 0);
        if (ops->queue(comm, (enum device_collective)kind, from, to, bytes, 0, deadline_ns, &err) ||
            ops->wait(comm, deadline_ns, &err))
            fail_msg("%s", err.message);
        assert_int_equal(device->ops->check(device, &values, to, &difference, &err), 0);
        assert_int_equal(difference.wrong, 0);
    }
    /* Rows of the device, behind a copy to it and before one from it, all of them queued at once: the host waits for
     * the last one alone. */
    char *host = allocate(device, MEMORY_PINNED, bytes);
    uint64_t event = 0;
    bool done = false;
    memset(host, 7, bytes);
    copy(device, HOST_TO_DEVICE, (struct device_copy){from, host, bytes, 1, 0, 0});
    struct device_copy rows = {to, from, 500, 1000, 1000, 2000};
    if (ops->copy(comm, DEVICE_TO_DEVICE, &rows, 1, &err) || ops->record(comm, &event, &err) ||
        ops->hold_device(comm, event, &err))
        fail_msg("%s", err.message);
    copy(device, DEVICE_TO_HOST, (struct device_copy){host, to, 500, 1000, 500, 1000});
    finish(device);
    for (uint64_t i = 0; i < 500 * 1000; i++)
        assert_int_equal(host[i], 7);
    struct device_copy back = {host, to, 500, 1000, 500, 1000};
    memset(host, 0, bytes);
    if (ops->copy(comm, DEVICE_TO_HOST, &back, 1, &err) || ops->record(comm, &event, &err))
        fail_msg("%s", err.message);
    while (!done)
        assert_int_equal(ops->poll(comm, event, &done, &err), 0);
    for (uint64_t i = 0; i < 500 * 1000; i++)
        assert_int_equal(host[i], 7);
    device->ops->release(device, MEMORY_PINNED, host, bytes);
    ops->close(comm);
    device->ops->release(device, MEMORY_DEVICE, from, bytes);
    device->ops->release(device, MEMORY_DEVICE, to, bytes);
    device_close(device);
}

/* All of it is queued before anybody waits; the collective first, since it waits for what was queued before it. */
static void products_beside_a_collective_are_right_and_so_is_the_collective(void **unused)
{
    (void)unused;
    bool small = getenv("CKPTBENCH_SMALL_GPU_TESTS");
    uint64_t rows = small ? 64 : 1024, bytes = UINT64_C(4) << 20, deadline_ns = clock_monotonic_ns() + 60 * NS_PER_S;
    struct device *device = open_device(0);
    const struct device_comm_ops *ops = plugin.ops->comm;
    struct device_comm *comm = NULL;
    struct device_gemm *gemm = NULL;
    char id[DEVICE_COMM_ID_BYTES];
    struct cb_err err = {0};
    struct device_values values = {.source = {.kind = PAYLOAD_WEIGHTS, .dtype = DTYPE_F32, .key = 5},
                                   .shape = {1 << 20},
                                   .region = {.dims = 1, .size = {1 << 20}}};
    struct device_difference difference = {0};
    char *from = allocate(device, MEMORY_DEVICE, bytes), *to = allocate(device, MEMORY_DEVICE, bytes);
    assert_int_equal(device->ops->fill(device, &values, from, &err), 0);
    assert_int_equal(device->ops->set(device, to, 0xEE, bytes, &err), 0);
    if (ops->make_id(id, &err) || ops->join(device, id, 0, 1, deadline_ns, &comm, &err) ||
        plugin.ops->open_gemm(device, DEVICE_MEASURE_GEMM_BF16, rows, &gemm, &err) ||
        ops->queue(comm, DEVICE_ALL_REDUCE, from, to, bytes, 0, deadline_ns, &err) ||
        plugin.ops->queue_gemm(gemm, 3, &err) || ops->wait(comm, deadline_ns, &err))
        fail_msg("%s", err.message);
    finish(device);
    if (plugin.ops->check_gemm(gemm, &err) || device->ops->check(device, &values, to, &difference, &err))
        fail_msg("%s", err.message);
    assert_int_equal(difference.wrong, 0);
    plugin.ops->close_gemm(gemm);
    ops->close(comm);
    device->ops->release(device, MEMORY_DEVICE, from, bytes);
    device->ops->release(device, MEMORY_DEVICE, to, bytes);
    device_close(device);
}

/* CKPTBENCH_SMALL_GPU_TESTS is for devices that are slow: the stand-ins of tests/cuda_on_cpu. */
static void what_the_suite_asks_is_measured_and_right(void **unused)
{
    (void)unused;
    bool small = getenv("CKPTBENCH_SMALL_GPU_TESTS");
    uint64_t rows = small ? 64 : 1024, bytes = small ? 1 << 16 : BYTES;
    struct device *device = open_device(0);
    for (int what = 0; what < DEVICE_MEASURE_COUNT; what++) {
        bool gemm = what >= DEVICE_MEASURE_GEMM_FP32 && what <= DEVICE_MEASURE_GEMM_FP8;
        double value = 0;
        struct cb_err err = {0};
        int rc = plugin.ops->measure(device, (enum device_measure)what, gemm ? rows : bytes, &value, &err);
        if (rc && (what != DEVICE_MEASURE_GEMM_FP8 || rc != CB_ERR_UNSUPPORTED))
            fail_msg("measure %d: %s", what, err.message);
        assert_true(rc || value > 0);
    }
    device_close(device);
}

static int make_folder(void **unused)
{
    (void)unused;
    snprintf(folder, sizeof folder, "/tmp/ckptbench-gpu-XXXXXX");
    return mkdtemp(folder) ? 0 : -1;
}

static int remove_folder(void **unused)
{
    (void)unused;
    device_plugin_close(&plugin);
    return nftw(folder, remove_entry, 16, FTW_DEPTH | FTW_PHYS);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(what_goes_to_the_device_comes_back),
        cmocka_unit_test(values_on_the_device_are_the_payloads),
        cmocka_unit_test(the_last_shard_of_the_largest_model_has_its_values),
        cmocka_unit_test(more_events_than_there_are_places_keep_their_order),
        cmocka_unit_test(the_engine_saves_and_loads_what_the_device_holds),
        cmocka_unit_test(one_rank_talks_to_itself),
        cmocka_unit_test(products_beside_a_collective_are_right_and_so_is_the_collective),
        cmocka_unit_test(what_the_suite_asks_is_measured_and_right),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
