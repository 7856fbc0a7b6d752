/* Counts the time in which nothing but backoff keeps a caller waiting. */
#include "store/s3/s3_blocked.h"

#include "core/clock.h"

void s3_blocked_init(struct s3_blocked *self)
{
    *self = (struct s3_blocked){0};
    pthread_mutex_init(&self->lock, NULL);
}

void s3_blocked_release(struct s3_blocked *self)
{
    pthread_mutex_destroy(&self->lock);
}

/* With the lock held, before a change. */
static void count(struct s3_blocked *self)
{
    uint64_t now_ns = clock_monotonic_ns();
    if (self->caller_waits && self->active == 0 && self->paused > 0)
        self->total_ns += now_ns - self->since_ns;
    self->since_ns = now_ns;
}

void s3_blocked_change(struct s3_blocked *self, int active, int paused)
{
    pthread_mutex_lock(&self->lock);
    count(self);
    self->active += (uint32_t)active;
    self->paused += (uint32_t)paused;
    pthread_mutex_unlock(&self->lock);
}

void s3_blocked_wait(struct s3_blocked *self, bool waits)
{
    pthread_mutex_lock(&self->lock);
    count(self);
    self->caller_waits = waits;
    pthread_mutex_unlock(&self->lock);
}

uint64_t s3_blocked_ns(struct s3_blocked *self)
{
    pthread_mutex_lock(&self->lock);
    uint64_t total_ns = self->total_ns;
    pthread_mutex_unlock(&self->lock);
    return total_ns;
}
