/* Many calls at once: one curl multi handle on one epoll, driven by whoever calls, one thread at a time.
 *
 * A call begins when the window of requests lets it, is repeated after a backoff as its failure says, is cancelled when
 * it stalls, and is given up when its attempts or its time are over. */
#ifndef STORE_S3_S3_LOOP_H
#define STORE_S3_S3_LOOP_H

#include <stdint.h>

#include "core/err.h"
#include "store/s3/s3_call.h"

struct s3_loop;

/* `capacity`: calls at a time. */
int s3_loop_new(struct s3_session *session, uint32_t capacity, struct s3_loop **loop, struct cb_err *err) CB_MUST_CHECK;
void s3_loop_free(struct s3_loop *self); /* no call may be under way */

/* Takes a call until it is done. Does not wait. */
void s3_loop_start(struct s3_loop *self, struct s3_call *call);
/* Does what can be done now, and waits for more until a call is done or the monotonic deadline passed. */
int s3_loop_drive(struct s3_loop *self, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;
/* A call that is done, or NULL; in the order in which they ended. */
struct s3_call *s3_loop_take_done(struct s3_loop *self);
/* Runs one call to its end; others that end on the way wait to be taken. Returns the call's code. */
int s3_loop_run(struct s3_loop *self, struct s3_call *call, struct cb_err *err) CB_MUST_CHECK;
/* Ends every call with CB_ERR_ABORTED, at once. */
void s3_loop_cancel(struct s3_loop *self);
/* Makes a wait of another thread in s3_loop_drive return. */
void s3_loop_wake(struct s3_loop *self);

struct store_statistics *s3_loop_statistics(struct s3_loop *self);

#endif
