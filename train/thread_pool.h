/* The threads on which one rank computes: a function runs on all of them simultaneously.
 *
 * The caller is one of them and computes, too. Between two calls the others wait, at first by polling, since a training
 * step consists of hundreds of short calls. Used from one thread. */
#ifndef TRAIN_THREAD_POOL_H
#define TRAIN_THREAD_POOL_H

#include <stdint.h>

#include "core/err.h"

struct thread_pool;

/* `threads` (at least 1), including the caller's. */
int thread_pool_new(uint32_t threads, struct thread_pool **team, struct cb_err *err) CB_MUST_CHECK;
void thread_pool_free(struct thread_pool *self);
uint32_t thread_pool_threads(const struct thread_pool *self);

/* Calls work(context, thread) with thread = 0 ... threads - 1, each on its own thread, and returns when all are done.
 * A NULL team is one thread. */
void thread_pool_run(struct thread_pool *self, void (*work)(void *context, uint32_t thread), void *context);

/* A barrier inside `work`: waits until all threads of the team have reached it. */
void thread_pool_meet(struct thread_pool *self);

/* This thread's part of `count`: [*first, *end), in multiples of `grain`. */
void thread_pool_share(const struct thread_pool *self, uint32_t thread, uint64_t count, uint64_t grain, uint64_t *first,
                       uint64_t *end);

#endif
