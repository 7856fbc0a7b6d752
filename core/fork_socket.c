#include "core/fork_socket.h"

#include <pthread.h>
#include <stddef.h>
#include <unistd.h>

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static pthread_once_t once = PTHREAD_ONCE_INIT;
static struct fork_socket *sockets;

/* With the lock held by the thread that forks; calls only what a child of a process with threads may call. */
static void close_in_child(void)
{
    while (sockets) {
        struct fork_socket *self = sockets;
        sockets = self->next;
        close(self->fd);
        *self = (struct fork_socket){.fd = -1};
    }
    fork_socket_release();
}

static void before_fork(void)
{
    pthread_mutex_lock(&lock);
}

static void watch_forks(void)
{
    (void)!pthread_atfork(before_fork, fork_socket_release, close_in_child); /* fails if memory is short */
}

void fork_socket_hold(void)
{
    (void)pthread_once(&once, watch_forks);
    pthread_mutex_lock(&lock);
}

void fork_socket_release(void)
{
    pthread_mutex_unlock(&lock);
}

static void link_in(struct fork_socket *self, int fd)
{
    *self = (struct fork_socket){.next = sockets, .link = &sockets, .fd = fd};
    if (sockets)
        sockets->link = &self->next;
    sockets = self;
}

static void link_out(struct fork_socket *self)
{
    *self->link = self->next;
    if (self->next)
        self->next->link = self->link;
    *self = (struct fork_socket){.fd = -1};
}

void fork_socket_add(struct fork_socket *self, int fd)
{
    if (fd >= 0)
        link_in(self, fd);
}

void fork_socket_move(struct fork_socket *self, struct fork_socket *from)
{
    fork_socket_hold();
    int fd = from->link ? from->fd : -1;
    if (fd >= 0)
        link_out(from);
    fork_socket_add(self, fd);
    fork_socket_release();
}

void fork_socket_close(struct fork_socket *self)
{
    fork_socket_hold();
    if (self->link) {
        close(self->fd);
        link_out(self);
    }
    fork_socket_release();
}
