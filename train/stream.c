/* A stream: a queue of work and the thread that executes it. */
#include "train/stream.h"

#include <assert.h>
#include <pthread.h>
#include <string.h>
#include <time.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "engine/kernels.h"

/* Pause between two polls of a collective: a poll advances it, but takes time from the computing thread if they share a
 * core. The first polls have no pause, since small collectives take microseconds. */
#define LOOK_NS (50 * NS_PER_US)
#define EAGER_NS (50 * NS_PER_US)
#define WATCH_NS (100 * NS_PER_MS)

struct stream {
    struct comm *watch;
    struct device *device;
    struct trace *trace;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t more, done;
    struct stream_work queue[STREAM_MOST];
    uint64_t added, finished; /* tickets; under the lock */
    bool leave;               /* under the lock */
    int code;                 /* of the failed work; under the lock */
    struct cb_err err;
    struct stream_counts counts; /* under the lock */
};

static const char *const names[] = {"all-gather", "reduce-scatter", "all-reduce", "to device",
                                    "to host",    "round",          "pack",       "unpack"};

static bool is_collective(enum stream_kind kind)
{
    return kind == STREAM_GATHER || kind == STREAM_SCATTER || kind == STREAM_REDUCE;
}

static bool is_copy(enum stream_kind kind)
{
    return kind == STREAM_TO_DEVICE || kind == STREAM_TO_HOST;
}

uint64_t stream_packed(uint64_t values)
{
    return (values + 1) / 2;
}

/* --- the thread --- */

static int begin(const struct stream_work *work, struct comm_message *message, struct cb_err *err)
{
    switch (work->kind) {
    case STREAM_GATHER:
        return comm_start_all_gather(work->group->comm, work->from, work->to, work->values, message, err);
    case STREAM_SCATTER:
        return comm_start_reduce_scatter(work->group->comm, work->from, work->to, work->values, message, err);
    default:
        return comm_start_all_reduce(work->group->comm, work->from, work->to, work->values, message, err);
    }
}

static bool is_leaving(struct stream *self)
{
    pthread_mutex_lock(&self->lock);
    bool leave = self->leave;
    pthread_mutex_unlock(&self->lock);
    return leave;
}

/* No deadline here: the waiting thread has one, and stops the stream. */
static int communicate(struct stream *self, const struct stream_work *work, struct cb_err *err)
{
    struct comm_message message;
    const struct timespec pause = {.tv_nsec = LOOK_NS};
    bool done = false;
    uint64_t start_ns = clock_monotonic_ns();
    int rc = begin(work, &message, err);
    while (!rc) {
        rc = comm_message_test(work->group->comm, &message, &done, err);
        if (rc || done)
            return rc;
        if (clock_monotonic_ns() - start_ns > EAGER_NS)
            nanosleep(&pause, NULL);
        rc = comm_check(self->watch, err);
        if (!rc && is_leaving(self))
            rc = cb_fail(err, CB_ERR_ABORTED, "training ended while ranks were exchanging");
        if (rc)
            comm_abandon_messages(work->group->comm);
    }
    return rc;
}

static int copy(struct stream *self, const struct stream_work *work, struct cb_err *err)
{
    struct device_copy one = {.to = work->to, .from = work->from, .row_bytes = work->values * sizeof(float), .rows = 1};
    uint64_t event = 0;
    enum device_direction direction = work->kind == STREAM_TO_DEVICE ? HOST_TO_DEVICE : DEVICE_TO_HOST;
    int rc = self->device->ops->copy(self->device, direction, &one, 1, err);
    if (!rc)
        rc = self->device->ops->record(self->device, &event, err);
    return rc ? rc : self->device->ops->wait(self->device, event, UINT64_MAX, err);
}

static void convert(const struct stream_work *work)
{
    uint32_t ranks = work->kind == STREAM_UNPACK ? work->group->ranks : 1;
    if (work->kind == STREAM_ROUND)
        kernel_round_bf16(work->from, work->to, work->values);
    else if (work->kind == STREAM_PACK)
        kernel_pack_bf16(work->from, (uint16_t *)(void *)work->to, work->values);
    for (uint32_t i = 0; i < ranks && work->kind == STREAM_UNPACK; i++)
        kernel_unpack_bf16((const uint16_t *)(const void *)(work->from + i * stream_packed(work->values)),
                           work->to + i * work->values, work->values);
}

static int work_on(struct stream *self, const struct stream_work *work, struct cb_err *err)
{
    if (is_collective(work->kind))
        return communicate(self, work, err);
    if (is_copy(work->kind))
        return copy(self, work, err);
    convert(work);
    return 0;
}

void stream_count(struct stream_counts *counts, const struct stream_work *work)
{
    uint64_t bytes = work->values * sizeof(float), ranks = work->group->ranks;
    counts->gathers += work->kind == STREAM_GATHER;
    counts->scatters += work->kind == STREAM_SCATTER;
    counts->reduces += work->kind == STREAM_REDUCE;
    counts->copies += is_copy(work->kind);
    counts->copied_bytes += is_copy(work->kind) ? bytes : 0;
    if (work->kind == STREAM_REDUCE)
        counts->bytes_sent += 2 * bytes * (ranks - 1) / ranks;
    else if (is_collective(work->kind))
        counts->bytes_sent += bytes * (ranks - 1);
}

