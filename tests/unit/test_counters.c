/* Parsers of what the kernel says, on recorded files. */
#include <limits.h>
#include <math.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <cmocka.h>

#include "agent/attempt/seal.h"
#include "agent/counters.h"
#include "agent/probe.h"
#include "core/buf.h"
#include "core/clock.h"
#include "core/json.h"

static char *recorded(const char *name)
{
    struct buf text;
    char path[128] = "tests/data/proc/";
    buf_init(&text, 1 << 20);
    assert_int_equal(buf_read_file(&text, strcat(path, name), NULL), 0);
    return buf_take(&text);
}

static void cpu_time_leaves_out_waiting_for_disks_and_other_guests(void **unused)
{
    (void)unused;
    struct cpu_counters cpu;
    char *text = recorded("stat");
    assert_true(counters_parse_cpu(text, &cpu));
    assert_true(cpu.busy == 10132153 + 290696 + 3084719 + 0 + 25195);
    assert_true(cpu.steal == 7000);
    assert_true(cpu.total == cpu.busy + 46828483 + 16683 + 7000);
    assert_false(counters_parse_cpu("cpu 1 2 3", &cpu));
    free(text);
}

static void what_others_took_is_neither_idle_nor_ours_and_other_guests_are_others(void **unused)
{
    (void)unused;
    const struct cpu_counters start = {.busy = 1000, .total = 5000, .steal = 10};
    const struct cpu_counters end = {.busy = 1300, .total = 5400, .steal = 30};
    /* 320 of 400 ticks were used, 1.2 s of 100 ticks by this program */
    assert_true(fabs(counters_others(&start, &end, 1.2, 100) - 0.5) < 1e-12);
    assert_true(counters_others(&start, &end, 3.3, 100) == 0);
    assert_true(isnan(counters_others(&start, &start, 0, 100)));
}

static void used_memory_is_what_is_not_available(void **unused)
{
    (void)unused;
    uint64_t used;
    char *text = recorded("meminfo");
    assert_true(counters_parse_memory_used(text, &used));
    assert_true(used == (UINT64_C(49368160) - 42114308) * 1024);
    assert_false(counters_parse_memory_used("MemTotal: 5 kB\n", &used));
    free(text);
}

static void disk_sectors_are_512_bytes(void **unused)
{
    (void)unused;
    struct disk_counters disk;
    char *text = recorded("disk_stat");
    assert_true(counters_parse_disk(text, &disk));
    assert_true(disk.reads == 446216 && disk.read_bytes == UINT64_C(9550688) * 512);
    assert_true(disk.writes == 500001 && disk.written_bytes == UINT64_C(123456789) * 512);
    assert_false(counters_parse_disk("", &disk));
    free(text);
}

static void nfs_mounts_have_wire_bytes_and_requests_of_all_connections(void **unused)
{
    (void)unused;
    struct named_list list = {0};
    char *text = recorded("mountstats");
    counters_parse_nfs(text, &list);
    assert_int_equal(list.count, 2);                                    /* nfsd is no mount */
    assert_string_equal(list.items[1].name, "/scratch/with\\040space"); /* as the kernel writes a blank */
    assert_true(list.items[1].written_bytes == 2 && list.items[1].operations == 7);
    assert_string_equal(list.items[0].name, "/home");
    assert_true(list.items[0].read_bytes == UINT64_C(10737418240));
    assert_true(list.items[0].written_bytes == UINT64_C(5368709120));
    assert_true(list.items[0].operations == 38543 + 1457);
    free(text);
}

static void lustre_sums_are_bytes(void **unused)
{
    (void)unused;
    struct named_counters counter = {0};
    char *text = recorded("lustre_llite_stats");
    assert_true(counters_parse_lustre(text, &counter));
    assert_true(counter.read_bytes == UINT64_C(10737418240));
    assert_true(counter.written_bytes == UINT64_C(5368709120));
    assert_true(counter.operations == 2560 + 1280 + 17 + 17 + 100);
    assert_false(counters_parse_lustre("something else", &counter));
    free(text);
}

