/* What a session is made of, for the files that open it and that wait on it. */
#ifndef JOBS_SSH_SSH_SESSION_INTERNAL_H
#define JOBS_SSH_SSH_SESSION_INTERNAL_H

#ifdef HAVE_SSH2

#include <libssh2.h>

#include "jobs/ssh/ssh_session.h"

/* One machine of the route: its session, and the channel of the previous session that carries it. */
struct hop {
    LIBSSH2_SESSION *handle;
    LIBSSH2_CHANNEL *tunnel;  /* NULL for the first hop, which has the socket */
    LIBSSH2_SESSION *carrier; /* the session that the tunnel runs in */
    struct ssh_session *whole;
};

struct ssh_session {
    const struct ssh_route *route; /* borrowed */
    int socket;
    struct hop hops[SSH_HOPS_MAX];
    size_t count;      /* hops with a session */
    bool is_shut;      /* the connection is unusable */
    bool in_use;       /* authenticated: send keepalives */
    uint64_t alive_ns; /* interval of keepalives; 0 for none */
    uint64_t next_alive_ns;
    uint64_t silence_ns;
    uint64_t heard_ns, waited_ns; /* when the other side last sent something; when we last checked */
};

/* A packet is half sent: libssh2 accepts only a repetition of the call that started it. */
static inline bool ssh_is_sending(LIBSSH2_SESSION *handle)
{
    return libssh2_session_block_directions(handle) & LIBSSH2_SESSION_BLOCK_OUTBOUND;
}

#endif

#endif
