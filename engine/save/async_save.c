/* Asynchronous saves: a queue of saves, and the thread that writes them in order.
 *
 * The caller stalls for its part of a save: it waits until fewer than save.inflight saves are under way, looks up the plan
 * in the cache, and copies the state to staging memory. It does not communicate. The thread does the rest on its own lane:
 * it writes what is staged, syncs, agrees with the other ranks and commits. A failure on either side fails the save on all
 * ranks, by an agreement of the threads, and is returned by the next save or wait. Until then, later saves are not written.
 * The lock is taken when a job begins, is handed over, or ends. */
#include <inttypes.h>
#include <math.h>
#include <pthread.h>
#include <stdio.h>
#include <string.h>
#include <time.h>

#include "core/alloc.h"
#include "core/clock.h"
#include "core/rlimits.h"
#include "engine/save/native_save.h"
#include "engine/store_metrics.h"

#define WATCH_NS (100 * NS_PER_MS)
/* Grace period of the thread after a stop request; half of it is spent draining the transfer. */
#define STOP_NS (10 * NS_PER_S)

struct async_save {
    struct native_engine *engine;
    pthread_t thread;
    bool running;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    /* under the lock */
    struct native_job *jobs; /* a ring of save.inflight */
    uint32_t first, count;   /* in progress */
    bool leave;
    struct cb_err failure; /* code != 0: not returned yet */
};

static void wait_for_change(struct async_save *self, uint64_t until_ns)
{
    struct timespec until = {.tv_sec = (time_t)(until_ns / NS_PER_S), .tv_nsec = (long)(until_ns % NS_PER_S)};
    pthread_cond_timedwait(&self->changed, &self->lock, &until);
}

/* --- the thread --- */

static int persist(struct async_save *self, struct native_job *job, bool after_failure)
{
    struct native_operation *operation = &job->operation;
    struct status_page *page = self->engine->setup.page;
    getrusage(RUSAGE_THREAD, &operation->usage);
    store_metrics_begin(operation->lane->store);
    timeline_watch_backoff(&operation->timeline, operation->lane->store);
    status_page_enter_behind(page, OP_SAVE, STATE_WAIT, clock_monotonic_ns());
    atomic_store_explicit(&page->behind_iteration, job->options.iteration, memory_order_relaxed);
    atomic_store_explicit(&page->behind_bytes_done, 0, memory_order_relaxed);
    atomic_store_explicit(&page->behind_bytes_total, 0, memory_order_relaxed);
    if (after_failure)
        return cb_fail(&job->err, CB_ERR_ABORTED, "saving %s: not written, because the save before it failed",
                       job->path);
    int rc = native_persist(operation, job, job->code, &job->err);
    return rc ? cb_context(&job->err, "saving %s behind, rank %" PRIu32, job->path, self->engine->rank) : 0;
}

static void fill(struct native_job *job)
{
    struct native_operation *operation = &job->operation;
    struct sample *sample = operation->sample;
    timeline_stop(&operation->timeline);
    timeline_merge(&operation->timeline, &job->front);
    native_fill(operation);
    double stall_s = (double)(job->front.end_ns - job->front.start_ns) / 1e9;
    sample->values[METRIC_STALL_S] = stall_s;
    sample->values[METRIC_STALL_WAIT_S] = job->stall_wait_s;
    sample->values[METRIC_PERSIST_S] = sample->values[METRIC_OP_S] - stall_s;
    if (job->code)
        sample->flags |= SAMPLE_FAILED;
    else if (operation->engine->setup.config.fsync)
        sample->values[METRIC_DURABLE_S] = sample->values[METRIC_OP_S];
}

static void end_job(struct async_save *self, struct native_job *job, int code)
{
    job->gave_up = code != 0;
    sem_post(&job->written_more);
    pthread_mutex_lock(&self->lock);
    while (!job->handed_over)
        pthread_cond_wait(&self->changed, &self->lock);
    job->code = code;
    fill(job);
    if (code && self->failure.code == 0)
        self->failure = job->err;
    self->first = (self->first + 1) % self->engine->setup.config.inflight;
    self->count--;
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->lock);
}

