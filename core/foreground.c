/* Runs a command in the foreground and passes signals on. */
#include "core/foreground.h"

#include <errno.h>
#include <signal.h>
#include <stddef.h>
#include <sys/wait.h>
#include <unistd.h>

#include "core/child.h"

static const int passed_on[] = {SIGINT, SIGTERM, SIGHUP, SIGQUIT, SIGUSR1, SIGUSR2};

static volatile sig_atomic_t command_pid, only_sender, asked_to_end; /* sender 0: anybody */

static void pass_on(int number, siginfo_t *info, void *context)
{
    int before = errno;
    (void)context;
    if (number == SIGINT || number == SIGTERM || number == SIGHUP)
        asked_to_end = 1;
    if (command_pid > 0 && info->si_code != SI_KERNEL && (!only_sender || info->si_pid == only_sender))
        kill((pid_t)command_pid, number);
    errno = before;
}

int foreground_run(const char *const *argv, const char *const *environment, bool from_parent, int *status,
                   struct cb_err *err)
{
    const struct child_options options = {.argv = argv,
                                          .environment = environment,
                                          .stdin_fd = STDIN_FILENO,
                                          .stdout_fd = -1,
                                          .stderr_fd = -1,
                                          .in_foreground = true};
    struct sigaction action = {.sa_sigaction = pass_on, .sa_flags = SA_SIGINFO | SA_RESTART};
    struct child command = {0};
    sigset_t all, before;
    only_sender = from_parent ? getppid() : 0;
    sigfillset(&all);
    sigemptyset(&action.sa_mask);
    signal(SIGCHLD, SIG_DFL);                /* one that we inherited as ignored would lose the status */
    sigprocmask(SIG_SETMASK, &all, &before); /* a signal in between waits until there is somebody to pass it to */
    for (size_t i = 0; i < sizeof passed_on / sizeof *passed_on; i++)
        sigaction(passed_on[i], &action, NULL);
    int rc = child_start(&command, &options, err);
    command_pid = rc ? 0 : command.pid;
    sigprocmask(SIG_SETMASK, &before, NULL);
    if (rc)
        return rc;
    while (waitpid(command.pid, status, 0) < 0 && errno == EINTR)
        ;
    command_pid = 0;
    return 0;
}

int foreground_exit_code(int status)
{
    return WIFSIGNALED(status) ? 128 + WTERMSIG(status) : WEXITSTATUS(status);
}

bool foreground_was_asked_to_end(void)
{
    return asked_to_end != 0;
}
