/* Time in which a caller waits for a store while all of its requests are in backoff, over all loops of the store.
 * Thread-safe. */
#ifndef STORE_S3_S3_BLOCKED_H
#define STORE_S3_S3_BLOCKED_H

#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>

struct s3_blocked {
    pthread_mutex_t lock;
    uint32_t active, paused; /* requests: in progress, in backoff */
    bool caller_waits;
    uint64_t since_ns; /* when one of these changed last */
    uint64_t total_ns;
};

void s3_blocked_init(struct s3_blocked *self);
void s3_blocked_release(struct s3_blocked *self);

/* Adds to the numbers of active and paused requests; negative values subtract. */
void s3_blocked_change(struct s3_blocked *self, int active, int paused);
/* The caller begins to wait, or continues. */
void s3_blocked_wait(struct s3_blocked *self, bool waits);
uint64_t s3_blocked_ns(struct s3_blocked *self);

#endif
