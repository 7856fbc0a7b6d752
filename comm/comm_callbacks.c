#include "comm/comm_callbacks.h"

#include <inttypes.h>
#include <stdlib.h>
#include <string.h>

#include "comm/comm_messages.h"
#include "core/alloc.h"

#define TAGS_OF_CONTEXT (COMM_TAGS + 2)

/* A message of the program, with a copy of its bytes. */
struct callback_message {
    struct callback_message *next;
    struct message_transfer *transfer;
    void *handle; /* the program's */
    char bytes[];
};

struct callback_world {
    struct message_world base;
    struct comm_callbacks callbacks;
    struct callback_message *messages; /* in progress */
};

static int fail_call(const char *what, const struct message_transfer *transfer, int code, struct cb_err *err)
{
    return cb_fail(err, CB_ERR_SYSTEM, "the program's function to %s a message failed (%d): %s rank %u", what, code,
                   transfer->receives ? "from" : "to", transfer->peer);
}

static int start_transfer(struct message_world *world, struct message_transfer *transfer, struct cb_err *err)
{
    struct callback_world *self = (struct callback_world *)world;
    const struct comm_callbacks *callbacks = &self->callbacks;
    uint64_t tag = transfer->context * TAGS_OF_CONTEXT + transfer->tag;
    if (tag >= COMM_CALLBACK_TAGS || transfer->length > COMM_MESSAGE_MAX_BYTES)
        return cb_fail(err, CB_ERR_UNSUPPORTED,
                       "a message of %" PRIu64 " bytes in communicator %" PRIu64
                       " is too much for the program's functions",
                       transfer->length, transfer->context);
    struct callback_message *message = malloc(sizeof *message + transfer->length + 1);
    if (!message)
        return alloc_fail(err, "for a message of %" PRIu64 " bytes", transfer->length);
    *message = (struct callback_message){.transfer = transfer};
    int code;
    if (transfer->receives) {
        code = callbacks->receive(callbacks->context, message->bytes, transfer->length, transfer->peer, (uint32_t)tag,
                                  &message->handle);
    } else {
        memcpy(message->bytes, transfer->bytes, transfer->length);
        code = callbacks->send(callbacks->context, message->bytes, transfer->length, transfer->peer, (uint32_t)tag,
                               &message->handle);
    }
    if (code) {
        free(message);
        return fail_call(transfer->receives ? "receive" : "send", transfer, code, err);
    }
    message->next = self->messages;
    self->messages = message;
    return 0;
}

static int test_messages(struct message_world *world, struct cb_err *err)
{
    struct callback_world *self = (struct callback_world *)world;
    for (struct callback_message **link = &self->messages; *link;) {
        struct callback_message *message = *link;
        struct message_transfer *transfer = message->transfer;
        int done = 0, code = self->callbacks.test(self->callbacks.context, message->handle, &done);
        if (code)
            return fail_call("test", transfer, code, err);
        if (!done) {
            link = &message->next;
            continue;
        }
        if (transfer->receives)
            memcpy(transfer->bytes, message->bytes, transfer->length);
        transfer->done = true;
        *link = message->next;
        free(message);
    }
    return 0;
}

/* The functions do not say that a rank is gone. */
static bool has_lost(const struct message_world *world, uint32_t rank, bool receives)
{
    (void)world, (void)rank, (void)receives;
    return false;
}

static uint32_t machine_of(const struct message_world *world, uint32_t rank)
{
    (void)world;
    return rank;
}

/* Nothing tells the others; they close by themselves. */
static void say_goodbye(struct message_world *world)
{
    (void)world;
}

/* Messages in progress stay, since the program may still use their bytes. */
static void free_world(struct message_world *world)
{
    pthread_mutex_destroy(&world->lock);
    free(world);
}

static const struct message_world_ops callback_ops = {.name = "the program's messages",
                                                      .start = start_transfer,
                                                      .progress = test_messages,
                                                      .has_lost = has_lost,
                                                      .machine_of = machine_of,
                                                      .say_goodbye = say_goodbye,
                                                      .free = free_world};

int comm_callbacks_new(const struct comm_callbacks *callbacks, uint32_t rank, uint32_t size, struct comm **comm,
                       struct cb_err *err)
{
    struct callback_world *self = calloc(1, sizeof *self);
    if (!self)
        return alloc_fail(err, "for the communicator");
    pthread_mutex_init(&self->base.lock, NULL);
    self->base.ops = &callback_ops;
    self->base.rank = rank;
    self->base.size = self->base.first_gone = size;
    self->callbacks = *callbacks;
    return comm_messages_new(&self->base, comm, err);
}