static void what_a_machine_does_not_have_is_absent(void **unused)
{
    (void)unused;
    struct counters counters;
    double values[METRIC_COUNT];
    for (unsigned i = 0; i < METRIC_COUNT; i++)
        values[i] = NAN;
    memset(&counters, 0, sizeof counters);
    counters_stop(&counters); /* a run that ended before it had started them */
    counters_start(&counters, "", clock_monotonic_ns());
    counters_stop(&counters);
    counters_fill(&counters, values);
    assert_true(isnan(values[METRIC_HOST_DISK_WRITE_BYTES]));
    assert_true(values[METRIC_HOST_MEMORY_PEAK_BYTES] > 0);
    counters_start(&counters, "no-such-disk", clock_monotonic_ns());
    assert_false(counters.start.has_disk);
}

static void mount_is_the_deepest_one_around_the_path(void **unused)
{
    (void)unused;
    struct mount mount;
    char *text = recorded("mountinfo");
    assert_true(probe_parse_mount(text, "/scratch/run/ckpt", &mount));
    assert_string_equal(mount.type, "xfs");
    assert_string_equal(mount.source, "/dev/nvme0n1p1");
    assert_string_equal(mount.options, "rw,nosuid,relatime,rw,sunit=512,swidth=2048");
    assert_true(probe_parse_mount(text, "/scratch/lustre/a", &mount));
    assert_string_equal(mount.type, "lustre");
    assert_true(probe_parse_mount(text, "/scratchy", &mount));
    assert_string_equal(mount.type, "tmpfs");
    assert_true(probe_parse_mount(text, "/var", &mount));
    assert_string_equal(mount.place, "/");
    assert_false(probe_parse_mount("", "/var", &mount));
    free(text);
}

static void store_is_found_inside_of_a_fault_store(void **unused)
{
    (void)unused;
    char path[PATH_MAX];
    assert_true(probe_store_path("/tmp/not/yet/there", path));
    assert_string_equal(path, "/tmp");
    assert_true(probe_store_path("fault:delay=1ms:/tmp", path));
    assert_string_equal(path, "/tmp");
    assert_true(probe_store_path("no-such-folder-here", path));
    char here[PATH_MAX];
    assert_non_null(getcwd(here, sizeof here));
    assert_string_equal(path, here);
    assert_false(probe_store_path("null:", path));
    assert_false(probe_store_path("fault:error@3:null:", path));
    assert_false(probe_store_path("s3://bucket/prefix", path));
}

static void launcher_says_which_rank_a_signal_ended(void **unused)
{
    (void)unused;
    const char *const log = "[1,0]<stderr>:hello\n"
                            "--------------------------------------------------------------------------\n"
                            "mpirun noticed that process rank 2 with PID 4711 on node n exited on signal 9 (Killed).\n";
    uint32_t rank = 0;
    int number = 0;
    assert_true(seal_find_killed(log, &rank, &number));
    assert_int_equal(rank, 2);
    assert_int_equal(number, 9);
    assert_false(seal_find_killed("nothing of the kind", &rank, &number));
}

static void mpich_says_the_signal_but_not_the_rank(void **unused)
{
    (void)unused;
    const char *const log = "[0] hello\n"
                            "=   BAD TERMINATION OF ONE OF YOUR APPLICATION PROCESSES\n"
                            "=   PID 4711 RUNNING AT n\n"
                            "=   EXIT CODE: 11\n"
                            "YOUR APPLICATION TERMINATED WITH THE EXIT STRING: Segmentation fault (signal 11)\n";
    uint32_t rank = 0;
    int number = 0;
    assert_true(seal_find_killed(log, &rank, &number));
    assert_int_equal(rank, SEAL_RANK_UNKNOWN);
    assert_int_equal(number, 11);
}

static void network_bytes_are_those_of_all_ports_but_lo(void **unused)
{
    (void)unused;
    uint64_t received, sent;
    static const char dev[] = "Inter-|   Receive   |  Transmit\n face |bytes    packets\n"
                              "    lo:   5000      9    0    0    0     0          0         0     5000       9 0\n"
                              "  eth0: 123456789 9  0    0    0     0          0         0     42       9 0 0 0 0 0 0\n"
                              "ib0:1 2 0 0 0 0 0 0 7 9 0 0 0 0 0 0\n";
    assert_true(host_times_parse_network(dev, &received, &sent));
    assert_true(received == 123456790 && sent == 49);
    assert_false(host_times_parse_network("nothing\n", &received, &sent));
    assert_true(
        host_times_parse_pressure("some avg10=0.00 avg60=0.10 avg300=1.00 total=987654\nfull total=1\n", &sent));
    assert_true(sent == 987654);
    assert_false(host_times_parse_pressure("full avg10=0.00 total=1\n", &sent));
}

