/* The connections between ranks over TCP: who is where, and messages from rank to rank.
 *
 * Each pair of ranks has a connection a direction, made by the one that sends. On it go frames: a hello, the table of
 * places, parts of messages, the news that a rank is gone, a goodbye. All calls hold the lock; nothing waits but the
 * start and the goodbye. */
#ifndef COMM_TCP_WORLD_H
#define COMM_TCP_WORLD_H

#include <pthread.h>
#include <stddef.h>

#include "comm/comm_internal.h"
#include "comm/comm_tcp.h"

#define HOST_BYTES 80
#define ADDRESS_BYTES 48
#define STRANGERS_MOST 64 /* connections whose hello has not come */

struct tcp_place {
    char address[ADDRESS_BYTES];
    uint16_t port;
    uint32_t machine; /* the lowest rank there */
};

/* A message to be sent or received: one of an operation's. */
struct tcp_transfer {
    struct tcp_transfer *next;
    uint64_t context, length, moved;
    uint32_t peer, tag;
    char *bytes;
    bool receives, done, has_other_length;
};

/* A message that came before its receive: `bytes` are its own. */
struct tcp_early {
    struct tcp_early *next;
    uint64_t context, length, moved;
    uint32_t peer, tag;
    char *bytes;
};

/* What this rank knows of another one. */
struct tcp_peer {
    struct tcp_place place;
    struct channel *out, *in;
    struct tcp_transfer *sends, **last_send; /* that are not yet queued whole, the oldest first */
    struct tcp_transfer *queued;             /* whole; done when nothing waits in the connection */
    struct tcp_transfer *arriving;           /* one of these where a message has come in part */
    struct tcp_early *arriving_early;
    bool gone, left;
};

struct tcp_stranger {
    struct channel *channel;
    uint64_t since_ns;
};

struct tcp_world {
    struct comm_state state;
    pthread_mutex_t lock;
    struct channel_context *server, *client;
    int listening_fd;
    uint16_t port;
    uint32_t rank, size, came; /* at rank 0: hellos */
    bool has_table;
    char host[HOST_BYTES];
    char (*hosts)[HOST_BYTES]; /* at rank 0, by rank, until all have come */
    struct tcp_peer *peers;
    struct tcp_stranger strangers[STRANGERS_MOST];
    size_t stranger_count;
    struct tcp_transfer *receives, **last_receive; /* that nothing has come for, the oldest first */
    struct tcp_early *earlies, **last_early;
    uint64_t contexts;   /* the newest communicator's number */
    uint32_t first_gone; /* size: nobody */
};

/* Meets the others: returns when all ranks have come and know of each other. */
int tcp_world_new(const struct comm_tcp_place *place, uint64_t deadline_ns, struct tcp_world **world,
                  struct cb_err *err) CB_MUST_CHECK;
void tcp_world_free(struct tcp_world *self);
/* Tells all that this rank leaves in order, so that nobody takes it for gone. Takes a second at most. */
void tcp_world_say_goodbye(struct tcp_world *self);

/* The transfer is done when its flag says so; it must stay until then. */
void tcp_world_transfer(struct tcp_world *self, struct tcp_transfer *transfer);
/* A rank's message to itself goes through memory. */
int tcp_world_send_to_self(struct tcp_world *self, struct tcp_transfer *send, struct cb_err *err) CB_MUST_CHECK;
/* Sends and receives as much as can be without waiting. */
int tcp_world_progress(struct tcp_world *self, struct cb_err *err) CB_MUST_CHECK;

#endif
