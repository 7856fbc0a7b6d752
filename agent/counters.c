/* Reads kernel counters before and after a run. */
#include "agent/counters.h"

#include <dirent.h>
#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "core/clock.h"
#include "core/json.h"
#include "core/memory.h"
#include "core/path.h"

#define TEXT_MAX_BYTES (4 << 20)
#define SECTOR_BYTES 512 /* unit of block statistics, independent of the device's sector */
#define HOST_JSON_MAX_BYTES (1 << 20)

bool counters_parse_cpu(const char *stat, struct cpu_counters *cpu)
{
    uint64_t user, nice, system, idle, iowait, irq, softirq, steal;
    if (sscanf(stat, "cpu %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64 " %" SCNu64,
               &user, &nice, &system, &idle, &iowait, &irq, &softirq, &steal) != 8)
        return false;
    cpu->busy = user + nice + system + irq + softirq;
    cpu->total = cpu->busy + idle + iowait + steal;
    cpu->steal = steal;
    return true;
}

bool counters_parse_memory_used(const char *meminfo, uint64_t *used_bytes)
{
    uint64_t total, available;
    if (memory_parse_meminfo(meminfo, "MemTotal", &total, NULL) ||
        memory_parse_meminfo(meminfo, "MemAvailable", &available, NULL) || available > total)
        return false;
    *used_bytes = total - available;
    return true;
}

bool counters_parse_disk(const char *stat, struct disk_counters *disk)
{
    uint64_t reads, read_sectors, writes, written_sectors;
    if (sscanf(stat, "%" SCNu64 " %*u %" SCNu64 " %*u %" SCNu64 " %*u %" SCNu64, &reads, &read_sectors, &writes,
               &written_sectors) != 4)
        return false;
    *disk = (struct disk_counters){read_sectors * SECTOR_BYTES, written_sectors * SECTOR_BYTES, reads, writes};
    return true;
}

static struct named_counters *add_named(struct named_list *list, const char *name)
{
    if (list->count == COUNTERS_MAX_NAMED)
        return NULL;
    struct named_counters *counter = &list->items[list->count++];
    *counter = (struct named_counters){0};
    snprintf(counter->name, sizeof counter->name, "%.*s", (int)sizeof counter->name - 1, name);
    return counter;
}

/* Mounts as "device S mounted on P with fstype nfs4 …", each followed by its statistics: "bytes:" has normal and
 * direct reads and writes, then network bytes; "xprt: tcp" the requests sent. */
void counters_parse_nfs(const char *mountstats, struct named_list *list)
{
    struct named_counters *mount = NULL;
    for (const char *line = mountstats; *line;) {
        size_t len = strcspn(line, "\n");
        char copy[1024], place[512], type[32];
        snprintf(copy, sizeof copy, "%.*s", (int)(len < sizeof copy ? len : sizeof copy - 1), line);
        uint64_t read_bytes, written_bytes, sent;
        if (sscanf(copy, "device %*s mounted on %511s with fstype %31s", place, type) == 2)
            mount = strncmp(type, "nfs", 3) == 0 && strcmp(type, "nfsd") != 0 ? add_named(list, place) : NULL;
        else if (mount &&
                 sscanf(copy, " bytes: %*u %*u %*u %*u %" SCNu64 " %" SCNu64, &read_bytes, &written_bytes) == 2)
            mount->read_bytes = read_bytes, mount->written_bytes = written_bytes;
        else if (mount && sscanf(copy, " xprt: tcp %*u %*u %*u %*u %*u %" SCNu64, &sent) == 1)
            mount->operations += sent;
        line += len + (line[len] == '\n' ? 1 : 0);
    }
}

