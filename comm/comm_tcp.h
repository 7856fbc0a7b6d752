/* comm/comm.h over TCP, for programs without MPI.
 *
 * Connections use TLS 1.3 with a key that all ranks share (core/channel.h); the handshake rejects a peer without the
 * key. All ranks know the address of rank 0, which sends each rank the addresses of the others. A rank connects to
 * another rank when it first sends to it. Collectives go through their lowest rank: they suit agreements and small
 * messages, not the gradients of a training. A message without a matching receive is kept in memory. If a connection
 * breaks, all ranks learn which rank is gone. Messages make progress only during calls that wait or test. */
#ifndef COMM_COMM_TCP_H
#define COMM_COMM_TCP_H

#include <stdint.h>

#include "comm/comm.h"
#include "core/channel.h"
#include "core/err.h"

struct comm_tcp_place {
    uint32_t rank, size;
    const char *address; /* of rank 0, a host name or an IP address; used by the other ranks */
    uint16_t port;       /* on which rank 0 listens */
    int listening_fd;    /* rank 0's socket from channel_listen; taken over, also on failure. 0: it opens one itself */
    bool
        is_listening; /* rank 0 listened before others learned its port: one that refuses connections for 5 s has ended */
    struct channel_key key;
};

/* Returns when all ranks have connected. CB_ERR_TIMEOUT at the deadline, naming the first missing rank; CB_ERR_ABORTED if
 * a rank has ended after it connected. Rank 0 tells the ranks that have come why it fails. Collective. */
int comm_tcp_new(const struct comm_tcp_place *place, uint64_t deadline_ns, struct comm **comm,
                 struct cb_err *err) CB_MUST_CHECK;

#endif
