/* Child processes: start, wait with a deadline, end their process groups. */
#include "core/child.h"

#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/alloc.h"
#include "core/clock.h"

extern char **environ;

#define FIRST_POLL_NS (200 * NS_PER_US)
#define LONGEST_POLL_NS (10 * NS_PER_MS)
#define STDERR_KEPT_BYTES 65536
#define FIRST_PRIVATE_FD 10

/* Our environment with the added variables in front. getenv() finds the first of two equal names, so our own values of
 * added names are left out. */
static char **make_environment(const struct child_options *options)
{
    const char *const *added = options->environment;
    size_t ours = 0, more = 0;
    while (environ[ours])
        ours++;
    while (added && added[more])
        more++;
    char **all = calloc(ours + more + 1, sizeof *all);
    if (!all)
        return NULL;
    size_t count = 0;
    for (size_t i = 0; i < more; i++)
        memcpy(&all[count++], &added[i], sizeof *all);
    for (size_t i = 0; i < ours; i++) {
        size_t name = strcspn(environ[i], "=") + 1;
        size_t k = 0;
        while (k < more && strncmp(environ[i], added[k], name) != 0)
            k++;
        if (k == more && !(options->leaves_out && options->leaves_out(environ[i])))
            all[count++] = environ[i];
    }
    return all;
}

/* In the child: moves descriptors to their places; -1 opens /dev/null for stdin and leaves others as they are. */
static int place_fds(const struct child_options *options)
{
    int given[3] = {options->stdin_fd, options->stdout_fd, options->stderr_fd};
    for (int i = 0; i < 3; i++) { /* moved away first, since its number may be another one's target */
        if (given[i] >= 0 && given[i] < 3)
            given[i] = fcntl(given[i], F_DUPFD_CLOEXEC, FIRST_PRIVATE_FD);
    }
    if (given[0] < 0)
        given[0] = open("/dev/null", O_RDONLY | O_CLOEXEC);
    for (int i = 0; i < 3; i++)
        if ((i == 0 || given[i] >= 0) && dup2(given[i], i) < 0)
            return -1;
    return 0;
}

/* In the child, between fork and exec: only async-signal-safe calls. All signals are blocked until the parent's
 * handlers are reset, since a handler would swallow a signal that should end the child. */
static void become_child(const struct child_options *options, char **environment, pid_t parent, int report_fd)
{
    if (!options->in_foreground) {
        setpgid(0, 0);
        prctl(PR_SET_PDEATHSIG, options->death_signal ? options->death_signal : SIGTERM);
        if (getppid() != parent)
            _exit(127); /* the parent died before the line above */
    }
    const int reset[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGPIPE, SIGXFSZ, SIGCHLD, SIGUSR1, SIGUSR2};
    for (size_t i = 0; i < sizeof reset / sizeof *reset; i++)
        signal(reset[i], SIG_DFL);
    sigset_t none;
    sigemptyset(&none);
    sigprocmask(SIG_SETMASK, &none, NULL);
    if (place_fds(options) == 0 && (!options->folder || chdir(options->folder) == 0)) {
        union {
            const char *const *given;
            char *const *argv;
        } arguments = {.given = options->argv}; /* exec takes them without const, and does not write */
        environ = environment;                  /* the program is looked up in the PATH that it gets */
        execvp(arguments.argv[0], arguments.argv);
    }
    int failure = errno;
    ssize_t written = write(report_fd, &failure, sizeof failure);
    _exit(written == sizeof failure ? 126 : 127);
}

/* Waits for exec: 0, or the errno of what failed in the child. */
static int await_exec(int report_fd)
{
    int failure = 0;
    ssize_t got;
    do
        got = read(report_fd, &failure, sizeof failure);
    while (got < 0 && errno == EINTR);
    return got == sizeof failure ? failure : 0;
}

