/* A thread that reports slow operations. */
#include "cli/report/slow_notice.h"

#include <errno.h>
#include <pthread.h>
#include <signal.h>
#include <stdbool.h>
#include <stdlib.h>
#include <sys/resource.h>
#include <time.h>

#include "core/clock.h"
#include "core/log.h"
#include "core/units.h"

#define FIRST_S 3
#define AGAIN_S 10

struct slow_notice {
    const char *what;
    pthread_t thread;
    pthread_mutex_t lock;
    pthread_cond_t changed;
    bool over;
};

static void say(const struct slow_notice *self, uint64_t since_ns)
{
    struct rusage usage;
    char time[32], memory[32];
    getrusage(RUSAGE_SELF, &usage);
    log_info("%s: %s so far, %s of memory; Ctrl-C ends it", self->what,
             units_format_duration((double)(clock_monotonic_ns() - since_ns), time),
             units_format_bytes((double)usage.ru_maxrss * KIB, memory));
}

static void *watch(void *context)
{
    struct slow_notice *self = context;
    uint64_t since_ns = clock_monotonic_ns();
    struct timespec until;
    clock_gettime(CLOCK_MONOTONIC, &until);
    until.tv_sec += FIRST_S;
    pthread_mutex_lock(&self->lock);
    while (!self->over) {
        if (pthread_cond_timedwait(&self->changed, &self->lock, &until) != ETIMEDOUT)
            continue;
        say(self, since_ns);
        until.tv_sec += AGAIN_S;
    }
    pthread_mutex_unlock(&self->lock);
    return NULL;
}

struct slow_notice *slow_notice_new(const char *what)
{
    struct slow_notice *self = calloc(1, sizeof *self);
    pthread_condattr_t monotonic;
    sigset_t all, before;
    if (!self)
        return NULL;
    self->what = what;
    pthread_mutex_init(&self->lock, NULL);
    pthread_condattr_init(&monotonic);
    pthread_condattr_setclock(&monotonic, CLOCK_MONOTONIC);
    pthread_cond_init(&self->changed, &monotonic);
    pthread_condattr_destroy(&monotonic);
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before); /* signals must interrupt the working thread */
    int failed = pthread_create(&self->thread, NULL, watch, self);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (failed) {
        free(self);
        return NULL;
    }
    return self;
}

void slow_notice_free(struct slow_notice *self)
{
    if (!self)
        return;
    pthread_mutex_lock(&self->lock);
    self->over = true;
    pthread_cond_signal(&self->changed);
    pthread_mutex_unlock(&self->lock);
    pthread_join(self->thread, NULL);
    pthread_cond_destroy(&self->changed);
    pthread_mutex_destroy(&self->lock);
    free(self);
}
