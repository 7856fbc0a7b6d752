/* Shared by both exchanges: stages, the first failure, and waiting until all blocks are done. */
#include "engine/exchange/exchange.h"

#include <assert.h>
#include <inttypes.h>
#include <sched.h>
#include <stdlib.h>
#include <time.h>

#include "core/clock.h"
#include "engine/exchange/exchange_window.h"

#define YIELD_NS (200 * NS_PER_US)
#define SLEEP_NS (50 * NS_PER_US)

void exchange_fail(struct exchange *self)
{
    self->failed = true;
    self->ops->abandon(self);
}

void exchange_give_up(struct exchange *self)
{
    if (!self->failed)
        exchange_fail(self); /* its messages may still use the memory */
}

void exchange_free(struct exchange *self)
{
    if (!self)
        return;
    self->ops->release(self);
    exchange_window_release(&self->window);
    free(self);
}

struct exchange_targets exchange_begin_stage(struct exchange *self, uint32_t stage)
{
    assert(self->failed || (self->open == 0 && self->window.next == self->window.end));
    return exchange_window_begin_stage(&self->window, stage);
}

void exchange_landed(struct exchange *self, uint32_t target, uint64_t bytes)
{
    exchange_window_landed(&self->window, target, bytes);
}

void exchange_reading_done(struct exchange *self)
{
    self->window.reading_done = true;
}

uint64_t exchange_copied(const struct exchange *self)
{
    return self->copied;
}

bool exchange_progress(struct exchange *self)
{
    while (!self->failed && self->ops->turn(self))
        continue;
    return !self->failed && self->ops->is_travelling(self);
}

/* --- waiting --- */

struct wait {
    uint64_t deadline_ns, now_ns, moved_ns;
};

/* The message for a time-out: names `oldest`, the first open block (or EXCHANGE_NO_BLOCK), and the rank that reads it. */
static int describe(const struct exchange *self, int code, const char *why, struct cb_err *err)
{
    const struct exchange_window *window = &self->window;
    size_t oldest = self->ops->oldest_block(self);
    if (oldest == EXCHANGE_NO_BLOCK)
        return cb_fail(err, code, "%s in the exchange of the load", why);
    const struct share_block *block = exchange_block(window, oldest);
    return cb_fail(err, code, "%s while %s, which rank %" PRIu32 " reads, is %s", why,
                   exchange_tensor(window, exchange_part(window, block, 0))->fqn,
                   exchange_rank_of(window, exchange_group(window, block), block->reader), self->ops->travels);
}

/* Fails if waiting must not continue. */
static int check_wait(const struct exchange *self, struct wait *wait, struct cb_err *err)
{
    struct cb_err why;
    int rc = comm_check(self->window.setup.comm, &why);
    wait->now_ns = clock_monotonic_ns();
    if (!rc && wait->now_ns > wait->deadline_ns)
        rc = cb_fail(&why, CB_ERR_TIMEOUT, "the deadline passed");
    return rc ? describe(self, rc, why.message, err) : 0;
}

/* If nothing moved, yields the core for a moment, later sleeps. */
static void pause_wait(struct wait *wait, bool moved)
{
    struct timespec pause = {.tv_nsec = SLEEP_NS};
    if (moved)
        wait->moved_ns = wait->now_ns;
    else if (wait->now_ns - wait->moved_ns < YIELD_NS)
        sched_yield();
    else
        nanosleep(&pause, NULL);
}

int exchange_finish_stage(struct exchange *self, uint64_t deadline_ns, struct cb_err *err)
{
    struct wait wait = {.deadline_ns = deadline_ns, .moved_ns = clock_monotonic_ns()};
    while (!self->failed && (self->open > 0 || self->window.next < self->window.end)) {
        int rc = check_wait(self, &wait, err);
        if (rc) {
            exchange_fail(self);
            return rc;
        }
        pause_wait(&wait, self->ops->turn(self));
    }
    if (!self->failed)
        return 0;
    *err = self->err;
    return self->ops->context ? cb_context(err, "%s", self->ops->context) : err->code;
}
