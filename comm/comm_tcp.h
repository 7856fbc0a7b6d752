/* Ranks talking to each other over TCP, for programs that have no MPI: the same calls of comm/comm.h.
 *
 * Every connection is under TLS 1.3 with the ranks' common key (core/channel.h): who lacks the key is turned away in
 * the handshake. Rank 0 listens where all ranks know, and tells each where the others are. A rank connects to another
 * one when it first sends to it. Collectives go over their lowest rank: meant for agreements and messages, not for the
 * gradients of a training. A message that nobody has asked for yet waits in memory. A rank whose connection breaks is
 * named to all others. Messages move while some rank's call waits or tests, not in between. */
#ifndef COMM_COMM_TCP_H
#define COMM_COMM_TCP_H

#include <stdint.h>

#include "comm/comm.h"
#include "core/channel.h"
#include "core/err.h"

struct comm_tcp_place {
    uint32_t rank, size;
    const char *address; /* rank 0's, a name or a number; used by the others */
    uint16_t port;       /* that rank 0 listens at */
    struct channel_key key;
};

/* Returns when all ranks have come. CB_ERR_TIMEOUT by the deadline, and names who has not. Collective. */
int comm_tcp_new(const struct comm_tcp_place *place, uint64_t deadline_ns, struct comm **comm,
                 struct cb_err *err) CB_MUST_CHECK;

#endif
