/* Probes munged's socket. */
#include "cli/doctor/doctor_munge.h"

#include <errno.h>
#include <stdio.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

enum munge munge_look(const char *socket_path)
{
    struct sockaddr_un address = {.sun_family = AF_UNIX};
    if ((size_t)snprintf(address.sun_path, sizeof address.sun_path, "%s", socket_path) >= sizeof address.sun_path)
        return MUNGE_ABSENT;
    int fd = socket(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (fd < 0)
        return MUNGE_ABSENT;
    int failed = connect(fd, (const struct sockaddr *)&address, sizeof address) == 0 ? 0 : errno;
    close(fd);
    if (failed == 0 || failed == EAGAIN) /* EAGAIN: its connection queue is full */
        return MUNGE_ANSWERS;
    return failed == ECONNREFUSED ? MUNGE_DEAD : MUNGE_ABSENT;
}
