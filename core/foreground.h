/* Runs a command in our place: it has our terminal, our process group and our standard streams.
 *
 * A signal that a program sends to us is passed on. A signal of the terminal has reached the command already, since
 * the terminal sends it to the whole process group. The command outlives us if we are killed. */
#ifndef CORE_FOREGROUND_H
#define CORE_FOREGROUND_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

#define FOREGROUND_GRACE_NS UINT64_C(30000000000) /* from SIGTERM at the limit to SIGKILL */

/* Runs argv (NULL-terminated, looked up in PATH) with `environment` ("NAME=value", NULL-terminated, may be NULL) before
 * our own variables, and waits for its end. With `from_parent` only signals of our parent are passed on: a parent that
 * runs us in the foreground passes on what it gets, and a signal to the whole process group must not arrive three
 * times. After limit_ns (0: never) the command gets SIGTERM, and SIGKILL if it continues. *status is as waitpid(2) gives
 * it. Changes the handlers of six signals, and with a limit uses SIGALRM, so one command at a time, and of one thread.
 * Fails if the command could not be started. */
int foreground_run(const char *const *argv, const char *const *environment, bool from_parent, uint64_t limit_ns,
                   int *status, struct cb_err *err) CB_MUST_CHECK;

/* How a shell would report the end: the exit status, or 128 + the number of the signal. */
int foreground_exit_code(int status);

/* Installs these handlers without a command: work that would otherwise be killed in between asks foreground_requests. */
void foreground_catch(bool from_parent);

/* How often a signal that asks to end (SIGINT, SIGTERM, SIGHUP) has arrived since foreground_run or foreground_catch was
 * called. The handlers stay after the command has ended, so that work that follows can ask. */
int foreground_requests(void);
/* Whether the command was ended because of limit_ns. */
bool foreground_passed_limit(void);

#endif
