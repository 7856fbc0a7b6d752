/* The TCP connections between ranks: meeting, addresses, and messages from rank to rank.
 *
 * Each pair of ranks has one connection for each direction, opened by the sender. Frames on it are: a hello, the table of
 * addresses, parts of messages, the notice that a rank is gone, a goodbye. The caller holds the lock. Only starting and
 * saying goodbye wait. */
#ifndef COMM_TCP_WORLD_H
#define COMM_TCP_WORLD_H

#include <pthread.h>
#include <stddef.h>

#include "comm/comm_internal.h"
#include "comm/comm_tcp.h"

#define HOST_BYTES 80
#define ADDRESS_BYTES 48
#define STRANGERS_MOST 64 /* connections that have not sent a hello yet */

struct tcp_place {
    char address[ADDRESS_BYTES];
    uint16_t port;
    uint32_t machine; /* the lowest rank on the same machine */
};

/* A message to send or receive, part of an operation. */
struct tcp_transfer {
    struct tcp_transfer *next;
    uint64_t context, length, moved;
    uint32_t peer, tag;
    char *bytes;
    bool receives, done, has_other_length;
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
    struct tcp_transfer *sends, **last_send; /* not completely queued yet, oldest first */
    struct tcp_transfer *queued;             /* completely queued; done when the connection has sent everything */
    struct tcp_transfer *arriving;           /* the incomplete message that is arriving; */
    struct tcp_early *arriving_early;        /* at most one of the two is set */
    bool gone, left;
};

struct tcp_stranger {
    struct channel *channel;
    uint64_t since_ns;
};

struct operation;
struct tcp_world {
    struct comm_state state;
    pthread_mutex_t lock;
    struct channel_context *server, *client;
    int listening_fd;
    uint16_t port;
    uint32_t rank, size, came; /* on rank 0, the number of hellos */
    bool has_table;
    char host[HOST_BYTES];
    char (*hosts)[HOST_BYTES]; /* on rank 0: the machine id of each rank */
    struct tcp_peer *peers;
    struct tcp_stranger strangers[STRANGERS_MOST];
    size_t stranger_count;
    struct tcp_transfer *receives, **last_receive; /* without a message yet, oldest first */
    struct tcp_early *earlies, **last_early;
    uint64_t contexts;            /* number of the newest communicator */
    struct operation *operations; /* of communicators: those that have not ended */
    uint32_t first_gone;          /* the rank that disconnected first; `size` if all are connected */
};

/* Returns when all ranks have connected and know each other's addresses. */
int tcp_world_new(const struct comm_tcp_place *place, uint64_t deadline_ns, struct tcp_world **world,
                  struct cb_err *err) CB_MUST_CHECK;
void tcp_world_free(struct tcp_world *self);
/* Tells the others that this rank leaves normally, so that they do not report it as gone. Takes at most a second. */
void tcp_world_say_goodbye(struct tcp_world *self);

/* Starts a transfer, which must stay valid until its flag `done` is set. */
void tcp_world_transfer(struct tcp_world *self, struct tcp_transfer *transfer);
/* Delivers a rank's message to itself. */
int tcp_world_send_to_self(struct tcp_world *self, struct tcp_transfer *send, struct cb_err *err) CB_MUST_CHECK;
/* Sends and receives as much as possible without waiting. */
int tcp_world_progress(struct tcp_world *self, struct cb_err *err) CB_MUST_CHECK;

#endif
