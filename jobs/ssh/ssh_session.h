/* An authenticated connection to the last machine of a route, through the machines before it.
 *
 * Non-blocking underneath: calls of libssh2 that return LIBSSH2_ERROR_EAGAIN are repeated after ssh_session_wait(),
 * the only place that waits. Host keys are always checked against known_hosts; there is no way to disable that. One
 * thread. */
#ifndef JOBS_SSH_SSH_SESSION_H
#define JOBS_SSH_SSH_SESSION_H

#include <libssh2.h>
#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"
#include "jobs/ssh/ssh_config.h"

#define SSH_CONNECT_DEFAULT_NS UINT64_C(20000000000)
#define SSH_ALIVE_DEFAULT_S 15

/* One machine of the route: its session, and the channel of the previous session that carries it. */
struct ssh_hop {
    LIBSSH2_SESSION *handle;
    LIBSSH2_CHANNEL *tunnel;  /* NULL for the first hop, which has the socket */
    LIBSSH2_SESSION *carrier; /* the session that the tunnel runs in */
    struct ssh_session *whole;
};

struct ssh_session {
    const struct ssh_route *route; /* borrowed */
    int socket;
    struct ssh_hop hops[SSH_HOPS_MAX];
    size_t count;      /* hops with a session */
    bool is_shut;      /* the connection is unusable */
    bool in_use;       /* authenticated: send keepalives */
    uint64_t alive_ns; /* interval of keepalives; 0 for none */
    uint64_t next_alive_ns;
    uint64_t silence_ns;          /* how long the other side may take for an immediate reply */
    uint64_t heard_ns, waited_ns; /* when the other side last sent something; when we last checked */
};

/* Connects within `timeout_ns` per machine of the route (0: ConnectTimeout, or the default). CB_ERR_TIMEOUT and
 * CB_ERR_SYSTEM are worth a retry; CB_ERR_USAGE (rejected key, unknown host) and CB_ERR_CORRUPT (host key differs)
 * are not. `route` must outlive the session. */
int ssh_session_open(struct ssh_session **self, const struct ssh_route *route, uint64_t timeout_ns,
                     struct cb_err *err) CB_MUST_CHECK;

/* Closes it in bounded time, even if it is broken. Accepts NULL. */
void ssh_session_close(struct ssh_session *self);

LIBSSH2_SESSION *ssh_session_handle(struct ssh_session *self);

/* Waits until something may have changed, or for the monotonic deadline (CB_ERR_TIMEOUT). Sends keepalives.
 * CB_ERR_SYSTEM if the connection is gone. */
int ssh_session_wait(struct ssh_session *self, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;

/* Whether a packet is half sent: libssh2 accepts only a repetition of the call that started it. */
bool ssh_is_sending(LIBSSH2_SESSION *handle);

/* Fails with the last error of libssh2: "WHAT: …". The code is CB_ERR_SYSTEM. */
int ssh_session_fail(struct ssh_session *self, struct cb_err *err, const char *what);

/* Repeats a call of libssh2 that returns a number while it would block. `rc` is its result; `failed` is not 0 if the
 * waiting failed. */
#define SSH_AWAIT(session, deadline_ns, rc, call, failed, err)                                                         \
    do {                                                                                                               \
        (rc) = (call);                                                                                                 \
        (failed) = (rc) == LIBSSH2_ERROR_EAGAIN ? ssh_session_wait(session, deadline_ns, err) : 0;                     \
    } while ((rc) == LIBSSH2_ERROR_EAGAIN && (failed) == 0)

/* The same for a call that returns a pointer. */
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
