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
    counters_start(&counters, "");
    counters_stop(&counters);
    counters_fill(&counters, values);
    assert_true(isnan(values[METRIC_HOST_DISK_WRITE_BYTES]));
    assert_true(values[METRIC_HOST_MEMORY_PEAK_BYTES] > 0);
    counters_start(&counters, "no-such-disk");
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
    };
    return cmocka_run_group_tests_name("counters", tests, NULL, NULL);
}
