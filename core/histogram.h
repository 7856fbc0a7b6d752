/* A mergeable latency histogram in the manner of HdrHistogram (log-linear buckets).
 *
 * Values are nanoseconds, 0 … 2^40-1 (18 minutes; larger values count as the largest). Values below 64 are exact;
 * above, a bucket is 1/32 of its power of two wide, so the midpoint of a quantile is within 1.6 % of the true value
 * (HISTOGRAM_MAX_ERROR). Recording is a shift and an increment, without allocation or lock. A plain value of fixed
 * size, so that a status page can hold it. */
#ifndef CORE_HISTOGRAM_H
#define CORE_HISTOGRAM_H

#include <stdint.h>

#define HISTOGRAM_SUB_BUCKETS 32
#define HISTOGRAM_BUCKETS (64 + (40 - 6) * HISTOGRAM_SUB_BUCKETS)
#define HISTOGRAM_MAX_ERROR 0.016

struct histogram {
    uint64_t count;
    uint64_t sum_ns;
    uint64_t min_ns; /* UINT64_MAX while empty */
    uint64_t max_ns;
    uint64_t buckets[HISTOGRAM_BUCKETS];
};

void histogram_init(struct histogram *self);
void histogram_record(struct histogram *self, uint64_t value_ns);
void histogram_merge(struct histogram *self, const struct histogram *other);
/* How many values are at most `value_ns`; those of its own bucket count by the bucket's midpoint. */
uint64_t histogram_count_up_to(const struct histogram *self, uint64_t value_ns);
uint64_t histogram_quantile(const struct histogram *self, double q); /* 0 <= q <= 1; returns 0 if empty */

#endif