/* Lines as "read_bytes  5 samples [bytes] 4096 1048576 2101248": count, unit, smallest, largest, sum. */
bool counters_parse_lustre(const char *stats, struct named_counters *counter)
{
    if (strncmp(stats, "snapshot_time", 13) != 0)
        return false;
    for (const char *line = stats; *line;) {
        size_t len = strcspn(line, "\n");
        char copy[256], name[64];
        uint64_t samples, sum = 0;
        snprintf(copy, sizeof copy, "%.*s", (int)(len < sizeof copy ? len : sizeof copy - 1), line);
        int found = sscanf(copy, "%63s %" SCNu64 " samples [%*[^]]] %*u %*u %" SCNu64, name, &samples, &sum);
        if (found >= 2 && strstr(copy, " samples [")) {
            counter->operations += samples;
            if (strcmp(name, "read_bytes") == 0)
                counter->read_bytes = sum;
            else if (strcmp(name, "write_bytes") == 0)
                counter->written_bytes = sum;
        }
        line += len + (line[len] == '\n' ? 1 : 0);
    }
    return true;
}

/* False if the file does not exist or cannot be read. */
static bool read_text(struct buf *text, const char *path)
{
    buf_clear(text);
    return buf_read_file(text, path, NULL) == 0;
}

static bool read_number(struct buf *text, const char *folder, const char *name, uint64_t *number)
{
    char path[PATH_MAX];
    snprintf(path, sizeof path, "%.3000s/%.255s", folder, name);
    return read_text(text, path) && sscanf(text->data, "%" SCNu64, number) == 1;
}

static void read_ports(struct named_list *list, struct buf *text)
{
    DIR *entries = opendir("/sys/class/net");
    if (!entries)
        return;
    for (struct dirent *entry; (entry = readdir(entries));) {
        char folder[PATH_MAX];
        uint64_t received, sent, packets_in, packets_out;
        if (entry->d_name[0] == '.' || strcmp(entry->d_name, "lo") == 0)
            continue;
        snprintf(folder, sizeof folder, "/sys/class/net/%s/statistics", entry->d_name);
        if (!read_number(text, folder, "rx_bytes", &received) || !read_number(text, folder, "tx_bytes", &sent) ||
            !read_number(text, folder, "rx_packets", &packets_in) ||
            !read_number(text, folder, "tx_packets", &packets_out))
            continue;
        struct named_counters *port = add_named(list, entry->d_name);
        if (!port)
            break;
        port->read_bytes = received;
        port->written_bytes = sent;
        port->operations = packets_in + packets_out;
    }
    closedir(entries);
}

/* Lustre has a folder of devices for each kind, in debugfs or proc depending on the release. */
static void read_lustre(struct named_list *list, struct buf *text)
{
    static const char *const roots[] = {"/proc/fs/lustre", "/sys/kernel/debug/lustre"};
    static const char *const kinds[] = {"llite", "osc", "mdc"};
    for (size_t i = 0; i < sizeof roots / sizeof *roots * 3; i++) {
        char folder[PATH_MAX];
        snprintf(folder, sizeof folder, "%s/%s", roots[i / 3], kinds[i % 3]);
        DIR *entries = opendir(folder);
        if (!entries)
            continue;
        for (struct dirent *entry; (entry = readdir(entries));) {
            char path[PATH_MAX + 512], name[512];
            struct named_counters counter = {0};
            snprintf(path, sizeof path, "%s/%s/stats", folder, entry->d_name);
            if (entry->d_name[0] == '.' || !read_text(text, path) || !counters_parse_lustre(text->data, &counter))
                continue;
            snprintf(name, sizeof name, "%s.%s", kinds[i % 3], entry->d_name);
            struct named_counters *place = add_named(list, name);
            if (!place)
                break;
            snprintf(counter.name, sizeof counter.name, "%s", place->name);
            *place = counter;
        }
        closedir(entries);
    }
}

static double cpu_seconds(int who)
{
    struct rusage usage;
    if (getrusage(who, &usage) < 0)
        return 0;
    return (double)(usage.ru_utime.tv_sec + usage.ru_stime.tv_sec) +
           (double)(usage.ru_utime.tv_usec + usage.ru_stime.tv_usec) / 1e6;
}

static void set_counter(struct host_reading *reading, enum host_counter counter, bool has, uint64_t value)
{
    reading->has[counter] = has;
    reading->counters[counter] = has ? value : 0;
}

