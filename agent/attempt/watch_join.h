/* Tasks that join one watched run: the processes of `ckptbench watch --join` on one machine or on several that share the
 * run's folder, and who seals the attempt.
 *
 * Each task holds the lock of the run's folder shared while its command runs, and leaves two lines in a file of its own
 * in ATTEMPT/watch: when its command begins, and how it ended. So the attempt is not taken for dead meanwhile, and
 * whoever can lock the folder alone can tell from the lines whether all have ended. */
#ifndef AGENT_ATTEMPT_WATCH_JOIN_H
#define AGENT_ATTEMPT_WATCH_JOIN_H

#include <stdbool.h>
#include <stdint.h>

#include "core/err.h"

/* Runs the command in the foreground as a task of the run. The first task creates the attempt. `tasks` is how many there
 * will be, 0 if unknown. *status is how the command ended, as waitpid(2) gives it; -1 if the run could not be
 * joined and nothing was started, CB_ERR_EXISTS if it is sealed; exit status 127 if the command could not be started. */
int watch_join(const char *run_folder, uint32_t tasks, const char *const *command, int *status,
               struct cb_err *err) CB_MUST_CHECK;

/* Seals the last attempt if all of its tasks have ended and nobody has sealed it; *sealed says whether this call did.
 * `measures_limit`: this machine is the command's, which has just ended, so the device's limit is measured. The caller
 * holds the lock of the run's folder alone. */
int watch_join_seal(const char *run_folder, bool measures_limit, bool *sealed, struct cb_err *err) CB_MUST_CHECK;

/* Writes the records of the last attempt from the lines that processes left, for whoever seals it in place of an agent
 * that died. CB_ERR_NOT_FOUND if there are no lines, CB_ERR_EXISTS if there are records. */
int watch_recover(const char *run_folder, struct cb_err *err) CB_MUST_CHECK;

#endif