static void *live(void *context)
{
    struct async_save *self = context;
    for (;;) {
        pthread_mutex_lock(&self->lock);
        struct native_job *job = &self->jobs[self->first];
        while (!self->leave && (self->count == 0 || !job->queued))
            pthread_cond_wait(&self->changed, &self->lock);
        bool leave = self->leave, after_failure = self->failure.code != 0;
        pthread_mutex_unlock(&self->lock);
        if (leave)
            return NULL;
        end_job(self, job, persist(self, job, after_failure));
    }
}

/* --- starting and stopping --- */

static int check_setup(const struct native_engine *engine, struct cb_err *err)
{
    if (engine->back.store && engine->back.comm && engine->setup.device)
        return 0;
    return cb_fail(err, CB_ERR_INTERNAL, "the engine was made without what saves need that go on behind");
}

int async_save_make(struct native_engine *engine, struct cb_err *err)
{
    if (engine->async_save)
        return 0;
    int rc = check_setup(engine, err);
    if (rc)
        return rc;
    struct async_save *self = calloc(1, sizeof *self);
    struct native_job *jobs = calloc(engine->setup.config.inflight, sizeof *jobs);
    if (!self || !jobs) {
        free(self);
        free(jobs);
        return alloc_fail(err, "for saves that go on behind");
    }
    pthread_condattr_t attributes;
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->changed, &attributes);
    pthread_condattr_destroy(&attributes);
    self->engine = engine;
    self->jobs = jobs;
    for (uint32_t i = 0; i < engine->setup.config.inflight; i++) {
        sem_init(&jobs[i].staged_more, 0, 0);
        sem_init(&jobs[i].written_more, 0, 0);
    }
    engine->async_save = self;
    int failed = pthread_create(&self->thread, NULL, live, self);
    self->running = failed == 0;
    return failed ? rlimits_fail_thread(failed, "the thread of saves that go on behind", err) : 0;
}

void async_save_free(struct native_engine *engine)
{
    struct async_save *self = engine->async_save;
    if (!self)
        return;
    pthread_mutex_lock(&self->lock);
    self->leave = true;
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->lock);
    if (self->running)
        pthread_join(self->thread, NULL);
    for (uint32_t i = 0; i < engine->setup.config.inflight; i++) {
        sem_destroy(&self->jobs[i].staged_more);
        sem_destroy(&self->jobs[i].written_more);
    }
    pthread_cond_destroy(&self->changed);
    pthread_mutex_destroy(&self->lock);
    free(self->jobs);
    free(self);
    engine->async_save = NULL;
}

bool async_save_stop(struct native_engine *engine)
{
    struct async_save *self = engine->async_save;
    if (!self)
        return true;
    uint64_t give_up_ns = clock_monotonic_ns() + STOP_NS;
    pthread_mutex_lock(&self->lock);
    if (self->count > 0)
        comm_interrupt(engine->back.comm);
    while (self->count > 0 && clock_monotonic_ns() < give_up_ns)
        wait_for_change(self, clock_monotonic_ns() + WATCH_NS);
    bool ended = self->count == 0;
    pthread_mutex_unlock(&self->lock);
    return ended && !transfer_is_stuck(engine->back.transfer);
}

/* --- the calling thread --- */

/* Waits, with the lock held, until at most `left` saves are under way. */
static int wait_until(struct async_save *self, uint32_t left, uint64_t deadline_ns, struct cb_err *err)
{
    /* Saves after a failed one are not written: they end immediately, before the failure is returned. */
    while (self->count > left || (self->failure.code && self->count > 0)) {
        uint64_t now_ns = clock_monotonic_ns();
        int rc = comm_check(self->engine->front.comm, err);
        if (!rc && now_ns > deadline_ns)
            rc = cb_fail(err, CB_ERR_TIMEOUT, "a save that goes on behind did not end in time");
        if (rc)
            return rc;
        wait_for_change(self, now_ns + WATCH_NS);
    }
    return 0;
}

int async_save_wait(struct native_engine *engine, uint32_t left, uint64_t deadline_ns, struct cb_err *err)
{
    struct async_save *self = engine->async_save;
    if (!self)
        return 0;
    pthread_mutex_lock(&self->lock);
    int rc = wait_until(self, left, deadline_ns, err);
    if (!rc && self->failure.code) {
        rc = self->failure.code;
        if (err)
            *err = self->failure;
        self->failure.code = 0;
    }
    pthread_mutex_unlock(&self->lock);
    return rc;
}

