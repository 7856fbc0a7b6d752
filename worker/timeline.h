/* Exclusive time in a state: what a rank is blocked on, one state at a time.
 *
 * The parts sum to the whole exactly, since a switch reads the clock once and closes one state and
 * opens the next with the same reading. A switch also shows the state on the status page (plain
 * stores); nothing here allocates or can fail. A value; one thread. */
#ifndef WORKER_TIMELINE_H
#define WORKER_TIMELINE_H

#include <stdint.h>

#include "core/status_page.h"

struct timeline {
    struct status_page *page; /* borrowed */
    enum operation op;
    enum rank_state state;
    uint64_t start_ns, since_ns; /* monotonic: of the operation, of the state */
    uint64_t end_ns;             /* 0 while it runs */
    uint64_t own_ns;             /* duration until timeline_own_done; 0 before */
    uint64_t spent_ns[STATE_COUNT];
};

void timeline_start(struct timeline *self, struct status_page *page, enum operation op, enum rank_state state);
/* Goes on in another state; entering the present one again only keeps the page fresh. Returns now. */
uint64_t timeline_enter(struct timeline *self, enum rank_state state);
/* This rank's own bytes are done: what follows is waiting for others and the commit. */
void timeline_own_done(struct timeline *self);
/* Ends the operation; the page goes back to OP_NONE. Returns the duration. */
uint64_t timeline_stop(struct timeline *self);

/* op_s, own_s and the time of each state, in seconds. */
void timeline_fill(const struct timeline *self, struct sample *sample);

#endif
