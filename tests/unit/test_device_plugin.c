/* The plugin of devices: what is missing is told in a sentence, what was built for another version is refused, and
 * a plugin that is there loads on a machine without a driver and says so. Values: what a kernel computes is what
 * ckpt/payload.c writes, for every type, kind and region. Where a GPU is: /sys, as recorded. */
#include <ftw.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cmocka.h>

#include "engine/device_plugin.h"
#include "engine/device_values.h"
#include "engine/gpu_place.h"
#include "engine/near_adapter.h"
#include "run/cuda_plugin.h"
#include "tests/unit/fake_comm.h"
#include "tests/unit/own_folder.h"
#include "tests/unit/thread_comm.h"

/* --- loading --- */

static int no_count(uint32_t *count, struct cb_err *err)
{
    (void)err;
    *count = 0;
    return 0;
}

static int no_open(uint32_t index, struct device **device, struct cb_err *err)
{
    (void)index, (void)device;
    return cb_fail(err, CB_ERR_INTERNAL, "opened although there is none");
}

static int no_identify(uint32_t index, unsigned char id[DEVICE_ID_BYTES], struct cb_err *err)
{
    (void)index, (void)id;
    return cb_fail(err, CB_ERR_INTERNAL, "asked");
}

static int no_locate(uint32_t index, char pci[DEVICE_PCI_BYTES], struct cb_err *err)
{
    (void)index, (void)pci;
    return cb_fail(err, CB_ERR_INTERNAL, "asked");
}

static int no_describe(struct device *device, struct device_info *info, struct cb_err *err)
{
    (void)device, (void)info;
    return cb_fail(err, CB_ERR_INTERNAL, "asked");
}

static int no_measure(struct device *device, enum device_measure what, uint64_t size, double *value, struct cb_err *err)
{
    (void)device, (void)what, (void)size, (void)value;
    return cb_fail(err, CB_ERR_INTERNAL, "asked");
}

static int no_math(struct device *device, struct device_math **math, struct cb_err *err)
{
    (void)device, (void)math;
    return cb_fail(err, CB_ERR_INTERNAL, "asked");
}

static int no_gemm(struct device *device, enum device_measure type, uint64_t rows, struct device_gemm **gemm,
                   struct cb_err *err)
{
    (void)device, (void)type, (void)rows, (void)gemm;
    return cb_fail(err, CB_ERR_INTERNAL, "asked");
}

static int no_queue_gemm(struct device_gemm *self, uint32_t count, struct cb_err *err)
{
    (void)self, (void)count;
    return cb_fail(err, CB_ERR_INTERNAL, "asked");
}

static int no_check_gemm(struct device_gemm *self, struct cb_err *err)
{
    (void)self;
    return cb_fail(err, CB_ERR_INTERNAL, "asked");
}

static void no_close_gemm(struct device_gemm *self)
{
    (void)self;
}

static int no_activity(struct device *device, struct cb_err *err)
{
    (void)device;
    return cb_fail(err, CB_ERR_INTERNAL, "asked");
}

static int no_activities(struct device *device, device_activity_function *take, void *context, uint64_t *lost,
                         struct cb_err *err)
{
    (void)take, (void)context, (void)lost;
    return no_activity(device, err);
}

static struct device_plugin_ops whole_table(void)
{
    return (struct device_plugin_ops){.version = DEVICE_PLUGIN_VERSION,
                                      .device_version = DEVICE_VERSION,
                                      .built = "for a test",
                                      .count = no_count,
                                      .identify = no_identify,
                                      .locate = no_locate,
                                      .open = no_open,
                                      .describe = no_describe,
                                      .measure = no_measure,
                                      .open_gemm = no_gemm,
                                      .queue_gemm = no_queue_gemm,
                                      .check_gemm = no_check_gemm,
                                      .close_gemm = no_close_gemm,
                                      .start_activity = no_activity,
                                      .stop_activity = no_activities,
                                      .comm = &fake_comm_ops,
                                      .open_math = no_math};
}

static void a_plugin_that_is_missing_says_what_to_do(void **unused)
{
    (void)unused;
    struct device_plugin plugin;
    struct cb_err err;
    setenv(CUDA_PLUGIN_VARIABLE, "/nowhere/plugin.so", 1);
    assert_int_equal(device_plugin_open(&plugin, &err), CB_ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, "/nowhere/plugin.so is not there"));
    assert_non_null(strstr(err.message, "make cuda"));
    assert_null(plugin.library);
    unsetenv(CUDA_PLUGIN_VARIABLE);
}