static void read_cpu_and_disk(struct counter_reading *reading, const char *disk, struct buf *text)
{
    reading->has_cpu = read_text(text, "/proc/stat") && counters_parse_cpu(text->data, &reading->cpu);
    if (*disk) {
        char path[128];
        snprintf(path, sizeof path, "/sys/class/block/%s/stat", disk);
        reading->has_disk = read_text(text, path) && counters_parse_disk(text->data, &reading->disk);
    }
}

static void read_all(struct counter_reading *reading, const char *disk, struct buf *text)
{
    *reading = (struct counter_reading){.own_cpu_s = cpu_seconds(RUSAGE_SELF) + cpu_seconds(RUSAGE_CHILDREN)};
    read_cpu_and_disk(reading, disk, text);
    read_ports(&reading->ports, text);
    if (read_text(text, "/proc/self/mountstats"))
        counters_parse_nfs(text->data, &reading->nfs);
    read_lustre(&reading->lustre, text);
}

/* What is kept over time; `whole` has CPU and disk already. */
static void read_host(struct counters *self, const struct counter_reading *whole, struct buf *text,
                      struct host_reading *reading)
{
    uint64_t received = 0, sent = 0, stall_us = 0;
    *reading = (struct host_reading){0};
    set_counter(reading, HOST_CPU_BUSY, whole->has_cpu, whole->cpu.busy);
    set_counter(reading, HOST_CPU_TOTAL, whole->has_cpu, whole->cpu.total);
    set_counter(reading, HOST_DISK_READ, whole->has_disk, whole->disk.read_bytes);
    set_counter(reading, HOST_DISK_WRITTEN, whole->has_disk, whole->disk.written_bytes);
    bool has_network = read_text(text, "/proc/net/dev") && host_times_parse_network(text->data, &received, &sent);
    set_counter(reading, HOST_RECEIVED, has_network, received);
    set_counter(reading, HOST_SENT, has_network, sent);
    bool has_pressure = read_text(text, "/proc/pressure/memory") && host_times_parse_pressure(text->data, &stall_us);
    set_counter(reading, HOST_MEMORY_STALL, has_pressure, stall_us);
    reading->has_memory =
        read_text(text, "/proc/meminfo") && counters_parse_memory_used(text->data, &reading->memory_used_bytes);
    if (reading->has_memory && !(self->memory_peak_bytes >= (double)reading->memory_used_bytes))
        self->memory_peak_bytes = (double)reading->memory_used_bytes;
}

void counters_start(struct counters *self, const char *disk, uint64_t origin_ns)
{
    struct buf text;
    struct host_reading reading;
    buf_init(&text, TEXT_MAX_BYTES);
    snprintf(self->disk, sizeof self->disk, "%s", disk);
    self->memory_peak_bytes = NAN;
    read_all(&self->start, self->disk, &text);
    read_host(self, &self->start, &text, &reading);
    host_times_start(&self->times, origin_ns, clock_monotonic_ns(), &reading);
    buf_release(&text);
}

void counters_watch(struct counters *self, uint64_t now_ns)
{
    struct buf text;
    struct counter_reading whole = {0};
    struct host_reading reading;
    if (!host_times_is_due(&self->times, now_ns))
        return;
    buf_init(&text, TEXT_MAX_BYTES);
    read_cpu_and_disk(&whole, self->disk, &text);
    read_host(self, &whole, &text, &reading);
    host_times_add(&self->times, now_ns, &reading);
    buf_release(&text);
}

void counters_stop(struct counters *self)
{
    struct buf text;
    struct host_reading reading;
    buf_init(&text, TEXT_MAX_BYTES);
    read_all(&self->end, self->disk, &text);
    read_host(self, &self->end, &text, &reading);
    if (host_times_have_started(&self->times))
        host_times_add(&self->times, clock_monotonic_ns(), &reading);
    buf_release(&text);
}

static double cpu_fraction(const struct counters *self)
{
    uint64_t total = self->end.cpu.total - self->start.cpu.total;
    if (!self->start.has_cpu || !self->end.has_cpu || total == 0)
        return NAN;
    return (double)(self->end.cpu.busy - self->start.cpu.busy) / (double)total;
}

