/* Child processes that cannot outlive us.
 *
 * A child gets its own process group and PR_SET_PDEATHSIG. Ending it signals the whole group, first with SIGTERM,
 * after the grace period with SIGKILL. When the first process of a group has ended, the rest of the group is killed.
 * Only the thread that started a child may wait for it. */
#ifndef CORE_CHILD_H
#define CORE_CHILD_H

#include <stdbool.h>
#include <stdint.h>
#include <sys/types.h>

#include "core/buf.h"
#include "core/err.h"

#define CHILD_KILL_BOUND_NS UINT64_C(2000000000)

struct child_options {
    const char *const *argv;                  /* NULL-terminated; argv[0] is looked up in PATH */
    const char *const *environment;           /* "NAME=value" added to ours, NULL-terminated; may be NULL */
    bool (*leaves_out)(const char *variable); /* whether to omit a variable of ours, "NAME=value"; NULL: keeps all */
    const char *folder;                       /* working folder, or NULL */
    int stdin_fd;                             /* -1 is /dev/null */
    int stdout_fd, stderr_fd;                 /* -1 inherits */
    bool in_foreground; /* keeps our process group, and with it the terminal; outlives us (core/foreground.h) */
    int death_signal;   /* signal that the child gets when the thread that started it dies; 0 is SIGTERM */
};

struct child {
    pid_t pid; /* also its process group; 0 when not running */
    bool exited;
    int status; /* as waitpid(2) gives it, once exited */
};

int child_start(struct child *self, const struct child_options *options, struct cb_err *err) CB_MUST_CHECK;

/* Waits until the child has ended or the monotonic deadline has passed (CB_ERR_TIMEOUT). UINT64_MAX waits for ever. */
int child_wait(struct child *self, uint64_t deadline_ns, struct cb_err *err) CB_MUST_CHECK;
/* Whether the child is stopped by a signal and has not been continued. */
bool child_is_stopped(const struct child *self);

/* Ends the whole group: SIGTERM, then SIGKILL after `grace_ns`; reaps. Does nothing if the child has ended or was
 * never started. A process that even SIGKILL does not end (stuck in the kernel) is given up after
 * CHILD_KILL_BOUND_NS; `exited` is then still false. */
void child_end(struct child *self, uint64_t grace_ns);

/* "exit status 3", "killed by signal 9 (SIGKILL)". `text` holds 64 bytes. */
char *child_describe(const struct child *self, char text[64]);

/* Starts a child with pipes as its stdout and stderr; pipes[0] and pipes[1] are the ends to read. */
int child_start_piped(struct child *self, const struct child_options *options, int pipes[2],
                      struct cb_err *err) CB_MUST_CHECK;
/* Reads both pipes until the child has closed them, then closes them. CB_ERR_TIMEOUT at the deadline, CB_ERR_MEMORY as
 * soon as a buffer is full; with `tail`, `errors` drops its start instead. */
int child_read_pipes(const int pipes[2], uint64_t deadline_ns, struct buf *out, struct buf *errors,
                     bool tail) CB_MUST_CHECK;

/* Runs to the end and captures stdout (at most out->max bytes). A non-zero status is an error that quotes the last
 * line of its stderr. */
int child_capture(const struct child_options *options, uint64_t timeout_ns, struct buf *out,
                  struct cb_err *err) CB_MUST_CHECK;

#endif
