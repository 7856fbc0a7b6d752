/* Sockets that a forked child closes at once: while a child keeps a socket, the other end cannot tell that the process to
 * which it belongs has ended. Such a child is every worker of a PyTorch DataLoader. (A program that is executed closes its
 * copies itself, by close-on-exec.)
 *
 * A socket is opened and added between fork_socket_hold and fork_socket_release, during which no other thread can fork.
 * Thread-safe on distinct objects. */
#ifndef CORE_FORK_SOCKET_H
#define CORE_FORK_SOCKET_H

/* All zeros: no socket. In a child all of them are again without one. */
struct fork_socket {
    struct fork_socket *next, **link; /* `link` NULL: no socket */
    int fd;
};

void fork_socket_hold(void);
void fork_socket_release(void);
/* Takes over the descriptor, or does nothing if it is negative. Call it between hold and release. */
void fork_socket_add(struct fork_socket *self, int fd);
/* Leaves `from` without a socket. */
void fork_socket_move(struct fork_socket *self, struct fork_socket *from);
void fork_socket_close(struct fork_socket *self);

#endif
