/* Many calls at once: one curl multi handle on one epoll, driven by its callers, one thread at a time.
 *
 * A call starts when the window of requests allows it, is retried with a backoff that depends on its failure, is
 * cancelled when it stalls, and is given up after its attempts or its time. */
#ifndef STORE_S3_S3_LOOP_H
#define STORE_S3_S3_LOOP_H

#include <stdint.h>

#include "core/err.h"
#include "store/s3/s3_call.h"

struct s3_loop;

/* `capacity`: concurrent calls. */
int s3_loop_new(struct s3_session *session, uint32_t capacity, struct s3_loop **loop, struct cb_err *err) CB_MUST_CHECK;
void s3_loop_free(struct s3_loop *self); /* no call may be pending */

/* Queues a call, which must stay until it is done. Does not wait. */
void s3_loop_start(struct s3_loop *self, struct s3_call *call);
/* Makes progress, and waits until a call is done or the monotonic deadline has passed. */
int s3_loop_drive(struct s3_loop *self, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;
/* A finished call, or NULL; in order of completion. */
struct s3_call *s3_loop_take_done(struct s3_loop *self);
/* Runs one call until it is done; others that end meanwhile stay queued. Returns the call's code. */
int s3_loop_run(struct s3_loop *self, struct s3_call *call, struct cb_err *err) CB_MUST_CHECK;
/* Ends every call with CB_ERR_ABORTED, immediately. */
void s3_loop_cancel(struct s3_loop *self);
/* Makes another thread's wait in s3_loop_drive return. */
void s3_loop_wake(struct s3_loop *self);

struct store_statistics *s3_loop_statistics(struct s3_loop *self);

#endif