static void what_is_no_plugin_is_refused(void **unused)
{
    (void)unused;
    struct device_plugin plugin;
    struct cb_err err;
    char path[128];
    snprintf(path, sizeof path, "%s/plugin.so", folder);
    FILE *file = fopen(path, "w");
    assert_non_null(file);
    assert_true(fputs("no shared object\n", file) >= 0);
    assert_int_equal(fclose(file), 0);
    setenv(CUDA_PLUGIN_VARIABLE, path, 1);
    assert_int_equal(device_plugin_open(&plugin, &err), CB_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, path));
    assert_non_null(strstr(err.message, "cannot be loaded"));
    unsetenv(CUDA_PLUGIN_VARIABLE);
}

static void another_version_and_a_table_with_holes_are_refused(void **unused)
{
    (void)unused;
    struct device_plugin_ops ops = whole_table();
    struct cb_err err;
    assert_int_equal(device_plugin_check(&ops, "x.so", &err), 0);
    ops.device_version++;
    assert_int_equal(device_plugin_check(&ops, "x.so", &err), CB_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "x.so is of another version"));
    ops = whole_table();
    ops.version = 0;
    assert_int_equal(device_plugin_check(&ops, "x.so", &err), CB_ERR_UNSUPPORTED);
    ops = whole_table();
    ops.measure = NULL;
    assert_int_equal(device_plugin_check(&ops, "x.so", &err), CB_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "lacks functions"));
    ops = whole_table();
    ops.check_gemm = NULL;
    assert_int_equal(device_plugin_check(&ops, "x.so", &err), CB_ERR_UNSUPPORTED);
    ops = whole_table();
    ops.open_math = NULL;
    assert_int_equal(device_plugin_check(&ops, "x.so", &err), CB_ERR_UNSUPPORTED);
    struct device_comm_ops mute = fake_comm_ops;
    mute.copy = NULL;
    ops = whole_table();
    ops.comm = &mute;
    assert_int_equal(device_plugin_check(&ops, "x.so", &err), CB_ERR_UNSUPPORTED);
}

/* --- which device is whose --- */

static int three(uint32_t *count, struct cb_err *err)
{
    (void)err;
    *count = 3;
    return 0;
}

static int open_fake(uint32_t index, struct device **device, struct cb_err *err)
{
    (void)err;
    *device = &fake_device_new(index, 1)->base;
    return 0;
}

static int identify_fake(uint32_t index, unsigned char id[DEVICE_ID_BYTES], struct cb_err *err)
{
    (void)err;
    memset(id, (int)index + 65, DEVICE_ID_BYTES);
    return 0;
}

static int describe_fake(struct device *device, struct device_info *info, struct cb_err *err)
{
    (void)err;
    *info = (struct device_info){.index = ((struct fake_device *)device)->random};
    return 0;
}

static void each_rank_of_a_machine_takes_its_own_device_and_then_they_take_turns(void **unused)
{
    (void)unused;
    struct device_plugin_ops ops = whole_table();
    struct device_plugin plugin = {.ops = &ops};
    ops.count = three;
    ops.identify = identify_fake;
    ops.open = open_fake;
    ops.describe = describe_fake;
    for (uint32_t rank = 0; rank < 7; rank++) {
        struct device *device = NULL;
        struct device_info info;
        struct cb_err err;
        assert_int_equal(device_plugin_open_device(&plugin, rank, &device, &info, &err), 0);
        assert_int_equal(info.index, rank % 3);
        unsigned char id[DEVICE_ID_BYTES];
        assert_int_equal(device_plugin_identify(&plugin, rank, id, &err), 0);
        assert_int_equal(id[DEVICE_ID_BYTES - 1], rank % 3 + 65);
        device_close(device);
    }
}

static struct device_math_ops half_math_ops;
static struct device_math half_math = {.ops = &half_math_ops};
static unsigned closed;

static int open_half(struct device *device, struct device_math **math, struct cb_err *err)
{
    (void)device, (void)err;
    *math = &half_math;
    return 0;
}

static void close_half(struct device_math *math)
{
    (void)math;
    closed++;
}

static void arithmetic_that_lacks_something_is_closed_and_refused(void **unused)
{
    (void)unused;
    struct device_plugin_ops ops = whole_table();
    struct device_plugin plugin = {.ops = &ops, .path = "x.so"};
    struct device_math *math = NULL;
    struct cb_err err;
    assert_int_equal(device_plugin_open_math(&plugin, NULL, &math, &err), CB_ERR_INTERNAL);
    ops.open_math = open_half;
    half_math_ops = (struct device_math_ops){.version = DEVICE_MATH_VERSION, .close = close_half};
    assert_int_equal(device_plugin_open_math(&plugin, NULL, &math, &err), CB_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "x.so lacks what training needs"));
    assert_int_equal(closed, 1);
    assert_null(math);
}