static struct host_reading reading_of(uint64_t written, uint64_t memory)
{
    return (struct host_reading){.has = {[HOST_DISK_WRITTEN] = true},
                                 .counters = {[HOST_DISK_WRITTEN] = written},
                                 .has_memory = true,
                                 .memory_used_bytes = memory};
}

static uint64_t written_in_all(const struct host_times *times)
{
    uint64_t sum = 0;
    for (uint64_t i = 0; i < HOST_TIMES_BUCKETS; i++)
        sum += times->buckets[i].counts[HOST_DISK_WRITTEN];
    return sum;
}

static void counters_over_time_lose_nothing_when_buckets_widen_or_readings_are_late(void **unused)
{
    (void)unused;
    struct host_times times;
    const uint64_t origin_ns = 77 * NS_PER_S;
    struct host_reading reading = reading_of(1000, 1);
    host_times_start(&times, origin_ns, origin_ns + 250 * NS_PER_MS, &reading);
    assert_false(host_times_is_due(&times, origin_ns + 299 * NS_PER_MS));
    assert_true(host_times_is_due(&times, origin_ns + 300 * NS_PER_MS));
    reading = reading_of(1100, 2);
    host_times_add(&times, origin_ns + 305 * NS_PER_MS, &reading);
    assert_true(times.first == 2 && times.count == 3);
    assert_true(times.buckets[2].counts[HOST_DISK_WRITTEN] == 100 && times.buckets[2].memory_used_bytes == 2);
    reading = reading_of(1107, 3); /* three buckets late: spread over them */
    host_times_add(&times, origin_ns + 610 * NS_PER_MS, &reading);
    assert_true(times.buckets[3].counts[HOST_DISK_WRITTEN] == 2 && times.buckets[5].counts[HOST_DISK_WRITTEN] == 3);
    for (uint64_t second = 1; second <= 100; second++) {
        reading = reading_of(1107 + 1000 * second, second);
        host_times_add(&times, origin_ns + second * NS_PER_S, &reading);
        assert_true(written_in_all(&times) == 107 + 1000 * second);
    }
    assert_true(times.width_ns == 800 * NS_PER_MS && times.count == 125 && times.first == 0);
    for (uint64_t i = 2; i < 124; i++) /* readings at whole seconds: a slot of 0.8 s has one of them or a half */
        assert_in_range(times.buckets[i].counts[HOST_DISK_WRITTEN], 500, 1000);
    struct buf text;
    struct json_writer json;
    buf_init(&text, 1 << 16);
    json_writer_init(&json, &text, 0);
    json_write_begin_object(&json);
    host_times_write(&times, &json);
    json_write_end_object(&json);
    assert_non_null(strstr(text.data, "\"bucket_s\": 0.8"));
    assert_non_null(strstr(text.data, "\"cpu_fraction\": null"));
    assert_non_null(strstr(text.data, "\"disk_written_bytes\": ["));
    buf_release(&text);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(cpu_time_leaves_out_waiting_for_disks_and_other_guests),
        cmocka_unit_test(what_others_took_is_neither_idle_nor_ours_and_other_guests_are_others),
        cmocka_unit_test(used_memory_is_what_is_not_available),
        cmocka_unit_test(disk_sectors_are_512_bytes),
        cmocka_unit_test(nfs_mounts_have_wire_bytes_and_requests_of_all_connections),
        cmocka_unit_test(lustre_sums_are_bytes),
        cmocka_unit_test(what_a_machine_does_not_have_is_absent),
        cmocka_unit_test(mount_is_the_deepest_one_around_the_path),
        cmocka_unit_test(store_is_found_inside_of_a_fault_store),
        cmocka_unit_test(launcher_says_which_rank_a_signal_ended),
        cmocka_unit_test(mpich_says_the_signal_but_not_the_rank),
        cmocka_unit_test(network_bytes_are_those_of_all_ports_but_lo),
        cmocka_unit_test(counters_over_time_lose_nothing_when_buckets_widen_or_readings_are_late),
    };
    return cmocka_run_group_tests_name("counters", tests, NULL, NULL);
}
