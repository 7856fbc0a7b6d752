/* What every program does at its start: standard streams, signals, and where it is installed. */
#include "core/process.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
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

/* The start time: the 20th number after the state, which follows the name in parentheses; 0 if the process has ended or
 * cannot be seen. */
static uint64_t read_start(uint64_t pid, bool *ended)
{
    char path[64], text[1024];
    uint64_t start = 0;
    snprintf(path, sizeof path, "/proc/%" PRIu64 "/stat", pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t len = fd >= 0 ? read(fd, text, sizeof text - 1) : 0;
    if (fd >= 0)
        close(fd);
    text[len > 0 ? len : 0] = '\0';
    const char *at = strrchr(text, ')');
    *ended = at && (strncmp(at, ") Z", 3) == 0 || strncmp(at, ") X", 3) == 0);
    for (int i = 0; at && i < 20; i++)
        at = strchr(at + 1, ' ');
    if (at && !*ended)
        start = strtoull(at, NULL, 10);
    return start;
}

void process_identify(struct process_identity *self)
{
    bool ended;
    *self = (struct process_identity){.pid = (uint64_t)getpid()};
    int fd = open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC);
    ssize_t len = fd >= 0 ? read(fd, self->machine, 36) : 0;
    if (fd >= 0)
        close(fd);
    ssize_t more = len == 36 ? readlink("/proc/self/ns/pid", self->machine + len, sizeof self->machine - 40) : 0;
    self->machine[more > 0 ? len + more : 0] = '\0'; /* "": unknown, and equal to no other process */
    self->start_ticks = read_start(self->pid, &ended);
}

bool process_has_ended(const struct process_identity *other)
{
    struct process_identity self;
    bool ended = false;
    process_identify(&self);
    if (!*self.machine || strcmp(self.machine, other->machine) != 0 || other->pid == 0 || other->pid > INT32_MAX)
        return false;
    if (kill((pid_t)other->pid, 0) != 0 && errno == ESRCH)
        return true;
    uint64_t start = read_start(other->pid, &ended);
    return ended || (start > 0 && start != other->start_ticks);
}

void process_node_name(char name[PROCESS_NODE_BYTES])
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789._-";
    const char *node = getenv("SLURMD_NODENAME");
    char host[65] = "host";
    if (gethostname(host, sizeof host - 1) != 0)
        snprintf(host, sizeof host, "host");
    size_t len = node ? strspn(node, plain) : 0;
    bool is_host = len > 0 && strncmp(host, node, len) == 0 && (host[len] == '\0' || host[len] == '.');
    if (len == 0 || node[len] || len > 100 || is_host)
        snprintf(name, PROCESS_NODE_BYTES, "%s", host);
    else
        snprintf(name, PROCESS_NODE_BYTES, "%s.%s", node, host);
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
