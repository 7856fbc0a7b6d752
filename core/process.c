/* What every program does at its start: standard streams, signals, and where it is installed. */
#include "core/process.h"

#include <fcntl.h>
#include <signal.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void process_begin(void)
{
    /* Opened in the wrong direction, so that using a stream that was closed still fails. If it cannot be opened, the risk
     * of a write into a data file stays as it was. */
    static const int flags[] = {O_WRONLY, O_RDONLY, O_RDONLY};
    for (int fd = STDIN_FILENO; fd <= STDERR_FILENO; fd++)
        if (fcntl(fd, F_GETFD) < 0 && open("/dev/null", flags[fd]) < 0)
            break;
    signal(SIGPIPE, SIG_IGN);
    signal(SIGXFSZ, SIG_IGN);
}

bool process_own_path(char path[PATH_MAX])
{
    ssize_t len = readlink("/proc/self/exe", path, PATH_MAX - 1);
    path[len > 0 ? len : 0] = '\0';
    return len > 0;
}

void process_folder(char folder[PATH_MAX])
{
    char program[PATH_MAX];
    (void)process_own_path(program);
    const char *slash = strrchr(program, '/');
    snprintf(folder, PATH_MAX, "%.*s", slash ? (int)(slash - program) : 0, program);
}

static bool is_program(const char *folder, size_t len, const char *name, char path[PATH_MAX])
{
    int used = snprintf(path, PATH_MAX, "%.*s/%s", (int)len, folder, name);
    return used < PATH_MAX && path[0] == '/' && access(path, X_OK) == 0;
}

bool process_find_program(const char *name, char path[PATH_MAX])
{
    char beside[PATH_MAX];
    process_folder(beside);
    if (*beside && is_program(beside, strlen(beside), name, path))
        return true;
    for (const char *at = getenv("PATH"); at && *at; at += strcspn(at, ":"), at += *at == ':')
        if (is_program(at, strcspn(at, ":"), name, path))
            return true;
    return false;
}
