/* Finds the agent that belongs to this program. */
#ifndef CLI_JOBS_AGENT_PROGRAM_H
#define CLI_JOBS_AGENT_PROGRAM_H

#include <limits.h>

#include "core/err.h"

/* The absolute path of ckptbench-agent beside this program, else in PATH. CB_ERR_NOT_FOUND, or CB_ERR_UNSUPPORTED if
 * it is of another release. An agent that cannot print its release is accepted: its libraries may exist only on the
 * nodes. */
int agent_program_find(char path[PATH_MAX], struct cb_err *err) CB_MUST_CHECK;

#endif
