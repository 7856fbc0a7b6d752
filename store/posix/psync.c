/* The psync engine: threads take requests from a queue and run their steps with preadv, pwritev and fsync. Several
 * threads keep several requests in flight. */
#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdatomic.h>
#include <stdio.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/rlimits.h"
#include "store/posix/posix.h"

struct ring {
    uint32_t *slots; /* holds `depth` of them */
    uint32_t head, count;
};

/* A slot is in `queued`, with a thread, or in `finished`; the lock guards both rings and `stopping`. `cancels` grows
 * with every cancel: a thread gives up its request between steps if it has grown. */
struct psync {
    struct posix_engine base;
    struct posix_request *requests;
    uint32_t depth;
    bool durable;
    pthread_mutex_t lock;
    pthread_cond_t has_work, has_finished;
    struct ring queued, finished;
    bool stopping;
    atomic_uint cancels;
    uint32_t thread_count;
    pthread_t threads[];
};

static void ring_push(struct ring *ring, uint32_t depth, uint32_t slot)
{
    ring->slots[(ring->head + ring->count++) % depth] = slot;
}

static uint32_t ring_pop(struct ring *ring, uint32_t depth)
{
    uint32_t slot = ring->slots[ring->head];
    ring->head = (ring->head + 1) % depth;
    ring->count--;
    return slot;
}

static int64_t run_on_device(const struct posix_step *step)
{
    struct device_files *files = step->device->device_files;
    const struct iovec *first = step->segments;
    return step->kind == POSIX_STEP_WRITE
               ? files->ops->write(files, step->device->device_file, first->iov_base, first->iov_len, step->offset)
               : files->ops->read(files, step->device->device_file, first->iov_base, first->iov_len, step->offset);
}

int64_t posix_step_run(const struct posix_step *step)
{
    int64_t result;
    if (step->device)
        return run_on_device(step);
    switch (step->kind) {
    case POSIX_STEP_WRITE:
        result = pwritev(step->fd, step->segments, (int)step->segment_count, (off_t)step->offset);
        break;
    case POSIX_STEP_READ:
        result = preadv(step->fd, step->segments, (int)step->segment_count, (off_t)step->offset);
        break;
    case POSIX_STEP_SYNC:
        result = fsync(step->fd);
        break;
    default:
        result = close(step->fd);
        break;
    }
    return result < 0 ? -errno : result;
}

static void run_request(struct psync *self, struct posix_request *request, unsigned cancels)
{
    while (posix_request_advance(request, posix_step_run(&request->step), atomic_load(&self->cancels) != cancels))
        ;
}

static void *work(void *argument)
{
    struct psync *self = argument;
    pthread_mutex_lock(&self->lock);
    for (;;) {
        while (self->queued.count == 0 && !self->stopping)
            pthread_cond_wait(&self->has_work, &self->lock);
        if (self->queued.count == 0)
            break;
        uint32_t slot = ring_pop(&self->queued, self->depth);
        unsigned cancels = atomic_load(&self->cancels);
        pthread_mutex_unlock(&self->lock);
        run_request(self, &self->requests[slot], cancels);
        pthread_mutex_lock(&self->lock);
        ring_push(&self->finished, self->depth, slot);
        if (self->finished.count == 1)
            pthread_cond_signal(&self->has_finished);
    }
    pthread_mutex_unlock(&self->lock);
    return NULL;
}

static struct psync *psync_of(struct posix_engine *engine)
{
    return (struct psync *)engine;
}

static void psync_free(struct posix_engine *engine)
{
    struct psync *self = psync_of(engine);
    pthread_mutex_lock(&self->lock);
    self->stopping = true;
    pthread_cond_broadcast(&self->has_work);
    pthread_mutex_unlock(&self->lock);
    for (uint32_t i = 0; i < self->thread_count; i++)
        pthread_join(self->threads[i], NULL);
    pthread_cond_destroy(&self->has_work);
    pthread_cond_destroy(&self->has_finished);
    pthread_mutex_destroy(&self->lock);
    free(self->queued.slots);
    free(self->finished.slots);
    free(self);
}

static int psync_register(struct posix_engine *engine, const struct iovec *regions, uint32_t count, char reason[160])
{
    (void)engine;
    (void)regions;
    (void)count;
    reason[0] = 0;
    return -EOPNOTSUPP;
}

