/* comm/comm.h over messages from rank to rank: what carries them is a world (comm/tcp_world.c, comm/comm_callbacks.c). The
 * caller of its operations holds the lock. */
#ifndef COMM_COMM_MESSAGES_H
#define COMM_COMM_MESSAGES_H

#include <pthread.h>

#include "comm/comm_internal.h"

/* A message to send or receive, part of an operation. */
struct message_transfer {
    struct message_transfer *next;
    uint64_t context, length, moved; /* context: the number of the communicator */
    uint32_t peer, tag;
    char *bytes;
    bool receives, done, has_other_length;
};

struct message_world;
struct message_world_ops {
    const char *name;
    /* Starts a transfer, which stays valid until its flag `done` is set, or the world is freed. A rank may send to
     * itself. */
    int (*start)(struct message_world *self, struct message_transfer *transfer, struct cb_err *err);
    /* Sends and receives as much as possible without waiting. */
    int (*progress)(struct message_world *self, struct cb_err *err);
    /* Whether no transfer with the rank can end any more. */
    bool (*has_lost)(const struct message_world *self, uint32_t rank, bool receives);
    /* On rank 0: an operation that it waits for cannot end since the rank is lost: tells all others. NULL: they time out. */
    void (*tell_lost)(struct message_world *self, uint32_t rank);
    uint32_t (*machine_of)(const struct message_world *self, uint32_t rank); /* the lowest rank on the same machine */
    /* Tells the others that this rank leaves normally. Takes at most a second. */
    void (*say_goodbye)(struct message_world *self);
    void (*free)(struct message_world *self); /* ends transfers in progress, too */
};

/* First member of every world's own struct. */
struct operation;
struct message_world {
    const struct message_world_ops *ops;
    struct comm_state state;
    pthread_mutex_t lock;
    uint32_t rank, size;
    uint32_t first_gone;          /* the rank that was lost first; `size` if none was */
    uint64_t contexts;            /* number of the newest communicator */
    struct operation *operations; /* of communicators: those that have not ended */
};

/* The first communicator of a world, which belongs to it from here on, also after a failure. */
int comm_messages_new(struct message_world *world, struct comm **comm, struct cb_err *err) CB_MUST_CHECK;

#endif