int child_start(struct child *self, const struct child_options *options, struct cb_err *err)
{
    char **environment = make_environment(options);
    if (!environment)
        return alloc_fail(err, "to start %s", options->argv[0]);
    int report[2];
    if (pipe2(report, O_CLOEXEC) < 0) {
        free(environment);
        return cb_fail_errno(err, errno, "starting %s", options->argv[0]);
    }
    sigset_t all, before;
    sigfillset(&all);
    pthread_sigmask(SIG_SETMASK, &all, &before);
    pid_t parent = getpid();
    pid_t pid = fork();
    if (pid == 0)
        become_child(options, environment, parent, report[1]);
    int failure = pid < 0 ? errno : 0;
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    close(report[1]);
    free(environment);
    if (pid > 0) {
        if (!options->in_foreground)
            setpgid(pid, pid); /* parent and child both call it, in either order; after the exec it fails harmlessly */
        failure = await_exec(report[0]);
        if (failure)
            waitpid(pid, NULL, 0);
    }
    close(report[0]);
    if (failure)
        return cb_fail_errno(err, failure, "starting %s", options->argv[0]);
    *self = (struct child){.pid = pid};
    return 0;
}

/* Reaps the child if it has ended, after killing the rest of its group: until it is reaped, its process number cannot
 * be reused. */
static void reap(struct child *self, int flags)
{
    siginfo_t info = {0};
    if (waitid(P_PID, (id_t)self->pid, &info, WEXITED | WNOWAIT | flags) < 0 || info.si_pid == 0)
        return;
    kill(-self->pid, SIGKILL);
    if (waitpid(self->pid, &self->status, 0) == self->pid)
        self->exited = true;
}

int child_wait(struct child *self, uint64_t deadline_ns, struct cb_err *err)
{
    uint64_t pause_ns = FIRST_POLL_NS;
    while (self->pid && !self->exited) {
        reap(self, deadline_ns == UINT64_MAX ? 0 : WNOHANG);
        if (self->exited)
            break;
        uint64_t now_ns = clock_monotonic_ns();
        if (now_ns >= deadline_ns)
            return cb_fail(err, CB_ERR_TIMEOUT, "process %d is still running", (int)self->pid);
        if (deadline_ns == UINT64_MAX)
            continue;
        clock_sleep_ns(pause_ns < deadline_ns - now_ns ? pause_ns : deadline_ns - now_ns);
        pause_ns = pause_ns * 2 < LONGEST_POLL_NS ? pause_ns * 2 : LONGEST_POLL_NS;
    }
    return 0;
}

bool child_is_stopped(const struct child *self)
{
    siginfo_t info = {0};
    return self->pid && !self->exited && waitid(P_PID, (id_t)self->pid, &info, WSTOPPED | WNOHANG | WNOWAIT) == 0 &&
           info.si_pid != 0;
}

void child_end(struct child *self, uint64_t grace_ns)
{
    if (!self->pid || self->exited)
        return;
    if (grace_ns) {
        kill(-self->pid, SIGTERM);
        kill(-self->pid, SIGCONT); /* a stopped process would not receive the signal */
        if (child_wait(self, clock_monotonic_ns() + grace_ns, NULL) == 0)
            return;
    }
    kill(-self->pid, SIGKILL);
    if (child_wait(self, clock_monotonic_ns() + CHILD_KILL_BOUND_NS, NULL) != 0)
        return; /* gives up: `exited` stays false */
}

char *child_describe(const struct child *self, char text[64])
{
    if (!self->exited) {
        snprintf(text, 64, "still running");
    } else if (WIFSIGNALED(self->status)) {
        const char *name = sigabbrev_np(WTERMSIG(self->status));
        snprintf(text, 64, "killed by signal %d (SIG%s)", WTERMSIG(self->status), name ? name : "?");
    } else {
        snprintf(text, 64, "exit status %d", WEXITSTATUS(self->status));
    }
    return text;
}

/* Finds the last non-empty line, in place. */
static const char *last_line(struct buf *text)
{
    while (text->len > 0 && (text->data[text->len - 1] == '\n' || text->data[text->len - 1] == '\r'))
        text->data[--text->len] = '\0';
    const char *feed = strrchr(text->data, '\n');
    return feed ? feed + 1 : text->data;
}