static int psync_submit(struct posix_engine *engine, const struct backend_request *requests, size_t count,
                        struct cb_err *err)
{
    (void)err;
    struct psync *self = psync_of(engine);
    pthread_mutex_lock(&self->lock);
    for (size_t i = 0; i < count; i++) {
        uint32_t slot = requests[i].slot;
        if (posix_request_begin(&self->requests[slot], &requests[i], self->durable)) {
            ring_push(&self->queued, self->depth, slot);
            pthread_cond_signal(&self->has_work);
        } else {
            ring_push(&self->finished, self->depth, slot);
        }
    }
    pthread_mutex_unlock(&self->lock);
    return 0;
}

/* Returns false at the deadline. The lock is held. */
static bool wait_finished(struct psync *self, uint64_t deadline_ns)
{
    struct timespec until = {.tv_sec = (time_t)(deadline_ns / NS_PER_S), .tv_nsec = (long)(deadline_ns % NS_PER_S)};
    while (self->finished.count == 0) {
        if (deadline_ns == UINT64_MAX)
            pthread_cond_wait(&self->has_finished, &self->lock);
        else if (deadline_ns == 0 || pthread_cond_timedwait(&self->has_finished, &self->lock, &until) == ETIMEDOUT)
            return self->finished.count > 0;
    }
    return true;
}

static int psync_poll(struct posix_engine *engine, struct backend_completion *completions, size_t capacity,
                      uint64_t deadline_ns, size_t *count, struct cb_err *err)
{
    (void)err;
    struct psync *self = psync_of(engine);
    size_t got = 0;
    pthread_mutex_lock(&self->lock);
    if (wait_finished(self, deadline_ns))
        while (got < capacity && self->finished.count > 0) {
            uint32_t slot = ring_pop(&self->finished, self->depth);
            posix_request_complete(&self->requests[slot], slot, &completions[got++]);
        }
    pthread_mutex_unlock(&self->lock);
    *count = got;
    return 0;
}

static void psync_cancel(struct posix_engine *engine)
{
    struct psync *self = psync_of(engine);
    pthread_mutex_lock(&self->lock);
    atomic_fetch_add(&self->cancels, 1);
    while (self->queued.count > 0) {
        uint32_t slot = ring_pop(&self->queued, self->depth);
        posix_request_fail(&self->requests[slot], CB_ERR_ABORTED, 0);
        ring_push(&self->finished, self->depth, slot);
    }
    pthread_mutex_unlock(&self->lock);
}

static const struct posix_engine_ops psync_ops = {
    .free = psync_free,
    .register_memory = psync_register,
    .submit = psync_submit,
    .poll = psync_poll,
    .cancel = psync_cancel,
};

/* Signals are for the thread that runs the program. */
static int start_threads(struct psync *self, uint32_t count, struct cb_err *err)
{
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    int failed = 0;
    for (uint32_t i = 0; i < count && !failed; i++) {
        failed = pthread_create(&self->threads[i], NULL, work, self);
        self->thread_count += !failed;
    }
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (!failed)
        return 0;
    char what[64];
    snprintf(what, sizeof what, "thread %u of %u for psync", self->thread_count + 1, count);
    return rlimits_fail_thread(failed, what, err);
}

int psync_new(const struct posix_engine_setup *setup, struct posix_engine **engine, struct cb_err *err)
{
    uint32_t threads = setup->threads > 0 ? setup->threads : 1;
    struct psync *self = calloc(1, sizeof(*self) + threads * sizeof(self->threads[0]));
    if (!self)
        return alloc_fail(err, "for psync");
    self->base.ops = &psync_ops;
    self->requests = setup->requests;
    self->depth = setup->depth;
    self->durable = setup->durable;
    self->queued.slots = calloc(setup->depth, sizeof(uint32_t));
    self->finished.slots = calloc(setup->depth, sizeof(uint32_t));
    pthread_mutex_init(&self->lock, NULL);
    pthread_condattr_t monotonic;
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&self->has_work, NULL);
    pthread_cond_init(&self->has_finished, &monotonic);
    pthread_condattr_destroy(&monotonic);
    int rc =
        self->queued.slots && self->finished.slots ? start_threads(self, threads, err) : alloc_fail(err, "for psync");
    if (rc) {
        psync_free(&self->base);
        return rc;
    }
    *engine = &self->base;
    return 0;
}
