/* For tests: ranks as threads of one process. Defines the functions of comm/comm.h over a meeting
 * place in memory, so that a test program that includes this links no MPI. */
#ifndef TESTS_THREAD_COMM_H
#define TESTS_THREAD_COMM_H

#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

#include "comm/comm.h"
#include "core/clock.h"

#define THREAD_COMM_MAX_RANKS 16

/* A send or a receive; a receive takes the first send that fits, once both are there. */
struct posted {
    bool is_send, done;
    uint32_t from, to, tag;
    void *bytes;
    uint64_t len;
};

struct meeting {
    pthread_mutex_t lock;
    pthread_cond_t all_here;
    uint32_t size, arrived;
    uint64_t round;
    bool broken;
    struct agreement building, done;
    uint64_t building_word, word; /* rank 0's */
    void *bytes;                  /* rank 0's, of a broadcast */
    struct posted *messages;      /* in the order in which they were started */
    uint32_t message_count, message_capacity;
};

struct comm {
    struct meeting *meeting;
    uint32_t rank;
    comm_check_fn check;
    const void *check_context;
    _Atomic bool interrupted;
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

int comm_agree_and_share(struct comm *self, int code, uint64_t number, uint64_t *word, uint64_t deadline_ns,
                         struct agreement *agreement, struct cb_err *err)
{
    struct meeting *meeting = self->meeting;
    pthread_mutex_lock(&meeting->lock);
    uint64_t round = meeting->round;
    int rc = meeting->broken ? cb_fail(err, CB_ERR_ABORTED, "an earlier collective did not end") : 0;
    if (!rc) {
        add_vote(&meeting->building, self->rank, code, number, meeting->arrived == 0);
        meeting->building_word = self->rank == 0 ? *word : meeting->building_word;
        if (++meeting->arrived == meeting->size) {
            meeting->done = meeting->building;
            meeting->word = meeting->building_word;
            meeting->arrived = 0;
            meeting->round++;
            pthread_cond_broadcast(&meeting->all_here);
        } else {
            rc = wait_for_round(self, round, deadline_ns, err);
        }
        if (!rc) {
            *agreement = meeting->done;
            *word = meeting->word;
        }
    }
    pthread_mutex_unlock(&meeting->lock);
    return rc;
}

int comm_agree(struct comm *self, int code, uint64_t number, uint64_t deadline_ns, struct agreement *agreement,
               struct cb_err *err)
{
    uint64_t unused = 0;
    return comm_agree_and_share(self, code, number, &unused, deadline_ns, agreement, err);
}

int comm_agree_local(struct comm *self, int code, uint64_t number, uint64_t deadline_ns, struct agreement *agreement,
                     struct cb_err *err)
{
    return comm_agree(self, code, number, deadline_ns, agreement, err);
}

void comm_share_reason(struct comm *self, const struct agreement *agreement, const char *mine, uint64_t deadline_ns,
                       char reason[COMM_REASON_BYTES])
{
    (void)self, (void)agreement, (void)mine, (void)deadline_ns;
    reason[0] = '\0';
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

void comm_give_up(struct comm *self)
{
    pthread_mutex_lock(&self->meeting->lock);
    self->meeting->broken = true;
    pthread_cond_broadcast(&self->meeting->all_here);
    pthread_mutex_unlock(&self->meeting->lock);
}

void comm_interrupt(struct comm *self)
{
    self->interrupted = true;
}

int comm_check(const struct comm *self, struct cb_err *err)
{
    if (self->interrupted)
        return cb_fail(err, CB_ERR_ABORTED, "the run ended before it was done");
    return self->check ? self->check(self->check_context, err) : 0;
}

void comm_watch(struct comm *self, comm_check_fn check, const void *context)
{
    self->check = check;
    self->check_context = context;
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

uint32_t comm_fullest_node(const struct comm *self)
{
    return self->meeting->size;
}

const char *comm_library(const struct comm *self)
{
    (void)self;
    return "threads";
}

static inline int post_message(struct comm *self, const struct posted *posted, struct comm_message *message)
{
    struct meeting *meeting = self->meeting;
    pthread_mutex_lock(&meeting->lock);
    if (meeting->message_count == meeting->message_capacity) {
        meeting->message_capacity = meeting->message_capacity ? 2 * meeting->message_capacity : 1024;
        meeting->messages = realloc(meeting->messages, meeting->message_capacity * sizeof *meeting->messages);
    }
    message->handle = meeting->message_count;
    meeting->messages[meeting->message_count++] = *posted;
    pthread_mutex_unlock(&meeting->lock);
    return 0;
}

int comm_send(struct comm *self, const void *bytes, uint64_t len, uint32_t to, uint32_t tag,
              struct comm_message *message, struct cb_err *err)
{
    (void)err;
    return post_message(self, &(struct posted){true, false, self->rank, to, tag, (void *)bytes, len}, message);
}

int comm_receive(struct comm *self, void *bytes, uint64_t len, uint32_t from, uint32_t tag,
                 struct comm_message *message, struct cb_err *err)
{
    (void)err;
    return post_message(self, &(struct posted){false, false, from, self->rank, tag, bytes, len}, message);
}

/* Gives the receive at `index` its send: the first that is not taken, once no receive before it is open. */
static inline int match_message(struct meeting *meeting, uint32_t index, struct cb_err *err)
{
    struct posted *receive = &meeting->messages[index];
    for (uint32_t i = 0; i < meeting->message_count; i++) {
        struct posted *other = &meeting->messages[i];
        if (other->done || other->from != receive->from || other->to != receive->to || other->tag != receive->tag)
            continue;
        if (!other->is_send && i < index)
            return 0;
        if (!other->is_send)
            continue;
        if (other->len != receive->len)
            return cb_fail(err, CB_ERR_INTERNAL, "a message of %llu bytes for a receive of %llu",
                           (unsigned long long)other->len, (unsigned long long)receive->len);
        memcpy(receive->bytes, other->bytes, other->len);
        other->done = receive->done = true;
        return 0;
    }
    return 0;
}

int comm_message_test(struct comm *self, struct comm_message *message, bool *done, struct cb_err *err)
{
    struct meeting *meeting = self->meeting;
    pthread_mutex_lock(&meeting->lock);
    uint32_t index = (uint32_t)message->handle;
    struct posted *posted = &meeting->messages[index];
    int rc = !posted->done && !posted->is_send ? match_message(meeting, index, err) : 0;
    *done = posted->done;
    pthread_mutex_unlock(&meeting->lock);
    return rc;
}

void comm_abandon_messages(struct comm *self)
{
    (void)self; /* what is given up on stays posted */
}

#endif
