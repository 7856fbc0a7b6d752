/* comm/comm.h over three functions of a program that has its own way to send messages. They get memory of this room only,
 * which stays valid until a message is done; what never ends keeps it for ever. Each rank counts as a machine. */
#ifndef COMM_COMM_CALLBACKS_H
#define COMM_COMM_CALLBACKS_H

#include "comm/comm.h"

#define COMM_CALLBACK_TAGS (UINT32_C(1) << 18) /* tags that the functions get are smaller */

/* Each returns 0, or another value if it failed. One is called at a time, by any thread that uses the communicator. */
struct comm_callbacks {
    void *context;
    int (*send)(void *context, const void *bytes, uint64_t length, uint32_t to, uint32_t tag, void **message);
    int (*receive)(void *context, void *bytes, uint64_t length, uint32_t from, uint32_t tag, void **message);
    int (*test)(void *context, void *message, int *done);
};

/* Not collective. */
int comm_callbacks_new(const struct comm_callbacks *callbacks, uint32_t rank, uint32_t size, struct comm **comm,
                       struct cb_err *err) CB_MUST_CHECK;

#endif
