#include "core/sigpipe.h"

#include <time.h>

void sigpipe_block(struct sigpipe_guard *self)
{
    sigset_t pipe, pending;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe, &self->before);
    sigpending(&pending);
    self->was_pending = sigismember(&pending, SIGPIPE);
}

void sigpipe_restore(const struct sigpipe_guard *self)
{
    const struct timespec none = {0};
    sigset_t pipe;
    sigemptyset(&pipe);
    sigaddset(&pipe, SIGPIPE);
    while (!self->was_pending && sigtimedwait(&pipe, NULL, &none) > 0)
        ;
    pthread_sigmask(SIG_SETMASK, &self->before, NULL);
}