/* Keeps the end of a pipe's output: half of it is dropped when the maximum is near. */
static void append_tail(struct buf *text, const char *bytes, size_t len)
{
    if (text->len + len > STDERR_KEPT_BYTES) {
        size_t drop = text->len / 2;
        memmove(text->data, text->data + drop, text->len - drop);
        text->len -= drop;
    }
    buf_append(text, bytes, len);
}

int child_read_pipes(const int pipes[2], uint64_t deadline_ns, struct buf *out, struct buf *errors, bool tail)
{
    struct pollfd fds[2] = {{.fd = pipes[0], .events = POLLIN}, {.fd = pipes[1], .events = POLLIN}};
    int rc = 0;
    while (rc == 0 && (fds[0].fd >= 0 || fds[1].fd >= 0)) {
        uint64_t now_ns = clock_monotonic_ns();
        uint64_t left_ms = now_ns < deadline_ns ? (deadline_ns - now_ns) / NS_PER_MS + 1 : 0;
        if (left_ms == 0)
            rc = CB_ERR_TIMEOUT;
        else if (poll(fds, 2, left_ms < 1000 ? (int)left_ms : 1000) < 0)
            continue; /* EINTR */
        for (int i = 0; i < 2 && rc == 0; i++) {
            char chunk[16384];
            if (fds[i].fd < 0 || !fds[i].revents)
                continue;
            ssize_t got = read(fds[i].fd, chunk, sizeof chunk);
            if (got == 0 || (got < 0 && errno != EINTR))
                fds[i].fd = -1;
            else if (got > 0 && i == 1 && tail)
                append_tail(errors, chunk, (size_t)got);
            else if (got > 0)
                buf_append(i ? errors : out, chunk, (size_t)got);
            rc = i ? errors->code : out->code;
        }
    }
    close(pipes[0]);
    close(pipes[1]);
    return rc;
}

int child_start_piped(struct child *self, const struct child_options *options, int pipes[2], struct cb_err *err)
{
    int out[2], errors[2];
    if (pipe2(out, O_CLOEXEC) < 0)
        return cb_fail_errno(err, errno, "making a pipe");
    if (pipe2(errors, O_CLOEXEC) < 0) {
        int failure = errno;
        close(out[0]);
        close(out[1]);
        return cb_fail_errno(err, failure, "making a pipe");
    }
    struct child_options piped = *options;
    piped.stdout_fd = out[1];
    piped.stderr_fd = errors[1];
    int rc = child_start(self, &piped, err);
    close(out[1]); /* the child has its copies: while we hold ours, the pipes cannot end */
    close(errors[1]);
    pipes[0] = out[0];
    pipes[1] = errors[0];
    if (rc) {
        close(out[0]);
        close(errors[0]);
    }
    return rc;
}

int child_capture(const struct child_options *options, uint64_t timeout_ns, struct buf *out, struct cb_err *err)
{
    uint64_t deadline_ns = clock_monotonic_ns() + timeout_ns;
    struct child child = {0};
    struct buf errors;
    int pipes[2], rc = child_start_piped(&child, options, pipes, err);
    if (rc)
        return err ? cb_context(err, "running %s", options->argv[0]) : rc;
    buf_init(&errors, 2 * STDERR_KEPT_BYTES);
    rc = child_read_pipes(pipes, deadline_ns, out, &errors, true);
    if (rc == CB_ERR_TIMEOUT)
        rc = cb_fail(err, rc, "it did not end in time");
    else if (rc)
        rc = buf_check(out, options->argv[0], err);
    else
        rc = child_wait(&child, deadline_ns, err);
    child_end(&child, 0);
    if (!rc && child.status != 0) {
        char how[64];
        const char *line = last_line(&errors);
        rc = cb_fail(err, CB_ERR_SYSTEM, "%s: %s%s%s", options->argv[0], child_describe(&child, how), *line ? ": " : "",
                     line);
    } else if (rc && err) {
        cb_context(err, "running %s", options->argv[0]);
    }
    buf_release(&errors);
    return rc;
}
