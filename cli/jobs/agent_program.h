/* Where ckptbench-agent is, and what it seals for others. */
#ifndef CLI_JOBS_AGENT_PROGRAM_H
#define CLI_JOBS_AGENT_PROGRAM_H

#include <limits.h>
#include <stdbool.h>

#include "core/err.h"
#include "run/run_folder.h"

/* The absolute path of ckptbench-agent next to this program, else in PATH. CB_ERR_NOT_FOUND, or CB_ERR_UNSUPPORTED if
 * it is of another release. An agent that cannot print its release is accepted: its libraries may exist only on the
 * nodes. */
int agent_program_find(char path[PATH_MAX], struct cb_err *err) CB_MUST_CHECK;

/* Has the agent seal the run's attempts of which processes have left lines (agent/attempt/seal_lines.h), the last one
 * also if some have not ended, with this outcome and reason (`why` NULL: it stays open then). Does nothing if the last
 * attempt has no lines. The caller holds the lock of the folder. */
int agent_program_seal(const char *folder, enum outcome outcome, const char *why, struct cb_err *err) CB_MUST_CHECK;
/* The same without a reason for a command that has just ended on this machine: the device's limit is measured. The agent
 * is in the foreground (core/foreground.h): signals end the measurement, and if we are killed it seals the run before it
 * lets go of the lock. */
int agent_program_seal_watched(const char *folder, int lock_fd, struct cb_err *err) CB_MUST_CHECK;

#endif
