/* For tests: ranks as threads of one process. Defines the functions of worker/comm.h over a meeting
 * place in memory, so that a test program that includes this links no MPI. */
#ifndef TESTS_THREAD_COMM_H
#define TESTS_THREAD_COMM_H

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "core/clock.h"
#include "worker/comm.h"

#define THREAD_COMM_MAX_RANKS 16

struct meeting {
    pthread_mutex_t lock;
    pthread_cond_t all_here;
    uint32_t size, arrived;
    uint64_t round;
    bool broken;
    struct agreement building, done;
    void *bytes; /* rank 0's, of a broadcast */
};

struct comm {
    struct meeting *meeting;
    uint32_t rank;
    struct status_page *page;
};

static inline void meeting_init(struct meeting *self, uint32_t size)
{
    pthread_condattr_t attributes;
    memset(self, 0, sizeof *self);
    self->size = size;
    pthread_mutex_init(&self->lock, NULL);
    pthread_condattr_init(&attributes);
    pthread_condattr_setclock(&attributes, CLOCK_MONOTONIC);
    pthread_cond_init(&self->all_here, &attributes);
    pthread_condattr_destroy(&attributes);
}

static inline void add_vote(struct agreement *all, uint32_t rank, int code, uint64_t number, bool first)
{
    if (first)
        *all = (struct agreement){.min = UINT64_MAX};
    if (code && (all->failed_count == 0 || rank < all->failed_rank)) {
        all->code = code;
        all->failed_rank = rank;
    }
    all->failed_count += code ? 1 : 0;
    all->sum += number;
    all->min = number < all->min ? number : all->min;
    all->max = number > all->max ? number : all->max;
}

/* Waits with the lock held until the round is over, in slices, watching the page as MPI's would. */
static inline int wait_for_round(struct comm *self, uint64_t round, uint64_t deadline_ns, struct cb_err *err)
{
    struct meeting *meeting = self->meeting;
    while (meeting->round == round) {
        uint64_t until_ns = clock_monotonic_ns() + 10 * NS_PER_MS;
        struct timespec until = {(time_t)(until_ns / NS_PER_S), (long)(until_ns % NS_PER_S)};
        pthread_cond_timedwait(&meeting->all_here, &meeting->lock, &until);
        if (meeting->round != round)
            break;
        int rc = comm_check(self, err);
        if (!rc && meeting->broken)
            rc = cb_fail(err, CB_ERR_ABORTED, "another rank gave up waiting");
        if (!rc && clock_monotonic_ns() > deadline_ns)
            rc = cb_fail(err, CB_ERR_TIMEOUT, "another rank did not come");
        if (rc) {
            meeting->broken = true;
            return rc;
        }
    }
    return 0;
}

int comm_agree(struct comm *self, int code, uint64_t number, uint64_t deadline_ns, struct agreement *agreement,
               struct cb_err *err)
{
    struct meeting *meeting = self->meeting;
    pthread_mutex_lock(&meeting->lock);
    uint64_t round = meeting->round;
    int rc = meeting->broken ? cb_fail(err, CB_ERR_ABORTED, "an earlier collective did not end") : 0;
    if (!rc) {
        add_vote(&meeting->building, self->rank, code, number, meeting->arrived == 0);
        if (++meeting->arrived == meeting->size) {
            meeting->done = meeting->building;
            meeting->arrived = 0;
            meeting->round++;
            pthread_cond_broadcast(&meeting->all_here);
        } else {
            rc = wait_for_round(self, round, deadline_ns, err);
        }
        if (!rc)
            *agreement = meeting->done;
    }
    pthread_mutex_unlock(&meeting->lock);
    return rc;
}

int comm_agree_local(struct comm *self, int code, uint64_t number, uint64_t deadline_ns, struct agreement *agreement,
                     struct cb_err *err)
{
    return comm_agree(self, code, number, deadline_ns, agreement, err);
}

int comm_barrier(struct comm *self, uint64_t deadline_ns, struct cb_err *err)
{
    struct agreement unused;
    return comm_agree(self, 0, 0, deadline_ns, &unused, err);
}

int comm_broadcast(struct comm *self, void *bytes, uint64_t len, uint64_t deadline_ns, struct cb_err *err)
{
    if (self->rank == 0)
        self->meeting->bytes = bytes;
    int rc = comm_barrier(self, deadline_ns, err);
    if (!rc && self->rank != 0)
        memcpy(bytes, self->meeting->bytes, len);
    return rc ? rc : comm_barrier(self, deadline_ns, err);
}

int comm_check(const struct comm *self, struct cb_err *err)
{
    if (self->page && self->page->stop == STOP_NOW)
        return cb_fail(err, CB_ERR_ABORTED, "stopped on request");
    return 0;
}

void comm_watch(struct comm *self, struct status_page *page)
{
    self->page = page;
}

uint32_t comm_rank(const struct comm *self)
{
    return self->rank;
}

uint32_t comm_size(const struct comm *self)
{
    return self->meeting->size;
}

uint32_t comm_local_rank(const struct comm *self)
{
    return self->rank;
}

uint32_t comm_local_size(const struct comm *self)
{
    return self->meeting->size;
}

const char *comm_library(const struct comm *self)
{
    (void)self;
    return "threads";
}

#endif
