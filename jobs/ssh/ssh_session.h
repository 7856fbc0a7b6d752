/* A connection to the last machine of a route, through those before it, authenticated.
 *
 * Non-blocking underneath: calls of libssh2 that answer LIBSSH2_ERROR_EAGAIN are repeated after
 * ssh_session_wait(), which is where every wait happens and ends. Host keys are checked against
 * known_hosts always; there is no way to switch that off. One thread. */
#ifndef JOBS_SSH_SSH_SESSION_H
#define JOBS_SSH_SSH_SESSION_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "jobs/ssh/ssh_config.h"

#define SSH_CONNECT_DEFAULT_NS UINT64_C(20000000000)
#define SSH_ALIVE_DEFAULT_S 15

struct _LIBSSH2_SESSION;
struct ssh_session;

/* Connects within `timeout_ns` for each machine of the way (0: ConnectTimeout, or the default).
 * CB_ERR_TIMEOUT and CB_ERR_SYSTEM may pass by themselves; CB_ERR_USAGE (a key refused, a host not known)
 * and CB_ERR_CORRUPT (a host key that differs) do not. `route` must outlive the session. */
int ssh_session_open(struct ssh_session **self, const struct ssh_route *route, uint64_t timeout_ns,
                     struct cb_err *err) CB_MUST_CHECK;

/* Ends it in bounded time, also a broken one. Fine on NULL. */
void ssh_session_close(struct ssh_session *self);

struct _LIBSSH2_SESSION *ssh_session_handle(struct ssh_session *self);

/* Until something may have changed, or the monotonic deadline (CB_ERR_TIMEOUT). Keeps the connection alive
 * meanwhile. CB_ERR_SYSTEM where it is gone. */
int ssh_session_wait(struct ssh_session *self, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;

/* Whether a packet is half sent: until its call has been repeated to its end no other may be made. */
bool ssh_session_is_sending(struct ssh_session *self);

/* How long the other side may be silent where it has to answer at once. */
uint64_t ssh_session_silence_ns(const struct ssh_session *self);

/* Fails with what libssh2 says about its last failure: "WHAT: …". The code is CB_ERR_SYSTEM. */
int ssh_session_fail(struct ssh_session *self, struct cb_err *err, const char *what);

/* Repeats a call of libssh2 that gives a negative number while it would block. `rc` is the answer; where
 * the waiting itself failed, `failed` is not 0. */
#define SSH_AWAIT(session, deadline_ns, rc, call, failed, err)                                                         \
    do {                                                                                                               \
        (rc) = (call);                                                                                                 \
        (failed) = (rc) == LIBSSH2_ERROR_EAGAIN ? ssh_session_wait(session, deadline_ns, err) : 0;                     \
    } while ((rc) == LIBSSH2_ERROR_EAGAIN && (failed) == 0)

/* The same for one that gives a pointer. */
#define SSH_AWAIT_POINTER(session, deadline_ns, pointer, call, failed, err)                                            \
    do {                                                                                                               \
        (failed) = 0;                                                                                                  \
        (pointer) = (call);                                                                                            \
        if (!(pointer) && libssh2_session_last_errno(ssh_session_handle(session)) == LIBSSH2_ERROR_EAGAIN)             \
            (failed) = ssh_session_wait(session, deadline_ns, err);                                                    \
        else                                                                                                           \
            break;                                                                                                     \
    } while ((failed) == 0)

#endif
