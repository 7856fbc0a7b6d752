/* Probes the socket of munged. Open MPI's PMIx asks munged for a credential when mpirun starts; if the socket of a
 * dead munged is left over, it retries for about 2 s before it continues without. */
#ifndef CLI_DOCTOR_DOCTOR_MUNGE_H
#define CLI_DOCTOR_DOCTOR_MUNGE_H

#define MUNGE_SOCKET "/run/munge/munge.socket.2" /* libmunge's default; only its build can change it */

enum munge {
    MUNGE_ABSENT, /* no socket, or not accessible to this user */
    MUNGE_ANSWERS,
    MUNGE_DEAD, /* no process listens on the socket */
};

/* Connects to the socket and closes it without sending anything. Does not block; a busy munged counts as answering. */
enum munge munge_look(const char *socket_path);

#endif
