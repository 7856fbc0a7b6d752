/* What requests did over time: bytes and requests completed, and time in flight, in at most TIME_BUCKETS buckets of
 * equal width.
 *
 * A plain value of fixed size, so that a status page can hold it; zeroed memory is empty. Bucket n covers the time from
 * n * width to (n + 1) * width since an origin that the caller chooses. When requests no longer fit, pairs of buckets
 * are merged and the width doubles, so sums stay exact. Buckets of one origin can be merged, whatever their widths,
 * because every width is TIME_BUCKET_MIN_NS times a power of two. Nothing is allocated. One thread at a time. */
#ifndef CORE_TIME_BUCKETS_H
#define CORE_TIME_BUCKETS_H

#include <stdbool.h>
#include <stdint.h>

#define TIME_BUCKETS 128
#define TIME_BUCKET_MIN_NS UINT64_C(781250) /* so that wide buckets are 0.1, 0.2, 0.4 … s */

struct time_bucket {
    uint64_t bytes, requests; /* of requests that completed in it */
    uint64_t in_flight_ns;    /* time that requests were in flight in it, summed over requests */
};

struct time_buckets {
    uint64_t width_ns; /* 0 while there is none */
    uint64_t first;    /* number of buckets[0] */
    uint64_t count;
    struct time_bucket buckets[TIME_BUCKETS];
};

/* Adds a request that was in flight from start_ns to end_ns since the origin. */
void time_buckets_add(struct time_buckets *self, uint64_t start_ns, uint64_t end_ns, uint64_t bytes);
/* Adds buckets of the same origin; the wider of both widths is kept. */
void time_buckets_merge(struct time_buckets *self, const struct time_buckets *other);
/* Doubles the width until it is at least this. */
void time_buckets_widen(struct time_buckets *self, uint64_t width_ns);
struct time_bucket time_buckets_sum(const struct time_buckets *self);
/* For memory that another process may have damaged. */
bool time_buckets_are_valid(const struct time_buckets *self);

#endif