static void no_device_is_said_with_what_hides_them(void **unused)
{
    (void)unused;
    struct device_plugin_ops ops = whole_table();
    struct device_plugin plugin = {.ops = &ops};
    struct device *device = NULL;
    struct device_info info;
    struct cb_err err;
    setenv("CUDA_VISIBLE_DEVICES", "7", 1);
    assert_int_equal(device_plugin_open_device(&plugin, 0, &device, &info, &err), CB_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "CUDA_VISIBLE_DEVICES=7"));
    unsetenv("CUDA_VISIBLE_DEVICES");
    assert_int_equal(device_plugin_open_device(&plugin, 0, &device, &info, &err), CB_ERR_UNSUPPORTED);
    assert_non_null(strstr(err.message, "CUDA_VISIBLE_DEVICES is not set"));
    assert_null(device);
}

/* The one that `make` built, where it could: beside the folder of the tests. */
static void the_plugin_that_was_built_loads_without_a_driver(void **unused)
{
    (void)unused;
    struct device_plugin plugin;
    struct device *device = NULL;
    struct device_info info;
    struct cb_err err = {0};
    char self[3000], path[4096];
    ssize_t len = readlink("/proc/self/exe", self, sizeof self - 1);
    assert_true(len > 0);
    self[len] = '\0';
    *strrchr(self, '/') = '\0';
    snprintf(path, sizeof path, "%s/../" CUDA_PLUGIN_FILE, self);
    if (access(path, R_OK) != 0) /* a checked build in build/asan has none of its own */
        snprintf(path, sizeof path, "%s/../../" CUDA_PLUGIN_FILE, self);
    if (access(path, R_OK) != 0) {
        print_message("%s was not built: `make cuda` does\n", path);
        skip();
    }
    setenv(CUDA_PLUGIN_VARIABLE, path, 1);
    if (device_plugin_open(&plugin, &err) != 0)
        fail_msg("%s", err.message);
    unsetenv(CUDA_PLUGIN_VARIABLE);
    assert_non_null(strstr(plugin.ops->built, "CUDA"));
    int rc = device_plugin_open_device(&plugin, 0, &device, &info, &err);
    if (rc) {
        assert_int_equal(rc, CB_ERR_UNSUPPORTED);
        assert_true(strstr(err.message, "driver") || strstr(err.message, "no GPU"));
        print_message("%s\n", err.message);
    }
    device_close(device);
    device_plugin_close(&plugin);
}

/* --- values --- */

static void check_values(enum payload_kind kind, enum dtype dtype, const uint64_t *shape, const struct region *region)
{
    struct device_values values = {.source = {.kind = kind, .dtype = dtype, .key = 0x123456789abcdef},
                                   .region = *region};
    uint64_t count = region_elements(region), bytes = dtype_bytes(dtype);
    unsigned char *want = malloc(count * bytes);
    struct values_job job;
    assert_non_null(want);
    memcpy(values.shape, shape, region->dims * sizeof *shape);
    values_job_make(&values, &job);
    assert_int_equal(job.count, count);
    payload_fill_region(&values.source, shape, region, want);
    for (uint64_t i = 0; i < count; i++) {
        uint32_t words[4];
        values_element(&job, values_element_of(&job, i), words);
        if (memcmp(words, want + i * bytes, bytes) != 0)
            fail_msg("%s, kind %d: element %llu differs", dtype_name(dtype), (int)kind, (unsigned long long)i);
    }
    free(want);
}

static void a_kernel_computes_what_the_payload_is(void **unused)
{
    (void)unused;
    static const uint64_t cube[] = {7, 11, 13}, row[] = {3000000};
    static const struct region regions[] = {
        {.dims = 3, .offset = {0, 0, 0}, .size = {7, 11, 13}},
        {.dims = 3, .offset = {2, 3, 5}, .size = {4, 1, 7}},
        {.dims = 3, .offset = {6, 0, 12}, .size = {1, 11, 1}},
    };
    /* Around the edge of a block of 2^20 words. */
    const struct region edge = {.dims = 1, .offset = {(1 << 20) - 77}, .size = {160}};
    const struct region scalar = {.dims = 0};
    for (int dtype = 0; dtype < DTYPE_COUNT; dtype++) {
        for (int kind = PAYLOAD_WEIGHTS; kind <= PAYLOAD_ZERO; kind++) {
            for (size_t i = 0; i < sizeof regions / sizeof *regions; i++)
                check_values((enum payload_kind)kind, (enum dtype)dtype, cube, &regions[i]);
            check_values((enum payload_kind)kind, (enum dtype)dtype, row, &edge);
            check_values((enum payload_kind)kind, (enum dtype)dtype, row, &scalar);
        }
    }
}

/* --- where a GPU is --- */

