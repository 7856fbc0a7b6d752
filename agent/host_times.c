/* Spreads readings of kernel counters over time buckets. */
#include "agent/host_times.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

#include "core/clock.h"

#define WIDTH_MIN_NS (100 * NS_PER_MS)
#define PERIOD_MAX_NS (800 * NS_PER_MS) /* divides all wider buckets */

bool host_times_parse_network(const char *dev, uint64_t *received, uint64_t *sent)
{
    bool found = false;
    *received = *sent = 0;
    for (const char *line = dev; line; line = strchr(line, '\n')) {
        char name[64];
        uint64_t in, out;
        line += *line == '\n';
        if (sscanf(line, " %63[^: ]: %" SCNu64 " %*u %*u %*u %*u %*u %*u %*u %" SCNu64, name, &in, &out) != 3)
            continue;
        found = true;
        if (strcmp(name, "lo") == 0)
            continue;
        *received += in;
        *sent += out;
    }
    return found;
}

bool host_times_parse_pressure(const char *pressure, uint64_t *some_us)
{
    const char *total = strncmp(pressure, "some ", 5) == 0 ? strstr(pressure, "total=") : NULL;
    return total && sscanf(total, "total=%" SCNu64, some_us) == 1;
}

static uint64_t period_ns(const struct host_times *self)
{
    return self->width_ns < PERIOD_MAX_NS ? self->width_ns : PERIOD_MAX_NS;
}

void host_times_start(struct host_times *self, uint64_t origin_ns, uint64_t now_ns, const struct host_reading *reading)
{
    *self = (struct host_times){
        .origin_ns = origin_ns, .width_ns = WIDTH_MIN_NS, .last_ns = now_ns - origin_ns, .last = *reading};
}

bool host_times_is_due(const struct host_times *self, uint64_t now_ns)
{
    return (now_ns - self->origin_ns) / period_ns(self) > self->last_ns / period_ns(self);
}

static void add_bucket(struct host_bucket *to, const struct host_bucket *later)
{
    if (!later->known)
        return;
    for (unsigned i = 0; i < HOST_COUNTERS; i++)
        to->counts[i] += later->counts[i];
    to->memory_used_bytes = later->memory_used_bytes;
    to->known = true;
}

static void double_width(struct host_times *self)
{
    for (uint64_t i = self->first; i < self->count; i++) {
        struct host_bucket moved = self->buckets[i];
        self->buckets[i] = (struct host_bucket){0};
        add_bucket(&self->buckets[i / 2], &moved);
    }
    self->width_ns *= 2;
    self->first /= 2;
    self->count = (self->count + 1) / 2;
}

void host_times_add(struct host_times *self, uint64_t now_ns, const struct host_reading *reading)
{
    now_ns -= self->origin_ns;
    while (now_ns / self->width_ns >= HOST_TIMES_BUCKETS)
        double_width(self);
    uint64_t from = self->last_ns / period_ns(self), to = now_ns / period_ns(self);
    to = to > from ? to : from + 1;
    for (uint64_t slot = from; slot < to; slot++) {
        uint64_t number = slot * period_ns(self) / self->width_ns, left = to - slot;
        struct host_bucket part = {.known = true, .memory_used_bytes = reading->memory_used_bytes};
        for (unsigned i = 0; i < HOST_COUNTERS; i++) {
            uint64_t before = self->last.counters[i], after = reading->counters[i];
            part.counts[i] = reading->has[i] && self->last.has[i] && after > before ? (after - before) / left : 0;
            self->last.counters[i] += part.counts[i];
        }
        add_bucket(&self->buckets[number], &part);
        self->first = self->count ? self->first : number;
        self->count = number + 1;
    }
    self->last = *reading;
    self->last_ns = now_ns;
}

/* One array on one line: null if this machine has no such counter. */
static void write_array(const struct host_times *self, struct json_writer *json, const char *key, bool has,
                        void (*write)(const struct host_bucket *bucket, unsigned counter, struct json_writer *json),
                        unsigned counter)
{
    int indent = json->indent;
    json_write_key(json, key);
    if (!has) {
        json_write_null(json);
        return;
    }
    json_write_begin_array(json);
    json->indent = 0;
    for (uint64_t i = self->first; i < self->count; i++) {
        if (self->buckets[i].known)
            write(&self->buckets[i], counter, json);
        else
            json_write_null(json);
    }
    json_write_end_array(json);
    json->indent = indent;
}

static void write_count(const struct host_bucket *bucket, unsigned counter, struct json_writer *json)
{
    json_write_u64(json, bucket->counts[counter]);
}

static void write_fraction(const struct host_bucket *bucket, unsigned counter, struct json_writer *json)
{
    uint64_t total = bucket->counts[HOST_CPU_TOTAL];
    if (total > 0)
        json_write_double(json, (double)bucket->counts[counter] / (double)total);
    else
        json_write_null(json);
}

static void write_memory(const struct host_bucket *bucket, unsigned counter, struct json_writer *json)
{
    (void)counter;
    json_write_u64(json, bucket->memory_used_bytes);
}

static void write_microseconds(const struct host_bucket *bucket, unsigned counter, struct json_writer *json)
{
    json_write_double(json, (double)bucket->counts[counter] / 1e6);
}

void host_times_write(const struct host_times *self, struct json_writer *json)
{
    const bool *has = self->last.has;
    json_member_double(json, "bucket_s", (double)self->width_ns / (double)NS_PER_S);
    json_member_u64(json, "first_bucket", self->first);
    write_array(self, json, "cpu_fraction", has[HOST_CPU_BUSY], write_fraction, HOST_CPU_BUSY);
    write_array(self, json, "disk_read_bytes", has[HOST_DISK_READ], write_count, HOST_DISK_READ);
    write_array(self, json, "disk_written_bytes", has[HOST_DISK_WRITTEN], write_count, HOST_DISK_WRITTEN);
    write_array(self, json, "received_bytes", has[HOST_RECEIVED], write_count, HOST_RECEIVED);
    write_array(self, json, "sent_bytes", has[HOST_SENT], write_count, HOST_SENT);
    write_array(self, json, "memory_used_bytes", self->last.has_memory, write_memory, 0);
    write_array(self, json, "memory_stall_s", has[HOST_MEMORY_STALL], write_microseconds, HOST_MEMORY_STALL);
}