double counters_others(const struct cpu_counters *start, const struct cpu_counters *end, double own_s,
                       double ticks_a_second)
{
    uint64_t total = end->total - start->total, used = end->busy - start->busy + (end->steal - start->steal);
    if (total == 0 || !(ticks_a_second > 0))
        return NAN;
    double others = (double)used - own_s * ticks_a_second;
    return others > 0 ? others / (double)total : 0; /* ticks are coarse: slightly below 0 means 0 */
}

void counters_fill(const struct counters *self, double run_values[METRIC_COUNT])
{
    run_values[METRIC_HOST_CPU_FRACTION] = cpu_fraction(self);
    if (self->start.has_cpu && self->end.has_cpu)
        run_values[METRIC_HOST_OTHERS_CPU_FRACTION] =
            counters_others(&self->start.cpu, &self->end.cpu, self->end.own_cpu_s - self->start.own_cpu_s,
                            (double)sysconf(_SC_CLK_TCK));
    run_values[METRIC_HOST_MEMORY_PEAK_BYTES] = self->memory_peak_bytes;
    if (self->start.has_disk && self->end.has_disk) {
        run_values[METRIC_HOST_DISK_READ_BYTES] = (double)(self->end.disk.read_bytes - self->start.disk.read_bytes);
        run_values[METRIC_HOST_DISK_WRITE_BYTES] =
            (double)(self->end.disk.written_bytes - self->start.disk.written_bytes);
    }
}

/* Writes the differences of the counters that exist in both readings. */
static void write_named(struct json_writer *json, const char *key, const struct named_list *start,
                        const struct named_list *end)
{
    json_write_key(json, key);
    json_write_begin_object(json);
    for (size_t i = 0; i < end->count; i++) {
        const struct named_counters *after = &end->items[i];
        for (size_t k = 0; k < start->count; k++) {
            const struct named_counters *before = &start->items[k];
            if (strcmp(before->name, after->name) != 0)
                continue;
            json_write_key(json, after->name);
            json_write_begin_object(json);
            json_member_u64(json, "read_bytes", after->read_bytes - before->read_bytes);
            json_member_u64(json, "written_bytes", after->written_bytes - before->written_bytes);
            json_member_u64(json, "operations", after->operations - before->operations);
            json_write_end_object(json);
            break;
        }
    }
    json_write_end_object(json);
}

static void write_disk(struct json_writer *json, const struct counters *self)
{
    json_write_key(json, "disk");
    if (!self->start.has_disk || !self->end.has_disk) {
        json_write_null(json);
        return;
    }
    const struct disk_counters *before = &self->start.disk, *after = &self->end.disk;
    json_write_begin_object(json);
    json_member_text(json, "name", self->disk);
    json_member_u64(json, "read_bytes", after->read_bytes - before->read_bytes);
    json_member_u64(json, "written_bytes", after->written_bytes - before->written_bytes);
    json_member_u64(json, "reads", after->reads - before->reads);
    json_member_u64(json, "writes", after->writes - before->writes);
    json_write_end_object(json);
}

int counters_write(const struct counters *self, const char *attempt_path, struct cb_err *err)
{
    char path[PATH_MAX];
    if (path_format(path, sizeof path, err, "%s/host.json", attempt_path))
        return CB_ERR_USAGE;
    struct buf text;
    struct json_writer json;
    buf_init(&text, HOST_JSON_MAX_BYTES);
    json_writer_init(&json, &text, 2);
    json_write_begin_object(&json);
    json_member_double(&json, "cpu_fraction", cpu_fraction(self));
    json_member_double(&json, "memory_peak_bytes", self->memory_peak_bytes);
    write_disk(&json, self);
    write_named(&json, "ports", &self->start.ports, &self->end.ports);
    write_named(&json, "nfs", &self->start.nfs, &self->end.nfs);
    write_named(&json, "lustre", &self->start.lustre, &self->end.lustre);
    if (host_times_have_started(&self->times)) {
        json_member_object(&json, "over_time");
        host_times_write(&self->times, &json);
        json_write_end_object(&json);
    }
    json_write_end_object(&json);
    buf_append_char(&text, '\n');
    int rc = buf_write_file(&text, path, 0666, err);
    buf_release(&text);
    return rc;
}
