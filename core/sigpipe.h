/* Writing to a connection that the peer has closed raises SIGPIPE, which would end a program that does not expect it.
 * Between the two calls the signal is blocked in the calling thread and in threads that it starts; at the end it is
 * discarded if a write in between raised it. May be nested. Thread-safe. */
#ifndef CORE_SIGPIPE_H
#define CORE_SIGPIPE_H

#include <signal.h>
#include <stdbool.h>

struct sigpipe_guard {
    sigset_t before;
    bool was_pending;
};

void sigpipe_block(struct sigpipe_guard *self);
void sigpipe_restore(const struct sigpipe_guard *self);

#endif
