/* Time buckets whose width doubles when they are full. */
#include "core/time_buckets.h"

#include <string.h>

#define WIDTH_MAX_NS (TIME_BUCKET_MIN_NS << 40) /* 27 years */

static void add_bucket(struct time_bucket *to, const struct time_bucket *from)
{
    to->bytes += from->bytes;
    to->requests += from->requests;
    to->in_flight_ns += from->in_flight_ns;
}

/* Bucket n becomes part of bucket n / 2. */
static void double_width(struct time_buckets *self)
{
    uint64_t first = self->first / 2, last = 0;
    for (uint64_t i = 0; i < self->count; i++) {
        struct time_bucket moved = self->buckets[i];
        self->buckets[i] = (struct time_bucket){0};
        last = (self->first + i) / 2 - first; /* at most i */
        add_bucket(&self->buckets[last], &moved);
    }
    self->width_ns *= 2;
    self->first = first;
    self->count = self->count ? last + 1 : 0;
}

/* Makes buckets for the time from start_ns to end_ns. */
static void cover(struct time_buckets *self, uint64_t start_ns, uint64_t end_ns)
{
    if (self->width_ns == 0)
        *self = (struct time_buckets){.width_ns = TIME_BUCKET_MIN_NS};
    for (;; double_width(self)) {
        uint64_t from = start_ns / self->width_ns, to = end_ns / self->width_ns + 1;
        if (self->count > 0) {
            from = from < self->first ? from : self->first;
            to = to > self->first + self->count ? to : self->first + self->count;
        }
        if (to - from > TIME_BUCKETS)
            continue;
        if (self->count > 0 && from < self->first) {
            uint64_t shift = self->first - from;
            memmove(self->buckets + shift, self->buckets, self->count * sizeof *self->buckets);
            memset(self->buckets, 0, shift * sizeof *self->buckets);
        }
        self->first = from;
        self->count = to - from;
        return;
    }
}

void time_buckets_add(struct time_buckets *self, uint64_t start_ns, uint64_t end_ns, uint64_t bytes)
{
    end_ns = end_ns > start_ns ? end_ns : start_ns;
    cover(self, start_ns, end_ns);
    uint64_t last = end_ns / self->width_ns;
    for (uint64_t number = start_ns / self->width_ns; number < last; number++) {
        uint64_t next_ns = (number + 1) * self->width_ns;
        self->buckets[number - self->first].in_flight_ns += next_ns - start_ns;
        start_ns = next_ns;
    }
    struct time_bucket *bucket = &self->buckets[last - self->first];
    bucket->in_flight_ns += end_ns - start_ns;
    bucket->bytes += bytes;
    bucket->requests++;
}

void time_buckets_merge(struct time_buckets *self, const struct time_buckets *other)
{
    if (other->count == 0)
        return;
    if (self->count == 0)
        *self = (struct time_buckets){.width_ns = other->width_ns};
    time_buckets_widen(self, other->width_ns);
    for (uint64_t i = 0; i < other->count; i++) {
        uint64_t start_ns = (other->first + i) * other->width_ns;
        cover(self, start_ns, start_ns);
        add_bucket(&self->buckets[start_ns / self->width_ns - self->first], &other->buckets[i]);
    }
}

void time_buckets_widen(struct time_buckets *self, uint64_t width_ns)
{
    while (self->width_ns > 0 && self->width_ns < width_ns)
        double_width(self);
}

struct time_bucket time_buckets_sum(const struct time_buckets *self)
{
    struct time_bucket sum = {0};
    for (uint64_t i = 0; i < self->count; i++)
        add_bucket(&sum, &self->buckets[i]);
    return sum;
}

bool time_buckets_are_valid(const struct time_buckets *self)
{
    if (self->width_ns == 0)
        return self->count == 0;
    uint64_t scale = self->width_ns / TIME_BUCKET_MIN_NS;
    return self->width_ns % TIME_BUCKET_MIN_NS == 0 && self->width_ns <= WIDTH_MAX_NS && (scale & (scale - 1)) == 0 &&
           self->count <= TIME_BUCKETS && self->first <= UINT64_MAX / self->width_ns - TIME_BUCKETS;
}
