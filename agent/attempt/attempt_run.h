/* Runs one attempt on this machine, from its folder to its seal.
 *
 * Always writes a manifest once the attempt's folder exists, and leaves no process behind. */
#ifndef AGENT_ATTEMPT_ATTEMPT_RUN_H
#define AGENT_ATTEMPT_ATTEMPT_RUN_H

#include <signal.h>

#include "core/err.h"
#include "run/run_folder.h"

/* Runs one attempt to its seal. *outcome and *code say how it ended; fails only if there is nothing to seal (no run
 * folder, no experiment). `command` is for workload=watch, and may be NULL; *command_status is how it ended, as
 * waitpid(2) gives it, or -1 if it was not started. */
int attempt_run(const char *run_folder, const char *const *command, int *command_status,
                const volatile sig_atomic_t *signals, const volatile sig_atomic_t *time_is_up, enum outcome *outcome,
                int *code, struct cb_err *err) CB_MUST_CHECK;

#endif
