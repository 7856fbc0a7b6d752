/* Activity of the machine over time: CPU, memory, the store's disk and the network, in at most HOST_TIMES_BUCKETS
 * buckets of equal width, which double when they are full.
 *
 * The kernel's counters are read at most once per bucket, and every 0.8 s in wide ones. A difference between two
 * readings is spread evenly over the time between them. */
#ifndef AGENT_HOST_TIMES_H
#define AGENT_HOST_TIMES_H

#include <stdbool.h>
#include <stdint.h>

#include "core/json.h"

#define HOST_TIMES_BUCKETS 128

/* Counters since the machine started, except for memory. */
enum host_counter {
    HOST_CPU_BUSY,  /* clock ticks of all processors */
    HOST_CPU_TOTAL, /* the same, idle ones included */
    HOST_DISK_READ,
    HOST_DISK_WRITTEN, /* bytes of the store's disk */
    HOST_RECEIVED,
    HOST_SENT,         /* bytes of all network ports but lo */
    HOST_MEMORY_STALL, /* microseconds in which some task waited for memory */
    HOST_COUNTERS
};

struct host_reading {
    bool has[HOST_COUNTERS], has_memory;
    uint64_t counters[HOST_COUNTERS];
    uint64_t memory_used_bytes;
};

struct host_bucket {
    bool known;
    uint64_t counts[HOST_COUNTERS];
    uint64_t memory_used_bytes; /* at its end */
};

struct host_times {
    uint64_t origin_ns; /* monotonic: start of bucket 0 */
    uint64_t width_ns;
    uint64_t first, count; /* number of the first bucket in use; number of the last one plus one */
    uint64_t last_ns;      /* since the origin: time of the last reading */
    struct host_reading last;
    struct host_bucket buckets[HOST_TIMES_BUCKETS];
};

/* Parsers of kernel files; false if the text is malformed. */
bool host_times_parse_network(const char *dev, uint64_t *received, uint64_t *sent); /* /proc/net/dev */
bool host_times_parse_pressure(const char *pressure, uint64_t *some_us);            /* /proc/pressure/memory */

/* Starts with a first reading; times are monotonic. */
void host_times_start(struct host_times *self, uint64_t origin_ns, uint64_t now_ns, const struct host_reading *reading);
/* False for zeroed memory. */
static inline bool host_times_have_started(const struct host_times *self)
{
    return self->width_ns > 0;
}
bool host_times_is_due(const struct host_times *self, uint64_t now_ns);
void host_times_add(struct host_times *self, uint64_t now_ns, const struct host_reading *reading);
/* Members bucket_s, first_bucket and arrays with a value for each bucket: null where it is not known. */
void host_times_write(const struct host_times *self, struct json_writer *json);

#endif
