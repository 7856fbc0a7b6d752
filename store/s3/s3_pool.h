/* The calls of a store over one or several loops: the caller's thread drives a single loop; of several, each has its
 * own thread, for more throughput than one core can handle. Used by one thread. */
#ifndef STORE_S3_S3_POOL_H
#define STORE_S3_S3_POOL_H

#include <stdint.h>

#include "core/err.h"
#include "store/s3/s3_loop.h"

struct s3_pool;

/* `own` is the caller's loop (which keeps ownership), used if `loops` is 1. `depth`: concurrent calls. */
int s3_pool_new(struct s3_session *session, struct s3_loop *own, uint32_t loops, uint32_t depth, struct s3_pool **pool,
                struct cb_err *err) CB_MUST_CHECK;
void s3_pool_free(struct s3_pool *self); /* no call may be pending */

/* As in store/s3/s3_loop.h; `number` of a call always picks the same loop, which has its connection. */
void s3_pool_start(struct s3_pool *self, struct s3_call *call, uint32_t number);
int s3_pool_drive(struct s3_pool *self, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;
struct s3_call *s3_pool_take_done(struct s3_pool *self);
/* Ends every call with CB_ERR_ABORTED; calls of other threads end soon after. */
void s3_pool_cancel(struct s3_pool *self);
/* Adds up the counts of all loops and resets them; no call may be pending. */
void s3_pool_take_statistics(struct s3_pool *self, struct store_statistics *statistics);

#endif