static void make_folders(const char *path)
{
    char command[512];
    snprintf(command, sizeof command, "mkdir -p '%s/%s'", folder, path);
    assert_int_equal(system(command), 0);
}

static void write_file(const char *path, const char *text)
{
    char name[512];
    snprintf(name, sizeof name, "%s/%s", folder, path);
    FILE *file = fopen(name, "w");
    assert_non_null(file);
    assert_true(fputs(text, file) >= 0);
    assert_int_equal(fclose(file), 0);
}

static void make_link(const char *target, const char *path)
{
    char name[512];
    snprintf(name, sizeof name, "%s/%s", folder, path);
    assert_int_equal(symlink(target, name), 0);
}

/* A server of two sockets: each GPU shares a switch with one adapter, as DGX machines have it. */
#define SWITCH "devices/pci0000:37/0000:37:01.0/0000:38:00.0/"
#define OTHER "devices/pci0000:b7/0000:b7:01.0/0000:b8:00.0/"

static void make_server(void)
{
    make_folders(SWITCH "0000:39:00.0/0000:3a:00.0/infiniband/mlx5_1");
    make_folders(SWITCH "0000:39:01.0/0000:3b:00.0");
    make_folders("devices/pci0000:37/0000:37:05.0/0000:3f:00.0/infiniband/mlx5_0");
    make_folders(OTHER "0000:b9:00.0/0000:ba:00.0/infiniband/mlx5_7");
    make_folders("bus/pci/devices");
    make_folders("class/infiniband");
    make_folders("class/net");
    write_file(SWITCH "0000:39:01.0/0000:3b:00.0/numa_node", "0\n");
    write_file(SWITCH "0000:39:01.0/0000:3b:00.0/local_cpulist", "0-31,64-95\n");
    write_file(SWITCH "0000:39:00.0/0000:3a:00.0/numa_node", "0\n");
    write_file("devices/pci0000:37/0000:37:05.0/0000:3f:00.0/numa_node", "0\n");
    write_file(OTHER "0000:b9:00.0/0000:ba:00.0/numa_node", "1\n");
    make_link("../../../" SWITCH "0000:39:01.0/0000:3b:00.0", "bus/pci/devices/0000:3b:00.0");
    make_folders("class/infiniband/mlx5_0");
    make_folders("class/infiniband/mlx5_1");
    make_folders("class/infiniband/mlx5_7");
    make_link("../../../devices/pci0000:37/0000:37:05.0/0000:3f:00.0", "class/infiniband/mlx5_0/device");
    make_link("../../../" SWITCH "0000:39:00.0/0000:3a:00.0", "class/infiniband/mlx5_1/device");
    make_link("../../../" OTHER "0000:b9:00.0/0000:ba:00.0", "class/infiniband/mlx5_7/device");
}

static void the_adapter_behind_the_same_switch_is_the_nearest(void **unused)
{
    (void)unused;
    struct gpu_place place;
    struct cb_err err;
    char text[256];
    make_server();
    assert_int_equal(gpu_place_read(folder, "0000:3B:00.0", &place, &err), 0);
    assert_int_equal(place.node, 0);
    assert_string_equal(place.cores, "0-31,64-95");
    assert_string_equal(place.adapter, "mlx5_1");
    assert_int_equal(place.shared, 3);
    assert_true(place.is_same_node);
    gpu_place_describe(&place, text, sizeof text);
    assert_string_equal(text, "NUMA node 0, nearest adapter mlx5_1 (3 bridges shared, same node)");
}

/* A virtual machine: no NUMA node (-1), no adapter with a device, one that is only virtual. */
static void a_machine_that_says_little_is_no_failure(void **unused)
{
    (void)unused;
    struct gpu_place place;
    struct cb_err err;
    char text[256];
    make_folders("vm/devices/pci0000:00/0000:00:05.0");
    make_folders("vm/bus/pci/devices");
    make_folders("vm/class/net/lo");
    write_file("vm/devices/pci0000:00/0000:00:05.0/numa_node", "-1\n");
    make_link("../../../devices/pci0000:00/0000:00:05.0", "vm/bus/pci/devices/0000:00:05.0");
    char sysfs[128];
    snprintf(sysfs, sizeof sysfs, "%s/vm", folder);
    assert_int_equal(gpu_place_read(sysfs, "0000:00:05.0", &place, &err), 0);
    assert_int_equal(place.node, -1);
    gpu_place_describe(&place, text, sizeof text);
    assert_string_equal(text, "NUMA node unknown, no network adapter");
    assert_int_equal(gpu_place_read(sysfs, "0000:00:06.0", &place, &err), CB_ERR_NOT_FOUND);
    assert_non_null(strstr(err.message, "0000:00:06.0"));
}

