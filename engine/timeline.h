/* Measures the time that an operation spends in each state. A rank is in one state at a time.
 *
 * The times add up to the operation's time exactly: a switch of state reads the clock once, for the end of one state and
 * the start of the next. A switch also updates the status page, with plain stores. Nothing here allocates or fails. One
 * thread, except for timeline_take_over.
 *
 * An asynchronous operation has two timelines: one until the caller continues, one for the rest. */
#ifndef ENGINE_TIMELINE_H
#define ENGINE_TIMELINE_H

#include <stdbool.h>
#include <stdint.h>

#include "run/status_page.h"
#include "store/store.h"

struct timeline {
    struct status_page *page; /* borrowed */
    struct store *store;      /* borrowed; see timeline_watch_backoff; or NULL */
    uint64_t backoff_ns;      /* of that store, as counted so far */
    bool async;               /* the second timeline of an asynchronous operation */
    /* Time before this belongs to the first timeline: UINT64_MAX until timeline_take_over; 0 if there is only one. */
    _Atomic uint64_t counts_from_ns;
    enum operation op;
    enum rank_state state;
    uint64_t start_ns, since_ns; /* monotonic: of the operation, of the state */
    uint64_t end_ns;             /* 0 while it runs */
    uint64_t own_ns;             /* duration until timeline_own_done; 0 before */
    uint64_t spent_ns[STATE_COUNT];
};

void timeline_start(struct timeline *self, struct status_page *page, enum operation op, enum rank_state state);
/* From now on the time in which this thread only waits for the store's backoff counts as state backoff, in whatever state
 * it happens: the thread learns of it afterwards, so the status page keeps that state. */
void timeline_watch_backoff(struct timeline *self, struct store *store);
/* Starts the second timeline of an operation, on its own thread. Counts from timeline_take_over. */
void timeline_start_async(struct timeline *self, const struct timeline *first, enum rank_state state);
/* Ends the first timeline and lets the second count. Returns the current time. Called by the thread of the first. */
uint64_t timeline_take_over(struct timeline *first, struct timeline *async);
/* Adds the first timeline to the second, so that it covers the whole operation. Call after timeline_stop. */
void timeline_merge(struct timeline *async, const struct timeline *first);
/* Switches to a state; switching to the current state only refreshes the status page. Returns the current time. */
uint64_t timeline_enter(struct timeline *self, enum rank_state state);
/* Excludes the time since `since_ns` from the operation. The state must not have changed since. */
void timeline_leave_out(struct timeline *self, uint64_t since_ns);
/* Marks this rank's own work as done: only the commit and waiting for other ranks follow. */
void timeline_own_done(struct timeline *self);
/* Ends the operation and sets the status page to OP_NONE. Returns the duration. */
uint64_t timeline_stop(struct timeline *self);

/* op_s, own_s and the time of each state, in seconds. */
void timeline_fill(const struct timeline *self, struct sample *sample);

#endif
