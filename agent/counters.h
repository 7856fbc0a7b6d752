/* Activity of the machine during the run: CPU, memory, disk, network ports, NFS, Lustre.
 *
 * Kernel counters are read at the start and at the end and subtracted, and some also in between (agent/host_times.h). The parsers accept
 * text, so that recorded files test them; a counter that the machine lacks is absent (NAN, or no entry), never 0. */
#ifndef AGENT_COUNTERS_H
#define AGENT_COUNTERS_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include "agent/host_times.h"
#include "core/buf.h"
#include "core/err.h"
#include "run/metrics.h"

#define COUNTERS_MAX_NAMED 64

struct cpu_counters {
    uint64_t busy, total; /* clock ticks of all processors; I/O wait is not busy */
    uint64_t steal;       /* part of total: stolen by other guests of the host */
};

struct disk_counters {
    uint64_t read_bytes, written_bytes, reads, writes;
};

/* A network port, an NFS mount or a Lustre device. */
struct named_counters {
    char name[128];
    uint64_t read_bytes, written_bytes; /* received and sent, for a port */
    uint64_t operations;
};

struct named_list {
    struct named_counters items[COUNTERS_MAX_NAMED];
    size_t count;
};

struct counter_reading {
    bool has_cpu, has_disk;
    struct cpu_counters cpu;
    double own_cpu_s; /* of this process and its reaped descendants */
    struct disk_counters disk;
    struct named_list ports, nfs, lustre;
};

struct counters {
    char disk[64]; /* name in /sys/block of the store's device, "" if it has none */
    struct counter_reading start, end;
    double memory_peak_bytes; /* NAN before the first sample */
    struct host_times times;
};

/* Parsers. They fill the members that they find, and return false if the text is malformed. */
bool counters_parse_cpu(const char *stat, struct cpu_counters *cpu);           /* /proc/stat */
bool counters_parse_memory_used(const char *meminfo, uint64_t *used_bytes);    /* /proc/meminfo */
bool counters_parse_disk(const char *stat, struct disk_counters *disk);        /* /sys/block/DISK/stat */
void counters_parse_nfs(const char *mountstats, struct named_list *list);      /* /proc/self/mountstats */
bool counters_parse_lustre(const char *stats, struct named_counters *counter); /* llite/osc/mdc stats */

/* `origin_ns`: when the attempt began, by this machine's monotonic clock. */
void counters_start(struct counters *self, const char *disk, uint64_t origin_ns);
/* Reads what is kept over time, if it is time for it. Call it often. */
void counters_watch(struct counters *self, uint64_t now_ns);
void counters_stop(struct counters *self); /* also if they were never started: a run that ended before its ranks */

/* Share of CPU time that was neither idle nor ours: `own_s` was ours. NAN if no time has passed. */
double counters_others(const struct cpu_counters *start, const struct cpu_counters *end, double own_s,
                       double ticks_a_second);
/* The host_* metrics of the run. Call after all our processes have ended: only then their CPU time counts as ours. */
void counters_fill(const struct counters *self, double run_values[METRIC_COUNT]);
/* host.json: the same metrics and more. */
int counters_write(const struct counters *self, const char *attempt_path, struct cb_err *err) CB_MUST_CHECK;

#endif
