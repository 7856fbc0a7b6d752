/* A mergeable log-linear histogram of latencies. */
#include "core/histogram.h"

#include <math.h>
#include <string.h>

#define EXACT_VALUES 64 /* 2^6: the first power of two whose buckets are wider than 1 */
#define FIRST_EXPONENT 6
#define SUB_BUCKET_BITS 5
#define LARGEST_VALUE ((UINT64_C(1) << 40) - 1)

static unsigned bucket_of(uint64_t value_ns)
{
    if (value_ns < EXACT_VALUES)
        return (unsigned)value_ns;
    unsigned exponent = 63 - (unsigned)__builtin_clzll(value_ns);
    unsigned sub = (unsigned)(value_ns >> (exponent - SUB_BUCKET_BITS)) & (HISTOGRAM_SUB_BUCKETS - 1);
    return EXACT_VALUES + (exponent - FIRST_EXPONENT) * HISTOGRAM_SUB_BUCKETS + sub;
}

static uint64_t bucket_midpoint(unsigned bucket)
{
    if (bucket < EXACT_VALUES)
        return bucket;
    unsigned exponent = FIRST_EXPONENT + (bucket - EXACT_VALUES) / HISTOGRAM_SUB_BUCKETS;
    uint64_t sub = (bucket - EXACT_VALUES) % HISTOGRAM_SUB_BUCKETS;
    uint64_t width = UINT64_C(1) << (exponent - SUB_BUCKET_BITS);
    return (UINT64_C(1) << exponent) + sub * width + width / 2;
}

void histogram_init(struct histogram *self)
{
    memset(self, 0, sizeof *self);
    self->min_ns = UINT64_MAX;
}

void histogram_record(struct histogram *self, uint64_t value_ns)
{
    if (value_ns > LARGEST_VALUE)
        value_ns = LARGEST_VALUE;
    self->count++;
    self->sum_ns += value_ns;
    if (value_ns < self->min_ns)
        self->min_ns = value_ns;
    if (value_ns > self->max_ns)
        self->max_ns = value_ns;
    self->buckets[bucket_of(value_ns)]++;
}

void histogram_merge(struct histogram *self, const struct histogram *other)
{
    if (other->count == 0)
        return; /* also accepts a zeroed histogram that was never initialised */
    self->count += other->count;
    self->sum_ns += other->sum_ns;
    if (other->min_ns < self->min_ns)
        self->min_ns = other->min_ns;
    if (other->max_ns > self->max_ns)
        self->max_ns = other->max_ns;
    for (unsigned bucket = 0; bucket < HISTOGRAM_BUCKETS; bucket++)
        self->buckets[bucket] += other->buckets[bucket];
}

uint64_t histogram_count_up_to(const struct histogram *self, uint64_t value_ns)
{
    uint64_t count = 0;
    if (value_ns >= self->max_ns)
        return self->count;
    for (unsigned bucket = 0; bucket < HISTOGRAM_BUCKETS && bucket_midpoint(bucket) <= value_ns; bucket++)
        count += self->buckets[bucket];
    return count;
}

uint64_t histogram_quantile(const struct histogram *self, double q)
{
    if (self->count == 0)
        return 0;
    uint64_t wanted = (uint64_t)ceil(q * (double)self->count);
    if (wanted <= 1)
        return self->min_ns;
    if (wanted >= self->count)
        return self->max_ns;
    uint64_t seen = 0;
    for (unsigned bucket = 0; bucket < HISTOGRAM_BUCKETS; bucket++) {
        seen += self->buckets[bucket];
        if (seen >= wanted) {
            uint64_t midpoint = bucket_midpoint(bucket);
            if (midpoint < self->min_ns)
                return self->min_ns;
            return midpoint > self->max_ns ? self->max_ns : midpoint;
        }
    }
    return self->max_ns;
}
