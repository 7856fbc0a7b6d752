/* workload=watch: runs the user's command with hooks for its checkpoints, and reads what they saw. */
#ifndef AGENT_ATTEMPT_WATCH_COMMAND_H
#define AGENT_ATTEMPT_WATCH_COMMAND_H

#include <limits.h>

#include "agent/attempt/attempt.h"

/* Runs attempt->command in the foreground, or the shell command of command= as a child that ends with the run. Creates
 * the pages from what its processes reported, and decides the attempt. Fills pages, ranks and command_status. */
void watch_command_run(struct attempt *attempt);

/* "NAME=value" for the command: Python finds our hooks, and the hooks find `folder`. */
#define WATCH_VARIABLES 2
struct watch_environment {
    char texts[WATCH_VARIABLES][32768 + 64];
    const char *variables[WATCH_VARIABLES + 1]; /* NULL-terminated */
};
int watch_environment_make(struct watch_environment *self, const char *folder, struct cb_err *err) CB_MUST_CHECK;

/* The command's name without its arguments, which may hold secrets. */
const char *watch_command_name(const char *const *command);

/* "NAME ended with exit status 7", "NAME was killed by signal 9 (SIGKILL)"; "" for status 0. */
void watch_command_describe(const char *name, int status, char *text, size_t bytes);

#endif
