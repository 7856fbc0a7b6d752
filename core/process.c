/* The standard streams and signals of a program at its start. Knows nothing of what it will do. */
#include "core/process.h"

#include <fcntl.h>
#include <signal.h>
#include <unistd.h>

/* In the wrong direction: a stream that was closed still fails when it is used. */
static void fill_standard_streams(void)
{
    static const int flags[] = {O_WRONLY, O_RDONLY, O_RDONLY};
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", flags[fd]) < 0)
            return; /* nobody can be told; a write that hits a data file is as likely as before */
}

void process_begin(void)
{
    fill_standard_streams();
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}
