/* Tasks that join one watched run: the processes of `ckptbench watch --join` on one machine or on several that share the
 * run's folder.
 *
 * While its command runs, a task shares the lock of the run's folder, and nobody takes the attempt for dead. A file of its
 * own in ATTEMPT/watch says when its command began and how it ended; from these files the last task to end, or `collect`,
 * seals the attempt (agent/attempt/seal_lines.h). */
#ifndef AGENT_ATTEMPT_WATCH_JOIN_H
#define AGENT_ATTEMPT_WATCH_JOIN_H

#include <stdint.h>

#include "core/err.h"

/* Runs the command in the foreground as a task of the run. The first task creates the attempt. `tasks` is how many there
 * will be, 0 if unknown. *status is how the command ended, as waitpid(2) gives it; -1 if the run could not be
 * joined and nothing was started, CB_ERR_EXISTS if it is sealed; exit status 127 if the command could not be started. */
int watch_join(const char *run_folder, uint32_t tasks, const char *const *command, int *status,
               struct cb_err *err) CB_MUST_CHECK;

#endif
