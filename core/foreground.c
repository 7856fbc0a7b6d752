/* Runs a command in the foreground and passes signals on. */
#include "core/foreground.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <sys/time.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "core/child.h"
#include "core/clock.h"

#define GROUP_NS NS_PER_S /* a signal to a whole group reaches two of its processes within this time */

static const int passed_on[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

static volatile sig_atomic_t command_pid, only_sender, asked_to_end; /* sender 0: anybody */
static volatile sig_atomic_t limit_passed;                           /* how often; the second time kills */
static volatile uint64_t own_ns[NSIG]; /* when a signal came from another process than only_sender */

static uint64_t now_in_handler(void)
{
    struct timespec now; /* clock_gettime is async-signal-safe */
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (uint64_t)now.tv_sec * NS_PER_S + (uint64_t)now.tv_nsec;
}

/* Whether the command must get a signal of ours. What our parent passes on right after we got the same signal from
 * somebody else was sent to the whole group, of which the command is a member: *is_copy. */
static bool is_to_be_passed_on(int number, const siginfo_t *info, bool *is_copy)
{
    if (info->si_code == SI_KERNEL)
        return false;
    if (only_sender && info->si_pid != only_sender) {
        own_ns[number] = now_in_handler();
        return false;
    }
    bool is_of_group = only_sender && own_ns[number] && now_in_handler() - own_ns[number] < GROUP_NS;
    own_ns[number] = 0;
    *is_copy = is_of_group;
    return !is_of_group;
}

static void pass_on(int number, siginfo_t *info, void *context)
{
    int before = errno;
    (void)context;
    bool is_copy = false, passes = is_to_be_passed_on(number, info, &is_copy);
    if (!is_copy && (number == SIGINT || number == SIGTERM || number == SIGHUP))
        asked_to_end = asked_to_end + 1;
    if (command_pid > 0 && passes)
        kill((pid_t)command_pid, number);
    errno = before;
}

static void end_at_limit(int number)
{
    int before = errno;
    (void)number;
    if (command_pid > 0)
        kill((pid_t)command_pid, limit_passed ? SIGKILL : SIGTERM);
    limit_passed = 1;
    errno = before;
}

/* The timer rings at the limit, and then once more after each grace period. */
static void start_timer(uint64_t limit_ns)
{
    struct sigaction action = {.sa_handler = end_at_limit, .sa_flags = SA_RESTART};
    const struct itimerval timer = {
        .it_value = {.tv_sec = (time_t)(limit_ns / NS_PER_S),
                     .tv_usec = (suseconds_t)(limit_ns % NS_PER_S / NS_PER_US) + (limit_ns < NS_PER_US ? 1 : 0)},
        .it_interval = {.tv_sec = FOREGROUND_GRACE_NS / NS_PER_S}};
    if (limit_ns == 0)
        return;
    sigemptyset(&action.sa_mask);
    sigaction(SIGALRM, &action, NULL);
    setitimer(ITIMER_REAL, &timer, NULL);
}

void foreground_catch(bool from_parent)
{
    struct sigaction action = {.sa_sigaction = pass_on, .sa_flags = SA_SIGINFO | SA_RESTART};
    only_sender = from_parent ? getppid() : 0;
    sigemptyset(&action.sa_mask);
    for (size_t i = 0; i < sizeof passed_on / sizeof *passed_on; i++)
        sigaction(passed_on[i], &action, NULL);
}

int foreground_run(const char *const *argv, const char *const *environment, bool from_parent, uint64_t limit_ns,
                   int *status, struct cb_err *err)
{
    const struct child_options options = {.argv = argv,
                                          .environment = environment,
                                          .stdin_fd = STDIN_FILENO,
                                          .stdout_fd = -1,
                                          .stderr_fd = -1,
                                          .in_foreground = true};
    struct child command = {0};
    sigset_t all, before;
    sigfillset(&all);
    signal(SIGCHLD, SIG_DFL);                /* one that we inherited as ignored would lose the status */
    sigprocmask(SIG_SETMASK, &all, &before); /* a signal in between waits until there is somebody to pass it to */
    foreground_catch(from_parent);
    int rc = child_start(&command, &options, err);
    command_pid = rc ? 0 : command.pid;
    if (!rc)
        start_timer(limit_ns);
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (rc)
        return rc;
    while (waitpid(command.pid, status, 0) < 0 && errno == EINTR)
        ;
    command_pid = 0;
    setitimer(ITIMER_REAL, &(struct itimerval){0}, NULL);
    return 0;
}

int foreground_exit_code(int status)
{
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

int foreground_requests(void)
{
    return asked_to_end;
}

bool foreground_passed_limit(void)
{
    return limit_passed != 0;
}
