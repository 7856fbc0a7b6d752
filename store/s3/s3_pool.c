/* The threads of S3 requests, and the mailboxes between the caller and their event loops. */
#include "store/s3/s3_pool.h"

#include <pthread.h>
#include <string.h>
#include <time.h>

#include "core/alloc.h"
#include "core/clock.h"

#ifdef HAVE_CURL

/* A list of calls, linked by `next`; `last` is valid only if `first` is not NULL. */
struct region {
    struct s3_call *first, *last;
};

struct worker {
    struct s3_pool *pool;
    struct s3_loop *loop;
    pthread_t thread;
    bool started;
    struct region inbox; /* protected by the pool's lock, like `cancel` */
    bool cancel;
};

struct s3_pool {
    struct s3_loop *own;
    struct worker *workers; /* NULL: the caller drives `own` */
    uint32_t count;
    pthread_mutex_t lock;
    pthread_cond_t something; /* in the outbox, or a failure */
    struct region outbox;
    bool stop;
    struct cb_err failure; /* code != 0: a loop is broken */
};

static void put(struct region *region, struct s3_call *call)
{
    call->next = NULL;
    if (region->first)
        region->last->next = call;
    else
        region->first = call;
    region->last = call;
}

static struct s3_call *take(struct region *region)
{
    struct s3_call *call = region->first;
    if (call)
        region->first = call->next;
    return call;
}

/* --- in a thread --- */

/* Moves the calls in the mailbox into the loop; false when the thread is to end. */
static bool open_mail(struct worker *self)
{
    struct s3_pool *pool = self->pool;
    pthread_mutex_lock(&pool->lock);
    struct region mail = self->inbox;
    bool cancel = self->cancel, stop = pool->stop;
    self->inbox.first = NULL;
    self->cancel = false;
    pthread_mutex_unlock(&pool->lock);
    for (struct s3_call *call = take(&mail); call; call = take(&mail))
        s3_loop_start(self->loop, call);
    if (cancel)
        s3_loop_cancel(self->loop);
    return !stop;
}

static void send_done(struct worker *self, int code, const struct cb_err *err)
{
    struct s3_pool *pool = self->pool;
    pthread_mutex_lock(&pool->lock);
    for (struct s3_call *call = s3_loop_take_done(self->loop); call; call = s3_loop_take_done(self->loop))
        put(&pool->outbox, call);
    if (code)
        pool->failure = *err;
    pthread_cond_signal(&pool->something);
    pthread_mutex_unlock(&pool->lock);
}

static void *work(void *context)
{
    struct worker *self = context;
    struct cb_err err = {0};
    int rc = 0;
    while (open_mail(self) && !rc) {
        rc = s3_loop_drive(self->loop, UINT64_MAX, &err);
        send_done(self, rc, &err);
    }
    return NULL;
}

/* --- for the caller --- */

void s3_pool_free(struct s3_pool *self)
{
    if (!self)
        return;
    pthread_mutex_lock(&self->lock);
    self->stop = true;
    pthread_mutex_unlock(&self->lock);
    for (uint32_t i = 0; i < self->count; i++) {
        struct worker *worker = &self->workers[i];
        if (worker->started) {
            s3_loop_wake(worker->loop);
            pthread_join(worker->thread, NULL);
        }
        s3_loop_free(worker->loop);
    }
    pthread_cond_destroy(&self->something);
    pthread_mutex_destroy(&self->lock);
    free(self->workers);
    free(self);
}

static int start_workers(struct s3_pool *self, struct s3_session *session, uint32_t depth, struct cb_err *err)
{
    int rc = 0;
    for (uint32_t i = 0; i < self->count && !rc; i++) {
        struct worker *worker = &self->workers[i];
        worker->pool = self;
        rc = s3_loop_new(session, (depth + self->count - 1) / self->count, &worker->loop, err);
        int code = rc ? 0 : pthread_create(&worker->thread, NULL, work, worker);
        if (code)
            rc = cb_fail_errno(err, code, "starting a thread for S3");
        worker->started = !rc;
    }
    return rc;
}

