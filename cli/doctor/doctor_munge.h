/* Whether a munged answers. Open MPI's PMIx asks it for a credential when mpirun starts, and where the socket of one
 * that has died is left, it tries for some 2 s before it goes on without. */
#ifndef CLI_DOCTOR_DOCTOR_MUNGE_H
#define CLI_DOCTOR_DOCTOR_MUNGE_H

#define MUNGE_SOCKET "/run/munge/munge.socket.2" /* libmunge's own; nothing but its build can change it */

enum munge {
    MUNGE_ABSENT, /* no socket, or one that this user may not see */
    MUNGE_ANSWERS,
    MUNGE_DEAD, /* a socket that nobody listens at */
};

/* Connects to the socket, says nothing, and closes. Never waits: a munged that is busy answers. */
enum munge munge_look(const char *socket_path);

#endif
