/* The threads that one rank computes with: a function runs on all of them at once.
 *
 * The caller is one of them and computes, too. Between two calls the others wait, at first by polling, since a
 * training step is hundreds of short calls. Used from one thread. */
#ifndef TRAIN_THREAD_POOL_H
#define TRAIN_THREAD_POOL_H

#include <stdint.h>

#include "core/err.h"

struct team;

/* `threads` (at least 1), including the caller's. */
int team_new(uint32_t threads, struct team **team, struct cb_err *err) CB_MUST_CHECK;
void team_free(struct team *self);
uint32_t team_threads(const struct team *self);

/* Calls work(context, thread) with thread = 0 ... threads - 1, each on its own thread, and returns when all are done.
 * A NULL team is one thread. */
void team_run(struct team *self, void (*work)(void *context, uint32_t thread), void *context);

/* A barrier inside `work`: waits until all threads of the team have reached it. */
void team_meet(struct team *self);

/* This thread's part of `count`: [*first, *end), in multiples of `grain`. */
void team_share(const struct team *self, uint32_t thread, uint64_t count, uint64_t grain, uint64_t *first,
                uint64_t *end);

#endif