/* What a rank does with it: it runs near its GPU, and says where that is. On the machine as recorded the cores near
 * the GPU are the last one that this test may use. */
static void a_rank_runs_near_its_device_and_says_where(void **unused)
{
    (void)unused;
    struct meeting meeting;
    struct comm comm = {.meeting = &meeting};
    struct status_page *page = calloc(1, status_page_bytes(1));
    struct device_info info = {.pci = "0000:3b:00.0"};
    cpu_set_t before, after;
    struct cb_err err;
    char path[128], last[32], want[64];
    size_t core = 0;
    assert_non_null(page);
    assert_int_equal(sched_getaffinity(0, sizeof before, &before), 0);
    for (size_t i = 0; i < CPU_SETSIZE; i++)
        core = CPU_ISSET(i, &before) ? i : core;
    meeting_init(&meeting, 1);
    make_folders("near/devices/pci0000:37/0000:3b:00.0");
    make_folders("near/devices/pci0000:37/0000:3c:00.0");
    make_folders("near/bus/pci/devices");
    make_folders("near/class/infiniband/mlx5_4");
    snprintf(last, sizeof last, "%zu\n", core);
    write_file("near/devices/pci0000:37/0000:3b:00.0/local_cpulist", last);
    write_file("near/devices/pci0000:37/0000:3b:00.0/numa_node", "1\n");
    write_file("near/devices/pci0000:37/0000:3c:00.0/numa_node", "1\n");
    make_link("../../../devices/pci0000:37/0000:3b:00.0", "near/bus/pci/devices/0000:3b:00.0");
    make_link("../../../devices/pci0000:37/0000:3c:00.0", "near/class/infiniband/mlx5_4/device");
    snprintf(path, sizeof path, "%s/near", folder);
    uint64_t deadline_ns = clock_monotonic_ns() + 10 * NS_PER_S;
    assert_int_equal(device_place_apply(&comm, path, &info, true, page, deadline_ns, &err), 0);
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_int_equal(CPU_COUNT(&after), 1);
    assert_true(CPU_ISSET(core, &after));
    snprintf(want, sizeof want, "affinity=%zu of ", core);
    assert_non_null(strstr(page->facts, want));
    assert_non_null(strstr(page->facts, " (near 0000:3b:00.0)\n"));
    assert_non_null(
        strstr(page->facts, "device.place=NUMA node 1, nearest adapter mlx5_4 (1 bridges shared, same node)\n"));
    assert_int_equal(sched_setaffinity(0, sizeof before, &before), 0);
    /* Where it is only looked at, and where the machine does not know the device, nothing changes. */
    assert_int_equal(device_place_apply(&comm, path, &info, false, page, deadline_ns, &err), 0);
    assert_non_null(strstr(page->facts, "(not pinned)\n"));
    info = (struct device_info){.pci = "0000:5e:00.0"};
    assert_int_equal(device_place_apply(&comm, path, &info, false, page, deadline_ns, &err), 0);
    assert_non_null(strstr(page->facts, "has no PCI device 0000:5e:00.0"));
    assert_int_equal(sched_getaffinity(0, sizeof after, &after), 0);
    assert_true(CPU_EQUAL(&before, &after));
    free(page);
}

/* --- adapters for MPI and NCCL --- */

/* As in a DGX H100: eight GPUs, each behind a switch with an adapter of its own, four NVSwitches, and four more adapters
 * for storage and for logins, two of them inactive. Names do not follow the GPUs' order. */
