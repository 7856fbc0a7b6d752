/* Exclusive time in a state. */
#include "engine/timeline.h"

#include <string.h>

#include "core/clock.h"

void timeline_start(struct timeline *self, struct status_page *page, enum operation op, enum rank_state state)
{
    memset(self, 0, sizeof *self);
    self->page = page;
    self->op = op;
    self->state = state;
    self->start_ns = clock_monotonic_ns();
    self->since_ns = self->start_ns;
    status_page_enter(page, op, state, self->start_ns);
}

void timeline_watch_backoff(struct timeline *self, struct store *store)
{
    self->store = store;
    self->backoff_ns = store_waited_in_backoff_ns(store);
}

/* Backoff since the last call. */
static uint64_t take_backoff(struct timeline *self)
{
    uint64_t before_ns = self->backoff_ns;
    if (self->store)
        self->backoff_ns = store_waited_in_backoff_ns(self->store);
    return self->backoff_ns - before_ns;
}

static void show(const struct timeline *self, enum operation op, enum rank_state state, uint64_t now_ns)
{
    if (self->async)
        status_page_enter_behind(self->page, op, state, now_ns);
    else
        status_page_enter(self->page, op, state, now_ns);
}

void timeline_start_async(struct timeline *self, const struct timeline *first, enum rank_state state)
{
    memset(self, 0, sizeof *self);
    self->page = first->page;
    self->async = true;
    self->counts_from_ns = UINT64_MAX;
    self->op = first->op;
    self->state = state;
    self->start_ns = first->start_ns;
    self->since_ns = clock_monotonic_ns();
}

uint64_t timeline_take_over(struct timeline *first, struct timeline *async)
{
    timeline_stop(first);
    atomic_store_explicit(&async->counts_from_ns, first->end_ns, memory_order_release);
    return first->end_ns;
}

void timeline_merge(struct timeline *async, const struct timeline *first)
{
    uint64_t sum_ns = 0;
    for (int state = 0; state < STATE_COUNT; state++) {
        async->spent_ns[state] += first->spent_ns[state];
        sum_ns += async->spent_ns[state];
    }
    /* The time between the two clock readings of timeline_take_over. */
    uint64_t whole_ns = async->end_ns - async->start_ns;
    async->spent_ns[STATE_OTHER] += whole_ns > sum_ns ? whole_ns - sum_ns : 0;
}

uint64_t timeline_enter(struct timeline *self, enum rank_state state)
{
    uint64_t now_ns = clock_monotonic_ns();
    uint64_t counts_from_ns = atomic_load_explicit(&self->counts_from_ns, memory_order_acquire);
    uint64_t since_ns = self->since_ns > counts_from_ns ? self->since_ns : counts_from_ns;
    uint64_t spent_ns = now_ns > since_ns ? now_ns - since_ns : 0, backoff_ns = take_backoff(self);
    backoff_ns = backoff_ns < spent_ns ? backoff_ns : spent_ns;
    self->spent_ns[self->state] += spent_ns - backoff_ns;
    self->spent_ns[STATE_BACKOFF] += backoff_ns;
    self->since_ns = now_ns;
    if (state != self->state) {
        self->state = state;
        show(self, self->op, state, now_ns);
    }
    return now_ns;
}

void timeline_leave_out(struct timeline *self, uint64_t since_ns)
{
    uint64_t now_ns = clock_monotonic_ns();
    self->start_ns += now_ns - since_ns;
    (void)take_backoff(self);
    self->since_ns = now_ns;
}

void timeline_own_done(struct timeline *self)
{
    self->own_ns = clock_monotonic_ns() - self->start_ns;
}

uint64_t timeline_stop(struct timeline *self)
{
    self->end_ns = timeline_enter(self, self->state);
    show(self, OP_NONE, STATE_OTHER, self->end_ns);
    return self->end_ns - self->start_ns;
}

static double seconds(uint64_t duration_ns)
{
    return (double)duration_ns / 1e9;
}

void timeline_fill(const struct timeline *self, struct sample *sample)
{
    for (int state = 0; state < STATE_COUNT; state++)
        sample->values[metric_of_state((enum rank_state)state)] = seconds(self->spent_ns[state]);
    sample->values[METRIC_OP_S] = seconds(self->end_ns - self->start_ns);
    sample->values[METRIC_OWN_S] = seconds(self->own_ns != 0 ? self->own_ns : self->end_ns - self->start_ns);
}