uint32_t async_save_under_way(struct native_engine *engine)
{
    struct async_save *self = engine->async_save;
    if (!self)
        return 0;
    pthread_mutex_lock(&self->lock);
    uint32_t count = self->count;
    pthread_mutex_unlock(&self->lock);
    return count;
}

/* Waits until no save uses plan, schedule and staging memory, so that they can change. Does not return a save's
 * failure. */
static int idle(struct native_engine *engine, struct cb_err *err)
{
    struct async_save *self = engine->async_save;
    pthread_mutex_lock(&self->lock);
    uint32_t own = 1; /* the calling save counts, too */
    int rc = 0;
    while (!rc && self->count > own) {
        rc = comm_check(engine->front.comm, err);
        wait_for_change(self, clock_monotonic_ns() + WATCH_NS);
    }
    pthread_mutex_unlock(&self->lock);
    return rc;
}

static struct native_job *begin_job(struct async_save *self, struct native_operation *operation)
{
    pthread_mutex_lock(&self->lock);
    uint32_t slot = (self->first + self->count) % self->engine->setup.config.inflight;
    struct native_job *job = &self->jobs[slot];
    job->queued = job->handed_over = false;
    self->count++;
    pthread_mutex_unlock(&self->lock);
    job->operation = *operation;
    snprintf(job->path, sizeof job->path, "%s", operation->path);
    job->options = *operation->options;
    job->operation.path = job->path;
    job->operation.options = &job->options;
    job->operation.lane = &self->engine->back;
    job->save = self->engine->save;
    job->front = operation->timeline;
    job->area = slot;
    job->code = 0;
    job->stage_failed = job->gave_up = false;
    job->rounds_staged = job->rounds_written = 0;
    while (sem_trywait(&job->staged_more) == 0 || sem_trywait(&job->written_more) == 0)
        ; /* drop unused posts */
    timeline_start_async(&job->operation.timeline, &job->front, STATE_WAIT);
    return job;
}

static void count_rounds(struct native_job *job)
{
    const struct staging *staging = &job->save->staging;
    for (size_t i = 0; i < 2; i++)
        job->left_in_round[i] =
            i < staging->round_count ? staging->rounds[i].end_request - staging->rounds[i].first_request : SIZE_MAX;
    job->operation.bytes_copied = job->save->copied_bytes;
}

static void queue(struct native_job *job)
{
    struct async_save *self = job->operation.engine->async_save;
    pthread_mutex_lock(&self->lock);
    job->queued = true;
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->lock);
}

/* Ends the stall. */
static void hand_over(struct async_save *self, struct native_job *job)
{
    timeline_take_over(&job->front, &job->operation.timeline);
    pthread_mutex_lock(&self->lock);
    job->queued = job->handed_over = true;
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->lock);
}

/* Copying failed: a thread that is already writing notices stage_failed; otherwise the job starts as failed. */
static void fail_stage(struct native_job *job, const struct cb_err *why)
{
    if (job->queued) {
        job->stage_err = *why;
        atomic_store_explicit(&job->stage_failed, true, memory_order_release);
        sem_post(&job->staged_more);
    } else {
        job->code = why->code;
        job->err = *why;
    }
}

int async_save_run(struct native_operation *operation, struct cb_err *err)
{
    struct native_engine *engine = operation->engine;
    struct async_save *self = engine->async_save;
    struct cb_err why;
    operation->usage_of = RUSAGE_THREAD;
    native_begin(operation, STATE_WAIT);
    int rc = async_save_wait(engine, engine->setup.config.inflight - 1, operation->options->deadline_ns, err);
    if (rc) {
        timeline_stop(&operation->timeline);
        return rc;
    }
    struct native_job *job = begin_job(self, operation);
    uint64_t now_ns = timeline_enter(&job->front, STATE_PLAN);
    job->stall_wait_s = (double)(now_ns - job->front.start_ns) / 1e9;
    job->code = native_prepare(&job->operation, true, idle, &job->err);
    if (!job->code) {
        count_rounds(job);
        if (native_stage(job, queue, &why) != 0)
            fail_stage(job, &why);
    }
    job->operation.cpu_s = native_cpu_seconds(operation);
    hand_over(self, job);
    return 0;
}