static void make_dgx(const char *name)
{
    static const int beside[] = {0, 3, 4, 5, 6, 9, 10, 11}, others[] = {1, 2, 7, 8};
    char path[256], target[256], link[300];
    for (int i = 0; i < 12; i++) { /* GPUs, then the other adapters; sockets have one half each */
        int bus = 0x10 + 0x10 * i, adapter = i < 8 ? beside[i] : others[i - 8], socket = i < 8 ? i / 4 : i / 2 % 2;
        const char *state = adapter == 2 || adapter == 8 ? "1: DOWN\n" : "4: ACTIVE\n";
        char switches[96];
        snprintf(switches, sizeof switches, "devices/pci0000:%02x/0000:%02x:01.0/0000:%02x:00.0", bus, bus, bus + 1);
        snprintf(path, sizeof path, "%s/%s/0000:%02x:00.0/0000:%02x:00.0", name, switches, bus + 2, bus + 4);
        make_folders(path);
        snprintf(target, sizeof target, "../../../%s/0000:%02x:00.0/0000:%02x:00.0", switches, bus + 2, bus + 4);
        snprintf(link, sizeof link, "%s/class/infiniband/mlx5_%d/ports/1", name, adapter);
        make_folders(link);
        snprintf(link, sizeof link, "%s/class/infiniband/mlx5_%d/ports/1/state", name, adapter);
        write_file(link, state);
        snprintf(link, sizeof link, "%s/class/infiniband/mlx5_%d/device", name, adapter);
        make_link(target, link);
        snprintf(link, sizeof link, "%s/numa_node", path);
        write_file(link, socket ? "1\n" : "0\n");
        for (int gpu = 0; i < 8 && gpu < 2; gpu++) { /* the second is an NVSwitch, on half of the buses */
            if (gpu && i % 2)
                continue;
            snprintf(path, sizeof path, "%s/%s/0000:%02x:0%d.0/0000:%02x:00.0", name, switches, bus + 2, 1 + gpu,
                     bus + 5 + gpu);
            make_folders(path);
            snprintf(target, sizeof target, "../../../%s/0000:%02x:0%d.0/0000:%02x:00.0", switches, bus + 2, 1 + gpu,
                     bus + 5 + gpu);
            snprintf(link, sizeof link, "%s/bus/pci/devices", name);
            make_folders(link);
            snprintf(link, sizeof link, "%s/bus/pci/devices/0000:%02x:00.0", name, bus + 5 + gpu);
            make_link(target, link);
            snprintf(link, sizeof link, "%s/numa_node", path);
            write_file(link, socket ? "1\n" : "0\n");
            snprintf(link, sizeof link, "%s/vendor", path);
            write_file(link, "0x10de\n");
            snprintf(link, sizeof link, "%s/class", path);
            write_file(link, gpu ? "0x068000\n" : "0x030200\n");
        }
    }
}

#define NEAR_GPUS "mlx5_0,mlx5_3,mlx5_4,mlx5_5,mlx5_6,mlx5_9,mlx5_10,mlx5_11"

/* Runs near_adapter_set with none of the variables set. */
static void choose_adapters(const char *name, const char *pci, uint32_t local_rank, char text[NEAR_ADAPTER_BYTES])
{
    char path[128];
    snprintf(path, sizeof path, "%s/%s", folder, name);
    unsetenv("UCX_NET_DEVICES");
    unsetenv("UCX_TLS");
    unsetenv("NCCL_IB_HCA");
    setenv("HOME", folder, 1);
    setenv("UCX_CONFIG_DIR", folder, 1);
    near_adapter_set(path, pci, local_rank, text, NEAR_ADAPTER_BYTES);
}

static void each_rank_gives_mpi_the_adapter_of_its_gpu_and_nccl_those_of_all_gpus(void **unused)
{
    (void)unused;
    static const char *const nearest[] = {"mlx5_0:1", "mlx5_3:1", "mlx5_4:1",  "mlx5_5:1",
                                          "mlx5_6:1", "mlx5_9:1", "mlx5_10:1", "mlx5_11:1"};
    char text[NEAR_ADAPTER_BYTES], pci[32], want[256];
    make_dgx("dgx");
    for (uint32_t rank = 0; rank < 8; rank++) {
        snprintf(pci, sizeof pci, "0000:%02X:00.0", 0x10 + 0x10 * rank + 5);
        choose_adapters("dgx", pci, rank, text);
        assert_string_equal(getenv("UCX_NET_DEVICES"), nearest[rank]);
        assert_string_equal(getenv("NCCL_IB_HCA"), "=" NEAR_GPUS);
        snprintf(want, sizeof want, "MPI over UCX: %s; NCCL: " NEAR_GPUS, nearest[rank]);
        assert_string_equal(text, want);
    }
}

static void what_a_user_has_set_stays(void **unused)
{
    (void)unused;
    char text[NEAR_ADAPTER_BYTES], path[128];
    make_dgx("kept");
    snprintf(path, sizeof path, "%s/kept", folder);
    unsetenv("NCCL_IB_HCA");
    setenv("UCX_NET_DEVICES", "all", 1);
    near_adapter_set(path, "0000:15:00.0", 0, text, sizeof text);
    assert_string_equal(getenv("UCX_NET_DEVICES"), "all");
    assert_string_equal(text, "MPI left alone (UCX_NET_DEVICES=all is set); NCCL: " NEAR_GPUS);
    /* In the libraries' own files, too, which the environment would override. */
    write_file("ucx.conf", "# UCX_NET_DEVICES=no\nUCX_TLS=rc\nUCX_NET_DEVICES = mlx5_1:1\n");
    write_file(".nccl.conf", "NCCL_IB_HCA_OF_ANOTHER_NAME=1\nNCCL_IB_HCA=mlx5_1\n");
    choose_adapters("kept", "0000:15:00.0", 0, text);
    assert_null(getenv("UCX_NET_DEVICES"));
    assert_null(getenv("NCCL_IB_HCA"));
    assert_non_null(strstr(text, "ucx.conf sets UCX_NET_DEVICES); NCCL left alone ("));
    assert_non_null(strstr(text, ".nccl.conf sets NCCL_IB_HCA)"));
    setenv("NCCL_CONF_FILE", "", 1); /* names no other file */
    choose_adapters("kept", "0000:15:00.0", 0, text);
    assert_non_null(strstr(text, ".nccl.conf sets NCCL_IB_HCA)"));
    unsetenv("NCCL_CONF_FILE");
    write_file("ucx.conf", "");
    write_file(".nccl.conf", "#NCCL_IB_HCA=mlx5_1\n");
    choose_adapters("kept", "0000:15:00.0", 0, text);
    assert_string_equal(getenv("UCX_NET_DEVICES"), "mlx5_0:1");
}

