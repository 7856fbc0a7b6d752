/* The threads that one rank computes with: a function runs on all of them at once.
 *
 * One thread calls; it computes, too. Between two calls the others wait, at first awake, since a training step
 * is hundreds of short calls. Knows nothing of what is computed. Used from one thread. */
#ifndef TRAIN_THREAD_POOL_H
#define TRAIN_THREAD_POOL_H

#include <stdint.h>

#include "core/err.h"

struct team;

/* `threads` (at least 1), the caller's among them. */
int team_new(uint32_t threads, struct team **team, struct cb_err *err) CB_MUST_CHECK;
void team_free(struct team *self);
uint32_t team_threads(const struct team *self);

/* Calls work(context, thread) with thread = 0 ... threads - 1, each on its own thread, and returns when all are done.
 * A NULL team is one thread. */
void team_run(struct team *self, void (*work)(void *context, uint32_t thread), void *context);

/* Inside `work`: waits until all threads of the team are here. */
void team_meet(struct team *self);

/* The part of `count` that is this thread's: [*first, *end), beginning at multiples of `grain`. */
void team_share(const struct team *self, uint32_t thread, uint64_t count, uint64_t grain, uint64_t *first,
                uint64_t *end);

#endif
