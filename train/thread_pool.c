/* The threads for a rank's arithmetic, and how they wait. */
#include "train/thread_pool.h"

#include "core/alloc.h"

#include <pthread.h>
#include <sched.h>
#include <semaphore.h>
#include <stdatomic.h>
#include <stdbool.h>

/* Polls of a counter before a thread sleeps: some tens of microseconds, the length of a short call. */
#define LOOKS 4000
#define YIELDS                                                                                                         \
    8 /* then this many polls with sched_yield: with more threads than cores, the awaited thread may need this core */

struct member {
    struct thread_pool *team;
    pthread_t thread;
    uint32_t index;
};

struct thread_pool {
    uint32_t threads, started;
    struct member *members;
    void (*work)(void *context, uint32_t thread);
    void *context;
    bool leave;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    atomic_uint calls;  /* incremented per call */
    atomic_uint absent; /* threads that have not reached the current barrier */
    atomic_uint met;    /* incremented per barrier */
};

static void pause_a_little(void)
{
#if defined(__x86_64__) || defined(__i386__)
    __builtin_ia32_pause();
#endif
}

/* Waits until *counter differs from `old`. */
static void wait_for(struct thread_pool *self, atomic_uint *counter, unsigned old)
{
    for (int i = 0; i < LOOKS; i++) {
        if (atomic_load_explicit(counter, memory_order_acquire) != old)
            return;
        pause_a_little();
    }
    for (int i = 0; i < YIELDS; i++) {
        if (atomic_load_explicit(counter, memory_order_acquire) != old)
            return;
        sched_yield();
    }
    pthread_mutex_lock(&self->lock);
    while (atomic_load(counter) == old)
        pthread_cond_wait(&self->changed, &self->lock);
    pthread_mutex_unlock(&self->lock);
}

static void advance(struct thread_pool *self, atomic_uint *counter)
{
    pthread_mutex_lock(&self->lock);
    atomic_fetch_add(counter, 1);
    pthread_cond_broadcast(&self->changed);
    pthread_mutex_unlock(&self->lock);
}

void thread_pool_meet(struct thread_pool *self)
{
    if (!self || self->threads == 1)
        return;
    unsigned meeting = atomic_load(&self->met);
    if (atomic_fetch_sub(&self->absent, 1) == 1) {
        atomic_store(&self->absent, self->threads);
        advance(self, &self->met);
    } else {
        wait_for(self, &self->met, meeting);
    }
}

static void *serve(void *context)
{
    struct member *member = context;
    struct thread_pool *self = member->team;
    for (unsigned call = 0;; call++) {
        wait_for(self, &self->calls, call);
        if (self->leave)
            return NULL;
        self->work(self->context, member->index);
        thread_pool_meet(self);
    }
}

void thread_pool_run(struct thread_pool *self, void (*work)(void *context, uint32_t thread), void *context)
{
    if (!self || self->threads == 1) {
        work(context, 0);
        return;
    }
    self->work = work;
    self->context = context;
    advance(self, &self->calls);
    work(context, 0);
    thread_pool_meet(self);
}

int thread_pool_new(uint32_t threads, struct thread_pool **team, struct cb_err *err)
{
    struct thread_pool *self = calloc(1, sizeof *self);
    struct member *members = calloc(threads ? threads : 1, sizeof *members);
    if (!self || !members) {
        free(self);
        free(members);
        return alloc_fail(err, "for %u threads", threads);
    }
    self->threads = threads ? threads : 1;
    self->members = members;
    pthread_mutex_init(&self->lock, NULL);
    pthread_cond_init(&self->changed, NULL);
    atomic_init(&self->absent, self->threads);
    self->started = 1;
    for (uint32_t i = 1; i < self->threads; i++) {
        members[i] = (struct member){.team = self, .index = i};
        int failed = pthread_create(&members[i].thread, NULL, serve, &members[i]);
        if (failed) {
            thread_pool_free(self);
            return cb_fail_errno(err, failed, "starting thread %u of %u to compute with", i + 1, threads);
        }
        self->started++;
    }
    *team = self;
    return 0;
}

void thread_pool_free(struct thread_pool *self)
{
    if (!self)
        return;
    self->leave = true;
    advance(self, &self->calls);
    for (uint32_t i = 1; i < self->started; i++)
        pthread_join(self->members[i].thread, NULL);
    pthread_cond_destroy(&self->changed);
    pthread_mutex_destroy(&self->lock);
    free(self->members);
    free(self);
}

uint32_t thread_pool_threads(const struct thread_pool *self)
{
    return self ? self->threads : 1;
}

void thread_pool_share(const struct thread_pool *self, uint32_t thread, uint64_t count, uint64_t grain, uint64_t *first,
                       uint64_t *end)
{
    uint64_t threads = thread_pool_threads(self), grains = (count + grain - 1) / grain;
    uint64_t from = grains * thread / threads * grain, to = grains * (thread + 1) / threads * grain;
    *first = from < count ? from : count;
    *end = to < count ? to : count;
}