/* UCX looks in several folders. Its transports count as well, since some have no adapters. */
static void ucx_is_left_alone_where_any_of_its_files_sets_its_adapters_or_transports(void **unused)
{
    (void)unused;
    static const char *const files[] = {"home/ucx.conf", "configured/ucx.conf", "current/ucx.conf"};
    static const char *const lines[] = {"UCX_NET_DEVICES=mlx5_1:1\n", "UCX_TLS=tcp\n"};
    static const char *const reasons[] = {"ucx.conf sets UCX_NET_DEVICES); NCCL", "ucx.conf sets UCX_TLS); NCCL"};
    char text[NEAR_ADAPTER_BYTES], sysfs[128], path[128], before[4096];
    make_dgx("ucx");
    make_folders("home");
    make_folders("configured");
    make_folders("current");
    snprintf(sysfs, sizeof sysfs, "%s/ucx", folder);
    snprintf(path, sizeof path, "%s/home", folder);
    setenv("HOME", path, 1);
    snprintf(path, sizeof path, "%s/configured", folder);
    setenv("UCX_CONFIG_DIR", path, 1);
    snprintf(path, sizeof path, "%s/current", folder);
    assert_non_null(getcwd(before, sizeof before));
    unsetenv("UCX_NET_DEVICES");
    unsetenv("UCX_TLS");
    for (size_t i = 0; i < 6; i++) {
        write_file(files[i / 2], lines[i % 2]);
        assert_int_equal(chdir(path), 0);
        near_adapter_set(sysfs, "0000:15:00.0", 0, text, sizeof text);
        assert_int_equal(chdir(before), 0);
        write_file(files[i / 2], "");
        assert_null(getenv("UCX_NET_DEVICES"));
        assert_non_null(strstr(text, reasons[i % 2]));
    }
    setenv("UCX_TLS", "tcp", 1);
    near_adapter_set(sysfs, "0000:15:00.0", 0, text, sizeof text);
    unsetenv("UCX_TLS");
    assert_null(getenv("UCX_NET_DEVICES"));
    assert_non_null(strstr(text, "MPI left alone (UCX_TLS=tcp is set); NCCL"));
}

/* Two GPUs and two adapters behind one switch, and an adapter elsewhere: as in a DGX A100. */
static void ranks_take_turns_with_adapters_that_are_equally_near(void **unused)
{
    (void)unused;
    char text[NEAR_ADAPTER_BYTES], path[256];
    make_folders("pairs/bus/pci/devices");
    for (int i = 0; i < 5; i++) {
        const char *above = i < 4 ? "devices/pci0000:00/0000:00:01.0" : "devices/pci0000:80/0000:80:01.0";
        snprintf(path, sizeof path, "pairs/%s/0000:0%d:00.0", above, i);
        make_folders(path);
        char target[128], link[128];
        snprintf(target, sizeof target, "../../../%s/0000:0%d:00.0", above, i);
        if (i < 2) {
            snprintf(link, sizeof link, "pairs/bus/pci/devices/0000:0%d:00.0", i);
            snprintf(path, sizeof path, "pairs/%s/0000:0%d:00.0/vendor", above, i);
            write_file(path, "0x10de\n");
            snprintf(path, sizeof path, "pairs/%s/0000:0%d:00.0/class", above, i);
            write_file(path, "0x030200\n");
        } else {
            snprintf(link, sizeof link, "pairs/class/infiniband/mlx5_%d/ports/1", i);
            make_folders(link);
            snprintf(link, sizeof link, "pairs/class/infiniband/mlx5_%d/ports/1/state", i);
            write_file(link, "4: ACTIVE\n");
            snprintf(link, sizeof link, "pairs/class/infiniband/mlx5_%d/device", i);
        }
        make_link(target, link);
    }
    choose_adapters("pairs", "0000:00:00.0", 0, text);
    assert_string_equal(text, "MPI over UCX: mlx5_2:1; NCCL: mlx5_2,mlx5_3");
    choose_adapters("pairs", "0000:01:00.0", 1, text);
    assert_string_equal(text, "MPI over UCX: mlx5_3:1; NCCL: mlx5_2,mlx5_3");
    assert_string_equal(getenv("UCX_NET_DEVICES"), "mlx5_3:1");
}

