/* The TCP connections between ranks: meeting, addresses, and messages from rank to rank.
 *
 * Each pair of ranks has one connection for each direction, opened by the sender. Frames on it are: a hello, the table of
 * addresses, why the ranks do not meet, parts of messages, the notice that a rank is gone, a goodbye. The caller holds the
 * lock. Only starting and saying goodbye wait. */
#ifndef COMM_TCP_WORLD_H
#define COMM_TCP_WORLD_H

#include <stddef.h>

#include "comm/comm_messages.h"
#include "comm/comm_tcp.h"
#include "core/fork_socket.h"

#define HOST_BYTES 80
#define ADDRESS_BYTES 48
#define STRANGERS_MOST 64 /* connections that have not sent a hello yet */

struct tcp_place {
    char address[ADDRESS_BYTES];
    uint16_t port;
    uint32_t machine; /* the lowest rank on the same machine */
};

/* A message that arrived before its receive; owns `bytes`. */
struct tcp_early {
    struct tcp_early *next;
    uint64_t context, length, moved;
    uint32_t peer, tag;
    char *bytes;
};

/* Another rank and the connections to it. */
struct tcp_peer {
    struct tcp_place place;
    struct channel *out, *in;
    struct message_transfer *sends, **last_send; /* not completely queued yet, oldest first */
    struct message_transfer *queued;             /* completely queued; done when the connection has sent everything */
    struct message_transfer *arriving;           /* the incomplete message that is arriving; */
    struct tcp_early *arriving_early;            /* at most one of the two is set */
    bool gone, left;
};

struct tcp_stranger {
    struct channel *channel;
    uint64_t since_ns;
};

struct tcp_world {
    struct message_world base;
    struct channel_context *server, *client;
    struct fork_socket listener;
    uint16_t port;
    uint32_t came; /* on rank 0, the number of hellos */
    bool has_table;
    char host[HOST_BYTES];
    char (*hosts)[HOST_BYTES]; /* on rank 0: the machine id of each rank */
    struct tcp_peer *peers;
    struct tcp_stranger strangers[STRANGERS_MOST];
    size_t stranger_count;
    struct message_transfer *receives, **last_receive; /* without a message yet, oldest first */
    struct tcp_early *earlies, **last_early;
};

#endif
