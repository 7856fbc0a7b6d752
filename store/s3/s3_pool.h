/* The calls of a store over one or several loops: with one, the caller's own thread drives it; with more, each has a
 * thread of its own, for connections that one core cannot fill. Used by one thread. */
#ifndef STORE_S3_S3_POOL_H
#define STORE_S3_S3_POOL_H

#include <stdint.h>

#include "core/err.h"
#include "store/s3/s3_loop.h"

struct s3_pool;

/* `own` is the caller's loop (it stays the caller's), used where `loops` is 1. `depth`: calls at a time. */
int s3_pool_new(struct s3_session *session, struct s3_loop *own, uint32_t loops, uint32_t depth, struct s3_pool **pool,
                struct cb_err *err) CB_MUST_CHECK;
void s3_pool_free(struct s3_pool *self); /* no call may be under way */

/* As in s3_loop.h; `number` of a call picks its loop, always the same for the same call, where its connection is. */
void s3_pool_start(struct s3_pool *self, struct s3_call *call, uint32_t number);
int s3_pool_drive(struct s3_pool *self, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;
struct s3_call *s3_pool_take_done(struct s3_pool *self);
/* Every call ends with CB_ERR_ABORTED; those of other threads soon. */
void s3_pool_cancel(struct s3_pool *self);
/* Moves what all loops have counted; no call may be under way. */
void s3_pool_take_statistics(struct s3_pool *self, struct store_statistics *statistics);

#endif