static void where_there_is_nothing_to_choose_nothing_is_set(void **unused)
{
    (void)unused;
    char text[NEAR_ADAPTER_BYTES];
    make_folders("bare/bus/pci/devices");
    choose_adapters("bare", "0000:3b:00.0", 0, text);
    assert_string_equal(text,
                        "MPI left alone (no InfiniBand or RoCE adapter is active); NCCL left alone (no InfiniBand "
                        "or RoCE adapter is active)");
    /* A device that the machine does not list, as in some containers. */
    make_dgx("hidden");
    choose_adapters("hidden", "0000:fe:00.0", 0, text);
    assert_string_equal(text, "MPI left alone (where the GPU is in this machine is unknown); NCCL: " NEAR_GPUS);
    assert_null(getenv("UCX_NET_DEVICES"));
    make_folders("one/class/infiniband/mlx5_0/ports/1");
    write_file("one/class/infiniband/mlx5_0/ports/1/state", "4: ACTIVE\n");
    make_folders("one/devices/pci0000:00/0000:3b:00.0");
    make_folders("one/devices/pci0000:00/0000:3c:00.0");
    make_folders("one/bus/pci/devices");
    make_link("../../../devices/pci0000:00/0000:3b:00.0", "one/bus/pci/devices/0000:3b:00.0");
    make_link("../../../devices/pci0000:00/0000:3c:00.0", "one/class/infiniband/mlx5_0/device");
    write_file("one/devices/pci0000:00/0000:3b:00.0/vendor", "0x10de\n");
    write_file("one/devices/pci0000:00/0000:3b:00.0/class", "0x030000\n");
    choose_adapters("one", "0000:3b:00.0", 0, text);
    assert_string_equal(text, "MPI left alone (there is one adapter); NCCL left alone (there is one adapter)");
}

static void lists_of_cores_are_read(void **unused)
{
    (void)unused;
    static const char *const wrong[] = {"x", "1-", "-1", "3-1", "1,,2", "0-99999999", "1 2", "4-5x"};
    cpu_set_t cores;
    struct cb_err err;
    assert_int_equal(gpu_place_parse_cores("0-2,8,10-11", &cores, &err), 0);
    assert_int_equal(CPU_COUNT(&cores), 6);
    assert_true(CPU_ISSET(2, &cores) && CPU_ISSET(8, &cores) && CPU_ISSET(11, &cores) && !CPU_ISSET(9, &cores));
    assert_int_equal(gpu_place_parse_cores("", &cores, &err), 0);
    assert_int_equal(CPU_COUNT(&cores), 0);
    for (size_t i = 0; i < sizeof wrong / sizeof *wrong; i++)
        assert_int_equal(gpu_place_parse_cores(wrong[i], &cores, &err), CB_ERR_FORMAT);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(a_plugin_that_is_missing_says_what_to_do),
        cmocka_unit_test(what_is_no_plugin_is_refused),
        cmocka_unit_test(another_version_and_a_table_with_holes_are_refused),
        cmocka_unit_test(each_rank_of_a_machine_takes_its_own_device_and_then_they_take_turns),
        cmocka_unit_test(arithmetic_that_lacks_something_is_closed_and_refused),
        cmocka_unit_test(no_device_is_said_with_what_hides_them),
        cmocka_unit_test(the_plugin_that_was_built_loads_without_a_driver),
        cmocka_unit_test(a_kernel_computes_what_the_payload_is),
        cmocka_unit_test(the_adapter_behind_the_same_switch_is_the_nearest),
        cmocka_unit_test(a_machine_that_says_little_is_no_failure),
        cmocka_unit_test(a_rank_runs_near_its_device_and_says_where),
        cmocka_unit_test(each_rank_gives_mpi_the_adapter_of_its_gpu_and_nccl_those_of_all_gpus),
        cmocka_unit_test(what_a_user_has_set_stays),
        cmocka_unit_test(ucx_is_left_alone_where_any_of_its_files_sets_its_adapters_or_transports),
        cmocka_unit_test(ranks_take_turns_with_adapters_that_are_equally_near),
        cmocka_unit_test(where_there_is_nothing_to_choose_nothing_is_set),
        cmocka_unit_test(lists_of_cores_are_read),
    };
    return cmocka_run_group_tests(tests, make_folder, remove_folder);
}
