/* Exclusive time in a state: what a rank is blocked on, one state at a time.
 *
 * The parts sum to the whole exactly, since a switch reads the clock once and closes one state and
 * opens the next with the same reading. A switch also shows the state on the status page (plain
 * stores); nothing here allocates or can fail. A value; one thread, but for timeline_take_over.
 *
 * An asynchronous operation has two: the first until its caller goes on, the second from there. */
#ifndef ENGINE_TIMELINE_H
#define ENGINE_TIMELINE_H

#include <stdbool.h>
#include <stdint.h>

#include "run/status_page.h"

struct timeline {
    struct status_page *page; /* borrowed */
    bool async;               /* shown as the asynchronous part */
    /* What passes before this is another timeline's: UINT64_MAX until it ends there; 0 where it is all ours. */
    _Atomic uint64_t counts_from_ns;
    enum operation op;
    enum rank_state state;
    uint64_t start_ns, since_ns; /* monotonic: of the operation, of the state */
    uint64_t end_ns;             /* 0 while it runs */
    uint64_t own_ns;             /* duration until timeline_own_done; 0 before */
    uint64_t spent_ns[STATE_COUNT];
};

void timeline_start(struct timeline *self, struct status_page *page, enum operation op, enum rank_state state);
/* The second timeline of an operation: on its own thread from now on, counting from timeline_take_over. */
void timeline_start_async(struct timeline *self, const struct timeline *first, enum rank_state state);
/* The first one ends here, and the second counts. Returns now. For the thread of the first. */
uint64_t timeline_take_over(struct timeline *first, struct timeline *async);
/* Makes one of both, of the whole operation; after timeline_stop of the second. */
void timeline_merge(struct timeline *async, const struct timeline *first);
/* Goes on in another state; entering the present one again only keeps the page fresh. Returns now. */
uint64_t timeline_enter(struct timeline *self, enum rank_state state);
/* What passed since `since_ns`, all of it in the state it was entered in then, is no part of the operation. */
void timeline_leave_out(struct timeline *self, uint64_t since_ns);
/* This rank's own bytes are done: what follows is waiting for others and the commit. */
void timeline_own_done(struct timeline *self);
/* Ends the operation; the page goes back to OP_NONE. Returns the duration. */
uint64_t timeline_stop(struct timeline *self);

/* op_s, own_s and the time of each state, in seconds. */
void timeline_fill(const struct timeline *self, struct sample *sample);

#endif