void stream_note(struct trace *trace, const struct stream_work *work, bool marked, uint64_t start, uint64_t end)
{
    uint64_t bytes = work->values * sizeof(float);
    enum trace_track track = is_collective(work->kind) ? TRACE_COMM : TRACE_H2D;
    if (work->kind == STREAM_GATHER || work->kind == STREAM_SCATTER || work->kind == STREAM_UNPACK)
        bytes *= work->group->ranks;
    (marked ? trace_add_marked : trace_add_numbered)(trace, track, names[work->kind], work->number, start, end, bytes);
}

/* The next work; false when the thread must exit. */
static bool take(struct stream *self, struct stream_work *work)
{
    pthread_mutex_lock(&self->lock);
    while (self->finished == self->added && !self->leave)
        pthread_cond_wait(&self->more, &self->lock);
    bool leave = self->leave;
    if (!leave)
        *work = self->queue[self->finished % STREAM_MOST];
    pthread_mutex_unlock(&self->lock);
    return !leave;
}

static void *run(void *context)
{
    struct stream *self = context;
    struct stream_work work;
    while (take(self, &work)) {
        struct cb_err err = {0};
        uint64_t start_ns = clock_monotonic_ns();
        int rc = work_on(self, &work, &err);
        uint64_t end_ns = clock_monotonic_ns();
        if (!rc)
            stream_note(self->trace, &work, false, start_ns, end_ns);
        pthread_mutex_lock(&self->lock);
        if (rc) {
            self->code = rc;
            self->err = err;
            self->leave = true;
        } else {
            stream_count(&self->counts, &work);
            self->counts.busy_ns += is_collective(work.kind) ? end_ns - start_ns : 0;
            self->finished++;
        }
        pthread_cond_broadcast(&self->done);
        pthread_mutex_unlock(&self->lock);
    }
    return NULL;
}

/* --- the caller's side --- */

static void init_locks(struct stream *self)
{
    pthread_condattr_t attributes;
    pthread_mutex_init(&self->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&self->more, &attributes);
    pthread_cond_init(&self->done, &attributes);
    pthread_condattr_destroy(&attributes);
}

int stream_new(struct comm *watch, struct device *device, struct trace *trace, struct stream **stream,
               struct cb_err *err)
{
    struct stream *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "for the exchange between ranks");
    self->watch = watch;
    self->device = device;
    self->trace = trace;
    init_locks(self);
    int failed = pthread_create(&self->thread, NULL, run, self);
    if (failed) {
        free(self);
        return cb_fail_errno(err, failed, "starting the thread that exchanges with other ranks");
    }
    *stream = self;
    return 0;
}

/* The thread checks at least every LOOK_NS, so it ends unless MPI itself does not return. */
bool stream_stop(struct stream *self)
{
    struct timespec until;
    pthread_mutex_lock(&self->lock);
    self->leave = true;
    pthread_cond_broadcast(&self->more);
    pthread_mutex_unlock(&self->lock);
    clock_gettime(CLOCK_REALTIME, &until);
    until.tv_sec += 5;
    if (pthread_timedjoin_np(self->thread, NULL, &until) != 0)
        return false;
    pthread_cond_destroy(&self->more);
    pthread_cond_destroy(&self->done);
    pthread_mutex_destroy(&self->lock);
    free(self);
    return true;
}

uint64_t stream_add(struct stream *self, const struct stream_work *work)
{
    pthread_mutex_lock(&self->lock);
    assert(self->added - self->finished < STREAM_MOST);
    self->queue[self->added++ % STREAM_MOST] = *work;
    uint64_t ticket = self->added;
    pthread_cond_signal(&self->more);
    pthread_mutex_unlock(&self->lock);
    return ticket;
}

bool stream_is_done(struct stream *self, uint64_t ticket)
{
    pthread_mutex_lock(&self->lock);
    bool done = self->finished >= ticket;
    pthread_mutex_unlock(&self->lock);
    return done;
}

static struct timespec earlier(uint64_t a_ns, uint64_t b_ns)
{
    uint64_t until_ns = a_ns < b_ns ? a_ns : b_ns;
    return (struct timespec){(time_t)(until_ns / NS_PER_S), (long)(until_ns % NS_PER_S)};
}

int stream_wait(struct stream *self, uint64_t ticket, uint64_t deadline_ns, struct cb_err *err)
{
    int rc = 0;
    pthread_mutex_lock(&self->lock);
    while (self->finished < ticket && !self->code && !rc) {
        uint64_t now_ns = clock_monotonic_ns();
        struct timespec until = earlier(now_ns + WATCH_NS, deadline_ns);
        if (now_ns > deadline_ns)
            rc = cb_fail(err, CB_ERR_TIMEOUT, "another rank did not take part in the exchange in time");
        else
            pthread_cond_timedwait(&self->done, &self->lock, &until);
    }
    if (!rc && self->finished < ticket) {
        rc = self->code;
        if (err)
            *err = self->err;
    }
    pthread_mutex_unlock(&self->lock);
    return rc;
}

struct stream_counts stream_counts(struct stream *self)
{
    pthread_mutex_lock(&self->lock);
    struct stream_counts counts = self->counts;
    pthread_mutex_unlock(&self->lock);
    return counts;
}