int s3_pool_new(struct s3_session *session, struct s3_loop *own, uint32_t loops, uint32_t depth, struct s3_pool **pool,
                struct cb_err *err)
{
    uint32_t count = loops <= 1 ? 0 : loops < depth ? loops : depth;
    struct s3_pool *self = calloc(1, sizeof *self);
    struct worker *workers = calloc(count + 1, sizeof *workers);
    if (!self || !workers) {
        free(self);
        free(workers);
        return alloc_fail(err, "for the threads of S3");
    }
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->something, &attributes);
    pthread_condattr_destroy(&attributes);
    self->own = own;
    self->workers = workers;
    self->count = count;
    int rc = start_workers(self, session, depth, err);
    if (rc) {
        s3_pool_free(self);
        return rc;
    }
    *pool = self;
    return 0;
}

void s3_pool_start(struct s3_pool *self, struct s3_call *call, uint32_t number)
{
    if (self->count == 0) {
        s3_loop_start(self->own, call);
        return;
    }
    struct worker *worker = &self->workers[number % self->count];
    pthread_mutex_lock(&self->lock);
    put(&worker->inbox, call);
    pthread_mutex_unlock(&self->lock);
    s3_loop_wake(worker->loop);
}

int s3_pool_drive(struct s3_pool *self, uint64_t deadline_ns, struct cb_err *err)
{
    if (self->count == 0)
        return s3_loop_drive(self->own, deadline_ns, err);
    if (deadline_ns == 0)
        return 0; /* the threads continue by themselves */
    uint64_t year_ns = clock_monotonic_ns() + 365 * 86400 * NS_PER_S;
    uint64_t until_ns = deadline_ns < year_ns ? deadline_ns : year_ns;
    struct timespec until = {.tv_sec = (time_t)(until_ns / NS_PER_S), .tv_nsec = (long)(until_ns % NS_PER_S)};
    int rc = 0, waited = 0;
    pthread_mutex_lock(&self->lock);
    while (!self->outbox.first && !self->failure.code && !waited)
        waited = pthread_cond_timedwait(&self->something, &self->lock, &until);
    if (self->failure.code && !self->outbox.first) {
        rc = self->failure.code;
        if (err)
            *err = self->failure;
    }
    pthread_mutex_unlock(&self->lock);
    return rc;
}

struct s3_call *s3_pool_take_done(struct s3_pool *self)
{
    if (self->count == 0)
        return s3_loop_take_done(self->own);
    pthread_mutex_lock(&self->lock);
    struct s3_call *call = take(&self->outbox);
    pthread_mutex_unlock(&self->lock);
    return call;
}

void s3_pool_cancel(struct s3_pool *self)
{
    if (self->count == 0)
        s3_loop_cancel(self->own);
    for (uint32_t i = 0; i < self->count; i++) {
        pthread_mutex_lock(&self->lock);
        self->workers[i].cancel = true;
        pthread_mutex_unlock(&self->lock);
        s3_loop_wake(self->workers[i].loop);
    }
}

static void move_counts(struct s3_loop *loop, struct store_statistics *sum)
{
    struct store_statistics *from = s3_loop_statistics(loop);
    sum->requests += from->requests;
    sum->failed += from->failed;
    sum->retries_throttled += from->retries_throttled;
    sum->retries_server += from->retries_server;
    sum->retries_connection += from->retries_connection;
    sum->retries_stalled += from->retries_stalled;
    sum->wire_sent_bytes += from->wire_sent_bytes;
    sum->wire_received_bytes += from->wire_received_bytes;
    sum->connections += from->connections;
    sum->throttled_ns += from->throttled_ns;
    sum->backoff_ns += from->backoff_ns;
    time_buckets_merge(&sum->backoff, &from->backoff);
    sum->repeated_bytes += from->repeated_bytes;
    sum->most_in_flight += from->most_in_flight;
    histogram_merge(&sum->ttfb, &from->ttfb);
    *from = (struct store_statistics){0};
    histogram_init(&from->ttfb);
}

void s3_pool_take_statistics(struct s3_pool *self, struct store_statistics *statistics)
{
    *statistics = (struct store_statistics){0};
    histogram_init(&statistics->ttfb);
    for (uint32_t i = 0; i < self->count; i++)
        move_counts(self->workers[i].loop, statistics);
    uint32_t most = statistics->most_in_flight;
    move_counts(self->own, statistics);
    if (self->count > 0) /* the caller's loop has only small requests */
        statistics->most_in_flight = most;
}

#endif
